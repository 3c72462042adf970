#include "kernels/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/clones.h"

namespace ddc::kernels {
namespace {

/// Rows of which sums are kept in the matrix's own type before they are added up in double precision.
constexpr int64_t kRows = 64;
/// The same along a row.
constexpr int64_t kColumns = 512;

/// Entries of a row that are worked on at a time, in the first cache.
constexpr int64_t kChunk = 512;

DDC_INLINE float load(const float& x) { return x; }
DDC_INLINE double load(const double& x) { return x; }
DDC_INLINE float load(const Bfloat16& x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
DDC_INLINE void store(float& to, float x) { to = x; }
DDC_INLINE void store(double& to, double x) { to = x; }
/// Rounds to the nearest, ties to even. What is no number stays none.
DDC_INLINE void store(Bfloat16& to, float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t is_nan = (bits & 0x7fffffffU) > 0x7f800000U ? 1U : 0U;
  to.bits = static_cast<uint16_t>(is_nan != 0 ? 0x7fc0U : rounded);
}

/// AdamW of one entry: returns the stepped x.
template <class T>
struct AdamEntry {
  static constexpr int kState = 2;
  static constexpr bool kHasGradient = true;

  explicit DDC_INLINE AdamEntry(const AdamConstants& constants)
      : rest1(static_cast<T>(1 - constants.beta1)),
        from_moment(rest1 < T{0.5}),
        // The first moment goes from itself towards the gradient, or back from the gradient if that is
        // nearer.
        weight(from_moment ? rest1 : rest1 - T{1}),
        beta2(static_cast<T>(constants.beta2)),
        rest2(static_cast<T>(1 - constants.beta2)),
        root(static_cast<T>(std::sqrt(constants.correction2))),
        eps(static_cast<T>(constants.eps)),
        step(static_cast<T>(-(constants.lr / constants.correction1))),
        kept(static_cast<T>(1 - constants.lr * constants.weight_decay)),
        sign(constants.maximize ? -1 : 1) {}

  DDC_INLINE T operator()(T x, T g, T& m, T& v) const {
    const T gradient = sign * g;
    const T first = std::fma(weight, gradient - m, from_moment ? m : gradient);
    const T second = std::fma(rest2 * gradient, gradient, v * beta2);
    m = first;
    v = second;
    const T change = step * first / (std::sqrt(second) / root + eps);
    return x * kept + change;
  }

  T rest1;
  bool from_moment;
  T weight, beta2, rest2, root, eps, step, kept, sign;
};

/// SGD without momentum.
template <class T>
struct DescentEntry {
  static constexpr int kState = 0;
  static constexpr bool kHasGradient = true;

  explicit DDC_INLINE DescentEntry(const SgdConstants& constants)
      : step(static_cast<T>(constants.maximize ? constants.lr : -constants.lr)),
        kept(static_cast<T>(1 - constants.lr * constants.weight_decay)) {}

  DDC_INLINE T operator()(T x, T g, T& /*first*/, T& /*second*/) const {
    return x * kept + g * step;
  }

  T step, kept;
};

/// SGD with momentum, the operations of torch::optim::SGD in their order.
template <class T>
struct MomentumEntry {
  static constexpr int kState = 1;
  static constexpr bool kHasGradient = true;

  explicit DDC_INLINE MomentumEntry(const SgdConstants& constants)
      : old(constants.first ? T{0} : static_cast<T>(constants.momentum)),
        share(constants.first ? T{1} : static_cast<T>(1 - constants.dampening)),
        ahead(static_cast<T>(constants.momentum)),
        step(static_cast<T>(-constants.lr)),
        kept(static_cast<T>(1 - constants.lr * constants.weight_decay)),
        sign(constants.maximize ? -1 : 1),
        nesterov(constants.nesterov) {}

  DDC_INLINE T operator()(T x, T g, T& buffer, T& /*second*/) const {
    const T gradient = sign * g;
    buffer = std::fma(gradient, share, buffer * old);
    const T along = nesterov ? std::fma(buffer, ahead, gradient) : buffer;
    return x * kept + along * step;
  }

  T old, share, ahead, step, kept, sign;
  bool nesterov;
};

/// Lion: a mean of momentum and gradient, entry by entry over its size.
template <class T>
struct LionEntry {
  static constexpr int kState = 1;
  static constexpr bool kHasGradient = true;

  explicit DDC_INLINE LionEntry(const LionConstants& constants)
      : beta1(static_cast<T>(constants.beta1)),
        beta2(static_cast<T>(constants.beta2)),
        rest1(static_cast<T>(1 - constants.beta1)),
        rest2(static_cast<T>(1 - constants.beta2)),
        // Zero over zero is zero.
        eps(std::max(static_cast<T>(constants.eps), std::numeric_limits<T>::min())),
        step(static_cast<T>(-constants.lr)),
        kept(static_cast<T>(1 - constants.lr * constants.weight_decay)),
        sign(constants.maximize ? -1 : 1) {}

  DDC_INLINE T operator()(T x, T g, T& m, T& /*second*/) const {
    const T gradient = sign * g;
    const T mean = std::fma(rest1, gradient, beta1 * m);
    m = std::fma(rest2, gradient, beta2 * m);
    const T size = std::abs(mean);
    return x * kept + step * (mean / (size > eps ? size : eps));
  }

  T beta1, beta2, rest1, rest2, eps, step, kept, sign;
};

/// No step: x as it came in.
template <class T>
struct MovedEntry {
  static constexpr int kState = 0;
  static constexpr bool kHasGradient = false;

  explicit DDC_INLINE MovedEntry(const MoveConstants& /*constants*/) {}
  DDC_INLINE T operator()(T x, T /*g*/, T& /*first*/, T& /*second*/) const { return x; }
};

/// Calls body with the rule's entry function.
template <class T, class Body>
DDC_INLINE void with_rule(const AdamConstants& constants, bool /*has_state*/, const Body& body) {
  body(AdamEntry<T>(constants));
}
template <class T, class Body>
DDC_INLINE void with_rule(const SgdConstants& constants, bool has_state, const Body& body) {
  if (has_state) {
    body(MomentumEntry<T>(constants));
  } else {
    body(DescentEntry<T>(constants));
  }
}
template <class T, class Body>
DDC_INLINE void with_rule(const LionConstants& constants, bool /*has_state*/, const Body& body) {
  body(LionEntry<T>(constants));
}
template <class T, class Body>
DDC_INLINE void with_rule(const MoveConstants& constants, bool /*has_state*/, const Body& body) {
  body(MovedEntry<T>(constants));
}

/// Steps entry i of memory.
template <class Rule, class S, class T>
DDC_INLINE T stepped(const Rule& rule, T x, const S* gradient, T factor, T* first, T* second,
                     int64_t i) {
  T g = 0;
  T m = 0;
  T v = 0;
  if constexpr (Rule::kHasGradient) g = load(gradient[i]) * factor;
  if constexpr (Rule::kState > 0) m = first[i];
  if constexpr (Rule::kState > 1) v = second[i];
  const T y = rule(x, g, m, v);
  if constexpr (Rule::kState > 0) first[i] = m;
  if constexpr (Rule::kState > 1) second[i] = v;
  return y;
}

template <class Rule, class S, class T>
DDC_INLINE void flat_loop(const Rule& rule, S* w, const S* g, T* m, T* v, int64_t begin,
                          int64_t end) {
  // Four lines of memory at a time, and those that come a little later fetched by then.
  constexpr int64_t kLine = 64 / sizeof(S);
  constexpr int64_t kBlock = 4 * kLine;
  constexpr int64_t kAhead = 8 * kLine;
  const int64_t whole = begin + (end - begin) / kBlock * kBlock;
  for (int64_t from = begin; from < whole; from += kBlock) {
    for (int64_t i = from + kAhead; i < from + kAhead + kBlock; i += kLine) {
      __builtin_prefetch(w + i);
      if constexpr (Rule::kHasGradient) __builtin_prefetch(g + i);
      if constexpr (Rule::kState > 0) __builtin_prefetch(m + i);
      if constexpr (Rule::kState > 1) __builtin_prefetch(v + i);
    }
#pragma omp simd
    for (int64_t i = from; i < from + kBlock; ++i) {
      store(w[i], stepped(rule, load(w[i]), g, T{1}, m, v, i));
    }
  }
#pragma omp simd
  for (int64_t i = whole; i < end; ++i) {
    store(w[i], stepped(rule, load(w[i]), g, T{1}, m, v, i));
  }
}

template <class T>
DDC_INLINE T dot_of(const T* a, const T* b, int64_t count) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) sum += a[j] * b[j];
  return sum;
}

/// What one stretch of a row is multiplied by.
template <class T>
struct Factors {
  T row, row_inverse, out;
  const T* column;
  const T* column_inverse;
  const T* out_column;
  T* squares;
  /// What is taken off, and sums of columns. Where there are any, none of the pointers is null.
  bool full;
  T row_shift, pattern;
  const T* row_pattern;
  const T* column_shift;
  T weight[2];
  T* dots[2];
};

/// A stretch of a row: in, step, out, in one loop. Returns the sum of squares of what is written to `to`.
template <bool kColumns, bool kOut, bool kSquares, bool kFull = false, class Rule, class T>
DDC_INLINE T stretch_loop(const Rule& rule, const T* from, T* to, const T* g, T* m, T* v,
                          const Factors<T>& factors, int64_t count) {
  T sum = 0;
  const T row = factors.row;
  const T row_inverse = factors.row_inverse;
  const T out = factors.out;
  const T* column = factors.column;
  const T* column_inverse = factors.column_inverse;
  const T* out_column = factors.out_column;
  T* squares = factors.squares;
  const T row_shift = factors.row_shift;
  const T pattern = factors.pattern;
  const T* row_pattern = factors.row_pattern;
  const T* column_shift = factors.column_shift;
  const T weight0 = factors.weight[0];
  const T weight1 = factors.weight[1];
  T* dots0 = factors.dots[0];
  T* dots1 = factors.dots[1];
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) {
    T x = from[j];
    if constexpr (kFull) x = x - row_shift * row_pattern[j] - pattern * column_shift[j];
    x *= row;
    T inverse = row_inverse;
    if constexpr (kColumns) {
      x *= column[j];
      inverse *= column_inverse[j];
    }
    T y = stepped(rule, x, g, inverse, m, v, j) * out;
    if constexpr (kOut) y *= out_column[j];
    to[j] = y;
    sum += y * y;
    if constexpr (kSquares) squares[j] += y * y;
    if constexpr (kFull) {
      dots0[j] += y * weight0;
      dots1[j] += y * weight1;
    }
  }
  return sum;
}

