#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ddc/discover/symmetry_group.h"
#include "ddc/gauge/gauge.h"
#include "ddc/parameters.h"

namespace ddc {

/// Layers that are repeated: modules whose names differ in one number, with tensors of the same names and
/// shapes.
struct Stack {
  /// What comes before the number: "transformer.h.".
  std::string prefix;
  /// The numbers of all of them, in order.
  std::vector<int64_t> numbers;
  /// Those that are searched: the first three and the last.
  std::vector<int64_t> searched;
  /// Which layer of a twin each of them is like, if the twin has fewer.
  std::map<int64_t, int64_t> in_twin = {};

  /// The second has a layer like itself on both sides, and stands for those that are not searched.
  int64_t typical() const { return searched[1]; }
};

/// A gauge that nobody has looked for.
struct Proposal {
  Gauge gauge;
  /// Its pattern was found in the first or the last layer alone, and may be theirs alone.
  bool guess = false;
  /// Which of the gauges found it was made from.
  size_t source = 0;
};

/// What is searched of a model of repeated layers, and what that says about the others. All that is said by
/// analogy is for the gate to try: a wrong guess costs an evaluation.
class Stacks {
 public:
  /// Layers that are repeated at least so often are not all searched.
  static constexpr size_t least = 6;

  explicit Stacks(const Parameters& params);
  /// The stacks of which a twin, whose gauges are known, has fewer layers: its first ones and its last are the
  /// first ones and the last of the model, and were searched.
  Stacks(const Parameters& params, const Fingerprint& twin);
  /// The name of a tensor in the twin; a gauge of the twin under the names of the model.
  std::string in_twin(std::string name) const;
  Gauge from_twin(Gauge gauge) const;

  bool empty() const { return stacks_.empty(); }
  /// How many layers are searched, of how many.
  size_t searched() const;
  size_t layers() const;
  /// The parameters that are searched.
  Parameters searched_of(const Parameters& params) const;
  /// The gauge of one layer, and the same at the layers that it stands for.
  std::vector<Gauge> like(const Gauge& gauge) const;
  /// The gauge on all layers if it is on all that were searched, or the gauge as it is.
  Gauge on_all_layers(Gauge gauge) const;
  /// The gauges of single layers, or of two that follow one another, at the others.
  std::vector<Proposal> by_analogy(const std::vector<Gauge>& found) const;

 private:
  /// The outer ones first.
  std::vector<Stack> stacks_;
};

}  // namespace ddc
