// The gauges of attention, proved from outside: a hand-written network that reads its projections from
// separate, fused and transposed tensors does not notice them, notices those that are nearly right, and
// is trained by DDCAdam as its image under all of them is.

#include "support/attention_network.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/tolerances.h"

namespace ddc::tests {
namespace {

constexpr auto none = Pairing::none;
constexpr auto halves = Pairing::half_split;
constexpr auto pairs = Pairing::interleaved;

using A = AttentionNetwork;
const std::vector<AttentionNetwork> networks{
    A{.name = "Separate"},
    A{.name = "SeparateGrouped", .heads = 4},
    A{.name = "SeparateConv1D", .layout = Layout::in_out},
    A{.name = "SeparateRotary", .pairing = halves, .turned = 4},
    A{.name = "SeparateGroupedPartial", .heads = 4, .head_size = 6, .pairing = pairs, .turned = 4},
    A{.name = "Stacked", .packing = Packing::stacked},
    A{.name = "StackedConv1D", .packing = Packing::stacked, .layout = Layout::in_out},
    A{.name = "StackedMultiQuery", .heads = 3, .kv_heads = 1, .packing = Packing::stacked},
    A{.name = "StackedGroupedRotary",
      .heads = 4,
      .packing = Packing::stacked,
      .pairing = pairs,
      .turned = 4},
    A{.name = "PerHead", .packing = Packing::per_head},
    A{.name = "PerHeadPartial",
      .head_size = 6,
      .packing = Packing::per_head,
      .pairing = halves,
      .turned = 4},
    A{.name = "PerHeadGroupedConv1DPartial",
      .heads = 4,
      .head_size = 6,
      .packing = Packing::per_head,
      .layout = Layout::in_out,
      .pairing = halves,
      .turned = 2}};

/// A network with weights and a batch.
struct Built {
  explicit Built(const AttentionNetwork& given) : network(given) {}

  /// By how much a random element changes the loss, relatively.
  double change(const Gauge& gauge, uint64_t seed = 1) const {
    const at::NoGradGuard no_grad;
    auto copy = params.clone();
    act_(gauge, random_element(gauge, params, 0.5, generator(seed)), copy);
    const double before = bed.loss(params, batch).item<double>();
    return std::abs(bed.loss(copy, batch).item<double>() - before) / before;
  }
  QueryKey qk() const { return network.query_key(params); }
  ValueOutput vo() const { return network.value_output(params); }

