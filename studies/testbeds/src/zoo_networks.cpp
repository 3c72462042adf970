#include "zoo_networks.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "ddc/gauge/linear_pair.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/shift.h"
#include "ddc/testbeds/mlp.h"
#include "draw.h"
#include "layers.h"
#include "options.h"
#include "tasks.h"

namespace ddc::testbeds {
namespace {

constexpr double bias_spread = 0.2;
constexpr int64_t kernel_size = 3;

bool same_leg(const Leg& a, const Leg& b) {
  return a.tensor == b.tensor && a.axis == b.axis && a.exponent == b.exponent &&
         a.channel_of == b.channel_of && a.through.gain == b.through.gain;
}

bool same_action(const Gauge& a, const Gauge& b) {
  return a.action == b.action && a.channels == b.channels && a.block == b.block &&
         std::equal(a.legs.begin(), a.legs.end(), b.legs.begin(), b.legs.end(), same_leg);
}

/// What a layer with a bias makes of inputs, before its activation.
struct PreActivation {
  std::string layer;
  Outputs of;
};

/// Moves each bias to where the unit, for about half of the inputs, is on. In a deep network of ReLUs
/// most units would otherwise be on always or never, and either is a symmetry of the data at hand.
decltype(Testbed::init) centred(const decltype(Testbed::init)& init, int64_t d_in,
                                const std::vector<PreActivation>& layers) {
  return [=](uint64_t seed, at::ScalarType dtype) {
    constexpr int64_t samples = 1024;
    const auto params = init(seed, at::kDouble);
    const auto inputs = normal({samples, d_in}, 1, generator(seed, Stream::split));
    {
      const at::NoGradGuard no_grad;
      for (const auto& [layer, of] : layers) {
        at::Tensor bias = params[layer + ".bias"].tensor;
        const auto values = of(params, inputs);
        bias.add_(bias * values.std(0) - values.mean(0));
      }
    }
    Parameters result;
    for (const auto& [name, tensor] : params) {
      result.add(name, tensor.detach().to(dtype).requires_grad_(true));
    }
    return result;
  };
}

/// Two convolutions without padding, each followed by a ReLU, and a linear layer.
struct ConvNet {
  int64_t channels;
  int64_t size;  ///< of the images, which have two channels
  int64_t classes;