template <class Rule, class T>
DDC_INLINE T stretch(const Rule& rule, const T* from, T* to, const T* g, T* m, T* v,
                     const Factors<T>& f, int64_t count) {
  if (f.full) return stretch_loop<true, true, true, true>(rule, from, to, g, m, v, f, count);
  if (f.column == nullptr) {
    if (f.out_column == nullptr) {
      return f.squares == nullptr
                 ? stretch_loop<false, false, false>(rule, from, to, g, m, v, f, count)
                 : stretch_loop<false, false, true>(rule, from, to, g, m, v, f, count);
    }
    return f.squares == nullptr
               ? stretch_loop<false, true, false>(rule, from, to, g, m, v, f, count)
               : stretch_loop<false, true, true>(rule, from, to, g, m, v, f, count);
  }
  if (f.out_column == nullptr) {
    return f.squares == nullptr
               ? stretch_loop<true, false, false>(rule, from, to, g, m, v, f, count)
               : stretch_loop<true, false, true>(rule, from, to, g, m, v, f, count);
  }
  return f.squares == nullptr ? stretch_loop<true, true, false>(rule, from, to, g, m, v, f, count)
                              : stretch_loop<true, true, true>(rule, from, to, g, m, v, f, count);
}

/// Two rows that turn together, and what the step has turned them by.
template <class T>
struct Pair {
  const T* from0;
  const T* from1;
  T* to0;
  T* to1;
  const T* g0;
  const T* g1;
  T *m0, *m1, *v0, *v1;
  T cosine, sine;
  /// Sums over what was, what is and both.
  T square0, square1, along, across;
};

