#include "kernels/heads.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "kernels/clones.h"

namespace ddc::kernels {
namespace {

/// Numbers that are computed with at a time, whatever the instruction set makes of it.
constexpr int64_t kBytes = 64;
template <class T>
struct LanesOf;
template <>
struct LanesOf<double> {
  using Type = double __attribute__((vector_size(kBytes), may_alias));
};
template <>
struct LanesOf<float> {
  using Type = float __attribute__((vector_size(kBytes), may_alias));
};
template <class T>
using Lanes = typename LanesOf<T>::Type;
/// Sizes are rounded up to multiples of what one product fills at a time; the rest is zero.
constexpr int64_t kTileRows = 4;
template <class T>
constexpr int64_t kTileColumns = 2 * kBytes / static_cast<int64_t>(sizeof(T));
constexpr std::align_val_t kAligned{kBytes};

/// From this share of a move on that may be missing, generators are found in float32: a Newton step corrects what
/// the one before has left, and its residual is in float64.
constexpr double kCoarse = 1e-8;

/// Diagonal sums below this share of the largest do not fix a direction.
constexpr double kRank = 1e-12;
/// As matrices stand, and in a basis in which they are nearly diagonal: whoever needs more of them as they stand
/// is better off with a basis.
constexpr int kNewtonSteps = 4;
constexpr int kIterations = 8;
constexpr int kNewtonStepsInBasis = 16;
constexpr int kIterationsInBasis = 64;
/// Share of a solution, squared, that may be missing where the next Newton step is to correct it. With more missing
/// iterations do not get there as matrices stand.
constexpr double kHopeless = 1e-2;
/// Norm of a step's generator; far from balance a Newton step overshoots.
constexpr double kLargestStep = 0.5;

/// Matrices of one size, side by side in memory.
class Room {
 public:
  Room(int64_t size, int64_t multiple)
      : size_((size + multiple - 1) / multiple * multiple),
        data_(new (kAligned) double[static_cast<size_t>(kMatrices * size_ * size_)]) {}
  ~Room() { ::operator delete[](data_, kAligned); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  int64_t size() const { return size_; }
  double* next() { return data_ + used_++ * size_ * size_; }

 private:
  static constexpr int64_t kMatrices = 23;
  int64_t size_;
  double* data_;
  int64_t used_ = 0;
};

/// c = a b.
template <class T>
DDC_INLINE void multiply(int64_t n, const T* a, const T* b, T* c) {
  for (int64_t j = 0; j < n; j += kTileColumns<T>) {
    for (int64_t i = 0; i < n; i += kTileRows) {
      Lanes<T> sums[kTileRows][2] = {};
      for (int64_t k = 0; k < n; ++k) {
        const auto* row = reinterpret_cast<const Lanes<T>*>(b + k * n + j);
        const Lanes<T> left = row[0];
        const Lanes<T> right = row[1];
#pragma GCC unroll 4
        for (int64_t r = 0; r < kTileRows; ++r) {
          const T x = a[(i + r) * n + k];
          sums[r][0] += x * left;
          sums[r][1] += x * right;
        }
      }
#pragma GCC unroll 4
      for (int64_t r = 0; r < kTileRows; ++r) {
        auto* to = reinterpret_cast<Lanes<T>*>(c + (i + r) * n + j);
        to[0] = sums[r][0];
        to[1] = sums[r][1];
      }
    }
  }
}

/// to = a + sign a^T.
template <class T>
DDC_INLINE void add_transpose(int64_t n, const T* a, T sign, T* to) {
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

template <class T>
DDC_INLINE T dot(int64_t n, const T* a, const T* b) {
  T sum = 0;
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

template <class T>
DDC_INLINE T ratio(T a, T b) {
  return b > 0 ? a / b : 0;
}

/// Room of a solution in numbers of type T, and the share of it that may be missing.
template <class T>
struct Solver {
  using Number = T;
  double solved;
  int iterations;
  int newton_steps;
  bool as_it_stands;
  T* m;
  T* a;
  T* preconditioner;
  T* residual;
  T* direction;
  T* product;
  T* image;
};

/// The A with M A + A M = S, by conjugate gradients; S and A symmetric (sign +1) or skew (-1), so that one
/// product does. Directions that M does not fix come out as zero. Returns which share of it is missing, squared.
template <class T>
DDC_INLINE double lyapunov(int64_t n, const double* m, const double* s, double sign, double* result,
                           const Solver<T>& room) {
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, 2 * m[i * n + i]);
  // In units in which neither squares nor quotients leave the range of float32.
  const double unit = largest > 0 ? 1 / largest : 1;
  for (int64_t i = 0; i < n * n; ++i) room.m[i] = static_cast<T>(m[i] * unit);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const double sum = (m[i * n + i] + m[j * n + j]) * unit;
      room.preconditioner[i * n + j] = sum > kRank ? static_cast<T>(1 / sum) : T{0};
    }
  }
  const auto apply = [&](const T* x) DDC_ALWAYS {
    multiply(n, room.m, x, room.product);
    add_transpose(n, room.product, static_cast<T>(sign), room.image);
  };
  for (int64_t i = 0; i < n * n; ++i) {
    room.a[i] = static_cast<T>(s[i] * unit) * room.preconditioner[i];
  }
  apply(room.a);
  T size = 0;
  T left = 0;
  T product = 0;
#pragma omp simd reduction(+ : size, left, product)
  for (int64_t i = 0; i < n * n; ++i) {
    const T residual = static_cast<T>(s[i] * unit) - room.image[i];
    const T z = residual * room.preconditioner[i];
    room.residual[i] = residual;
    room.direction[i] = z;
    size += room.a[i] * room.a[i];
    left += z * z;
    product += residual * z;
  }
  const auto least = static_cast<T>(room.solved * room.solved);
  for (int k = 0; k < room.iterations && left > least * size; ++k) {
    apply(room.direction);
    const T step = ratio(product, dot(n, room.direction, room.image));
    T next = 0;
    left = 0;
#pragma omp simd reduction(+ : next, left)
    for (int64_t i = 0; i < n * n; ++i) {
      room.a[i] += step * room.direction[i];
      const T residual = room.residual[i] - step * room.image[i];
      const T z = residual * room.preconditioner[i];
      room.residual[i] = residual;
      left += z * z;
      next += residual * z;
    }
    const T again = ratio(next, product);
    for (int64_t i = 0; i < n * n; ++i) {
      room.direction[i] = room.residual[i] * room.preconditioner[i] + again * room.direction[i];
    }
    product = next;
  }
  for (int64_t i = 0; i < n * n; ++i) result[i] = room.a[i];
  // What is no number does not become one.
  return left > least * size ? ratio<double>(left, size) : 0;
}

/// Whether a Newton step leaves nothing to the next one: what it was solved for, and its square.
template <class T>
DDC_INLINE bool is_last(double size, double rounding, const Solver<T>& solver) {
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
/// Returns whether it was found.
template <class T>
DDC_INLINE bool balance(int64_t n, double* p, double* m, double rounding, double* factor,
                        double* inverse, double* const* spares, const Solver<T>& solver) {
  double* sum = spares[0];
  double* difference = spares[1];
  double* e = spares[2];
  double* step = spares[3];
  double* undo = spares[4];
  double* spare = spares[5];
  for (int k = 0; k < solver.newton_steps; ++k) {
    for (int64_t i = 0; i < n * n; ++i) {
      sum[i] = p[i] + m[i];
      difference[i] = m[i] - p[i];
    }
    const double missing = lyapunov(n, sum, difference, 1, e, solver);
    if (missing > kHopeless && solver.as_it_stands) return false;
    const double size = std::sqrt(dot(n, e, e));
    if (!(size > rounding)) return missing == 0;
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
      add_transpose(n, spare, 1.0, b);
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
    if (missing == 0 && is_last(size, rounding, solver)) return true;
    congruent(step, p);
    congruent(undo, m);
  }
  return false;
}

/// The rotation R for which R O^T is symmetric, by Newton's method from the identity. Returns whether it was
/// found.
template <class T>
DDC_INLINE bool turn_back(int64_t n, double* overlap, double rounding, double* turn,
                          double* const* spares, const Solver<T>& solver) {
  double* even = spares[0];
  double* odd = spares[1];
  double* half = spares[2];
  double* spare = spares[3];
  for (int k = 0; k < solver.newton_steps; ++k) {
    add_transpose(n, overlap, 1.0, even);
    add_transpose(n, overlap, -1.0, odd);
    const double missing = lyapunov(n, even, odd, -1, half, solver);
    if (missing > kHopeless && solver.as_it_stands) return false;
    const double size = std::sqrt(dot(n, half, half));
    if (!(size > rounding)) return missing == 0;
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
    if (missing == 0 && is_last(size, rounding, solver)) return true;
    transpose(n, half, even);
    multiply(n, overlap, even, spare);
    std::copy(spare, spare + n * n, overlap);
  }
  return false;
}

template <class T>
DDC_INLINE bool find(const HeadMove& head, double rounding) {
  Room room(head.size, kTileColumns<T>);
  const int64_t n = room.size();
  const bool in_basis = head.basis != nullptr;
  // Two steps of Newton's leave no more than this squared.
  const auto next = [&] { return reinterpret_cast<T*>(room.next()); };
  const Solver<T> solver{std::sqrt(rounding),
                         in_basis ? kIterationsInBasis : kIterations,
                         in_basis ? kNewtonStepsInBasis : kNewtonSteps,
                         !in_basis,
                         next(),
                         next(),
                         next(),
                         next(),
                         next(),
                         next(),
                         next()};
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
  double* basis = room.next();
  double* back = room.next();
  double* product = room.next();
  double* image = room.next();
  double* sum = room.next();
  if (in_basis) {
    read(head.size, head.basis, n, basis);
    for (int64_t i = head.size; i < n; ++i) basis[i * n + i] = 1;
    transpose(n, basis, back);
  }
  const auto take = [&](const double* from, double* to) DDC_ALWAYS {
    read(head.size, from, n, to);
    if (!in_basis) return;
    multiply(n, basis, to, product);
    multiply(n, product, back, to);
  };
  bool is_found = true;
  if (head.plus != nullptr) {
    const auto symmetric = [&](const double* from, double* to) DDC_ALWAYS {
      take(from, image);
      add_transpose(n, image, 1.0, to);
      for (int64_t i = 0; i < entries; ++i) to[i] *= 0.5;
    };
    symmetric(head.plus, p);
    symmetric(head.minus, m);
    is_found = balance(n, p, m, rounding, factor, inverse, spares, solver);
    if (!is_found && !in_basis) return false;
  }
  transpose(n, inverse, m);
  std::swap(inverse, m);  // now the inverse transpose
  if (head.turned_plus != nullptr || head.turned_minus != nullptr) {
    double* overlap = p;
    double* turn = m;
    std::fill(overlap, overlap + entries, 0.0);
    const auto add = [&](const double* given, const double* moved) DDC_ALWAYS {
      if (given == nullptr) return;
      take(given, image);
      transpose(n, moved, product);
      multiply(n, image, product, sum);
      for (int64_t i = 0; i < entries; ++i) overlap[i] += sum[i];
    };
    add(head.turned_plus, factor);
    add(head.turned_minus, inverse);
    std::fill(turn, turn + entries, 0.0);
    add_identity(n, turn);
    is_found &= turn_back(n, overlap, rounding, turn, spares, solver);
    if (!is_found && !in_basis) return false;
    for (double* each : {factor, inverse}) {
      multiply(n, turn, each, image);
      std::copy(image, image + entries, each);
    }
  }
  const auto give = [&](double* matrix, double* to) DDC_ALWAYS {
    if (in_basis) {
      multiply(n, back, matrix, product);
      multiply(n, product, basis, matrix);
    }
    write(n, matrix, head.size, to);
  };
  give(factor, head.factor);
  if (head.dual != nullptr) give(inverse, head.dual);
  return is_found;
}

}  // namespace

DDC_CLONES bool find_move(const HeadMove& head, double rounding) {
  return rounding < kCoarse ? find<double>(head, rounding) : find<float>(head, rounding);
}

}  // namespace ddc::kernels