  /// Pixels per channel of what the linear layer reads.
  int64_t pixels() const {
    const int64_t left = size - 2 * (kernel_size - 1);
    return left * left;
  }
};

/// The columns of the linear layer belong to channels: those of each stand together, as flattening
/// leaves them, or (`strided`) one of each in turn.
std::vector<Gauge> conv_gauges(const ConvNet& net, const Parameters& params, bool strided) {
  std::vector<int64_t> channel_of(net.channels * net.pixels());
  for (size_t i = 0; i < channel_of.size(); ++i) {
    const auto column = static_cast<int64_t>(i);
    channel_of[i] = strided ? column % net.channels : column / net.pixels();
  }
  const auto& out = params["out.weight"];
  std::vector<Gauge> gauges = {relu_rescale({.in = params["conv1.weight"],
                                             .in_bias = params["conv1.bias"],
                                             .out = {params["conv2.weight"]}})};
  Gauge last =
      relu_rescale({.in = params["conv2.weight"], .in_bias = params["conv2.bias"], .out = {out}});
  last.legs.back().channel_of = channel_of;
  gauges.push_back(last);
  gauges.push_back(cross_entropy_shift(out));
  gauges.push_back(cross_entropy_shift(params["out.bias"]));
  return gauges;
}

}  // namespace

std::vector<Refused> refuse(const std::vector<Gauge>& imagined, const std::vector<Gauge>& actual,
                            const std::string& reason) {
  std::vector<Refused> result;
  for (const auto& gauge : imagined) {
    const bool is_one = std::any_of(actual.begin(), actual.end(),
                                    [&](const Gauge& other) { return same_action(gauge, other); });
    if (!is_one) result.push_back({gauge, reason});
  }
  return result;
}

ZooEntry conv_relu_entry(const ZooShape& shape) {
  const ConvNet net{shape.d_model / 2, shape.sequence + 2, shape.vocabulary};
  check_positive("d_model / 2", net.channels);
  TORCH_CHECK(shape.sequence > 2,
              "testbed option sequence must be > 2 for images of sequence + 2 "
              "pixels that two convolutions shorten by 2 each, got ",
              shape.sequence);
  ZooEntry entry;
  entry.name = "conv_relu";
  entry.description =
      "convolution, ReLU, convolution, ReLU, linear; the columns of the linear layer belong to "
      "channels in runs of one per pixel";
  Testbed& bed = entry.testbed;
  bed.name = entry.name;
  bed.init = [net](uint64_t seed, at::ScalarType dtype) {
    Initializer weights(seed, dtype);
    int64_t in = 2;
    for (const auto* name : {"conv1", "conv2"}) {
      const std::string layer = name;
      weights.add(layer + ".weight", {net.channels, in, kernel_size, kernel_size},
                  1 / std::sqrt(static_cast<double>(in * kernel_size * kernel_size)));
      weights.add(layer + ".bias", {net.channels}, bias_spread);
      in = net.channels;
    }
    weights.add_linear("out", net.classes, net.channels * net.pixels(), bias_spread);
    return weights.parameters();
  };
  bed.outputs = [](const Parameters& params, const at::Tensor& inputs) {
    const auto conv = [&](const std::string& layer, const at::Tensor& x) {
      return at::conv2d(x, params[layer + ".weight"].tensor, params[layer + ".bias"].tensor).relu();
    };
    return linear(params, "out", conv("conv2", conv("conv1", inputs)).flatten(1));
  };
  bed.batch = nearest_directions({shape.batch_size, 2, net.size, net.size}, 2 * net.size * net.size,
                                 net.classes, /*teacher_seed=*/0,
                                 [](const at::Tensor& images) { return images.flatten(1); });
  set_criterion(bed, cross_entropy);
  bed.gauges = [net](const Parameters& params) { return conv_gauges(net, params, false); };
  entry.refused = [net](const Parameters& params) {
    return refuse(conv_gauges(net, params, true), conv_gauges(net, params, false),
                  "flattening leaves the pixels of a channel together");
  };
  return entry;
}

ZooEntry mlp_chain_entry(const ZooShape& shape) {
  const auto options = [&](int64_t degree) {
    return ReluChainOptions{.depth = 6,
                            .d_in = shape.d_model,
                            .d_hidden = shape.d_ff,
                            .d_out = shape.vocabulary,
                            .batch_size = shape.batch_size * shape.sequence,
                            .degree = degree};
  };
  ZooEntry entry;
  entry.name = "mlp_chain";
  entry.description = "six linear layers with biases and ReLUs between them, mean squared error";
  entry.testbed = relu_chain(options(1));
  entry.testbed.name = entry.name;
  std::vector<PreActivation> hidden;
  for (int64_t l = 0; l + 1 < options(1).depth; ++l) {
    hidden.push_back(
        {"layers." + std::to_string(l), [l](const Parameters& params, const at::Tensor& inputs) {
           return relu_stack(params, l + 1, /*degree=*/1, inputs);
         }});
  }
  entry.testbed.init = centred(entry.testbed.init, shape.d_model, hidden);
  entry.refused = [gauges = entry.testbed.gauges,
                   squared = relu_chain(options(2)).gauges](const Parameters& params) {
    return refuse(squared(params), gauges(params), "ReLU is homogeneous of degree 1, not 2");
  };
  entry.log_softmax = false;
  return entry;
}

ZooEntry linear_pair_entry(const ZooShape& shape) {
  const int64_t inner = shape.heads + 1;
  check_positive("d_model", shape.d_model);
  check_positive("d_ff", shape.d_ff);
  ZooEntry entry;
  entry.name = "linear_pair";
  entry.description =
      "linear, ReLU, a product of two matrices with nothing between them, bias, ReLU, linear; mean "
      "squared error";
  const auto draw = [shape, inner](Initializer weights) {
    weights.add_linear("in", shape.d_ff, shape.d_model, bias_spread);
    weights.add_linear("first", inner, shape.d_ff);
    weights.add_linear("second", shape.d_ff, inner, bias_spread);
    weights.add_linear("out", shape.vocabulary, shape.d_ff, bias_spread);
    return weights.parameters();
  };
  Testbed& bed = entry.testbed;
  bed.name = entry.name;
  const auto first = [](const Parameters& params, const at::Tensor& inputs) {
    return linear(params, "in", inputs);
  };
  const auto second = [first](const Parameters& params, const at::Tensor& inputs) {
    return linear(params, "second", linear(params, "first", first(params, inputs).relu()));
  };
  bed.init = centred(
      [draw](uint64_t seed, at::ScalarType dtype) { return draw(Initializer(seed, dtype)); },
      shape.d_model, {{"in", first}, {"second", second}});
  bed.outputs = [second](const Parameters& params, const at::Tensor& inputs) {
    return linear(params, "out", second(params, inputs).relu());
  };
  bed.batch = [shape, draw, network = bed.outputs](uint64_t seed, at::ScalarType dtype) {
    return teach(network, draw(Initializer(0, at::kDouble, Stream::teacher)),
                 shape.batch_size * shape.sequence, shape.d_model, generator(seed, Stream::batch),
                 dtype);
  };
  set_criterion(bed, mean_squared_error);
  bed.gauges = [](const Parameters& params) {
    return std::vector<Gauge>{
        relu_rescale({.in = params["in.weight"],
                      .in_bias = params["in.bias"],
                      .out = {params["first.weight"]}}),
        linear_pair({.first = params["first.weight"], .second = params["second.weight"]}),
        relu_rescale({.in = params["second.weight"],
                      .in_bias = params["second.bias"],
                      .out = {params["out.weight"]}})};
  };
  entry.refused = [](const Parameters& params) {
    return std::vector<Refused>{
        {linear_pair({.first = params["in.weight"], .second = params["first.weight"]}),
         "a ReLU and a bias stand between the two"}};
  };
  entry.log_softmax = false;
  return entry;
}

}  // namespace ddc::testbeds
