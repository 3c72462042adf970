#include "kernels/heads.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "kernels/clones.h"

namespace ddc::kernels {
namespace {

/// Numbers that are computed with at a time, whatever the instruction set makes of it.
constexpr int64_t kLanes = 8;
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double)), may_alias));
/// Sizes are rounded up to multiples of what one product fills at a time; the rest is zero.
constexpr int64_t kTileRows = 4;
constexpr int64_t kTileColumns = 2 * kLanes;
constexpr std::align_val_t kAligned{64};

/// Diagonal sums below this share of the largest do not fix a direction.
constexpr double kRank = 1e-12;
constexpr int kNewtonSteps = 4;
constexpr int kIterations = 8;
/// Norm of a step's generator; far from balance a Newton step overshoots.
constexpr double kLargestStep = 0.5;

/// Matrices of one size, side by side in memory.
class Room {
 public:
  explicit Room(int64_t size)
      : size_((size + kTileColumns - 1) / kTileColumns * kTileColumns),
        data_(new (kAligned) double[static_cast<size_t>(kMatrices * size_ * size_)]) {}
  ~Room() { ::operator delete[](data_, kAligned); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  int64_t size() const { return size_; }
  double* next() { return data_ + used_++ * size_ * size_; }

 private:
  static constexpr int64_t kMatrices = 16;
  int64_t size_;
  double* data_;
  int64_t used_ = 0;
};

/// c = a b.
DDC_INLINE void multiply(int64_t n, const double* a, const double* b, double* c) {
  for (int64_t j = 0; j < n; j += kTileColumns) {
    for (int64_t i = 0; i < n; i += kTileRows) {
      Lanes sums[kTileRows][2] = {};
      for (int64_t k = 0; k < n; ++k) {
        const auto* row = reinterpret_cast<const Lanes*>(b + k * n + j);
        const Lanes left = row[0];
        const Lanes right = row[1];
#pragma GCC unroll 4
        for (int64_t r = 0; r < kTileRows; ++r) {
          const double x = a[(i + r) * n + k];
          sums[r][0] += x * left;
          sums[r][1] += x * right;
        }
      }
#pragma GCC unroll 4
      for (int64_t r = 0; r < kTileRows; ++r) {
        auto* to = reinterpret_cast<Lanes*>(c + (i + r) * n + j);
        to[0] = sums[r][0];
        to[1] = sums[r][1];
      }
    }
  }
}

/// to = a + sign a^T.
DDC_INLINE void add_transpose(int64_t n, const double* a, double sign, double* to) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) to[i * n + j] = a[i * n + j] + sign * a[j * n + i];
  }
}

DDC_INLINE void transpose(int64_t n, const double* a, double* to) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) to[i * n + j] = a[j * n + i];
  }
}

DDC_INLINE void add_identity(int64_t n, double* a) {
  for (int64_t i = 0; i < n; ++i) a[i * n + i] += 1;
}

DDC_INLINE double dot(int64_t n, const double* a, const double* b) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n * n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Inverts by elimination without exchanges, which matrices with a positive symmetric part do not need.
DDC_INLINE void invert(int64_t n, double* a) {
  for (int64_t k = 0; k < n; ++k) {
    double* pivot = a + k * n;
    const double inverse = 1 / pivot[k];
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) pivot[j] *= inverse;
    pivot[k] = inverse;
    for (int64_t i = 0; i < n; ++i) {
      if (i == k) continue;
      double* row = a + i * n;
      const double x = row[k];
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) row[j] -= x * pivot[j];
      // Afterwards: a vector is not read back while a part of it is still being stored.
      row[k] = -x * inverse;
    }
  }
}

DDC_INLINE double ratio(double a, double b) { return b > 0 ? a / b : 0; }

/// Room of a solution, and the share of it that may be missing.
struct Solver {
  double solved;
  double* preconditioner;
  double* residual;
  double* direction;
  double* product;
  double* image;
};