template <bool kColumns, bool kOut, class Rule, class T>
DDC_INLINE void pair_loop(const Rule& rule, Pair<T>& pair, const Factors<T>& f0,
                          const Factors<T>& f1, int64_t count) {
  T square0 = 0;
  T square1 = 0;
  T along = 0;
  T across = 0;
  const Pair<T> p = pair;
  const Factors<T> a = f0;
  const Factors<T> b = f1;
#pragma omp simd reduction(+ : square0, square1, along, across)
  for (int64_t j = 0; j < count; ++j) {
    const T column = kColumns ? a.column[j] : T{1};
    const T inverse = kColumns ? a.column_inverse[j] : T{1};
    const T w0 = p.from0[j] * (a.row * column);
    const T w1 = p.from1[j] * (b.row * column);
    const T x0 = p.cosine * w0 - p.sine * w1;
    const T x1 = p.sine * w0 + p.cosine * w1;
    T h0 = 0;
    T h1 = 0;
    if constexpr (Rule::kHasGradient) {
      const T g0 = p.g0[j] * (a.row_inverse * inverse);
      const T g1 = p.g1[j] * (b.row_inverse * inverse);
      h0 = p.cosine * g0 - p.sine * g1;
      h1 = p.sine * g0 + p.cosine * g1;
    }
    T m0 = 0;
    T m1 = 0;
    T v0 = 0;
    T v1 = 0;
    if constexpr (Rule::kState > 0) m0 = p.m0[j], m1 = p.m1[j];
    if constexpr (Rule::kState > 1) v0 = p.v0[j], v1 = p.v1[j];
    T y0 = rule(x0, h0, m0, v0) * a.out;
    T y1 = rule(x1, h1, m1, v1) * b.out;
    if constexpr (Rule::kState > 0) p.m0[j] = m0, p.m1[j] = m1;
    if constexpr (Rule::kState > 1) p.v0[j] = v0, p.v1[j] = v1;
    if constexpr (kOut) {
      y0 *= a.out_column[j];
      y1 *= a.out_column[j];
    }
    p.to0[j] = y0;
    p.to1[j] = y1;
    square0 += y0 * y0;
    square1 += y1 * y1;
    along += x0 * y0 + x1 * y1;
    across += x1 * y0 - x0 * y1;
  }
  pair.square0 = square0;
  pair.square1 = square1;
  pair.along = along;
  pair.across = across;
}

