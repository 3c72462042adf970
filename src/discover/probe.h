#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/gauge/action.h"
#include "ddc/parameters.h"
#include "noise.h"
#include "restore.h"

namespace ddc {

/// One axis of one parameter; of what may be a stack of matrices also the pairs of its first axis and
/// another.
struct Slot {
  size_t tensor;  ///< index into the table
  int64_t axis;
  int64_t size;  ///< of all pairs
  bool stacked = false;
};

/// Root of the mean square of all entries.
double root_mean_square(const at::Tensor& values);

/// Gradients of a model at a generic point, and what discovery reads off them.
///
/// A symmetry holds wherever the parameters are, but where a bias is zero or a gain is one by
/// initialisation, much vanishes that is no symmetry. So the parameters are moved by random numbers of
/// a quarter of their size while the probe lives, differently for every batch (some tasks have but one
/// batch), and are back, bit for bit, after it. Matrices that are small for their width are enlarged:
/// attention scores of 1e-4 hide what depends on them. Those whose outputs are large or small beside the
/// bias that is added to them (inputs of 0 to 255, or of 0.001) are made to fit it.
class Probe {
 public:
  Probe(const Parameters& params, Evaluate evaluate, uint64_t seed);
  /// A probe of some of the parameters, which takes them back to where they were before this one moved them.
  Probe of_part(const Parameters& part) const;
  /// Makes the outputs of matrices comparable with the biases that are added to them.
  void balance();

  const Parameters& params() const { return params_; }
  const NamedTensor& parameter(size_t k) const { return *(params_.begin() + k); }
  const std::vector<Slot>& slots() const { return slots_; }
  const Evaluate& evaluate() const { return evaluate_; }

  /// More than a million parameters: charges of many batches would need much room.
  bool is_large() const { return entries_ > 1000000; }
  bool is_small() const { return entries_ < 50000; }
  /// Charges of candidates are computed on so many batches. Of a large model one has so many channels that it
  /// tells, and the gate judges in any case.
  int64_t charge_batches() const { return is_large() ? 1 : 3; }
  /// Precision of the parameters' type: the coarsest if there are several.
  double epsilon() const { return epsilon_; }
  /// A charge relative to its terms below this is zero: what gradients of deep networks lose to
  /// rounding, with a margin.
  double zero() const;

  /// Moves the parameters to the point that belongs to a batch.
  void move_to(uint64_t batch) const;
  /// That point, as long as this probe lives and is not balanced again.
  ValuesAt place(uint64_t batch) const;
  /// Gradients of a batch's loss at the point that belongs to it, as a table of the same names; zeros where the
  /// loss does not depend on a parameter.
  Parameters gradients(uint64_t batch) const { return gradients_of(params_, batch); }
  /// The same of other parameters of the model, which are where they are.
  Parameters gradients_of(const Parameters& others, uint64_t batch) const;

  /// Makes sure that the charges of at least so many batches are there.
  void draw(int64_t batches);
  int64_t batches() const { return static_cast<int64_t>(rms_.size()); }

  /// Per channel sum of weight times gradient, [batches, size]: the derivative of the loss by the log of
  /// a factor of the channel.
  at::Tensor scale_charge(size_t slot) const;
  /// The sum of the gradient along the slot's axis, [shift_batches, entries of the other axes]: the
  /// derivative by what is added to all of them.
  at::Tensor shift_charge(size_t slot) const;
  /// Number of batches for which shifts are kept: the first few only, for large models.
  int64_t shift_batches() const { return static_cast<int64_t>(shift_.size()); }
  /// The sum of the gradient's absolute values along the axis, as a root mean square over the rest.
  double shift_scale(size_t slot) const;
  /// The gradient of a tensor that is small enough to be kept, [batches, entries].
  at::Tensor small_gradient(size_t tensor) const;
  bool is_small(size_t tensor) const;
  /// The inner product of every tensor and its gradient, [batches, tensors].
  at::Tensor totals() const;
  /// Root of the mean square of the gradient over entries and batches, times the size of the entries: how
  /// much the loss depends on the tensor.
  double influence(size_t tensor) const;

  /// Calls `use` with the gradients of the first few batches, the parameters being where they belong.
  void each_batch(int64_t batches,
                  const std::function<void(const Parameters& gradients)>& use) const;
  /// Calls `use` with every gauge's number and its charge, for the first few batches, one after the
  /// other: charges of large blocks are not kept. The parameters are where they belong then.
  void each_charge(const std::vector<Gauge>& gauges, int64_t batches,
                   const std::function<void(size_t gauge, const Charge& charge)>& use) const;
  /// The largest charge of each gauge, relative to the largest of its terms.
  std::vector<double> relative_charges(const std::vector<Gauge>& gauges) const;

 private:
  Probe(const Parameters& params, Evaluate evaluate, uint64_t seed, Restore restore);
  /// A matrix, and the bias beside it: slots of equal size.
  struct Pair {
    size_t matrix;
    size_t bias;
  };
  std::vector<Pair> pairs() const;
  /// How large the entries of a tensor are where the probe goes.
  double size_of(size_t tensor) const;
  Noise noise_of(uint64_t batch) const;
  /// Writes what a tensor is where the probe goes with this noise.
  void write(size_t tensor, const Noise& noise, const at::Tensor& values) const;

  Parameters params_;
  Evaluate evaluate_;
  Restore restore_;
  uint64_t seed_;
  std::vector<Slot> slots_;
  double epsilon_ = 0;
  int64_t entries_ = 0;
  /// Where the entries of a tensor begin among those of all.
  std::vector<int64_t> first_entry_;
  std::unordered_map<std::string, size_t> index_;
  /// The typical entry of each tensor.
  std::vector<double> stored_;
  /// By what each tensor is multiplied.
  std::vector<double> growth_;
  /// Where the charges of a slot begin among those of all.
  std::vector<int64_t> scale_offset_;
  std::vector<int64_t> shift_offset_;
  std::vector<int64_t> small_offset_;
  /// Per batch, of all slots or tensors one after the other: many small tensors that live long, made
  /// between large ones that do not, would keep the memory of those.
  std::vector<at::Tensor> scale_;
  std::vector<at::Tensor> shift_;
  std::vector<at::Tensor> small_;
  std::vector<std::vector<double>> shift_scale_;
  std::vector<std::vector<double>> rms_;
};

}  // namespace ddc