/// The A with M A + A M = S, by conjugate gradients; S and A symmetric (sign +1) or skew (-1), so that one
/// product does. Directions that M does not fix come out as zero.
DDC_INLINE void lyapunov(int64_t n, const double* m, const double* s, double sign, double* a,
                         const Solver& room) {
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, 2 * m[i * n + i]);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const double sum = m[i * n + i] + m[j * n + j];
      room.preconditioner[i * n + j] = sum > largest * kRank ? 1 / sum : 0;
    }
  }
  const auto apply = [&](const double* x) DDC_ALWAYS {
    multiply(n, m, x, room.product);
    add_transpose(n, room.product, sign, room.image);
  };
  for (int64_t i = 0; i < n * n; ++i) a[i] = s[i] * room.preconditioner[i];
  apply(a);
  double size = 0;
  double left = 0;
  double product = 0;
#pragma omp simd reduction(+ : size, left, product)
  for (int64_t i = 0; i < n * n; ++i) {
    const double residual = s[i] - room.image[i];
    const double z = residual * room.preconditioner[i];
    room.residual[i] = residual;
    room.direction[i] = z;
    size += a[i] * a[i];
    left += z * z;
    product += residual * z;
  }
  for (int k = 0; k < kIterations && left > room.solved * room.solved * size; ++k) {
    apply(room.direction);
    const double step = ratio(product, dot(n, room.direction, room.image));
    double next = 0;
    left = 0;
#pragma omp simd reduction(+ : next, left)
    for (int64_t i = 0; i < n * n; ++i) {
      a[i] += step * room.direction[i];
      const double residual = room.residual[i] - step * room.image[i];
      const double z = residual * room.preconditioner[i];
      room.residual[i] = residual;
      left += z * z;
      next += residual * z;
    }
    const double again = ratio(next, product);
    for (int64_t i = 0; i < n * n; ++i) {
      room.direction[i] = room.residual[i] * room.preconditioner[i] + again * room.direction[i];
    }
    product = next;
  }
}

/// Whether a Newton step leaves nothing to the next one: what it was solved for, and its square.
DDC_INLINE bool is_last(double size, double rounding, const Solver& solver) {
  return size * std::max(size, solver.solved) <= rounding;
}

/// Copies a matrix into one of rounded size.
DDC_INLINE void read(int64_t size, const double* from, int64_t n, double* to) {
  std::fill(to, to + n * n, 0.0);
  for (int64_t i = 0; i < size; ++i) std::copy(from + i * size, from + (i + 1) * size, to + i * n);
}
DDC_INLINE void write(int64_t n, const double* from, int64_t size, double* to) {
  for (int64_t i = 0; i < size; ++i) std::copy(from + i * n, from + i * n + size, to + i * size);
}

/// The F for which F P F^T and F^-T M F^-1 are equal, by Newton's method from the identity, and its inverse.
DDC_INLINE void balance(int64_t n, double* p, double* m, double rounding, double* factor,
                        double* inverse, double* const* spares, const Solver& solver) {
  double* sum = spares[0];
  double* difference = spares[1];
  double* e = spares[2];
  double* step = spares[3];
  double* undo = spares[4];
  double* spare = spares[5];
  for (int k = 0; k < kNewtonSteps; ++k) {
    for (int64_t i = 0; i < n * n; ++i) {
      sum[i] = p[i] + m[i];
      difference[i] = m[i] - p[i];
    }
    lyapunov(n, sum, difference, 1, e, solver);
    const double size = std::sqrt(dot(n, e, e));
    if (!(size > rounding)) return;
    const double share = size > kLargestStep ? kLargestStep / size : 1;
    for (int64_t i = 0; i < n * n; ++i) e[i] *= share;
    multiply(n, e, e, step);
    for (int64_t i = 0; i < n * n; ++i) step[i] = e[i] + 0.5 * step[i];
    add_identity(n, step);
    std::copy(step, step + n * n, undo);
    invert(n, undo);
    const auto times = [&](const double* a, double* b) DDC_ALWAYS {
      multiply(n, a, b, spare);
      std::copy(spare, spare + n * n, b);
    };
    // Both are symmetric.
    const auto congruent = [&](const double* a, double* b) DDC_ALWAYS {
      times(a, b);
      multiply(n, b, a, spare);
      add_transpose(n, spare, 1, b);
      for (int64_t i = 0; i < n * n; ++i) b[i] *= 0.5;
    };
    if (k == 0) {
      std::copy(step, step + n * n, factor);
      std::copy(undo, undo + n * n, inverse);
    } else {
      times(step, factor);
      multiply(n, inverse, undo, spare);
      std::copy(spare, spare + n * n, inverse);
    }
    if (is_last(size, rounding, solver)) return;
    congruent(step, p);
    congruent(undo, m);
  }
}

