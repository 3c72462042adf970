// The GPT-J block against a reference that shares no code with it: loops over numbers, written from
// the definition, so that a wrong pairing, a wrong frequency or a second norm shows.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ddc/testbeds/blocks.h"

namespace ddc::testbeds {
namespace {

using Vector = std::vector<double>;

class Reference {
 public:
  Reference(const Parameters& params, int64_t heads, int64_t rotary_size)
      : params_(params), heads_(heads), rotary_size_(rotary_size) {}

  /// The logits at every position of one sequence.
  std::vector<Vector> operator()(const std::vector<int64_t>& tokens, int64_t layers) const {
    std::vector<Vector> x;
    for (const auto token : tokens) {
      const auto row = params_["embedding.weight"].tensor[token].contiguous();
      x.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel());
    }
    for (int64_t l = 0; l < layers; ++l) {
      const auto layer = "layers." + std::to_string(l) + ".";
      std::vector<Vector> read;
      for (const auto& position : x) read.push_back(norm(layer + "norm", position));
      for (size_t t = 0; t < x.size(); ++t) {
        add_(x[t], attention(layer + "attention", read, t));
        auto hidden = linear(layer + "mlp.up", read[t]);
        for (auto& h : hidden) h = h > 0 ? h * h : 0;
        add_(x[t], linear(layer + "mlp.down", hidden));
      }
    }
    for (auto& position : x) position = linear("unembedding", norm("final_norm", position));
    return x;
  }

 private:
  double at(const std::string& name, int64_t i) const {
    return params_[name].tensor.const_data_ptr<double>()[i];
  }

  static void add_(Vector& x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Vector linear(const std::string& name, const Vector& x) const {
    const auto rows = params_[name + ".weight"].tensor.size(0);
    Vector y;
    for (int64_t r = 0; r < rows; ++r) {
      double sum = params_.contains(name + ".bias") ? at(name + ".bias", r) : 0;
      for (size_t i = 0; i < x.size(); ++i) sum += at(name + ".weight", r * x.size() + i) * x[i];
      y.push_back(sum);
    }
    return y;
  }

  Vector norm(const std::string& name, const Vector& x) const {
    const auto size = static_cast<double>(x.size());
    double mean = 0;
    double variance = 0;
    for (const double value : x) mean += value / size;
    for (const double value : x) variance += (value - mean) * (value - mean) / size;
    Vector y;
    for (size_t i = 0; i < x.size(); ++i) {
      y.push_back((x[i] - mean) / std::sqrt(variance + 1e-5) * at(name + ".weight", i) +
                  at(name + ".bias", i));
    }
    return y;
  }

  /// Coordinates (0, 1), (2, 3), ... of each head, up to the rotary size.
  Vector turned(Vector x, size_t position) const {
    const int64_t head_size = static_cast<int64_t>(x.size()) / heads_;
    for (int64_t h = 0; h < heads_; ++h) {
      for (int64_t i = 0; i < rotary_size_; i += 2) {
        const double angle = static_cast<double>(position) *
                             std::pow(10000., -static_cast<double>(i) / rotary_size_);
        double& a = x[h * head_size + i];
        double& b = x[h * head_size + i + 1];
        const Vector old{a, b};
        a = std::cos(angle) * old[0] - std::sin(angle) * old[1];
        b = std::sin(angle) * old[0] + std::cos(angle) * old[1];
      }
    }
    return x;
  }

  Vector attention(const std::string& name, const std::vector<Vector>& x, size_t t) const {
    const auto query = turned(linear(name + ".query", x[t]), t);
    const auto head_size = query.size() / heads_;
    Vector mixed(query.size(), 0);
    for (int64_t h = 0; h < heads_; ++h) {
      Vector weights;
      double total = 0;
      for (size_t s = 0; s <= t; ++s) {
        const auto key = turned(linear(name + ".key", x[s]), s);
        double score = 0;
        for (size_t i = h * head_size; i < (h + 1) * head_size; ++i) score += query[i] * key[i];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(head_size))));
        total += weights.back();
      }
      for (size_t s = 0; s <= t; ++s) {
        const auto value = linear(name + ".value", x[s]);
        for (size_t i = h * head_size; i < (h + 1) * head_size; ++i) {
          mixed[i] += weights[s] / total * value[i];
        }
      }
    }
    return linear(name + ".output", mixed);
  }

  const Parameters& params_;
  int64_t heads_;
  int64_t rotary_size_;
};

void expect_reference(std::optional<int64_t> rotary_size) {
  const auto bed = gpt_j_block({.rotary_size = rotary_size, .batch_size = 2, .layers = 2});
  const auto params = bed.init(1, at::kDouble);
  const auto tokens = bed.batch(2, at::kDouble).inputs;
  const at::NoGradGuard no_grad;
  const auto logits = bed.outputs(params, tokens).contiguous();
  const Reference reference(params, /*heads=*/2, rotary_size.value_or(8));
  const auto* expected_from = tokens.const_data_ptr<int64_t>();
  const auto* actual = logits.const_data_ptr<double>();
  for (int64_t b = 0; b < 2; ++b) {
    const auto expected = reference({expected_from + b * 6, expected_from + (b + 1) * 6}, 2);
    for (const auto& position : expected) {
      for (const double logit : position) EXPECT_NEAR(*actual++, logit, 1e-12);
    }
  }
}

TEST(GptJBlock, AgreesWithASlowReference) { expect_reference(4); }
TEST(GptJBlock, AgreesWithASlowReferenceIfAllCoordinatesTurn) { expect_reference(std::nullopt); }

}  // namespace
}  // namespace ddc::testbeds
