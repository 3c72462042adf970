#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ddc/optim/soap.h"

namespace ddc::tests {
namespace soap_reference {

/// A matrix of numbers, for a reference without tensor operations.
struct Matrix {
  Matrix(int64_t r, int64_t c)
      : rows(static_cast<size_t>(r)), columns(static_cast<size_t>(c)), entries(rows * columns) {}
  double& operator()(size_t i, size_t j) { return entries[i * columns + j]; }
  double operator()(size_t i, size_t j) const { return entries[i * columns + j]; }

  size_t rows;
  size_t columns;
  std::vector<double> entries;
};

inline Matrix zeros_like(const Matrix& m) {
  return {static_cast<int64_t>(m.rows), static_cast<int64_t>(m.columns)};
}

inline Matrix transposed(const Matrix& m) {
  Matrix result(static_cast<int64_t>(m.columns), static_cast<int64_t>(m.rows));
  for (size_t i = 0; i < m.rows; ++i) {
    for (size_t j = 0; j < m.columns; ++j) result(j, i) = m(i, j);
  }
  return result;
}

inline Matrix product(const Matrix& a, const Matrix& b) {
  Matrix result(static_cast<int64_t>(a.rows), static_cast<int64_t>(b.columns));
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t j = 0; j < b.columns; ++j) {
      for (size_t k = 0; k < a.columns; ++k) result(i, j) += a(i, k) * b(k, j);
    }
  }
  return result;
}

inline Matrix identity(size_t n) {
  Matrix result(static_cast<int64_t>(n), static_cast<int64_t>(n));
  for (size_t i = 0; i < n; ++i) result(i, i) = 1;
  return result;
}

/// Eigenvectors (in columns) by Jacobi's rotations; the eigenvalues are left on m's diagonal. They are
/// in no order, other than those of the rule's solver.
inline Matrix eigenvectors_(Matrix& m) {
  const size_t n = m.rows;
  auto vectors = identity(n);
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        if (m(p, q) == 0) continue;
        const double angle = 0.5 * std::atan2(2 * m(p, q), m(q, q) - m(p, p));
        const double c = std::cos(angle);
        const double s = std::sin(angle);
        auto turn = identity(n);
        turn(p, p) = turn(q, q) = c;
        turn(p, q) = s;
        turn(q, p) = -s;
        m = product(transposed(turn), product(m, turn));
        vectors = product(vectors, turn);
      }
    }
  }
  return vectors;
}

/// One axis of the reference: the factor of the rows of what it is given, and its basis.
struct Side {
  Side(bool is_on, size_t n)
      : on(is_on), factor(zeros_like(identity(n))), basis(identity(n)), is_null(n, is_on) {}

  /// Second moments in the new basis, for an update of the basis.
  Matrix turn_(const Matrix& squares) {
    if (!on) return squares;
    auto diagonal = factor;
    const auto now = eigenvectors_(diagonal);
    double largest = 0;
    for (size_t i = 0; i < is_null.size(); ++i) largest = std::max(largest, diagonal(i, i));
    for (size_t i = 0; i < is_null.size(); ++i) is_null[i] = diagonal(i, i) < 1e-12 * largest;
    auto result = zeros_like(squares);
    for (size_t i = 0; i < squares.rows; ++i) {
      for (size_t k = 0; k < squares.rows; ++k) {
        double cosine = 0;
        for (size_t l = 0; l < squares.rows; ++l) cosine += now(l, i) * basis(l, k);
        for (size_t j = 0; j < squares.columns; ++j) {
          result(i, j) += cosine * cosine * squares(k, j);
        }
      }
    }
    basis = now;
    return result;
  }

  Matrix shared(Matrix squares) const {
    for (size_t j = 0; j < squares.columns; ++j) {
      double sum = 0;
      double count = 0;
      for (size_t i = 0; i < squares.rows; ++i) {
        if (!is_null[i]) continue;
        sum += squares(i, j);
        count += 1;
      }
      for (size_t i = 0; i < squares.rows; ++i) {
        if (is_null[i]) squares(i, j) = sum / count;
      }
    }
    return squares;
  }

