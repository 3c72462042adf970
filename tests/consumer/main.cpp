#include <ddc/version.h>

#include <iostream>

int main() { std::cout << "ddc " << ddc::kVersion << '\n'; }
