#include "ddc/testbeds/testbed.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace ddc::testbeds {

Evaluate evaluation_of(const Testbed& testbed, const Parameters& params) {
  return [testbed, params](uint64_t number) {
    const auto batch = testbed.batch(number, params.begin()->tensor.scalar_type());
    const auto outputs = testbed.outputs(params, batch.inputs);
    return Evaluation(testbed.criterion(outputs, batch.targets), outputs);
  };
}

double accuracy(const at::Tensor& outputs, const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  const auto answers =
      at::isFloatingType(targets.scalar_type()) ? outputs.sign() : outputs.argmax(-1);
  TORCH_CHECK(answers.sizes() == targets.sizes(), "accuracy: answers have shape ", answers.sizes(),
              ", targets ", targets.sizes());
  const auto right = answers.eq(targets).to(at::kDouble);
  return right.masked_select(targets != ignored_target).mean().item<double>();
}

}  // namespace ddc::testbeds
