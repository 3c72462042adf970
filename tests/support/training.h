#pragma once

#include <ATen/ATen.h>

#include "ddc/gauge/action.h"
#include "ddc/optim/adam.h"
#include "ddc/testbeds/runs.h"

// What tests that train something share.

namespace ddc::tests {

using testbeds::backward;
using testbeds::generator;
using testbeds::OptimizerMaker;
using testbeds::paired_error;
using testbeds::PairedRun;
using testbeds::relative_error;
using testbeds::Testbed;

inline AdamOptions usual_options() { return AdamOptions{.lr = 1e-3, .weight_decay = 0.01}; }
inline OptimizerMaker ddc_adam(const AdamOptions& options = usual_options(),
                               const Treatments& treatments = {}) {
  return testbeds::ddc_adam(options, treatments);
}
inline OptimizerMaker adamw() { return testbeds::adamw(1e-3, 0.01); }

/// A treatment of weights that stay where they are: coordinates, units and frames are meant there.
inline Treatment in_place(Treatment treatment = {}) {
  treatment.placement = Place::in_place;
  return treatment;
}
/// A treatment of weights that are moved to their canonical place.
inline Treatment placed(Treatment treatment = {}) {
  treatment.placement = Place::canonical;
  return treatment;
}

}  // namespace ddc::tests
