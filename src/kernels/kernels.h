#pragma once

#include <cstdint>

// Loops over contiguous memory, for the instruction sets of x86-64 that are told apart at run time. They
// know nothing of tensors, gauges and threads: whoever calls them hands out ranges (kernels/parallel.h).
// T is float or double.

namespace ddc::kernels {

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

/// Weights with their gradient and moments.
template <class T>
struct AdamTensor {
  T* weights;
  const T* gradient;
  T* first;
  T* second;
};

/// Steps the entries begin <= i < end in place.
void adam_(const AdamTensor<float>& tensor, int64_t begin, int64_t end,
           const AdamConstants& constants);
void adam_(const AdamTensor<double>& tensor, int64_t begin, int64_t end,
           const AdamConstants& constants);

/// Whether no entry is NaN or infinite.
bool all_finite(const float* data, int64_t count);
bool all_finite(const double* data, int64_t count);

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

/// Multiplies the entries of the rows begin <= i < end by row[i] column[j]. Null: by 1.
void scale_(const Matrix<float>& x, const float* row, const float* column, int64_t begin,
            int64_t end);
void scale_(const Matrix<double>& x, const double* row, const double* column, int64_t begin,
            int64_t end);

}  // namespace ddc::kernels
