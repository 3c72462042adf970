#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "ddc/experiments/catalogue.h"
#include "ddc/optim/muon.h"
#include "ddc/optim/recipe.h"
#include "ddc/optim/registry.h"
#include "ddc/testbeds/runs.h"
#include "find_entry.h"
#include "masked_muon.h"

namespace ddc::experiments {
namespace {

using torch::optim::OptimizerParamGroup;

/// Which gauges are bound, and how, beside the options of a treatment.
struct GaugeOptions {
  std::string gauges = "all";
  std::string recipe = "default";
  std::string by_kind;

  OptionList options() {
    return {
        {"gauges", gauges, "all, none, or kinds of gauges separated by commas"},
        {"recipe", recipe, "named set of gauges, treatments and options: default or paper"},
        {"by_kind", by_kind, "treatments by kind, as KIND: OPTION=VALUE, OPTION=VALUE; KIND: ..."}};
  }
};

/// What is said of single tensors, and what Muon leaves to Adam.
struct TensorOptions {
  std::string tensor_decay;

  OptionList options() {
    return {{"tensor_decay", tensor_decay,
             "weight decay of single tensors, as NAME=VALUE separated by commas"}};
  }
};
struct AdamPartOptions {
  double adam_lr = 1e-3;
  double adam_weight_decay = 0.1;
  bool adam_embeddings = true;

  OptionList options() {
    return {
        {"adam_lr", adam_lr, "learning rate of what Adam steps: vectors, embeddings", at_least(0)},
        {"adam_weight_decay", adam_weight_decay, "weight decay of what Adam steps", at_least(0)},
        {"adam_embeddings", adam_embeddings,
         "step embeddings and the unembedding by Adam, not only vectors"}};
  }
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) {
    const auto first = part.find_first_not_of(' ');
    if (first == std::string::npos) continue;
    parts.push_back(part.substr(first, part.find_last_not_of(' ') + 1 - first));
  }
  return parts;
}

/// "NAME=VALUE" in two.
std::pair<std::string, std::string> assignment(const std::string& setting,
                                               const std::string& text) {
  const auto equals = text.find('=');
  TORCH_CHECK_VALUE(equals != std::string::npos && equals > 0, "setting ", setting,
                    " must be of the form NAME=VALUE, got '", text, "'");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::vector<Gauge> of_kinds(std::vector<Gauge> gauges, const std::string& kinds) {
  if (kinds == "all") return gauges;
  if (kinds == "none") return {};
  std::set<std::string> known;
  for (const auto& gauge : gauges) known.insert(gauge.kind);
  const auto wanted = split(kinds, ',');
  for (const auto& kind : wanted) {
    TORCH_CHECK_VALUE(known.contains(kind), "setting gauges: ",
                      unknown("kind of gauge of this testbed", kind, {known.begin(), known.end()}));
  }
  std::erase_if(gauges, [&](const Gauge& gauge) {
    return std::find(wanted.begin(), wanted.end(), gauge.kind) == wanted.end();
  });
  return gauges;
}

/// What settings ask for on top of a recipe: whatever is not the default. Weights stay in place unless
/// settings say otherwise: so the stored results were made.
void add_treatments_(Treatments& treatments, const Json& settings) {
  Treatment given;
  assign(given.options(), settings);
  given.placement = given.placement.value_or(Place::in_place);
  const auto defaults = values_of(Treatment{});
  for (const auto& [option, value] : values_of(given)) {
    if (value != defaults.at(option)) treatments.set(option, value);
  }
  Treatment declared;
  const auto options = declared.options();
  for (const auto& kind : split(options_from<GaugeOptions>(settings).by_kind, ';')) {
    const auto colon = kind.find(':');
    TORCH_CHECK_VALUE(colon != std::string::npos, "setting by_kind must be of the form ",
                      "KIND: OPTION=VALUE, got '", kind, "'");
    for (const auto& each : split(kind.substr(colon + 1), ',')) {
      const auto [name, text] = assignment("by_kind", each);
      const auto* option = options.find(name);
      treatments.set(name, option == nullptr ? OptionValue(text) : option->parsed(text),
                     kind.substr(0, colon));
    }
  }
}

Recipe prepared(const Json& settings, const std::string& rule, std::vector<Gauge> gauges) {
  const auto options = options_from<GaugeOptions>(settings);
  auto result = recipe(options.recipe, rule, of_kinds(std::move(gauges), options.gauges));
  add_treatments_(result.treatments, settings);
  return result;
}

/// Puts tensors that have a decay of their own into param groups of their own.
std::vector<OptimizerParamGroup> with_tensor_decay(std::vector<OptimizerParamGroup> groups,
                                                   const Parameters& params, const Json& settings) {
  std::vector<OptimizerParamGroup> apart;
  for (const auto& each : split(options_from<TensorOptions>(settings).tensor_decay, ',')) {
    const auto [name, text] = assignment("tensor_decay", each);
    TORCH_CHECK_VALUE(params.contains(name), "setting tensor_decay: no parameter is called '", name,
                      "'");
    const auto& tensor = params[name].tensor;
    for (auto& group : groups) {
      auto& members = group.params();
      const auto found = std::find_if(members.begin(), members.end(),
                                      [&](const auto& other) { return other.is_same(tensor); });
      if (found == members.end()) continue;
      members.erase(found);
      auto options = group.options().clone();
      const auto list = dynamic_cast<LiftedOptions&>(*options).list();
      const auto* decay = list.find("weight_decay");
      decay->set(decay->parsed(text));
      apart.emplace_back(std::vector<at::Tensor>{tensor}, std::move(options));
    }
  }
  std::erase_if(groups, [](const auto& group) { return group.params().empty(); });
  for (auto& group : apart) groups.push_back(std::move(group));
  return groups;
}

/// Options of a rule with the recipe's values, then those of the settings. `adam` is for the group that
/// Adam steps.
std::unique_ptr<LiftedOptions> options_with(const LiftedOptions& defaults, const Json& settings,
                                            const OptionValues& from_recipe) {
  auto clone = defaults.clone();
  auto options = std::unique_ptr<LiftedOptions>(dynamic_cast<LiftedOptions*>(clone.release()));
  assign(options->list(), settings);
  options->list().assign(from_recipe);
  return options;
}

/// One param group; for Muon a second one, of what Adam steps.
std::vector<OptimizerParamGroup> groups_of(const LiftedOptions& options, const Json& settings,
                                           const Parameters& params, bool muon) {
  std::vector<OptimizerParamGroup> groups;
  if (!muon) {
    groups.emplace_back(params.tensors(), options.clone());
    return groups;
  }
  const auto adam = options_from<AdamPartOptions>(settings);
  const auto left =
      adam.adam_embeddings ? testbeds::left_to_adam(params) : std::vector<std::string>{};
  std::vector<at::Tensor> by_muon;
  std::vector<at::Tensor> by_adam;
  for (const auto& [name, tensor] : params) {
    const bool named = std::find(left.begin(), left.end(), name) != left.end();
    (named || tensor.dim() < 2 ? by_adam : by_muon).push_back(tensor);
  }
  if (!by_muon.empty()) groups.emplace_back(std::move(by_muon), options.clone());
  if (!by_adam.empty()) {
    auto of_adam = options.clone();
    dynamic_cast<LiftedOptions&>(*of_adam).list().assign(
        {{"use_adam", true}, {"lr", adam.adam_lr}, {"weight_decay", adam.adam_weight_decay}});
    groups.emplace_back(std::move(by_adam), std::move(of_adam));
  }
  return groups;
}

/// `changed` are defaults of the command line's own.
OptimizerEntry entry(const std::string& name, const std::string& description,
                     const RegisteredRule& rule, const OptionValues& changed, bool is_lifted) {
  std::shared_ptr<LiftedOptions> defaults = rule.options();
  defaults->list().assign(changed);
  const bool muon = defaults->list().find("use_adam") != nullptr;
  Settings settings;
  for (auto& setting : declared_settings(defaults->list())) {
    if (setting.name() != "use_adam" && setting.name() != "maximize") settings.push_back(setting);
  }
  const auto add = [&](const Settings& more) {
    settings.insert(settings.end(), more.begin(), more.end());
  };
  if (muon) add(declared_settings<AdamPartOptions>());
  add(declared_settings<TensorOptions>());
  if (is_lifted) {
    add(declared_settings<GaugeOptions>());
    add(declared_settings<Treatment>());
  }
  return {
      name, description, std::move(settings),
      [=](const Json& given, const Parameters& params, std::vector<Gauge> gauges) {
        const auto recipe = is_lifted ? prepared(given, rule.name, std::move(gauges)) : Recipe{};
        const auto options = options_with(*defaults, given, recipe.options);
        return rule.make(with_tensor_decay(groups_of(*options, given, params, muon), params, given),
                         params, recipe.gauges, recipe.treatments);
      }};
}

/// "DDCAdam" as the command line calls it: "ddc-adam".
std::string command_name(const std::string& rule) {
  std::string name = "ddc-";
  for (const char letter : rule.substr(3)) {
    name.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(letter))));
  }
  return name;
}

