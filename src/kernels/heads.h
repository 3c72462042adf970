#pragma once

#include <cstdint>

// Small matrices that bring one head back: both Gram matrices equal, and turned as it was. The same as in
// placement/lyapunov.h, which is written in operations of ATen, and stops where rounding begins.

namespace ddc::kernels {

/// What is known of a head, square matrices of float64, and what moves it.
struct HeadMove {
  int64_t size = 0;
  /// Gram matrices of the plus and the minus side. Null: only turned.
  const double* plus = nullptr;
  const double* minus = nullptr;
  /// X_before X_after^T of both sides. Null: there are none. Both null: only balanced.
  const double* turned_plus = nullptr;
  const double* turned_minus = nullptr;
  /// The factor of the plus side and that of the minus side, its inverse transpose. `dual` may be null if
  /// the head is only turned: then it is the factor.
  double* factor = nullptr;
  double* dual = nullptr;
  /// Rows of an orthogonal matrix in which the sum of the Gram matrices is diagonal, or nearly. Null: it is as
  /// it stands.
  const double* basis = nullptr;
};

/// Finds the move, but for generators below `rounding`. What a generator would move is measured, not the matrices:
/// directions in which these are small are as far off as the others. Returns whether it was found. Iterations
/// get there in few steps if the Gram matrices are nearly diagonal; if not, and there is no `basis`, nothing is
/// written.
bool find_move(const HeadMove& head, double rounding);

}  // namespace ddc::kernels
