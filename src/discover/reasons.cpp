#include "discover/reasons.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>

#include "ddc/discover/gate.h"
#include "discover/graph.h"

namespace ddc {
namespace {

using Words = std::set<std::string>;

/// What autograd calls an operation, and what people do.
struct Named {
  const char* operation;
  const char* word;
};
constexpr std::array kNotHomogeneous{Named{"Gelu", "GELU"},
                                     Named{"Silu", "SiLU"},
                                     Named{"Tanh", "tanh"},
                                     Named{"Sigmoid", "sigmoid"},
                                     Named{"Exp", "exp"},
                                     Named{"Softplus", "softplus"},
                                     Named{"Elu", "ELU"},
                                     Named{"Mish", "Mish"},
                                     Named{"Hardswish", "hard swish"},
                                     Named{"Hardsigmoid", "hard sigmoid"},
                                     Named{"Erf", "erf"},
                                     Named{"Sin", "sin"},
                                     Named{"Cos", "cos"},
                                     Named{"Hardtanh", "clamp"},
                                     Named{"Clamp", "clamp"},
                                     Named{"Softmax", "softmax"},
                                     Named{"LogSigmoid", "log sigmoid"}};
constexpr std::array kHomogeneous{Named{"Relu", "ReLU"}, Named{"LeakyRelu", "leaky ReLU"},
                                  Named{"Pow", "power"}, Named{"Mul", "product"},
                                  Named{"Abs", "absolute value"}};

bool has(const Words& words, std::initializer_list<const char*> any) {
  return std::any_of(any.begin(), any.end(), [&](const char* word) { return words.count(word); });
}

template <size_t N>
std::optional<std::string> word_of(const std::array<Named, N>& table, const Words& operations) {
  for (const auto& [operation, word] : table) {
    if (operations.count(operation) > 0) return word;
  }
  return std::nullopt;
}

bool is_attention(const Walk& walk) {
  return has(walk.later, {"Softmax"}) || std::any_of(walk.operations.begin(), walk.operations.end(),
                                                     [](const std::string& operation) {
                                                       return operation.rfind("ScaledDot", 0) == 0;
                                                     });
}

/// A norm that subtracts the mean, one that does not, in one piece or several.
bool subtracts_mean(const Words& operations) {
  return has(operations, {"NativeLayerNorm", "NativeGroupNorm"}) ||
         (has(operations, {"Rsqrt", "Sqrt"}) && has(operations, {"Sub", "Var", "Std"}));
}
bool normalises(const Words& operations) {
  const bool fused = std::any_of(operations.begin(), operations.end(), [](const auto& operation) {
    return operation.find("Norm") != std::string::npos;
  });
  return fused || (has(operations, {"Rsqrt", "Sqrt"}) && has(operations, {"Mean", "Sum", "Var"}));
}

std::string quoted(const std::string& name) {
  std::string result = "'";
  return result.append(name).append("'");
}

Words without(const Words& words, const Words& others) {
  Words result;
  std::set_difference(words.begin(), words.end(), others.begin(), others.end(),
                      std::inserter(result, result.end()));
  return result;
}

std::string list(const Words& names) {
  std::string result;
  for (const auto& name : names) result.append(result.empty() ? "" : ", ").append(quoted(name));
  return result;
}

/// A tensor that the gauge acts on where something is made, and what becomes of it.
struct Source {
  std::string name;
  Walk walk;

  std::string end() const {
    if (!walk.readers.empty()) return quoted(*walk.readers.begin());
    return walk.reaches_loss ? "the loss" : "what reads it";
  }
  /// Between it and what reads it; of queries and keys, up to the scores.
  Words between() const {
    Words result = walk.operations;
    if (!is_attention(walk)) result.insert(walk.later.begin(), walk.later.end());
    return result;
  }
};

struct Case {
  const Gauge& gauge;
  const Parameters& params;
  const Graph& graph;
  std::vector<Source> sources;
  /// All that the gauge acts on or looks through.
  Words tensors;

