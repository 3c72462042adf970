#pragma once

#include <ATen/core/Generator.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddc/gauge/action.h"
#include "ddc/optim/muon.h"
#include "ddc/testbeds/testbed.h"

// The two measurements that decide whether an optimizer respects a network's gauges: how far apart
// two copies get that are the same function, and how far the gauge coordinates drift.

namespace ddc::testbeds {

at::Generator generator(uint64_t seed);

/// Forward and backward pass; leaves the gradients in the parameters and returns the loss.
double backward(const Testbed& testbed, const Parameters& params, const Batch& batch);

/// max over tensors of |a - b| / |b| (Frobenius norms); NaN counts as infinite.
double relative_error(const Parameters& actual, const Parameters& expected);

/// Makes an optimizer of the parameters that binds the gauges, or does not.
using OptimizerMaker =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&, std::vector<Gauge>)>;
OptimizerMaker adamw(double lr, double weight_decay);
OptimizerMaker ddc_adam(const AdamOptions& options, const Treatments& treatments = {});

/// The parameters that Muon leaves to Adam besides vectors: token embeddings, positions, the class
/// token, the patch embedding's bias (stored as one row) and the unembedding.
std::vector<std::string> left_to_adam(const Parameters& params);
/// Plain Muon, and plain AdamW for the vectors and for what is left to Adam.
OptimizerMaker muon(const MuonOptions& options, const AdamOptions& adam = {});
OptimizerMaker ddc_muon(const MuonOptions& options, const AdamOptions& adam = {},
                        const Treatments& treatments = {});

/// Any rule, one's own among them.
template <class Rule>
OptimizerMaker lifted(const typename Rule::Options& options, const Treatments& treatments = {}) {
  return [=](const Parameters& params, std::vector<Gauge> gauges) {
    return std::make_unique<Lifted<Rule>>(params, std::move(gauges), options, treatments);
  };
}

struct PairedRun {
  uint64_t seed = 1;
  int64_t steps = 50;
  at::ScalarType type = at::kDouble;
  /// Size of the group element between the copies.
  double size = 0.5;
};

/// Trains two copies related by a random element of all the gauges, a new batch each step (the same
/// for both), each copy on gradients of its own. Returns how far they are from being related still.
double paired_error(const Testbed& testbed, const std::vector<Gauge>& gauges,
                    const OptimizerMaker& make, const PairedRun& run = {});

/// The same with an element of one's own.
double paired_error(const Testbed& testbed, const std::vector<Gauge>& gauges,
                    const std::vector<GroupElement>& element, const OptimizerMaker& make,
                    const PairedRun& run = {});

struct DriftRun {
  uint64_t seed = 42;
  int64_t steps = 4000;
  at::ScalarType type = at::kFloat;
};

struct Drift {
  std::vector<double> losses;
  double final_loss = 0;
  /// r(end) - r(start) per gauge; empty for a rotation, which has no coordinate.
  std::vector<at::Tensor> of_gauge;

  /// Largest drift of any channel of any gauge; NaN counts as infinite.
  double largest() const;
  /// Root of the mean square over all channels of all gauges.
  double root_mean_square() const;
};

/// Trains one copy and follows its gauge coordinates: those that the optimizer holds, if it binds
/// gauges, and as an observer sees them otherwise. `progress`, if given, is called with (steps done,
/// loss).
Drift drift(const Testbed& testbed, const Parameters& params, const std::vector<Gauge>& gauges,
            const OptimizerMaker& make, const DriftRun& run = {},
            const std::function<void(int64_t, double)>& progress = nullptr);

/// What the rotation and linear gauges among `gauges` turn, per block: [block, entries of all legs], in
/// float64. For a linear gauge at the point of its orbit where the Gram matrices of both sides are equal.
std::vector<at::Tensor> turned_parts(const std::vector<Gauge>& gauges, const Parameters& params);

/// The largest angle (Frobenius norm of the logarithm) of the rotations that take such parts nearest to
/// those of later; NaN counts as infinite.
double largest_turn(const std::vector<at::Tensor>& before, const std::vector<at::Tensor>& after);

/// How far weights were turned along the orbits of rotations, measured on the weights alone: between
/// consecutive iterates lies the rotation that takes the earlier one nearest to the later one (the
/// polar factor of the sum over legs of X_after X_before^T), and the product of those over all steps
/// is what has accumulated. A trajectory without orbit part has the identity there, up to the second
/// order of a step. X are the weights; for a linear gauge they are taken to where the Gram matrices
/// of both sides are equal.
struct RotationDrift {
  /// Angles, per gauge that turns something and per block: the Frobenius norm of the logarithm of the
  /// accumulated rotation, and of the largest that a single step made.
  std::vector<std::string> names;
  std::vector<at::Tensor> accumulated;
  std::vector<at::Tensor> largest_step;
  std::vector<double> losses;

  /// Largest angle of any block of any gauge; NaN counts as infinite.
  double most_accumulated() const;
  double most_in_a_step() const;
};

/// Trains one copy and measures the rotation and linear gauges among `gauges`, all of which are bound.
/// Weights are coordinates only where no other gauge changes the units of a leg: where a scale gauge
/// or a reading acts on one of the other axes of these tensors, what is measured is an angle still,
/// but not the one that a horizontal trajectory keeps at zero.
RotationDrift rotation_drift(const Testbed& testbed, const Parameters& params,
                             const std::vector<Gauge>& gauges, const OptimizerMaker& make,
                             const DriftRun& run = {});

}  // namespace ddc::testbeds
