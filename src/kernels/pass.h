#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/kernels.h"

namespace ddc::kernels {

/// What a matrix goes through on its way into and out of a step, and what is gathered of it. Empty:
/// nothing. A vector is a matrix of one row.
struct Edges {
  /// Rows that turn together, and those that do not (second: -1); empty: item i is row i.
  std::vector<std::array<int64_t, 2>> items;

  // In: x = turn (w - row_shift row_pattern^T - column_pattern column_shift^T) * (rows columns^T).
  std::vector<double> rows;
  std::vector<double> columns;
  std::vector<double> row_shift;
  std::vector<double> row_pattern;
  std::vector<double> column_shift;
  std::vector<double> column_pattern;
  /// Cosine and sine per item.
  std::vector<std::array<double, 2>> turns;

  // Out: what is stored is the stepped x times these.
  std::vector<double> out_rows;
  std::vector<double> out_columns;

  /// Rows are then centred: the first of their dots over the number of columns, times this, is taken off.
  std::vector<double> centre_pattern;

  // To be gathered of what is stored, and what was.
  bool wants_row_squares = false;
  bool wants_column_squares = false;
  bool wants_overlaps = false;
  struct Dot {
    std::vector<double> weights;
    std::vector<double> sums;
  };
  std::array<Dot, 2> row_dots;
  std::array<Dot, 2> column_dots;
  std::vector<double> row_squares;
  std::vector<double> column_squares;
  /// Cosine and sine, times lengths, of the angle by which a step has turned the two rows back.
  std::vector<std::array<double, 2>> overlaps;
};

/// How a tensor is stepped.
using Constants = std::variant<AdamConstants, SgdConstants, LionConstants, MoveConstants>;

/// A tensor of a pass, with its gradient and state.
struct PassEntry {
  at::Tensor weights;
  at::Tensor gradient;
  std::vector<at::Tensor> state;
  Constants constants;
  Edges* edges = nullptr;

  /// Whether loops can reach all of it: on the CPU, without gaps, of one memory format, in float32, float64
  /// or bfloat16 (state in float32).
  bool fits() const;
};
/// Whether a tensor can have edges: row after row.
bool takes_edges(const at::Tensor& tensor);

/// Makes one pass over the memory of many tensors, which fit. What is written and gathered does not depend
/// on the number of threads, nor on which tensors share the pass.
void run(const std::vector<PassEntry>& entries);

}  // namespace ddc::kernels
