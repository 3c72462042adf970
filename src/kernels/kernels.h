#pragma once

#include <cstdint>

// Loops over contiguous memory, for the instruction sets of x86-64 that are told apart at run time. They
// know nothing of tensors, gauges and threads: whoever calls them hands out ranges (kernels/tensors.h).
// T is float or double.

namespace ddc::kernels {

/// Entry of a bfloat16 tensor; it is computed with in float.
struct Bfloat16 {
  uint16_t bits;
};

/// Numbers of one step of AdamW. The operations and their order are those of torch's own fused kernel.
struct AdamConstants {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool maximize = false;
  /// 1 - beta^t.
  double correction1 = 1;
  double correction2 = 1;
};

/// The same of gradient descent with momentum.
struct SgdConstants {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  /// The buffer has no gradient yet.
  bool first = false;
};

/// The same of Lion.
struct LionConstants {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool maximize = false;
};

/// No step at all: what is to be made on the way in is made, and written if that is asked for.
struct MoveConstants {
  bool store = true;
};

/// Weights of storage type S with their gradient and up to two tensors of state, in the type T that is
/// computed in: the moments of Adam; the buffer of SGD or Lion; or none.
template <class S, class T>
struct Stepped {
  S* weights;
  const S* gradient;
  T* first;
  T* second;
};

/// What rows of a matrix go through on their way into and out of a step, and what is gathered of them.
/// Null: nothing.
template <class T>
struct RowEdges {
  int64_t columns = 0;
  /// Per item the row, or the two rows that turn together (-1: none). Null: item i is row i.
  const int64_t (*items)[2] = nullptr;

  // In: x = turn (w - row_shift row_pattern^T - column_pattern column_shift^T) * (row column^T); the
  // gradient is divided by what x is multiplied by.
  const T* row_shift = nullptr;
  const T* row_pattern = nullptr;
  const T* column_shift = nullptr;
  const T* column_pattern = nullptr;
  const T* row = nullptr;
  const T* row_inverse = nullptr;
  const T* column = nullptr;
  const T* column_inverse = nullptr;
  /// Per item: cosine and sine.
  const T (*turn)[2] = nullptr;

  // Out: what is stored is the stepped x times these.
  const T* out_row = nullptr;
  const T* out_column = nullptr;

  /// Rows are then centred: less their mean, seen through `centre`, times `centre_pattern`. The mean is the
  /// first of the dots of rows over the number of columns.
  bool centres = false;
  const T* centre_pattern = nullptr;

  // Gathered of what is stored: per row; per column, of the rows of one call; per item.
  double* row_squares = nullptr;
  double* column_squares = nullptr;
  struct Dot {
    const T* weights = nullptr;
    double* sums = nullptr;
  };
  Dot row_dots[2];
  Dot column_dots[2];
  /// Cosine and sine of the angle, times lengths, by which the step has turned the two rows back.
  double (*overlap)[2] = nullptr;
  /// Room for 3 * columns numbers.
  T* scratch = nullptr;
};

/// `step_` steps the entries begin <= i < end in place, `step_rows_` the items of a matrix.
void step_(const Stepped<float, float>& tensor, int64_t begin, int64_t end,
           const AdamConstants& constants);
void step_(const Stepped<float, float>& tensor, int64_t begin, int64_t end,
           const SgdConstants& constants);
void step_(const Stepped<float, float>& tensor, int64_t begin, int64_t end,
           const LionConstants& constants);
void step_(const Stepped<double, double>& tensor, int64_t begin, int64_t end,
           const AdamConstants& constants);
void step_(const Stepped<double, double>& tensor, int64_t begin, int64_t end,
           const SgdConstants& constants);
void step_(const Stepped<double, double>& tensor, int64_t begin, int64_t end,
           const LionConstants& constants);
void step_(const Stepped<Bfloat16, float>& tensor, int64_t begin, int64_t end,
           const AdamConstants& constants);
void step_(const Stepped<Bfloat16, float>& tensor, int64_t begin, int64_t end,
           const SgdConstants& constants);
void step_(const Stepped<Bfloat16, float>& tensor, int64_t begin, int64_t end,
           const LionConstants& constants);
void step_rows_(const Stepped<float, float>& matrix, const RowEdges<float>& edges, int64_t begin,
                int64_t end, const AdamConstants& constants);
void step_rows_(const Stepped<float, float>& matrix, const RowEdges<float>& edges, int64_t begin,
                int64_t end, const SgdConstants& constants);
void step_rows_(const Stepped<float, float>& matrix, const RowEdges<float>& edges, int64_t begin,
                int64_t end, const LionConstants& constants);
void step_rows_(const Stepped<float, float>& matrix, const RowEdges<float>& edges, int64_t begin,
                int64_t end, const MoveConstants& constants);
void step_rows_(const Stepped<double, double>& matrix, const RowEdges<double>& edges, int64_t begin,
                int64_t end, const AdamConstants& constants);
void step_rows_(const Stepped<double, double>& matrix, const RowEdges<double>& edges, int64_t begin,
                int64_t end, const SgdConstants& constants);
void step_rows_(const Stepped<double, double>& matrix, const RowEdges<double>& edges, int64_t begin,
                int64_t end, const LionConstants& constants);
void step_rows_(const Stepped<double, double>& matrix, const RowEdges<double>& edges, int64_t begin,
                int64_t end, const MoveConstants& constants);

/// Whether no entry is NaN or infinite.
bool all_finite(const float* data, int64_t count);
bool all_finite(const double* data, int64_t count);
bool all_finite(const Bfloat16* data, int64_t count);
/// Numbers from here on are huge: the fourth power of what is smaller is a float32.
inline constexpr double kHuge = 1 << 30;
/// Whether no entry is NaN or of size kHuge or more.
bool none_huge(const float* data, int64_t count);
bool none_huge(const double* data, int64_t count);
bool none_huge(const Bfloat16* data, int64_t count);

/// Matrix whose rows follow each other in memory.
template <class T>
struct Matrix {
  T* data;
  int64_t rows;
  int64_t columns;
};

/// Sums of x^2 weight[column] over the columns, of the rows begin <= i < end. No weights: 1.
void row_squares(const Matrix<const float>& x, const float* weight, int64_t begin, int64_t end,
                 double* sums);
void row_squares(const Matrix<const double>& x, const double* weight, int64_t begin, int64_t end,
                 double* sums);
/// Sums of x^2 weight[row] over all rows, of the columns begin <= j < end. No weights: 1.
void column_squares(const Matrix<const float>& x, const float* weight, int64_t begin, int64_t end,
                    double* sums);
void column_squares(const Matrix<const double>& x, const double* weight, int64_t begin, int64_t end,
                    double* sums);
/// Sums of x over all rows, of the columns begin <= j < end.
void column_sums(const Matrix<const float>& x, int64_t begin, int64_t end, double* sums);
void column_sums(const Matrix<const double>& x, int64_t begin, int64_t end, double* sums);

}  // namespace ddc::kernels
