#pragma once

#include <string>
#include <vector>

#include "ddc/gauge/gauge.h"
#include "ddc/options.h"
#include "ddc/treatment.h"

// Recipes: named sets of gauges, treatments and options.
//
//     const auto paper = ddc::recipe("paper", "DDCAdam", gauges);
//     ddc::DDCAdam optimizer(params, paper.gauges, paper.with(ddc::AdamOptions{.lr = 1e-3}),
//                            paper.treatments);

namespace ddc {

/// Recipe, applied to the gauges of a network and a base rule.
struct Recipe {
  /// The gauges that it binds, in the form in which it does.
  std::vector<Gauge> gauges;
  Treatments treatments;
  /// Options of the rule that it sets.
  OptionValues options;

  template <class Options>
  Options with(Options given) const {
    given.options().assign(options);
    return given;
  }
};

/// Throws, naming the nearest, if there is no recipe of that name.
///
///     default   every gauge, as a Treatment is by default
///     paper     what the paper does (docs/paper.md): its gauges, polar coordinates with a linear radius,
///               body_frame_topk, decay that acts on the mean of a shift too; DDCMuon binds rotations and
///               shifts only, and orthogonalises the projected momentum with `sharpen` and the scale
///               `frobenius`
Recipe recipe(const std::string& name, const std::string& rule, std::vector<Gauge> gauges);

/// Names and one line each.
std::vector<std::pair<std::string, std::string>> recipe_names();

}  // namespace ddc
