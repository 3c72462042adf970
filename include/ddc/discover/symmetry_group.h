#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "ddc/gauge/action.h"
#include "ddc/gauge/gauge.h"

// Result of discovery: the symmetries of a model as a value, to print, to store beside a checkpoint
// and to hand to an optimizer.
//
//     const auto group = ddc::discover(params, evaluate);
//     std::cout << group;
//     group.save("model.symmetries.json");
//     ddc::DDCAdam optimizer(params, group.gauges(), options);

namespace ddc {

/// How far optimizers move a gauge coordinate over a few steps: the root of the mean square over
/// channels. For a rotation: the angle, in radians.
struct Engagement {
  double plain = 0;   ///< AdamW
  double lifted = 0;  ///< DDCAdam, with all gauges bound
  /// Whether AdamW moves it by more than rounding.
  bool engaged = false;
};

/// A gauge that was found and that passed the gate.
struct Finding {
  Gauge gauge;
  /// In the usual notation, see `group_name`.
  std::string group;
  int64_t dimension = 0;
  /// Residual that the gate measured, and the tolerance up to which it passes.
  double residual = 0;
  double tolerance = 0;
  std::optional<Engagement> engagement = {};
};

/// Candidate that looked like a gauge, or would be one in a similar model, and is none.
struct Refusal {
  std::string name;
  std::string kind;
  std::vector<std::string> tensors;
  double residual = 0;
  /// In words: "tied embedding", "GELU is not homogeneous", ...
  std::string reason;
};

/// How much of what the loss cannot see the gauges explain.
struct Completeness {
  /// "exact", "estimate after so many iterations", or "not counted: after so many iterations the bound is too
  /// loose".
  std::string method;
  int64_t parameters = 0;
  /// Dimension of the null space of the Jacobian over many batches; of an estimate, an upper bound.
  double kernel = 0;
  /// Dimension of the span of all orbits at these parameters. Overlaps count once.
  int64_t explained = 0;
  /// Directions of units that no batch activates, tokens that no batch holds: no structure of the
  /// model.
  int64_t dead = 0;
  /// kernel - explained - dead.
  double unexplained = 0;
  /// Where the unexplained directions are: the sum over them of what each has in a tensor, largest
  /// first. Sums to `unexplained`; empty if an estimate tells nothing.
  struct Share {
    std::string tensor;
    double dimensions = 0;
  };
  std::vector<Share> per_tensor = {};
  /// Ratio of the smallest singular value that counts to the largest that does not: how clear the cut
  /// is. Exact method only.
  double gap = 0;
};

/// Names and shapes of the parameters a group was found on.
struct Fingerprint {
  struct Entry {
    std::string name;
    std::vector<int64_t> shape;
    /// Role of the parameter in the network, where whoever made the group knew: "embedding", "output",
    /// "depthwise" (convolution), "table"; empty otherwise. Muon steps by it.
    std::string role = {};
    bool operator==(const Entry& other) const { return name == other.name && shape == other.shape; }
  };
  std::vector<Entry> entries;
  bool operator==(const Fingerprint&) const = default;
};
Fingerprint fingerprint(const Parameters& params);

/// The verified symmetries of a model.
struct SymmetryGroup {
  Fingerprint parameters;
  std::vector<Finding> findings;
  std::vector<Refusal> refusals;
  /// Residual of all gauges together, from the gate, and what would have been too much.
  double joint_residual = 0;
  double joint_tolerance = 0;
  std::optional<Completeness> completeness = {};
  /// Notes for the reader: tied parameters, units that are dead, parameters that are frozen.
  std::vector<std::string> notes;

  /// Gauges, as optimizers take them.
  std::vector<Gauge> gauges() const;
  /// The sum over gauges.
  int64_t dimension() const;

  /// Throws, naming the first difference, unless `params` has the names and shapes that the group was
  /// found on.
  void check(const Parameters& params) const;

  /// Moves the parameters along their orbit, in place, by an element drawn at random. The function
  /// stays what it is.
  void act_random_(const Parameters& params, double size, uint64_t seed) const;

  /// JSON, with everything above. `parse` throws on text that is not such a group, naming the field.
  std::string to_json() const;
  static SymmetryGroup parse(const std::string& json);
  /// Writes the file as a whole or not at all.
  void save(const std::string& path) const;
  static SymmetryGroup load(const std::string& path);
  /// The same, and checks that it fits `params`.
  static SymmetryGroup load(const std::string& path, const Parameters& params);
};

/// A table: gauge, group, dimension, tensors with exponents, residual, verdict; then what was refused,
/// completeness and notes.
std::ostream& operator<<(std::ostream& out, const SymmetryGroup& group);

}  // namespace ddc
