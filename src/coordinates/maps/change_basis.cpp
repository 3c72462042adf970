#include "coordinates/maps/change_basis.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "coordinates/blocks.h"

namespace ddc {
namespace {

/// Orbits of gauges that share a tensor are not orthogonal; alternating projections are repeated until
/// they find nothing more, or so often.
constexpr int kMostProjections = 50;

}  // namespace

template <class Visit>
void ChangeBasis::for_each_leg(size_t t, const Visit& visit) const {
  for (const auto& use : plan_.tensors[t].blocks) {
    const auto& frame = view_.states[use.gauge].frame;
    if (!frame.defined()) continue;  // not bound yet
    visit(plan_.leg(use), frame,
          [&] { return plan_.gauges[use.gauge].is_linear() ? at::linalg_inv(frame) : frame.mT(); });
  }
}

void ChangeBasis::to_coordinates_(size_t t, at::Tensor& x) const {
  for_each_leg(t, [&](const BoundLeg& leg, const at::Tensor& frame, const auto& inverse) {
    multiply_(leg, leg.exponent > 0 ? inverse() : frame.mT(), x);
  });
}

void ChangeBasis::pull_back_one_(size_t t, at::Tensor& g) const {
  for_each_leg(t, [&](const BoundLeg& leg, const at::Tensor& frame, const auto& inverse) {
    multiply_(leg, leg.exponent > 0 ? frame.mT() : inverse(), g);
  });
}

void ChangeBasis::to_weights_one_(size_t t, at::Tensor& x) const {
  for_each_leg(t, [&](const BoundLeg& leg, const at::Tensor& frame, const auto& inverse) {
    multiply_(leg, leg.exponent > 0 ? frame : inverse().mT(), x);
  });
}

void ChangeBasis::find_angles_(const ValueOf& coordinates, const Tensors& vectors,
                               Projection when) {
  std::vector<size_t> mixing;
  PerGauge<at::Tensor> grams(view_);
  PerGauge<at::Tensor> moments(view_);
  for (const size_t k : component_.gauges) {
    const auto& [gauge, treatment] = std::tie(plan_.gauges[k].gauge, plan_.gauges[k].treatment);
    if (!gauge.mixes() || !view_.active[k] || treatment.project != when ||
        std::ranges::any_of(plan_.gauges[k].legs,
                            [&](const BoundLeg& leg) { return !vectors[leg.tensor].defined(); })) {
      continue;
    }
    mixing.push_back(k);
    grams[k] = at::zeros({gauge.blocks(), gauge.block, gauge.block}, plan_.gauges[k].options());
    moments[k] = at::zeros_like(grams[k]);
    angle_[k] = at::zeros_like(grams[k]);
  }
  if (mixing.empty()) return;
  // The coordinates of tensors that several gauges turn.
  Tensors shared(view_);
  bool any_shared = false;
  for (const size_t t : component_.tensors) {
    const auto& uses = plan_.tensors[t].blocks;
    const auto is_projected = [&](const TensorPlan::Use& use) {
      return moments[use.gauge].defined();
    };
    if (std::ranges::none_of(uses, is_projected)) continue;
    const auto x = coordinates(t);
    for (const auto& use : uses) {
      if (!is_projected(use)) continue;
      const auto& leg = plan_.leg(use);
      grams[use.gauge] += leg_gram(leg, x);
      moments[use.gauge] += orbit_moment(leg, vectors[t], x);
    }
    if (uses.size() < 2) continue;
    shared[t] = x;
    any_shared = true;
  }
  PerGauge<Orbit> orbits(view_);
  for (const size_t k : mixing) orbits[k] = orbit_at(plan_.gauges[k], grams[k]);
  // Vectors stay as they are: it is enough to know what taking an angle out leaves of the moments of
  // the gauges that act on the same tensors.
  const auto take_out_of_moments_ = [&](size_t k, const at::Tensor& angle) {
    angle_[k] += angle;
    moments[k].zero_();
    for (const auto& leg : plan_.gauges[k].legs) {
      const auto& x = shared[leg.tensor];
      if (!x.defined()) continue;
      const auto along = along_orbit(leg, angle, x);
      for (const auto& use : plan_.tensors[leg.tensor].blocks) {
        if (!moments[use.gauge].defined() || &plan_.leg(use) == &leg) continue;
        moments[use.gauge] -= orbit_moment(plan_.leg(use), along, x);
      }
    }
  };
  double first = 0;
  for (int sweep = 0; sweep < (any_shared ? kMostProjections : 1); ++sweep) {
    double largest = 0;
    for (const size_t k : mixing) {
      const auto angle = orbit_angle(orbits[k], moments[k]);
      const double removed = angle.abs().max().item<double>();
      if (sweep == 0) projected_[k] = removed;
      largest = std::max(largest, removed);
      take_out_of_moments_(k, angle);
    }
    if (sweep == 0) first = largest;
    if (largest <= first * 1e-14) break;
  }
}

void ChangeBasis::take_out_one_(size_t t, const at::Tensor& x, at::Tensor& vector) const {
  for (const auto& use : plan_.tensors[t].blocks) {
    const auto& angle = angle_[use.gauge];
    if (!angle.defined()) continue;
    // Out of place: a rule may have handed out a tensor of its state.
    const auto along = along_orbit(plan_.leg(use), angle, x);
    vector = vector - along.to(vector.scalar_type());
  }
}

void ChangeBasis::take_out_(const ValueOf& x, Tensors& vectors) {
  for (const size_t t : component_.tensors) {
    if (vectors[t].defined() && !plan_.tensors[t].blocks.empty()) {
      take_out_one_(t, x(t), vectors[t]);
    }
  }
  for (const size_t k : component_.gauges) angle_[k].reset();
}

}  // namespace ddc