/// The rows of a matrix, a stretch of columns at a time.
template <class Rule, class T>
class RowsLoop {
 public:
  DDC_INLINE RowsLoop(const Rule& rule, const Stepped<T, T>& matrix, const RowEdges<T>& edges,
                      bool stores)
      : rule_(rule),
        matrix_(matrix),
        e_(edges),
        stores_(stores),
        full_(edges.row_shift != nullptr || edges.column_shift != nullptr ||
              (!edges.centres &&
               (edges.column_dots[0].sums != nullptr || edges.column_dots[1].sums != nullptr))) {
    std::fill(ones_, ones_ + kChunk, T{1});
    std::fill(zeros_, zeros_ + kChunk, T{0});
    std::fill(unused_, unused_ + kChunk, T{0});
  }

  DDC_INLINE void run(int64_t begin, int64_t end) {
    const bool sums_columns = e_.column_squares != nullptr || e_.column_dots[0].sums != nullptr ||
                              e_.column_dots[1].sums != nullptr;
    for (int64_t first = begin; first < end; first += kRows) {
      if (sums_columns) std::fill(e_.scratch, e_.scratch + 3 * e_.columns, T{0});
      const int64_t last = std::min(first + kRows, end);
      for (int64_t item = first; item < last; ++item) {
        const int64_t row = e_.items == nullptr ? item : e_.items[item][0];
        const int64_t partner = e_.items == nullptr ? -1 : e_.items[item][1];
        for (int64_t from = 0; from < e_.columns; from += kChunk) {
          const int64_t count = std::min(kChunk, e_.columns - from);
          if (partner < 0) {
            one(row, from, count);
          } else {
            both(item, row, partner, from, count);
          }
        }
        if (e_.centres) {
          centre(row);
          if (partner >= 0) centre(partner);
        }
      }
      if (!sums_columns) continue;
      add(e_.column_squares, 0);
      add(e_.column_dots[0].sums, 1);
      add(e_.column_dots[1].sums, 2);
    }
  }

