// The C++ side of tests/python/test_report.py.
//   report_tool <directory>   writes the reports on what is in it, and prints their paths

#include <exception>
#include <iostream>

#include "ddc/experiments/report.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: report_tool <directory>\n";
    return 2;
  }
  try {
    for (const auto& path : ddc::experiments::write_report(argv[1])) {
      std::cout << path.string() << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
