#include "layers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>
#include <utility>

#include "draw.h"

namespace ddc::testbeds {
namespace {

constexpr double rotary_base = 10000;

/// [batch, time, heads * head_size] -> [batch, groups, heads / groups, time, head_size].
at::Tensor split_heads(const at::Tensor& x, int64_t heads, int64_t groups) {
  return x.view({x.size(0), x.size(1), groups, heads / groups, x.size(2) / heads})
      .permute({0, 2, 3, 1, 4});
}

struct Projections {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

/// Each [batch, time, heads * head_size]; the query of the positions from `first` on, `queries` of
/// them.
Projections project(const Parameters& params, const std::string& layer, const at::Tensor& x,
                    const Attention& shape, int64_t first, int64_t queries) {
  if (shape.packing == Packing::separate) {
    return {linear(params, layer + ".query", x.narrow(1, first, queries)),
            linear(params, layer + ".key", x), linear(params, layer + ".value", x)};
  }
  const auto all = linear(params, layer + ".qkv", x);
  const int64_t shared = shape.heads / shape.kv_heads;
  if (shape.packing == Packing::per_head) {
    const auto heads = all.unflatten(-1, {shape.kv_heads, shared + 2, -1});
    const auto part = [&](int64_t begin, int64_t count) {
      return heads.narrow(-2, begin, count).flatten(-3);
    };
    return {part(0, shared).narrow(1, first, queries), part(shared, 1), part(shared + 1, 1)};
  }
  const int64_t d_kv = all.size(-1) / (shared + 2);
  return {all.narrow(-1, 0, shared * d_kv).narrow(1, first, queries),
          all.narrow(-1, shared * d_kv, d_kv), all.narrow(-1, (shared + 1) * d_kv, d_kv)};
}

at::Tensor over_root_mean_square(const at::Tensor& x, double eps) {
  return x * (x.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
}

at::Tensor head_norm(const Parameters& params, const std::string& layer, const at::Tensor& x,
                     double eps) {
  const auto gain = find(params, layer + ".weight");
  const auto normalised = over_root_mean_square(x, eps);
  return gain ? normalised * gain->tensor : normalised;
}

/// Turns what stands at the positions `first`, `first` + 1, ...
at::Tensor rotate(const at::Tensor& x, int64_t first, const Rotary& rotary) {
  const int64_t time = x.size(-2);
  const int64_t size = rotary.size.value_or(x.size(-1));
  const int64_t planes = size / 2;
  const auto exponents = at::arange(planes, at::kDouble) / static_cast<double>(planes);
  const auto angles =
      at::outer(at::arange(first, first + time, at::kDouble), at::pow(rotary_base, -exponents));
  const auto cos = angles.cos().to(x.scalar_type());
  const auto sin = angles.sin().to(x.scalar_type());
  // As (two, planes) or (planes, two): the pairings differ in nothing else.
  const bool interleaved = rotary.pairing == channel_maps::Pairing::interleaved;
  const int64_t two = interleaved ? -1 : -2;
  const auto pairs =
      x.narrow(-1, 0, size)
          .unflatten(-1, interleaved ? at::IntArrayRef({planes, 2}) : at::IntArrayRef({2, planes}));
  const auto a = pairs.select(two, 0);
  const auto b = pairs.select(two, 1);
  const auto turned = at::stack({a * cos - b * sin, b * cos + a * sin}, two).flatten(-2);
  return at::cat({turned, x.narrow(-1, size, x.size(-1) - size)}, -1);
}

}  // namespace

std::optional<NamedTensor> find(const Parameters& params, const std::string& name) {
  if (!params.contains(name)) return std::nullopt;
  return params[name];
}

at::Tensor linear(const Parameters& params, const std::string& layer, const at::Tensor& x) {
  const auto bias = find(params, layer + ".bias");
  return at::linear(x, params[layer + ".weight"].tensor,
                    bias ? std::optional(bias->tensor) : std::nullopt);
}

at::Tensor relu_power(const at::Tensor& x, int64_t degree) {
  const auto positive = x.relu();
  return degree == 1 ? positive : positive * positive;
}

at::Tensor relu_stack(const Parameters& params, int64_t depth, int64_t degree, const at::Tensor& x,
                      const Trace& trace) {
  auto h = linear(params, "layers.0", x);
  for (int64_t l = 1; l < depth; ++l) {
    if (trace) trace("layers." + std::to_string(l - 1), h);
    h = relu_power(h, degree);
    if (trace && l + 1 == depth) trace("stream", h);
    h = linear(params, "layers." + std::to_string(l), h);
  }
  return h;
}

void set_network(Testbed& bed, decltype(Testbed::traced) network) {
  bed.outputs = [network](const Parameters& params, const at::Tensor& inputs) {
    return network(params, inputs, {});
  };
  bed.traced = std::move(network);
}

at::Tensor layer_norm(const Parameters& params, const std::string& layer, const at::Tensor& x,
                      double eps) {
  const auto shift = find(params, layer + ".bias");
  return at::layer_norm(x, {x.size(-1)}, params[layer + ".weight"].tensor,
                        shift ? std::optional(shift->tensor) : std::nullopt, eps);
}

at::Tensor rms_norm(const Parameters& params, const std::string& layer, const at::Tensor& x,
                    bool gain_is_offset, double eps) {
  const auto& weight = params[layer + ".weight"].tensor;
  return over_root_mean_square(x, eps) * (gain_is_offset ? weight + 1 : weight);
}

at::Tensor attention(const Parameters& params, const std::string& layer, const at::Tensor& x,
                     const Attention& shape) {
  const int64_t time = x.size(1);
  const int64_t first = shape.only_position.value_or(0);
  const int64_t queries = shape.only_position ? 1 : time;
  const auto projected = project(params, layer, x, shape, first, queries);
  auto query = split_heads(projected.query, shape.heads, shape.kv_heads);
  auto key = split_heads(projected.key, shape.kv_heads, shape.kv_heads);
  const auto value = split_heads(projected.value, shape.kv_heads, shape.kv_heads);
  if (shape.qk_norm_eps) {
    query = head_norm(params, layer + ".query_norm", query, *shape.qk_norm_eps);
    key = head_norm(params, layer + ".key_norm", key, *shape.qk_norm_eps);
  }
  if (shape.rotary.on()) {
    query = rotate(query, first, shape.rotary);
    key = rotate(key, 0, shape.rotary);
  }
  const double scale = 1 / std::sqrt(static_cast<double>(query.size(-1)));
  auto scores = (query * scale).matmul(key.transpose(-1, -2));
  if (shape.causal) {
    const auto future = at::ones({queries, time}, at::kBool).triu(first + 1);
    scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  }
  const auto heads = scores.softmax(-1).matmul(value).permute({0, 3, 1, 2, 4});
  return linear(params, layer + ".output", heads.flatten(2));
}

at::Tensor gated(const Parameters& params, const std::string& layer, const at::Tensor& x,
                 const std::function<at::Tensor(const at::Tensor&)>& activation) {
  if (params.contains(layer + ".gate_up.weight")) {
    const auto both = linear(params, layer + ".gate_up", x).chunk(2, -1);
    return linear(params, layer + ".down", activation(both[0]) * both[1]);
  }
  const auto gate = activation(linear(params, layer + ".gate", x));
  return linear(params, layer + ".down", gate * linear(params, layer + ".up", x));
}

void set_criterion(Testbed& testbed, Criterion criterion) {
  testbed.criterion = std::move(criterion);
  testbed.loss = [outputs = testbed.outputs, criterion = testbed.criterion](
                     const Parameters& params, const Batch& batch) {
    return criterion(outputs(params, batch.inputs), batch.targets);
  };
}

at::Tensor mean_squared_error(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::mse_loss(outputs, targets);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), targets.flatten(),
                                /*weight=*/{}, at::Reduction::Mean, ignored_target);
}

Criterion cross_entropy_with_z_loss(double weight) {
  return [weight](const at::Tensor& logits, const at::Tensor& targets) {
    return cross_entropy(logits, targets) + weight * logits.logsumexp(-1).square().mean();
  };
}

at::Tensor logistic(const at::Tensor& outputs, const at::Tensor& targets) {
  return -at::log_sigmoid(outputs * targets).mean();
}

Batch teach(const Outputs& network, const Parameters& teacher, int64_t samples, int64_t d_in,
            const at::Generator& source, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto inputs = normal({samples, d_in}, 1, source);
  return {inputs.to(dtype), network(teacher, inputs).to(dtype)};
}

}  // namespace ddc::testbeds