 private:
  /// The weights, less the shifts that are still to be taken off.
  DDC_INLINE const T* brought_in(int64_t row, int64_t from, int64_t count, T* buffer) const {
    const T* w = matrix_.weights + row * e_.columns + from;
    if (e_.row_shift == nullptr && e_.column_shift == nullptr) return w;
    const T row_shift = e_.row_shift == nullptr ? T{0} : e_.row_shift[row];
    const T pattern = e_.column_shift == nullptr ? T{0} : e_.column_pattern[row];
    const T* row_pattern = e_.row_shift == nullptr ? w : e_.row_pattern + from;
    const T* column_shift = e_.column_shift == nullptr ? w : e_.column_shift + from;
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) {
      buffer[j] = w[j] - row_shift * row_pattern[j] - pattern * column_shift[j];
    }
    return buffer;
  }

  DDC_INLINE Factors<T> factors(int64_t row, int64_t from) const {
    Factors<T> f{};
    f.row = e_.row == nullptr ? T{1} : e_.row[row];
    f.row_inverse = e_.row == nullptr ? T{1} : e_.row_inverse[row];
    f.out = e_.out_row == nullptr ? T{1} : e_.out_row[row];
    f.column = e_.column == nullptr ? nullptr : e_.column + from;
    f.column_inverse = e_.column == nullptr ? nullptr : e_.column_inverse + from;
    f.out_column = e_.out_column == nullptr ? nullptr : e_.out_column + from;
    return f;
  }

  /// The same with the rest that a loop can do at once: neutral where there is nothing to be done.
  DDC_INLINE Factors<T> all_factors(int64_t row, int64_t from) {
    auto f = factors(row, from);
    const bool gathers = !e_.centres;
    if (gathers && e_.column_squares != nullptr) f.squares = e_.scratch + from;
    f.full = full_;
    if (!full_) return f;
    if (f.column == nullptr) f.column = f.column_inverse = ones_;
    if (f.out_column == nullptr) f.out_column = ones_;
    if (f.squares == nullptr) f.squares = unused_;
    f.row_shift = e_.row_shift == nullptr ? T{0} : e_.row_shift[row];
    f.row_pattern = e_.row_shift == nullptr ? zeros_ : e_.row_pattern + from;
    f.pattern = e_.column_shift == nullptr ? T{0} : e_.column_pattern[row];
    f.column_shift = e_.column_shift == nullptr ? zeros_ : e_.column_shift + from;
    for (int k = 0; k < 2; ++k) {
      const bool sums = gathers && e_.column_dots[k].sums != nullptr;
      f.weight[k] = sums ? e_.column_dots[k].weights[row] : T{0};
      f.dots[k] = sums ? e_.scratch + (k + 1) * e_.columns + from : unused_;
    }
    return f;
  }

  DDC_INLINE void gather_rows(const T* y, int64_t row, int64_t from, int64_t count) const {
    for (const auto& dot : e_.row_dots) {
      if (dot.sums != nullptr) dot.sums[row] += dot_of(y, dot.weights + from, count);
    }
  }

  DDC_INLINE void gather_square(int64_t row, T square) const {
    if (e_.row_squares != nullptr) e_.row_squares[row] += square;
  }

  DDC_INLINE void gather_columns(const T* y, int64_t row, int64_t from, int64_t count) const {
    if (e_.column_squares != nullptr) add_squares(y, from, count);
    for (int k = 0; k < 2; ++k) {
      if (e_.column_dots[k].sums == nullptr) continue;
      T* sums = e_.scratch + (k + 1) * e_.columns + from;
      const T weight = e_.column_dots[k].weights[row];
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) sums[j] += y[j] * weight;
    }
  }

  DDC_INLINE void one(int64_t row, int64_t from, int64_t count) {
    alignas(64) T unstored[kChunk];
    const int64_t at = row * e_.columns + from;
    const auto state = [&](T* own) { return own == nullptr ? own : own + at; };
    const auto f = all_factors(row, from);
    T* to = stores_ ? matrix_.weights + at : unstored;
    const T* g = matrix_.gradient == nullptr ? nullptr : matrix_.gradient + at;
    const T square = stretch(rule_, matrix_.weights + at, to, g, state(matrix_.first),
                             state(matrix_.second), f, count);
    gather_rows(to, row, from, count);
    // What is still to be centred is gathered then.
    if (!e_.centres) gather_square(row, square);
  }

  DDC_INLINE void both(int64_t item, int64_t row, int64_t partner, int64_t from, int64_t count) {
    alignas(64) T shifted[2][kChunk];
    alignas(64) T unstored[2][kChunk];
    const int64_t at0 = row * e_.columns + from;
    const int64_t at1 = partner * e_.columns + from;
    const auto f0 = factors(row, from);
    const auto f1 = factors(partner, from);
    const auto state = [](T* own, int64_t at) { return own == nullptr ? own : own + at; };
    Pair<T> p{};
    p.from0 = brought_in(row, from, count, shifted[0]);
    p.from1 = brought_in(partner, from, count, shifted[1]);
    p.to0 = stores_ ? matrix_.weights + at0 : unstored[0];
    p.to1 = stores_ ? matrix_.weights + at1 : unstored[1];
    p.g0 = matrix_.gradient == nullptr ? nullptr : matrix_.gradient + at0;
    p.g1 = matrix_.gradient == nullptr ? nullptr : matrix_.gradient + at1;
    p.m0 = state(matrix_.first, at0);
    p.m1 = state(matrix_.first, at1);
    p.v0 = state(matrix_.second, at0);
    p.v1 = state(matrix_.second, at1);
    p.cosine = e_.turn == nullptr ? T{1} : e_.turn[item][0];
    p.sine = e_.turn == nullptr ? T{0} : e_.turn[item][1];
    if (f0.column == nullptr) {
      if (f0.out_column == nullptr) {
        pair_loop<false, false>(rule_, p, f0, f1, count);
      } else {
        pair_loop<false, true>(rule_, p, f0, f1, count);
      }
    } else if (f0.out_column == nullptr) {
      pair_loop<true, false>(rule_, p, f0, f1, count);
    } else {
      pair_loop<true, true>(rule_, p, f0, f1, count);
    }
    const auto gather = [&](const T* to, int64_t own, T square) DDC_ALWAYS {
      gather_rows(to, own, from, count);
      if (e_.centres) return;
      gather_square(own, square);
      gather_columns(to, own, from, count);
    };
    gather(p.to0, row, p.square0);
    gather(p.to1, partner, p.square1);
    if (e_.overlap == nullptr) return;
    e_.overlap[item][0] += p.along;
    e_.overlap[item][1] += p.across;
  }

  DDC_INLINE void add_squares(const T* y, int64_t from, int64_t count) const {
    T* sums = e_.scratch + from;
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) sums[j] += y[j] * y[j];
  }

  /// Takes the mean off a row, all of which has been stored a moment ago.
  DDC_INLINE void centre(int64_t row) const {
    const auto mean = static_cast<T>(e_.row_dots[0].sums[row] / static_cast<double>(e_.columns));
    for (int64_t from = 0; from < e_.columns; from += kChunk) {
      const int64_t count = std::min(kChunk, e_.columns - from);
      T* y = matrix_.weights + row * e_.columns + from;
      const T* pattern = e_.centre_pattern + from;
      T square = 0;
#pragma omp simd reduction(+ : square)
      for (int64_t j = 0; j < count; ++j) {
        y[j] -= mean * pattern[j];
        square += y[j] * y[j];
      }
      gather_square(row, square);
      gather_columns(y, row, from, count);
    }
  }

  DDC_INLINE void add(double* sums, int place) const {
    if (sums == nullptr) return;
    const T* part = e_.scratch + place * e_.columns;
    for (int64_t j = 0; j < e_.columns; ++j) sums[j] += part[j];
  }

  const Rule& rule_;
  const Stepped<T, T>& matrix_;
  const RowEdges<T>& e_;
  bool stores_;
  /// More is done on the way than to multiply and to sum up squares.
  bool full_;
  alignas(64) T ones_[kChunk];
  alignas(64) T zeros_[kChunk];
  alignas(64) T unused_[kChunk];
};

