#include "coordinates/maps/absorb_bias.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "coordinates/shift.h"

namespace ddc {

AbsorbBias::AbsorbBias(const ComponentView& view) : CoordinateMap(view) {
  for (const size_t d : view.absorbed) absorbed_.push_back({plan_.drains[d], {}, {}});
}

void AbsorbBias::read(const ValueOf& outside) {
  Tensors filled(view_);
  const auto vector = [&](size_t t) -> at::Tensor& {
    if (!filled[t].defined()) filled[t] = outside(t);
    return filled[t];
  };
  for (auto& each : absorbed_) {
    each.take(vector(each.drain.source));
    each.added = each.read_through(each.drain.matrix ? outside(*each.drain.matrix) : at::Tensor());
    vector(each.drain.sink) = vector(each.drain.sink) + each.added;
  }
}

void AbsorbBias::to_coordinates_(size_t t, at::Tensor& x) const {
  for (const auto& each : absorbed_) {
    if (each.drain.sink == t) x.add_(each.added);
  }
}

void AbsorbBias::pull_back_(Tensors& g) const {
  // With b = X_b - W v: dL/dv loses W^T dL/db, and dL/dW loses dL/db v^T. All dL/db are read first.
  std::vector<at::Tensor> of_biases;
  for (const auto& [drain, source, added] : absorbed_) {
    const auto of_sink = g[drain.sink].clone();
    of_biases.push_back(drain.matrix ? along_axis(of_sink, 1 - drain.map.axis()) : of_sink);
  }
  for (size_t i = 0; i < absorbed_.size(); ++i) {
    const auto& [drain, source, added] = absorbed_[i];
    if (auto& of_source = g[drain.source]; of_source.defined()) {
      const auto read = drain.map.scatter_all(
          drain.matrix ? plan_.tensors[*drain.matrix].tensor.detach() * of_biases[i]
                       : of_biases[i]);
      of_source.sub_(
          drain.source_map.pull_back_mean(read, of_source.sizes()).to(of_source.options()));
    }
    if (!drain.matrix || !g[*drain.matrix].defined()) continue;
    auto& of_matrix = g[*drain.matrix];
    of_matrix.sub_((of_biases[i] * source).to(of_matrix.options()));
  }
}

void AbsorbBias::to_weights_(const std::vector<size_t>& which, Tensors& x) {
  const auto is_here = [&](size_t t) { return std::ranges::count(which, t) > 0; };
  // All sources are read before any bias is changed: they are what they were when they were absorbed.
  for (auto& each : absorbed_) {
    if (is_here(each.drain.source)) each.take(x[each.drain.source]);
  }
  for (const auto& each : absorbed_) {
    const auto& [matrix, sink] = std::tie(each.drain.matrix, each.drain.sink);
    if (!is_here(matrix.value_or(sink))) continue;
    x[sink] = x[sink] - each.read_through(matrix ? x[*matrix] : at::Tensor());
  }
}

}  // namespace ddc