  void add_(const Matrix& g, double beta) {
    const auto now = product(g, transposed(g));
    for (size_t i = 0; i < now.entries.size(); ++i) {
      factor.entries[i] = beta * factor.entries[i] + (1 - beta) * now.entries[i];
    }
  }

  bool on;
  Matrix factor;
  Matrix basis;
  std::vector<bool> is_null;
};

}  // namespace soap_reference

/// SOAP of one matrix by loops over numbers.
class ReferenceSoap {
 public:
  ReferenceSoap(int64_t rows, int64_t columns, bool left, bool right, const SoapOptions& settings)
      : settings_(settings),
        left_(left, static_cast<size_t>(rows)),
        right_(right, static_cast<size_t>(columns)),
        first_(rows, columns),
        second_(rows, columns) {}

  at::Tensor operator()(const at::Tensor& gradient) {
    const auto from = gradient.contiguous();
    auto g = zeros_like(first_);
    const double* entry = from.const_data_ptr<double>();
    std::copy(entry, entry + from.numel(), g.entries.begin());
    const auto moved = step(g);
    auto result = at::empty_like(from);
    std::copy(moved.entries.begin(), moved.entries.end(), result.mutable_data_ptr<double>());
    return result;
  }

 private:
  using Matrix = soap_reference::Matrix;
  using Side = soap_reference::Side;

  Matrix step(const Matrix& g) {
    const double beta = settings_.shampoo_beta.value_or(settings_.beta2);
    left_.add_(g, beta);
    right_.add_(transposed(g), beta);
    if (step_ % settings_.precondition_every == 0) {
      second_ = transposed(right_.turn_(transposed(left_.turn_(second_))));
      second_ = share(second_);
    }
    ++step_;
    auto squares = project(g);
    for (auto& x : squares.entries) x *= x;
    squares = share(squares);
    for (size_t i = 0; i < g.entries.size(); ++i) {
      first_.entries[i] =
          settings_.beta1 * first_.entries[i] + (1 - settings_.beta1) * g.entries[i];
      second_.entries[i] =
          settings_.beta2 * second_.entries[i] + (1 - settings_.beta2) * squares.entries[i];
    }
    auto direction = project(first_);
    const auto threshold = noise();
    const auto t = static_cast<double>(step_);
    for (size_t i = 0; i < g.entries.size(); ++i) {
      const double first = direction.entries[i] / (1 - std::pow(settings_.beta1, t));
      const double second = second_.entries[i] / (1 - std::pow(settings_.beta2, t));
      const bool is_signal = second_.entries[i] > threshold.entries[i];
      direction.entries[i] =
          is_signal ? -settings_.lr * first / (std::sqrt(second) + settings_.eps) : 0;
    }
    return product(left_.basis, product(direction, transposed(right_.basis)));
  }

  Matrix project(const Matrix& m) const {
    return product(transposed(left_.basis), product(m, right_.basis));
  }
  Matrix share(const Matrix& squares) const {
    return transposed(right_.shared(transposed(left_.shared(squares))));
  }

  /// Second moments that are rounding errors of the projections.
  Matrix noise() const {
    auto result = zeros_like(second_);
    if (!left_.on && !right_.on) return result;
    for (size_t i = 0; i < second_.rows; ++i) {
      for (size_t j = 0; j < second_.columns; ++j) {
        for (size_t k = left_.on ? 0 : i; k < (left_.on ? second_.rows : i + 1); ++k) {
          for (size_t l = right_.on ? 0 : j; l < (right_.on ? second_.columns : j + 1); ++l) {
            result(i, j) += 1e-24 * second_(k, l);
          }
        }
      }
    }
    return result;
  }

  SoapOptions settings_;
  Side left_;
  Side right_;
  Matrix first_;
  Matrix second_;
  int64_t step_ = 0;
};

}  // namespace ddc::tests