DDC_INLINE bool stores(const AdamConstants& /*constants*/) { return true; }
DDC_INLINE bool stores(const SgdConstants& /*constants*/) { return true; }
DDC_INLINE bool stores(const LionConstants& /*constants*/) { return true; }
DDC_INLINE bool stores(const MoveConstants& constants) { return constants.store; }

/// Whether all exponents are less than `limit`; others carry into the sign. Read from four places at a time, and
/// ahead: one stream does not use what memory can give.
template <class Bits, class T>
DDC_INLINE bool below_loop(const T* data, int64_t count, Bits exponent, Bits limit) {
  constexpr int kSign = std::numeric_limits<Bits>::digits - 1;
  constexpr int64_t kStreams = 4;
  constexpr int64_t kLine = 64 / sizeof(T);
  constexpr int64_t kBlock = 4 * kLine;
  constexpr int64_t kAhead = 16 * kLine;
  const auto carry = static_cast<Bits>((Bits{1} << kSign) - limit);
  const auto carried = [&](const T& x) DDC_ALWAYS {
    return static_cast<Bits>((std::bit_cast<Bits>(x) & exponent) + carry);
  };
  alignas(64) Bits found[kBlock] = {};
  const int64_t stream = count / (kStreams * kBlock) * kBlock;
  for (int64_t from = 0; from < stream; from += kBlock) {
    for (int64_t s = 0; s < kStreams; ++s) {
      const T* block = data + s * stream + from;
      for (int64_t i = kAhead; i < kAhead + kBlock; i += kLine) __builtin_prefetch(block + i);
#pragma omp simd
      for (int64_t i = 0; i < kBlock; ++i) found[i] |= carried(block[i]);
    }
  }
  Bits any = 0;
  for (const Bits each : found) any |= each;
  for (int64_t i = kStreams * stream; i < count; ++i) any |= carried(data[i]);
  return (any >> kSign) == 0;
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

}  // namespace