RegisteredRule masked_muon_rule() {
  using Rule = MaskedMuonRule;
  return {Rule::name, "Muon without the directions in which its momentum has next to nothing",
          [] { return std::make_unique<LiftedRuleOptions<Rule>>(); },
          [](const std::vector<OptimizerParamGroup>& groups, const Parameters& names,
             std::vector<Gauge> gauges, Treatments treatments) {
            return std::make_unique<Lifted<Rule>>(groups, names, std::move(gauges), Rule::Options{},
                                                  std::move(treatments));
          }};
}

std::vector<OptimizerEntry> make_entries() {
  const OptionValues textbook = {{"method", std::string("newton_schulz")}};
  // Learning rates and decays that suit the testbeds.
  const std::map<std::string, OptionValues> changed = {
      {"DDCSgd", {{"lr", 0.1}}},
      {"DDCShampoo", {{"weight_decay", 0.01}}},
      {"DDCSoap", {{"weight_decay", 0.01}}},
  };
  std::vector<OptimizerEntry> entries{
      entry("sgd", "gradient descent, with momentum if asked for", registered_rule("DDCSgd"),
            changed.at("DDCSgd"), false),
      entry("adamw", "Adam with decoupled weight decay", registered_rule("DDCAdam"), {}, false),
      entry("muon", "textbook Muon, and AdamW for vectors and embeddings",
            registered_rule("DDCMuon"), textbook, false),
      entry("masked-muon", masked_muon_rule().help, masked_muon_rule(), textbook, false)};
  for (const auto& rule : registered_rules()) {
    const auto found = changed.find(rule.name);
    entries.push_back(entry(command_name(rule.name), rule.help, rule,
                            found == changed.end() ? OptionValues{} : found->second, true));
  }
  return entries;
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
