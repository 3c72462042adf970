#include <ATen/ATen.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <sstream>
#include <utility>

#include "ddc/experiments/catalogue.h"
#include "ddc/optim/ddc_adam.h"
#include "ddc/optim/ddc_bases.h"
#include "ddc/optim/ddc_muon.h"
#include "ddc/testbeds/runs.h"
#include "find_entry.h"
#include "masked_muon.h"

namespace ddc::experiments {
namespace {

/// Which gauges are bound, and how.
struct GaugeOptions {
  std::string gauges = "all";
  std::string coordinates = "default";
  std::string radial = "linear";
  std::string vertical = "frozen";
  std::string second_moment = "transported";
};

template <class Visit>
void visit_settings(GaugeOptions& options, Visit&& visit) {
  visit("gauges", options.gauges, "all, none, or kinds of gauges separated by commas");
  visit("coordinates", options.coordinates, "default, folded, balanced, standard or polar");
  visit("radial", options.radial, "of polar coordinates: linear or log");
  visit("vertical", options.vertical, "frozen, sgd or adam");
  visit("second_moment", options.second_moment,
        "of rotations: transported, body_frame, body_frame_topk, per_head_scalar, "
        "per_head_matrix or none");
}

struct AdamOptions {
  double lr = 1e-3;
  double weight_decay = 1e-2;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

template <class Visit>
void visit_settings(AdamOptions& options, Visit&& visit) {
  visit("lr", options.lr, "learning rate");
  visit("weight_decay", options.weight_decay, "decoupled weight decay");
  visit("beta1", options.beta1, "of the first moment");
  visit("beta2", options.beta2, "of the second moment");
  visit("eps", options.eps, "added to the root of the second moment");
}

struct MuonSettings {
  double lr = 0.02;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  std::string method = "exact";
  std::string scale = "original";
  double adam_lr = 1e-3;
  double adam_weight_decay = 0.1;
  bool adam_embeddings = true;
};

template <class Visit>
void visit_settings(MuonSettings& options, Visit&& visit) {
  visit("lr", options.lr, "learning rate of matrices");
  visit("weight_decay", options.weight_decay, "decoupled weight decay of matrices");
  visit("momentum", options.momentum, "of the moving average");
  visit("nesterov", options.nesterov, "look ahead");
  visit("method", options.method, "of the polar factor: exact, fast, sharpen or newton_schulz");
  visit("scale", options.scale, "of the update: original, match_rms_adamw or frobenius");
  visit("adam_lr", options.adam_lr, "learning rate of what Adam steps: vectors, embeddings");
  visit("adam_weight_decay", options.adam_weight_decay, "weight decay of what Adam steps");
  visit("adam_embeddings", options.adam_embeddings,
        "step embeddings and the unembedding by Adam, not only vectors");
}

/// Textbook Muon: Newton-Schulz.
struct PlainMuonSettings : MuonSettings {
  PlainMuonSettings() { method = "newton_schulz"; }
};

struct MaskedMuonSettings : PlainMuonSettings {
  double threshold = MaskedMuonRule::Settings{}.threshold;
};

template <class Visit>
void visit_settings(MaskedMuonSettings& options, Visit&& visit) {
  visit_settings(static_cast<MuonSettings&>(options), visit);
  visit("threshold", options.threshold,
        "singular directions below this share of the largest are masked");
}

struct SgdOptions {
  double lr = 0.1;
  double weight_decay = 0;
  double momentum = 0;
  bool nesterov = false;
};

template <class Visit>
void visit_settings(SgdOptions& options, Visit&& visit) {
  visit("lr", options.lr, "learning rate");
  visit("weight_decay", options.weight_decay, "decoupled weight decay");
  visit("momentum", options.momentum, "of the sum of gradients");
  visit("nesterov", options.nesterov, "look ahead");
}

/// Shampoo and SOAP, with the rest of their settings as they are.
template <class Rule>
struct LiftedSettings {
  double lr = typename Rule::Settings{}.lr;
  double weight_decay = 0.01;
};

template <class Rule, class Visit>
void visit_settings(LiftedSettings<Rule>& options, Visit&& visit) {
  visit("lr", options.lr, "learning rate");
  visit("weight_decay", options.weight_decay, "decoupled weight decay");
}

template <class Enum>
Enum chosen(const char* setting, const std::string& text, std::initializer_list<Enum> choices) {
  std::ostringstream names;
  for (const auto choice : choices) {
    if (text == to_string(choice)) return choice;
    names << (names.tellp() > 0 ? ", " : "") << to_string(choice);
  }
  TORCH_CHECK_VALUE(false, "setting ", setting, " must be one of ", names.str(), ", got '", text,
                    "'");
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::vector<Gauge> of_kinds(std::vector<Gauge> gauges, const std::string& kinds) {
  if (kinds == "all") return gauges;
  if (kinds == "none") return {};
  std::set<std::string> known;
  for (const auto& gauge : gauges) known.insert(gauge.kind);
  const auto wanted = split(kinds);
  for (const auto& kind : wanted) {
    TORCH_CHECK_VALUE(known.contains(kind), "setting gauges: ",
                      unknown("kind of gauge of this testbed", kind, {known.begin(), known.end()}));
  }
  std::erase_if(gauges, [&](const Gauge& gauge) {
    return std::find(wanted.begin(), wanted.end(), gauge.kind) == wanted.end();
  });
  return gauges;
}

std::vector<Gauge> bound(const GaugeOptions& options, std::vector<Gauge> gauges) {
  gauges = of_kinds(std::move(gauges), options.gauges);
  const auto radial = chosen("radial", options.radial, {Radial::linear, Radial::log});
  const auto vertical =
      chosen("vertical", options.vertical, {Vertical::frozen, Vertical::sgd, Vertical::adam});
  const auto second_moment =
      chosen("second_moment", options.second_moment,
             {SecondMoment::transported, SecondMoment::body_frame, SecondMoment::body_frame_topk,
              SecondMoment::per_head_scalar, SecondMoment::per_head_matrix, SecondMoment::none});
  if (options.coordinates != "default") {
    gauges = with(std::move(gauges), chosen("coordinates", options.coordinates,
                                            {Coordinates::folded, Coordinates::balanced,
                                             Coordinates::standard, Coordinates::polar}));
  }
  for (auto& gauge : gauges) {
    gauge.radial = radial;
    gauge.vertical = vertical;
    gauge.second_moment = second_moment;
  }
  return gauges;
}

std::unique_ptr<LiftedOptimizer> make_adam(const AdamOptions& options, const Parameters& params,
                                           std::vector<Gauge> gauges) {
  return std::make_unique<DDCAdam>(params, std::move(gauges),
                                   DDCAdamOptions(options.lr)
                                       .weight_decay(options.weight_decay)
                                       .betas({options.beta1, options.beta2})
                                       .eps(options.eps));
}

PolarMethod method_of(const MuonSettings& options) {
  return chosen(
      "method", options.method,
      {PolarMethod::exact, PolarMethod::fast, PolarMethod::sharpen, PolarMethod::newton_schulz});
}

UpdateScale scale_of(const MuonSettings& options) {
  return chosen("scale", options.scale,
                {UpdateScale::original, UpdateScale::match_rms_adamw, UpdateScale::frobenius});
}

std::vector<std::string> left_to_adam(const MuonSettings& options, const Parameters& params) {
  return options.adam_embeddings ? testbeds::left_to_adam(params) : std::vector<std::string>{};
}

std::unique_ptr<LiftedOptimizer> make_muon(const MuonSettings& options, const Parameters& params,
                                           std::vector<Gauge> gauges) {
  return std::make_unique<DDCMuon>(params, std::move(gauges),
                                   DDCMuonOptions(options.lr)
                                       .weight_decay(options.weight_decay)
                                       .momentum(options.momentum)
                                       .nesterov(options.nesterov)
                                       .method(method_of(options))
                                       .scale(scale_of(options))
                                       .adam_lr(options.adam_lr)
                                       .adam_weight_decay(options.adam_weight_decay),
                                   left_to_adam(options, params));
}

std::unique_ptr<LiftedOptimizer> make_masked_muon(const MaskedMuonSettings& options,
                                                  const Parameters& params,
                                                  const std::vector<Gauge>& /*gauges*/) {
  return masked_muon(params,
                     {.settings = {.lr = options.lr,
                                   .momentum = options.momentum,
                                   .nesterov = options.nesterov,
                                   .method = method_of(options),
                                   .scale = scale_of(options),
                                   .threshold = options.threshold},
                      .weight_decay = options.weight_decay,
                      .adam_lr = options.adam_lr,
                      .adam_weight_decay = options.adam_weight_decay},
                     left_to_adam(options, params));
}

std::unique_ptr<LiftedOptimizer> make_sgd(const SgdOptions& options, const Parameters& params,
                                          std::vector<Gauge> gauges) {
  return std::make_unique<DDCSgd>(params, std::move(gauges),
                                  RuleOptions<SgdRule>{.settings = {.lr = options.lr,
                                                                    .momentum = options.momentum,
                                                                    .nesterov = options.nesterov},
                                                       .weight_decay = options.weight_decay});
}

template <class Rule>
std::unique_ptr<LiftedOptimizer> make_lifted(const LiftedSettings<Rule>& options,
                                             const Parameters& params, std::vector<Gauge> gauges) {
  typename Rule::Settings settings;
  settings.lr = options.lr;
  return std::make_unique<Lifted<Rule>>(
      params, std::move(gauges),
      RuleOptions<Rule>{.settings = settings, .weight_decay = options.weight_decay});
}

template <class Options, class Make>
OptimizerEntry plain(const char* name, const char* description, Make make) {
  return {name, description, declared_settings<Options>(),
          [make](const Json& settings, const Parameters& params, std::vector<Gauge> /*gauges*/) {
            return make(options_from<Options>(settings), params, {});
          }};
}

template <class Options, class Make>
OptimizerEntry lifted(const char* name, const char* description, Make make) {
  auto settings_of = declared_settings<Options>();
  for (auto& setting : declared_settings<GaugeOptions>()) settings_of.push_back(setting);
  return {name, description, std::move(settings_of),
          [make](const Json& settings, const Parameters& params, std::vector<Gauge> gauges) {
            return make(options_from<Options>(settings), params,
                        bound(options_from<GaugeOptions>(settings), std::move(gauges)));
          }};
}

std::vector<OptimizerEntry> make_entries() {
  return {
      plain<SgdOptions>("sgd", "gradient descent, with momentum if asked for", make_sgd),
      plain<AdamOptions>("adamw", "Adam with decoupled weight decay", make_adam),
      plain<PlainMuonSettings>("muon", "textbook Muon, and AdamW for vectors and embeddings",
                               make_muon),
      plain<MaskedMuonSettings>(
          "masked-muon", "Muon without the directions in which its momentum has next to nothing",
          make_masked_muon),
      lifted<SgdOptions>("ddc-sgd", "gradient descent that respects the gauges", make_sgd),
      lifted<AdamOptions>("ddc-adam", "AdamW that respects the gauges", make_adam),
      lifted<MuonSettings>("ddc-muon", "Muon that respects the gauges", make_muon),
      lifted<LiftedSettings<ShampooRule>>("ddc-shampoo", "Shampoo that respects the gauges",
                                          make_lifted<ShampooRule>),
      lifted<LiftedSettings<SoapRule>>("ddc-soap", "SOAP that respects the gauges",
                                       make_lifted<SoapRule>),
  };
}

}  // namespace

const std::vector<OptimizerEntry>& optimizer_entries() {
  static const auto entries = make_entries();
  return entries;
}

const OptimizerEntry& optimizer_entry(const std::string& name) {
  return find_entry("optimizer", optimizer_entries(), name);
}

}  // namespace ddc::experiments