/// The rotation R for which R O^T is symmetric, by Newton's method from the identity.
DDC_INLINE void turn_back(int64_t n, double* overlap, double rounding, double* turn,
                          double* const* spares, const Solver& solver) {
  double* even = spares[0];
  double* odd = spares[1];
  double* half = spares[2];
  double* spare = spares[3];
  for (int k = 0; k < kNewtonSteps; ++k) {
    add_transpose(n, overlap, 1, even);
    add_transpose(n, overlap, -1, odd);
    lyapunov(n, even, odd, -1, half, solver);
    const double size = std::sqrt(dot(n, half, half));
    if (!(size > rounding)) return;
    // Cayley's transform (1 - Z)^-1 (1 + Z) = 2 (1 - Z)^-1 - 1 of a skew matrix is orthogonal whatever its size.
    for (int64_t i = 0; i < n * n; ++i) half[i] = -half[i];
    add_identity(n, half);
    invert(n, half);
    for (int64_t i = 0; i < n * n; ++i) half[i] *= 2;
    for (int64_t i = 0; i < n; ++i) half[i * n + i] -= 1;
    if (k == 0) {
      std::copy(half, half + n * n, turn);
    } else {
      multiply(n, half, turn, spare);
      std::copy(spare, spare + n * n, turn);
    }
    if (is_last(size, rounding, solver)) return;
    transpose(n, half, even);
    multiply(n, overlap, even, spare);
    std::copy(spare, spare + n * n, overlap);
  }
}

DDC_INLINE void find(const HeadMove& head, double rounding) {
  Room room(head.size);
  const int64_t n = room.size();
  // Two steps of Newton's leave no more than this squared.
  const Solver solver{std::sqrt(rounding), room.next(), room.next(),
                      room.next(),         room.next(), room.next()};
  double* factor = room.next();
  double* inverse = room.next();
  const int64_t entries = n * n;
  std::fill(factor, factor + entries, 0.0);
  add_identity(n, factor);
  std::copy(factor, factor + entries, inverse);
  double* p = room.next();
  double* m = room.next();
  double* const spares[] = {room.next(), room.next(), room.next(),
                            room.next(), room.next(), room.next()};
  if (head.plus != nullptr) {
    const auto symmetric = [&](const double* from, double* to) DDC_ALWAYS {
      read(head.size, from, n, solver.image);
      add_transpose(n, solver.image, 1, to);
      for (int64_t i = 0; i < entries; ++i) to[i] *= 0.5;
    };
    symmetric(head.plus, p);
    symmetric(head.minus, m);
    balance(n, p, m, rounding, factor, inverse, spares, solver);
  }
  transpose(n, inverse, m);
  std::swap(inverse, m);  // now the inverse transpose
  if (head.turned_plus != nullptr || head.turned_minus != nullptr) {
    double* overlap = p;
    double* turn = m;
    std::fill(overlap, overlap + entries, 0.0);
    const auto add = [&](const double* given, const double* moved) DDC_ALWAYS {
      if (given == nullptr) return;
      read(head.size, given, n, solver.image);
      transpose(n, moved, solver.product);
      multiply(n, solver.image, solver.product, solver.residual);
      for (int64_t i = 0; i < entries; ++i) overlap[i] += solver.residual[i];
    };
    add(head.turned_plus, factor);
    add(head.turned_minus, inverse);
    std::fill(turn, turn + entries, 0.0);
    add_identity(n, turn);
    turn_back(n, overlap, rounding, turn, spares, solver);
    for (double* each : {factor, inverse}) {
      multiply(n, turn, each, solver.image);
      std::copy(solver.image, solver.image + entries, each);
    }
  }
  write(n, factor, head.size, head.factor);
  if (head.dual != nullptr) write(n, inverse, head.size, head.dual);
}

}  // namespace

DDC_CLONES void find_move(const HeadMove& head, double rounding) { find(head, rounding); }

}  // namespace ddc::kernels
