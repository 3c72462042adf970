#include "ddc/testbeds/teacher_student.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ddc/gauge/norm.h"
#include "ddc/gauge/rescale.h"
#include "draw.h"
#include "layers.h"
#include "options.h"

namespace ddc::testbeds {
namespace {

/// Everything but the gauges. `draw` fills in the weights, of the student or of the teacher.
template <typename Options, typename Draw>
Testbed teacher_student(const Options& options, Draw draw, decltype(Testbed::traced) network) {
  check_positive("d_in", options.d_in);
  check_positive("d_out", options.d_out);
  check_positive("samples", options.samples);
  Testbed bed;
  set_network(bed, std::move(network));
  bed.init = [=](uint64_t seed, at::ScalarType dtype) {
    Initializer student(seed, dtype);
    draw(student, options.student_scale);
    return student.parameters();
  };
  bed.batch = [=, outputs = bed.outputs](uint64_t /*seed*/, at::ScalarType dtype) {
    Initializer teacher(options.data_seed, at::kDouble, Stream::teacher);
    draw(teacher, options.teacher_scale);
    return teach(outputs, teacher.parameters(), options.samples, options.d_in,
                 generator(options.data_seed, Stream::batch), dtype);
  };
  bed.full_batch = true;
  set_criterion(bed, mean_squared_error);
  return bed;
}

double log_norm(const at::Tensor& weight) {
  return std::log(weight.detach().to(at::kDouble).norm().item<double>());
}

}  // namespace

Testbed relu_teacher_student(const ReluTeacherStudentOptions& options) {
  check_positive("d_hidden", options.d_hidden);
  auto bed = teacher_student(
      options,
      [options](Initializer& weights, double scale) {
        weights.add("layers.0.weight", {options.d_hidden, options.d_in}, scale);
        weights.add("layers.1.weight", {options.d_out, options.d_hidden}, scale);
      },
      [](const Parameters& params, const at::Tensor& inputs, const Trace& trace) {
        return relu_stack(params, /*depth=*/2, /*degree=*/1, inputs, trace);
      });
  bed.name = "relu teacher-student";
  bed.gauges = [options](const Parameters& params) {
    return chained_rescale({.weights = {params["layers.0.weight"], params["layers.1.weight"]},
                            .whole = !options.per_channel});
  };
  bed.observe = [](const Parameters& params) -> Observations {
    return {{"ratio", log_norm(params["layers.0.weight"].tensor) -
                          log_norm(params["layers.1.weight"].tensor)}};
  };
  return bed;
}

Testbed norm_teacher_student(const NormTeacherStudentOptions& options) {
  auto bed = teacher_student(
      options,
      [options](Initializer& weights, double scale) {
        weights.add("norm.weight", {options.d_in}, options.gain_spread, /*mean=*/1);
        weights.add("readout.weight", {options.d_out, options.d_in}, scale);
      },
      [](const Parameters& params, const at::Tensor& inputs, const Trace& trace) {
        const auto normed = layer_norm(params, "norm", inputs);
        if (trace) trace("stream", normed);
        return linear(params, "readout", normed);
      });
  bed.name = "norm teacher-student";
  bed.gauges = [](const Parameters& params) {
    return std::vector<Gauge>{
        norm_scale({.gain = params["norm.weight"], .readers = {params["readout.weight"]}})};
  };
  bed.observe = [](const Parameters& params) -> Observations {
    const auto mode = params["norm.weight"].tensor.detach().to(at::kDouble).abs().log() -
                      params["readout.weight"].tensor.detach().to(at::kDouble).norm(2, 0).log();
    return {{"ratio_norm", mode.norm().item<double>()},
            {"ratio_max", mode.abs().max().item<double>()}};
  };
  return bed;
}

}  // namespace ddc::testbeds