  const AttentionNetwork network;
  const Testbed bed = network.testbed();
  const Parameters params = bed.init(3, at::kDouble);
  const testbeds::Batch batch = bed.batch(5, at::kDouble);
};

/// Calls `test` with every network for which `has` something is true; there must be some.
void for_networks(const std::function<bool(const AttentionNetwork&)>& has,
                  const std::function<void(const Built&)>& test) {
  int count = 0;
  for (const auto& network : networks) {
    if (!has(network)) continue;
    SCOPED_TRACE(network.name);
    test(Built(network));
    ++count;
  }
  EXPECT_GE(count, 2);
}

bool any(const AttentionNetwork&) { return true; }
bool rotary(const AttentionNetwork& network) { return network.turned > 0; }
bool partial_halves(const AttentionNetwork& network) {
  return rotary(network) && network.turned < network.head_size && network.pairing == halves;
}

TEST(AttentionNetwork, DoesNotNoticeItsGauges) {
  for_networks(any, [](const Built& built) {
    auto gauges = built.bed.gauges(built.params);
    gauges.push_back(vo_scale(built.vo()));
    gauges.push_back(vo_rotation(built.vo()));
    if (!rotary(built.network)) gauges.push_back(qk_scale(built.qk()));
    if (built.network.turned < built.network.head_size) gauges.push_back(qk_rotation(built.qk()));
    for (const auto& gauge : gauges) {
      for (const uint64_t seed : {1, 2, 3}) {
        EXPECT_LE(built.change(gauge, seed), 1e-12) << gauge.kind;
      }
    }
  });
}

TEST(AttentionNetwork, NoticesAForgottenBias) {
  for_networks(any, [](const Built& built) {
    for (auto gauge : {qk_scale(built.qk()), vo_scale(built.vo()), vo_linear(built.vo())}) {
      std::erase_if(gauge.legs, [](const Leg& leg) { return leg.tensor.ends_with("bias"); });
      EXPECT_GE(built.change(gauge), 1e-4) << gauge.kind;
    }
  });
}

TEST(AttentionNetwork, NoticesAMissingSign) {
  for_networks(any, [](const Built& built) {
    auto gauge = vo_linear(built.vo());
    gauge.legs.back().exponent = 1;
    EXPECT_GE(built.change(gauge), 1e-4);
  });
}

TEST(AttentionNetwork, NoticesTheOtherPackingUnlessThereIsOneGroup) {
  const auto fused = [](const AttentionNetwork& network) { return network.fused(); };
  for_networks(fused, [](const Built& built) {
    auto qk = built.qk();
    auto vo = built.vo();
    qk.packing = vo.packing = qk.packing == Packing::stacked ? Packing::per_head : Packing::stacked;
    for (const auto& gauge : {qk_scale(qk), vo_scale(vo), vo_rotation(vo), vo_linear(vo)}) {
      const double change = built.change(gauge);
      if (built.network.kv_heads == 1) {
        EXPECT_LE(change, 1e-12) << gauge.kind;
      } else {
        EXPECT_GE(change, 1e-4) << gauge.kind;
      }
    }
  });
}

TEST(AttentionNetwork, NoticesTheOtherPairing) {
  const auto has_planes = [](const AttentionNetwork& network) { return network.turned >= 4; };
  for_networks(has_planes, [](const Built& built) {
    auto qk = built.qk();
    qk.pairing = qk.pairing == halves ? pairs : halves;
    EXPECT_GE(built.change(qk_scale(qk)), 1e-4);
    EXPECT_GE(built.change(qk_torus(qk)), 1e-4);
  });
}

TEST(AttentionNetwork, NoticesMatricesAndShiftsOfRotaryCoordinates) {
  for_networks(rotary, [](const Built& built) {
    auto qk = built.qk();
    qk.pairing = none;
    qk.rotary_size = {};
    EXPECT_GE(built.change(qk_linear(qk)), 1e-4);
    EXPECT_GE(built.change(qk_rotation(qk)), 1e-4);
    EXPECT_GE(built.change(key_bias_null(qk)), 1e-4);
  });
}

TEST(AttentionNetwork, NoticesHalvesWiderThanTheRotaryPart) {
  for_networks(partial_halves, [](const Built& built) {
    auto qk = built.qk();
    qk.rotary_size = {};
    EXPECT_GE(built.change(qk_scale(qk)), 1e-4);
    EXPECT_GE(built.change(qk_torus(qk)), 1e-4);
  });
}

const PairedRun run{.seed = 3, .steps = 20};

TEST(AttentionNetwork, IsTrainedAsItsImageByDDCAdamOnly) {
  for_networks(any, [](const Built& built) {
    const auto gauges = built.bed.gauges(built.params);
    EXPECT_LE(paired_error(built.bed, gauges, ddc_adam(), run), 1e-11);
    EXPECT_GE(paired_error(built.bed, gauges, adamw(), run), kPlainOptimizerError);
  });
}

TEST(AttentionNetwork, IsNotTrainedAsItsImageWithAnUnseenKeyBiasLeftUnbound) {
  // In float32, where the rounding of its gradient is not small beside Adam's eps.
  auto in_float = run;
  in_float.type = at::kFloat;
  for_networks(partial_halves, [&](const Built& built) {
    auto gauges = built.bed.gauges(built.params);
    EXPECT_LE(paired_error(built.bed, gauges, ddc_adam(), in_float),
              equivariance_tolerance(at::kFloat));
    std::erase_if(gauges, [](const Gauge& gauge) { return gauge.kind == "null shift"; });
    EXPECT_GE(paired_error(built.bed, gauges, ddc_adam(), in_float), 1e-4);
  });
}

}  // namespace
}  // namespace ddc::tests
