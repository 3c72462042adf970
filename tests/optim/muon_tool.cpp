// The C++ side of tests/python/test_muon_interop.py.
//   muon_tool <input> <output>   steps the parameter "param" of a safetensors file with ddc::Muon
//                                on the gradients "gradient.0", "gradient.1", ...; options are in
//                                its metadata. Writes "param.1", ... after each step, and
//                                "momentum_buffer".

#include <ATen/ATen.h>

#include <exception>
#include <iostream>
#include <string>

#include "ddc/io/safetensors.h"
#include "ddc/optim/muon.h"

namespace {

ddc::MuonOptions options_in(const ddc::io::TensorFile& file) {
  const auto number = [&](const char* key) { return std::stod(file.metadata.at(key)); };
  const auto scale = file.metadata.at("scale");
  return {.lr = number("lr"),
          .weight_decay = number("weight_decay"),
          .momentum = number("momentum"),
          .nesterov = file.metadata.at("nesterov") == "true",
          .method = ddc::PolarMethod::newton_schulz,
          .scale =
              scale == "original" ? ddc::UpdateScale::original : ddc::UpdateScale::match_rms_adamw};
}

void run(const char* input, const char* output) {
  const auto file = ddc::io::read_safetensors(input);
  const auto* start = file.find("param");
  TORCH_CHECK(start != nullptr, "there is no tensor 'param'");
  const auto param = start->clone().requires_grad_();
  ddc::Parameters params;
  params.add("param", param);
  ddc::Muon optimizer(params, {}, options_in(file));
  ddc::io::TensorFile result;
  for (int step = 0;; ++step) {
    const auto* gradient = file.find("gradient." + std::to_string(step));
    if (gradient == nullptr) break;
    param.mutable_grad() = *gradient;
    optimizer.step();
    result.tensors.emplace_back("param." + std::to_string(step + 1), param.detach().clone());
  }
  result.tensors.emplace_back("momentum_buffer",
                              optimizer.state_dict().tensors.at("param.param.momentum_buffer"));
  ddc::io::write_safetensors(output, result);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: muon_tool <input> <output>\n";
    return 2;
  }
  try {
    run(argv[1], argv[2]);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "unexpected: " << error.what() << "\n";
    return 3;
  }
  return 0;
}
