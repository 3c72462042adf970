#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ddc/testbeds/testbed.h"

// Small networks whose group of symmetries is known: what discovery has to find, and what it must not.
//
// For each, `testbed.gauges(params)` is the largest group that gauges can describe. That it is one, and
// that nothing is missing, is tested against the null space of the Jacobian, which knows no gauge.

namespace ddc::testbeds {

/// Sizes of the networks. Each takes what it has a use for.
struct ZooShape {
  int64_t d_model = 8;
  int64_t heads = 2;
  int64_t d_ff = 6;
  int64_t layers = 1;
  int64_t sequence = 4;
  /// Where nothing but tokens embeds the inputs, fewer of them than `d_model` leave directions of the
  /// residual stream that no batch writes to: null, and no gauge.
  int64_t vocabulary = 11;
  int64_t batch_size = 8;
  /// Norms forget the scale of what they divide but for this. At the usual 1e-5 such scales are no
  /// symmetries either, and hard to tell from them.
  double norm_eps = 0.1;
};

/// A gauge that the network does not have, though it looks as if it might.
struct Refused {
  /// As its maker makes it.
  Gauge gauge;
  /// In words.
  std::string reason;

  /// The tensors of its legs, each once.
  std::vector<std::string> tensors() const;
};

struct ZooEntry {
  std::string name;
  std::string description;
  /// With all its gauges. Weights are generic: gains spread about 1, biases about 0.
  Testbed testbed;
  /// What a reader might expect, and is not there: the gauges of networks that differ in one respect.
  std::function<std::vector<Refused>(const Parameters& params)> refused;
  /// The loss sees log_softmax(outputs); else it sees the outputs.
  bool log_softmax = true;
  /// Null directions that no gauge can describe; the description says which.
  int64_t unexplained = 0;
  /// Parameters at which, in the default shape, no ReLU is dead.
  uint64_t seed = 1;
};

std::vector<ZooEntry> zoo(const ZooShape& shape = {});

/// The entry called `name`; an error that lists the names if there is none.
ZooEntry zoo_entry(const std::string& name, const ZooShape& shape = {});

}  // namespace ddc::testbeds