// A clone cannot be a template: each function is written out for both types.
#define DDC_FOR(T)                                                                         \
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
  }
DDC_FOR(float)
DDC_FOR(double)

#define DDC_STEP(S, T, CONSTANTS)                                                                \
  DDC_CLONES void step_(const Stepped<S, T>& tensor, int64_t begin, int64_t end,                 \
                        const CONSTANTS& constants) {                                            \
    with_rule<T>(constants, tensor.first != nullptr, [&](const auto& rule) DDC_ALWAYS {          \
      flat_loop(rule, tensor.weights, tensor.gradient, tensor.first, tensor.second, begin, end); \
    });                                                                                          \
  }
#define DDC_ROWS(T, CONSTANTS)                                                                     \
  DDC_CLONES void step_rows_(const Stepped<T, T>& matrix, const RowEdges<T>& edges, int64_t begin, \
                             int64_t end, const CONSTANTS& constants) {                            \
    with_rule<T>(constants, matrix.first != nullptr, [&](const auto& rule) DDC_ALWAYS {            \
      RowsLoop(rule, matrix, edges, stores(constants)).run(begin, end);                            \
    });                                                                                            \
  }
#define DDC_TYPE(S, T, BITS, EXPONENT, HUGE_EXPONENT)                     \
  DDC_STEP(S, T, AdamConstants)                                           \
  DDC_STEP(S, T, SgdConstants)                                            \
  DDC_STEP(S, T, LionConstants)                                           \
  DDC_CLONES bool all_finite(const S* data, int64_t count) {              \
    return below_loop<BITS>(data, count, BITS{EXPONENT}, BITS{EXPONENT}); \
  }                                                                       \
  DDC_CLONES bool none_huge(const S* data, int64_t count) {               \
    return below_loop<BITS>(data, count, BITS{EXPONENT}, HUGE_EXPONENT);  \
  }
DDC_TYPE(float, float, uint32_t, 0x7f800000U, std::bit_cast<uint32_t>(float{kHuge}))
DDC_TYPE(double, double, uint64_t, 0x7ff0000000000000ULL, std::bit_cast<uint64_t>(kHuge))
DDC_TYPE(Bfloat16, float, uint16_t, 0x7f80U,
         static_cast<uint16_t>(std::bit_cast<uint32_t>(float{kHuge}) >> 16))
DDC_ROWS(float, AdamConstants)
DDC_ROWS(float, SgdConstants)
DDC_ROWS(float, LionConstants)
DDC_ROWS(float, MoveConstants)
DDC_ROWS(double, AdamConstants)
DDC_ROWS(double, SgdConstants)
DDC_ROWS(double, LionConstants)
DDC_ROWS(double, MoveConstants)

}  // namespace ddc::kernels