  bool is(Action action) const { return gauge.action == action; }
  bool looks_through_norms() const {
    return std::any_of(gauge.legs.begin(), gauge.legs.end(),
                       [](const Leg& leg) { return !leg.through.gain.empty(); });
  }
  /// A scale that all legs follow in the same sense.
  bool one_sided() const {
    const double first = gauge.legs.front().exponent;
    return std::all_of(gauge.legs.begin(), gauge.legs.end(),
                       [&](const Leg& leg) { return leg.exponent * first > 0; });
  }
};

using Answer = std::optional<std::string>;

Answer tied_embedding(const Case& at, const Source&) {
  const auto lookup = [](const std::string& use) {
    return use == "Embedding" || use.rfind("Index", 0) == 0 || use == "Gather";
  };
  for (const auto& leg : at.gauge.legs) {
    const auto uses = at.graph.uses(leg.tensor);
    if (std::any_of(uses.begin(), uses.end(), lookup) &&
        !std::all_of(uses.begin(), uses.end(), lookup)) {
      return "tied embedding: " + quoted(leg.tensor) +
             " is looked up as an embedding and multiplied as a matrix";
    }
  }
  return {};
}

/// What of a tensor goes into the loss by itself: a norm, a sum of squares or of absolute values.
Answer penalty(const Case& at, const Source&) {
  for (const auto& leg : at.gauge.legs) {
    const auto uses = at.graph.uses(leg.tensor);
    const auto found = std::find_if(uses.begin(), uses.end(), [](const std::string& use) {
      return use == "Pow" || use == "Abs" || use == "LinalgVectorNorm" || use == "Norm" ||
             use == "Dot";
    });
    if (found == uses.end() || uses.size() < 2) continue;
    return "a penalty in the loss sees the entries of " + quoted(leg.tensor) + " (" + *found +
           "): leave it to weight_decay";
  }
  return {};
}

/// A spectral norm: the tensor is divided by a product of itself with vectors.
Answer normalised_weight(const Case& at, const Source&) {
  for (const auto& leg : at.gauge.legs) {
    const auto uses = at.graph.uses(leg.tensor);
    const auto is = [&](const char* use) { return std::count(uses.begin(), uses.end(), use) > 0; };
    if (is("Div") && is("Mv")) {
      return quoted(leg.tensor) + " is divided by its spectral norm, which sees all its entries";
    }
  }
  return {};
}

/// A logsumexp of its own beside those of softmaxes, squared.
Answer z_loss(const Case& at, const Source& source) {
  if (!at.is(Action::shift) || !source.walk.reaches_loss) return {};
  const auto& operations = source.walk.operations;
  if (!has(operations, {"Logsumexp"}) || !has(operations, {"Pow", "Mul"})) return {};
  return "z-loss: the square of a logsumexp between " + quoted(source.name) +
         " and the loss sees a shift of all logits";
}

Answer soft_cap(const Case&, const Source& source) {
  if (!source.walk.reaches_loss || !has(source.walk.operations, {"Tanh"})) return {};
  return "soft cap: tanh between " + quoted(source.name) + " and the loss";
}

Answer shifted_loss(const Case& at, const Source& source) {
  if (!at.is(Action::shift) || !source.walk.reaches_loss) return {};
  const auto& operations = source.walk.operations;
  const auto where = " between " + quoted(source.name) + " and the loss";
  if (!has(operations, {"LogSoftmax", "Softmax", "Logsumexp"})) {
    return "no softmax" + where + ": it sees a shift of all outputs";
  }
  if (!has(operations, {"Pow", "Mul"})) return {};
  return "z-loss: the square of a logsumexp" + where + " sees a shift of all logits";
}

Answer mean_not_subtracted(const Case& at, const Source& source) {
  if (!at.is(Action::shift)) return {};
  const auto& gain = at.gauge.legs.front().through.gain;
  if (!gain.empty()) {
    auto norm = at.graph.before(gain);
    for (const auto& use : at.graph.uses(gain)) norm.insert(use);
    if (subtracts_mean(norm)) return {};
    return "the norm before " + quoted(source.name) +
           " is not a LayerNorm: it does not subtract the mean";
  }
  if (is_attention(source.walk)) return {};
  const auto& operations = source.walk.operations;
  if (!normalises(operations) || subtracts_mean(operations)) return {};
  return "the norm that reads " + quoted(source.name) +
         " is not a LayerNorm: it does not subtract the mean";
}

Answer residual_connection(const Case& at, const Source& source) {
  const bool two_sided = at.is(Action::scale) && !at.one_sided();
  const bool mixes = at.gauge.mixes() && !at.looks_through_norms();
  if (!source.walk.joins || !(two_sided || mixes || at.is(Action::exchange))) return {};
  return "a residual connection reads what " + quoted(source.name) + " makes as well";
}

/// Also through the gain of a norm.
bool leads_to_scores(const Case& at, const Source& source) {
  auto next = source.walk.readers;
  next.insert(source.walk.norms.begin(), source.walk.norms.end());
  return is_attention(source.walk) ||
         std::any_of(next.begin(), next.end(), [&](const std::string& name) {
           return at.params[name].tensor.dim() < 2 && is_attention(at.graph.walk(name));
         });
}

Answer norm_between(const Case& at, const Source& source) {
  if (at.is(Action::shift) ? !is_attention(source.walk) : at.looks_through_norms()) return {};
  if (!normalises(source.between())) return {};
  if (leads_to_scores(at, source)) {
    return "qk-norm: a norm between " + quoted(source.name) + " and the attention scores";
  }
  if (at.is(Action::scale) && at.one_sided()) {
    return "nearly one: a norm undoes the scale of " + quoted(source.name) + " up to its eps";
  }
  return "a norm between " + quoted(source.name) + " and " + source.end();
}

Answer rotary_embedding(const Case&, const Source& source) {
  const auto& operations = source.walk.operations;
  if (!is_attention(source.walk) || !has(operations, {"Mul", "Sub", "Add"}) ||
      !has(operations, {"Cat", "Stack", "Neg", "Roll", "ViewAsComplex"})) {
    return {};
  }
  return "rotary embedding between " + quoted(source.name) +
         " and the attention scores, which pairs coordinates and turns them";
}

Answer nonlinearity(const Case& at, const Source& source) {
  const auto between = source.between();
  // What a norm is made of is no activation.
  if (at.is(Action::shift) || normalises(between)) return {};
  const auto where = " between " + quoted(source.name) + " and " + source.end();
  if (const auto word = word_of(kNotHomogeneous, between))
    return *word + where + " is not homogeneous";
  if (at.is(Action::scale)) return {};
  const auto word = word_of(kHomogeneous, between);
  if (!word) return {};
  return *word + where + " acts on each coordinate by itself";
}

Answer left_out(const Case& at, const Source& source) {
  if (at.is(Action::shift)) return {};
  const auto added = without(source.walk.added, at.tensors);
  if (!at.is(Action::exchange) && !added.empty()) {
    return list(added) + " is added to what " + quoted(source.name) + " makes, and is left out";
  }
  if (is_attention(source.walk)) return {};
  auto readers = source.walk.readers;
  if (at.looks_through_norms()) {
    readers.insert(source.walk.norms.begin(), source.walk.norms.end());
  }
  const auto missing = without(readers, at.tensors);
  if (missing.empty()) return {};
  return list(missing) + " reads what " + quoted(source.name) + " makes, and is left out";
}

Answer used_twice(const Case& at, const Source&) {
  const auto& legs = at.gauge.legs;
  for (const auto& leg : legs) {
    const auto uses = at.graph.uses(leg.tensor).size();
    const auto count = std::count_if(legs.begin(), legs.end(),
                                     [&](const Leg& other) { return other.tensor == leg.tensor; });
    if (uses > static_cast<size_t>(count)) {
      return quoted(leg.tensor) + " is used " + std::to_string(uses) + " times";
    }
  }
  return {};
}

Answer degree(const Case& at, const Source& source) {
  if (!at.is(Action::scale)) return {};
  const auto word = word_of(kHomogeneous, source.between());
  if (!word) return {};
  return "the exponents do not fit the degree of what lies between " + quoted(source.name) +
         " and " + source.end() + " (" + *word + ")";
}

Answer other_blocks(const Case& at, const Source& source) {
  if (!at.gauge.mixes() || !has(source.walk.operations, {"Bmm", "Matmul"})) return {};
  return "what follows " + quoted(source.name) +
         " does not commute with the group: heads of another size?";
}

/// In the order in which they are asked; the first answer counts.
constexpr std::array kRules{penalty,           tied_embedding,
                            normalised_weight, z_loss,
                            soft_cap,          mean_not_subtracted,
                            shifted_loss,      residual_connection,
                            norm_between,      rotary_embedding,
                            nonlinearity,      left_out,
                            used_twice,        degree,
                            other_blocks};

std::vector<Source> sources(const Gauge& gauge, const Graph& graph) {
  std::vector<Source> all;
  Words read;
  for (const auto& leg : gauge.legs) {
    const auto& name = leg.tensor;
    const auto known = [&](const Source& source) { return source.name == name; };
    if (!graph.contains(name) || std::any_of(all.begin(), all.end(), known)) continue;
    all.push_back({name, graph.walk(name)});
    // What is read through the scores is read by no query or key.
    if (!is_attention(all.back().walk)) {
      read.insert(all.back().walk.readers.begin(), all.back().walk.readers.end());
    }
  }
  std::erase_if(all, [&](const Source& source) { return read.count(source.name) > 0; });
  if (!gauge.legs.front().through.gain.empty()) return all;
  std::erase_if(all, [&](const Source& source) {
    return std::any_of(gauge.legs.begin(), gauge.legs.end(), [&](const Leg& leg) {
      return leg.tensor == source.name && !leg.through.empty();
    });
  });
  return all;
}

std::string measured(const Gauge& gauge, const Parameters& params, const Evaluate& evaluate) {
  const auto verdict = gate(gauge, params, evaluate);
  std::ostringstream out;
  if (verdict.passed) {
    out << "it passes: nothing changes";
    return out.str();
  }
  out.precision(2);
  const bool outputs = verdict.worst == "outputs";
  out << (outputs ? "the outputs change by " : "the loss changes by ") << verdict.residual
      << " of what a random move does, where rounding allows " << verdict.tolerance;
  return out.str();
}

}  // namespace

std::string reason_of_failure(const Gauge& gauge, const Parameters& params,
                              const Evaluate& evaluate) {
  validate(gauge, params);
  TORCH_CHECK(evaluate, "reason_of_failure: `evaluate` is empty");
  const at::AutoGradMode enable_grad(true);
  const auto loss = evaluate(0).loss;
  const Graph graph(loss, params);
  Case at{gauge, params, graph, sources(gauge, graph), {}};
  for (const auto& leg : gauge.legs) {
    for (const auto& name : {leg.tensor, leg.through.gain, leg.through.shift, leg.through.bias}) {
      at.tensors.insert(name);
    }
  }
  for (const auto rule : kRules) {
    for (const auto& source : at.sources) {
      if (const auto answer = rule(at, source)) return *answer;
    }
  }
  return measured(gauge, params, evaluate);
}

}  // namespace ddc
