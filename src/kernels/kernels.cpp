#include "kernels/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

// Compiled once per instruction set; which copy runs is decided when the program is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DDC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DDC_CLONES
#endif
#define DDC_INLINE inline __attribute__((always_inline))

namespace ddc::kernels {
namespace {

/// Rows of which sums are kept in the matrix's own type before they are added up in double precision.
constexpr int64_t kRows = 64;
/// The same along a row.
constexpr int64_t kColumns = 512;

template <class T>
DDC_INLINE void adam_loop(T* __restrict w, const T* __restrict g, T* __restrict m, T* __restrict v,
                          int64_t count, const AdamConstants& constants) {
  // The first moment goes from itself towards the gradient, or back from the gradient if that is nearer.
  const auto rest1 = static_cast<T>(1 - constants.beta1);
  const bool from_moment = rest1 < T{0.5};
  const T weight = from_moment ? rest1 : rest1 - T{1};
  const auto beta2 = static_cast<T>(constants.beta2);
  const auto rest2 = static_cast<T>(1 - constants.beta2);
  const auto root = static_cast<T>(std::sqrt(constants.correction2));
  const auto eps = static_cast<T>(constants.eps);
  const auto step = static_cast<T>(-(constants.lr / constants.correction1));
  const auto kept = static_cast<T>(1 - constants.lr * constants.weight_decay);
  const T sign = constants.maximize ? -1 : 1;
  for (int64_t i = 0; i < count; ++i) {
    const T gradient = sign * g[i];
    const T first = std::fma(weight, gradient - m[i], from_moment ? m[i] : gradient);
    const T second = std::fma(rest2 * gradient, gradient, v[i] * beta2);
    m[i] = first;
    v[i] = second;
    const T change = step * first / (std::sqrt(second) / root + eps);
    w[i] = w[i] * kept + change;
  }
}

template <class T, class Bits>
DDC_INLINE bool finite_loop(const T* __restrict data, int64_t count, Bits exponent) {
  Bits found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<Bits>(data[i]);
    found |= (bits & exponent) == exponent ? Bits{1} : Bits{0};
  }
  return found == 0;
}

template <class T>
DDC_INLINE void row_squares_loop(const Matrix<const T>& x, const T* weight, int64_t begin,
                                 int64_t end, double* sums) {
  for (int64_t i = begin; i < end; ++i) {
    const T* __restrict row = x.data + i * x.columns;
    double total = 0;
    for (int64_t from = 0; from < x.columns; from += kColumns) {
      const int64_t to = std::min(from + kColumns, x.columns);
      T sum = 0;
      if (weight == nullptr) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = from; j < to; ++j) sum += row[j] * row[j];
      } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = from; j < to; ++j) sum += row[j] * row[j] * weight[j];
      }
      total += sum;
    }
    sums[i - begin] = total;
  }
}

/// Calls add(i, part) for all rows, in groups whose part is added to the sums.
template <class T, class Add>
DDC_INLINE void column_loop(int64_t rows, int64_t begin, int64_t end, double* sums,
                            const Add& add) {
  T part[kColumns];
  for (int64_t from = begin; from < end; from += kColumns) {
    const int64_t count = std::min(kColumns, end - from);
    double* __restrict total = sums + (from - begin);
    std::fill(total, total + count, 0.0);
    for (int64_t first = 0; first < rows; first += kRows) {
      std::fill(part, part + count, T{0});
      for (int64_t i = first; i < std::min(first + kRows, rows); ++i) add(i, from, count, part);
      for (int64_t j = 0; j < count; ++j) total[j] += part[j];
    }
  }
}

template <class T>
DDC_INLINE void column_squares_loop(const Matrix<const T>& x, const T* weight, int64_t begin,
                                    int64_t end, double* sums) {
  column_loop<T>(x.rows, begin, end, sums,
                 [&](int64_t i, int64_t from, int64_t count, T* __restrict part) {
                   const T* __restrict row = x.data + i * x.columns + from;
                   const T factor = weight == nullptr ? T{1} : weight[i];
                   for (int64_t j = 0; j < count; ++j) part[j] += row[j] * row[j] * factor;
                 });
}

template <class T>
DDC_INLINE void column_sums_loop(const Matrix<const T>& x, int64_t begin, int64_t end,
                                 double* sums) {
  column_loop<T>(x.rows, begin, end, sums,
                 [&](int64_t i, int64_t from, int64_t count, T* __restrict part) {
                   const T* __restrict row = x.data + i * x.columns + from;
                   for (int64_t j = 0; j < count; ++j) part[j] += row[j];
                 });
}

template <class T>
DDC_INLINE void scale_loop(const Matrix<T>& x, const T* __restrict row, const T* __restrict column,
                           int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    T* __restrict entry = x.data + i * x.columns;
    const T factor = row == nullptr ? T{1} : row[i];
    if (column != nullptr) {
      for (int64_t j = 0; j < x.columns; ++j) entry[j] *= factor * column[j];
    } else if (row != nullptr) {
      for (int64_t j = 0; j < x.columns; ++j) entry[j] *= factor;
    }
  }
}

}  // namespace

// A clone cannot be a template: each function is written out for both types.
#define DDC_FOR(T, BITS, EXPONENT)                                                         \
  DDC_CLONES void adam_(const AdamTensor<T>& tensor, int64_t begin, int64_t end,           \
                        const AdamConstants& constants) {                                  \
    adam_loop<T>(tensor.weights + begin, tensor.gradient + begin, tensor.first + begin,    \
                 tensor.second + begin, end - begin, constants);                           \
  }                                                                                        \
  DDC_CLONES bool all_finite(const T* data, int64_t count) {                               \
    return finite_loop<T, BITS>(data, count, EXPONENT);                                    \
  }                                                                                        \
  DDC_CLONES void row_squares(const Matrix<const T>& x, const T* weight, int64_t begin,    \
                              int64_t end, double* sums) {                                 \
    row_squares_loop<T>(x, weight, begin, end, sums);                                      \
  }                                                                                        \
  DDC_CLONES void column_squares(const Matrix<const T>& x, const T* weight, int64_t begin, \
                                 int64_t end, double* sums) {                              \
    column_squares_loop<T>(x, weight, begin, end, sums);                                   \
  }                                                                                        \
  DDC_CLONES void column_sums(const Matrix<const T>& x, int64_t begin, int64_t end,        \
                              double* sums) {                                              \
    column_sums_loop<T>(x, begin, end, sums);                                              \
  }                                                                                        \
  DDC_CLONES void scale_(const Matrix<T>& x, const T* row, const T* column, int64_t begin, \
                         int64_t end) {                                                    \
    scale_loop<T>(x, row, column, begin, end);                                             \
  }
DDC_FOR(float, uint32_t, 0x7f800000U)
DDC_FOR(double, uint64_t, 0x7ff0000000000000ULL)

}  // namespace ddc::kernels
