#pragma once

#include <functional>
#include <vector>

#include "frame/chart.h"
#include "frame/section.h"

// The paper's coordinates for scale gauges ("ReLU rescale gauge" and "Radial update modes" of its
// pseudocode): on top of balanced units, each side of a gauge is split into its direction, on which
// the base rule works, and its norm, which moves only with the joint scale of the gauge.
//
// The norm is restored after the step on the direction, before the new joint scale is applied; the
// paper adds the two, and the Pythagorean error of that is the drift it reports.

namespace ddc {

/// Coordinates of a tensor: Frame::coordinates_of.
using CoordinatesOf = std::function<at::Tensor(size_t tensor)>;

/// Notes the nodes' norms, multiplies g by them where nodes are live, and measures charges.
void open_polar_(const Plan& plan, const std::vector<GaugeState>& states, const CoordinatesOf& x,
                 Chart& chart);
/// Divides x by the norms of the tensor's nodes, once they are noted.
void enter_polar_(const Plan& plan, const Chart& chart, size_t tensor, at::Tensor& x);

/// Removes the radial part of vectors (gradients or steps) in place.
void project_polar_(const Plan& plan, const Chart& chart, const CoordinatesOf& x,
                    std::vector<at::Tensor>& vectors);

/// 1 on entries whose norm belongs to no live node, 0 on the others; broadcastable. Undefined if
/// the tensor is in no node.
at::Tensor outside_nodes(const Plan& plan, const Chart& chart, size_t tensor);

/// Restores the norms that the step on the directions changed, then moves the joint scales.
/// Leaves `chart.squares` in the units of x before `open_polar_`.
void restore_and_move_radius_(const Plan& plan, Chart& chart, std::vector<ScalarMoments>& radial,
                              const std::vector<StepSettings>& settings);

/// Per tensor and node: the log factor that takes x back from directions to stepped coordinates.
at::Tensor node_log_factor(const Plan& plan, const Chart& chart, size_t tensor, size_t use);

}  // namespace ddc
