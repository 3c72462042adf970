#pragma once

#include "ddc/optim/lifted_rule.h"
#include "ddc/optim/rules/sgd.h"
#include "ddc/optim/rules/shampoo.h"
#include "ddc/optim/rules/soap.h"

// SGD, Shampoo and SOAP that respect gauges: rules of optim/rules, lifted.
//
//     ddc::DDCSoap optimizer(params, gauges, {.settings = {.lr = 3e-3}, .weight_decay = 0.01});

namespace ddc {

struct SgdRule {
  static constexpr const char* name = "DDCSgd";
  using Settings = rules::SgdSettings;
  using State = rules::SgdMoments;

  template <class Visit>
  static void options(Settings& settings, Visit&& visit) {
    visit("lr", settings.lr);
    visit("momentum", settings.momentum);
    visit("dampening", settings.dampening);
    visit("nesterov", settings.nesterov);
  }
  template <class Visit>
  static void tensors(State& state, Visit&& visit) {
    visit("momentum_buffer", state.momentum_buffer);
  }
  static void validate(const Settings& settings);
  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Settings& settings);
  static void turn(State& state, const BlockMap& map, const at::Tensor& basis);
};
using DDCSgd = Lifted<SgdRule>;

struct ShampooRule {
  static constexpr const char* name = "DDCShampoo";
  using Settings = rules::ShampooSettings;
  using State = rules::ShampooMoments;

  template <class Visit>
  static void options(Settings& settings, Visit&& visit) {
    visit("lr", settings.lr);
    visit("beta1", settings.beta1);
    visit("beta2", settings.beta2);
    visit("eps", settings.eps);
    visit("max_dim", settings.max_dim);
    visit("precondition_every", settings.precondition_every);
  }
  template <class Visit>
  static void tensors(State& state, Visit&& visit) {
    visit("exp_avg", state.exp_avg);
    visit("left", state.left);
    visit("right", state.right);
    visit("diagonal", state.diagonal);
    visit("left_root", state.left_root);
    visit("right_root", state.right_root);
    visit("unit", state.unit);
    visit("root_unit", state.root_unit);
    visit("root_norm", state.root_norm);
  }
  static void validate(const Settings& settings);
  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Settings& settings);
};
using DDCShampoo = Lifted<ShampooRule>;

struct SoapRule {
  static constexpr const char* name = "DDCSoap";
  using Settings = rules::SoapSettings;
  using State = rules::SoapMoments;

  template <class Visit>
  static void options(Settings& settings, Visit&& visit) {
    visit("lr", settings.lr);
    visit("beta1", settings.beta1);
    visit("beta2", settings.beta2);
    // A number in checkpoints: where none is given the factors' is beta2.
    double shampoo_beta = settings.shampoo_beta.value_or(settings.beta2);
    visit("shampoo_beta", shampoo_beta);
    settings.shampoo_beta = shampoo_beta;
    visit("eps", settings.eps);
    visit("max_dim", settings.max_dim);
    visit("precondition_every", settings.precondition_every);
    visit("precondition_vectors", settings.precondition_vectors);
  }
  template <class Visit>
  static void tensors(State& state, Visit&& visit) {
    visit("exp_avg", state.exp_avg);
    visit("exp_avg_sq", state.exp_avg_sq);
    visit("left", state.left);
    visit("right", state.right);
    visit("left_basis", state.left_basis);
    visit("right_basis", state.right_basis);
    visit("left_values", state.left_values);
    visit("right_values", state.right_values);
    visit("unit", state.unit);
  }
  static void validate(const Settings& settings);
  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Settings& settings);
};
using DDCSoap = Lifted<SoapRule>;

}  // namespace ddc
