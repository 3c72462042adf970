// Steps parameters with an optimizer and a treatment that are named on the command line; the C++ side of
// tests/python/test_treatment_interop.py.
//
//   treatment_tool SYMMETRIES.json IN.safetensors OUT.safetensors RULE [OPTION=VALUE ...]
//
// IN has the parameters under their names and the gradients of step n under "n/NAME"; OUT gets the parameters.

#include <cstdio>

#include "ddc/discover/symmetry_group.h"
#include "ddc/io/safetensors.h"
#include "ddc/optim/registry.h"

int main(int count, char** arguments) try {
  TORCH_CHECK(count >= 5, "treatment_tool SYMMETRIES IN OUT RULE [OPTION=VALUE ...]");
  const auto symmetries = ddc::SymmetryGroup::load(arguments[1]);
  const auto file = ddc::io::read_safetensors(arguments[2]);
  // In the order of the model, which decides the last bit of sums over tensors.
  ddc::Parameters params;
  for (const auto& entry : symmetries.parameters.entries) {
    const auto* tensor = file.find(entry.name);
    TORCH_CHECK(tensor != nullptr, "no tensor ", entry.name);
    params.add(entry.name, tensor->clone().requires_grad_());
  }
  ddc::Treatment declared;
  const auto options = declared.options();
  ddc::Treatments treatments;
  for (int i = 5; i < count; ++i) {
    const std::string text = arguments[i];
    const auto equals = text.find('=');
    const auto* option = options.find(text.substr(0, equals));
    TORCH_CHECK(option != nullptr, "no option ", text);
    treatments.set(option->name(), option->parsed(text.substr(equals + 1)));
  }
  const auto& rule = ddc::registered_rule(arguments[4]);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(params.tensors(), rule.options());
  const auto optimizer = rule.make(groups, params, symmetries.gauges(), treatments);
  for (int step = 0;; ++step) {
    bool any = false;
    for (const auto& [name, tensor] : params) {
      const auto* gradient = file.find(std::to_string(step) + "/" + name);
      if (gradient == nullptr) continue;
      tensor.mutable_grad() = gradient->clone();
      any = true;
    }
    if (!any) break;
    optimizer->step();
  }
  ddc::io::TensorFile out;
  for (const auto& [name, tensor] : params) out.tensors.emplace_back(name, tensor.detach());
  ddc::io::write_safetensors(arguments[3], out);
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "treatment_tool: %s\n", error.what_without_backtrace());
  return 1;
}
