#include <ATen/ATen.h>

#include "ddc/experiments/catalogue.h"
#include "ddc/testbeds/diagonal_network.h"
#include "ddc/testbeds/modular_addition.h"
#include "ddc/testbeds/sparse_parity.h"
#include "ddc/testbeds/teacher_student.h"
#include "entries.h"
#include "find_entry.h"

namespace ddc::testbeds {
/// The paper's set-up: no equals sign, and the rotations of heads among the gauges.
struct GrokkingOptions : ModularAdditionOptions {
  GrokkingOptions() {
    equals_sign = false;
    gauges = GaugeSet::rotations;
  }
};

OptionList options_of(ReluTeacherStudentOptions& options) {
  return {{"d_in", options.d_in, "number of inputs"},
          {"d_hidden", options.d_hidden, "number of hidden units"},
          {"d_out", options.d_out, "number of outputs"},
          {"samples", options.samples, "number of samples"},
          {"teacher_scale", options.teacher_scale, "spread of the teacher's weights"},
          {"student_scale", options.student_scale, "spread of the student's weights at the start"},
          {"per_channel", options.per_channel, "a gauge channel per unit, not one for all"},
          {"data_seed", options.data_seed, "seed of teacher and samples"}};
}

OptionList options_of(NormTeacherStudentOptions& options) {
  return {{"d_in", options.d_in, "number of inputs"},
          {"d_out", options.d_out, "number of outputs"},
          {"samples", options.samples, "number of samples"},
          {"gain_spread", options.gain_spread, "spread of the gains about 1 at the start"},
          {"teacher_scale", options.teacher_scale, "spread of the teacher's weights"},
          {"student_scale", options.student_scale, "spread of the student's weights at the start"},
          {"data_seed", options.data_seed, "seed of teacher and samples"}};
}

OptionList options_of(DiagonalNetworkOptions& options) {
  return {{"dimension", options.dimension, "number of coordinates"},
          {"nonzeros", options.nonzeros, "number of coordinates that the target has"},
          {"samples", options.samples, "number of samples"},
          {"scale", options.scale, "sqrt(u v) at the start"},
          {"log_ratio_range", options.log_ratio_range, "range of log(u / v) at the start"},
          {"data_seed", options.data_seed, "seed of target and samples"}};
}

OptionList options_of(SparseParityOptions& options) {
  return {{"bits", options.bits, "number of input bits"},
          {"relevant", options.relevant, "of how many bits the parity is asked"},
          {"d_hidden", options.d_hidden, "number of hidden units"},
          {"gain_spread", options.gain_spread, "spread of the gains about 1 at the start"},
          {"bias_spread", options.bias_spread, "spread of the hidden biases at the start"},
          {"gain_is_offset", options.gain_is_offset, "store the gain as w and apply 1 + w"}};
}

OptionList options_of(ModularAdditionOptions& options) {
  return {{"modulus", options.modulus, "p of (a + b) mod p"},
          {"train_fraction", options.train_fraction, "share of the pairs to train on"},
          {"split_seed", options.split_seed, "which pairs are for training"},
          {"batch_size", options.batch_size, "training pairs per batch; 0: all"},
          {"d_model", options.d_model, "width of the residual stream"},
          {"heads", options.heads, "number of attention heads"},
          {"d_ff", options.d_ff, "number of hidden units"},
          {"layers", options.layers, "number of layers"},
          {"degree", options.degree, "1: ReLU, 2: squared ReLU"},
          {"equals_sign", options.equals_sign, "read the answer at an equals sign after a and b"},
          {"z_loss", options.z_loss, "weight of the mean square of logsumexp"},
          {"torch_init", options.torch_init, "weights start as torch.nn draws them"},
          {"gauge_set", options.gauges, "gauges of the network"}};
}

}  // namespace ddc::testbeds

namespace ddc::experiments {
namespace {

template <class Options, class Make>
TestbedEntry entry(const char* name, const char* description, Make make, Json recipe) {
  return {name, description, declared_settings<Options>(),
          [make](const Json& settings) { return make(options_from<Options>(settings)); },
          std::move(recipe)};
}

std::vector<TestbedEntry> make_entries() {
  using namespace testbeds;  // NOLINT: names of testbeds and their options only
  std::vector<TestbedEntry> entries = {
      entry<ReluTeacherStudentOptions>(
          "relu_teacher_student", "a two-layer ReLU network learns another one",
          relu_teacher_student, {{"lr", 5e-3}, {"weight_decay", 0.01}, {"steps", 4000}}),
      entry<NormTeacherStudentOptions>(
          "norm_teacher_student", "a LayerNorm and a readout learn another pair",
          norm_teacher_student, {{"lr", 1e-2}, {"weight_decay", 0.01}, {"steps", 4000}}),
      entry<DiagonalNetworkOptions>(
          "diagonal_network", "a diagonal linear network learns a sparse vector", diagonal_network,
          {{"lr", 5e-3}, {"weight_decay", 0.0}, {"steps", 4000}}),
      entry<SparseParityOptions>(
          "sparse_parity", "a ReLU layer with an inner LayerNorm learns a parity of bits",
          sparse_parity, {{"lr", 1e-3}, {"weight_decay", 2.0}, {"steps", 10000}}),
      entry<GrokkingOptions>(
          "modular_addition", "a one-block transformer groks (a + b) mod 113",
          [](const GrokkingOptions& options) { return modular_addition(options); },
          {{"lr", 1e-3}, {"weight_decay", 2.0}, {"steps", 15000}}),
      language_model_entry(),
      fashion_mnist_entry(),
      rope_grokking_entry(),
  };
  return entries;
}

}  // namespace

const std::vector<TestbedEntry>& testbed_entries() {
  static const auto entries = make_entries();
  return entries;
}

const TestbedEntry& testbed_entry(const std::string& name) {
  return find_entry("testbed", testbed_entries(), name);
}

}  // namespace ddc::experiments
