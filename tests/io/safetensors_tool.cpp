// The C++ side of tests/python/test_safetensors_interop.py.
//   safetensors_tool write <path>   saves a fixed set of tensors, which the test knows
//   safetensors_tool read <path>    prints what the file holds as JSON, data as hexadecimal bytes

#include <ATen/ATen.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "ddc/io/safetensors.h"

namespace {

ddc::io::TensorFile known_file() {
  ddc::io::TensorFile file;
  // Narrow and wide element types alternate, so that the layout of the data has work to do.
  file.tensors.emplace_back("bool", at::tensor({1, 0, 1}).to(at::kBool));
  file.tensors.emplace_back("f64", at::arange(6, at::kDouble).view({2, 3}) / 4);
  file.tensors.emplace_back("i8", at::arange(-2, 3, at::kChar));
  file.tensors.emplace_back("f32", at::tensor({-0.0F, 1.5F, std::numeric_limits<float>::infinity(),
                                               std::numeric_limits<float>::quiet_NaN(), 1e-40F}));
  file.tensors.emplace_back("f16", at::tensor({0.5F, -2.0F, 65504.0F}).to(at::kHalf));
  file.tensors.emplace_back("bf16", at::tensor({0.5F, -2.0F, 3.0e38F}).to(at::kBFloat16));
  file.tensors.emplace_back("u8", at::tensor({0, 127, 255}, at::kByte));
  file.tensors.emplace_back("i64", at::tensor({std::numeric_limits<int64_t>::min(), int64_t{-1},
                                               std::numeric_limits<int64_t>::max()}));
  file.tensors.emplace_back("i32", at::arange(4, at::kInt).view({1, 2, 2, 1}));
  file.tensors.emplace_back("i16", at::tensor({-32768, 32767}, at::kShort));
  file.tensors.emplace_back("scalar", at::scalar_tensor(2.5, at::kFloat));
  file.tensors.emplace_back("empty", at::empty({0, 3}, at::kFloat));
  file.tensors.emplace_back("transposed", at::arange(6, at::kInt).view({2, 3}).t());
  file.tensors.emplace_back("層 \"quoted\"", at::ones({1}).requires_grad_());
  file.metadata = {{"format", "pt"}, {"note", "a \"quote\", a \\, a\nline and ünïcode"}};
  return file;
}

std::string hexadecimal(const at::Tensor& tensor) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  std::string text;
  for (size_t i = 0; i < tensor.nbytes(); ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

void print(const ddc::io::TensorFile& file) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const auto& [name, tensor] : file.tensors) {
    tensors.push_back({{"name", name},
                       {"dtype", c10::toString(tensor.scalar_type())},
                       {"shape", tensor.sizes().vec()},
                       {"data", hexadecimal(tensor)}});
  }
  std::cout << nlohmann::json{{"metadata", file.metadata}, {"tensors", tensors}}.dump() << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view command = argc == 3 ? argv[1] : "";
  try {
    if (command == "write") {
      ddc::io::write_safetensors(argv[2], known_file());
    } else if (command == "read") {
      print(ddc::io::read_safetensors(argv[2]));
    } else {
      std::cerr << "usage: safetensors_tool write|read <path>\n";
      return 2;
    }
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "unexpected: " << error.what() << "\n";
    return 3;
  }
  return 0;
}
