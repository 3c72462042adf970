#include "ddc/optim/registry.h"

#include "ddc/optim/adam.h"
#include "ddc/optim/lion.h"
#include "ddc/optim/muon.h"
#include "ddc/optim/sgd.h"
#include "ddc/optim/shampoo.h"
#include "ddc/optim/soap.h"

namespace ddc {
namespace {

template <class Rule>
RegisteredRule entry() {
  return {Rule::name, Rule::help, [] { return std::make_unique<LiftedRuleOptions<Rule>>(); },
          [](const std::vector<torch::optim::OptimizerParamGroup>& groups, const Parameters& names,
             std::vector<Gauge> gauges, Treatments treatments) {
            return std::make_unique<Lifted<Rule>>(groups, names, std::move(gauges),
                                                  typename Rule::Options{}, std::move(treatments));
          }};
}

}  // namespace

const std::vector<RegisteredRule>& registered_rules() {
  static const std::vector<RegisteredRule> rules{entry<AdamRule>(),    entry<MuonRule>(),
                                                 entry<SgdRule>(),     entry<LionRule>(),
                                                 entry<ShampooRule>(), entry<SoapRule>()};
  return rules;
}

const RegisteredRule& registered_rule(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& rule : registered_rules()) {
    if (rule.name == name) return rule;
    names.push_back(rule.name);
  }
  TORCH_CHECK_VALUE(false, unknown("optimizer", name, names));
}

}  // namespace ddc
