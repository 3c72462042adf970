#include "sums_of_rows.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ddc::testbeds {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Columns are worked on in blocks of this many: what a block needs of the table then stays in the cache
/// while all sums are taken. Known to the compiler, so that it can vectorise.
constexpr int64_t width = 64;

/// With columns of zeros, so that blocks are full.
at::Tensor padded(const at::Tensor& matrix) {
  const int64_t rest = matrix.size(1) % width;
  return rest == 0 ? matrix : at::constant_pad_nd(matrix, {0, width - rest});
}

/// [rows, columns] -> [blocks, rows, width]
at::Tensor packed(const at::Tensor& table) {
  return padded(table).unflatten(1, {-1, width}).transpose(0, 1).contiguous();
}

at::Tensor unpacked(const at::Tensor& blocks, int64_t columns) {
  return blocks.transpose(0, 1).flatten(1).narrow(1, 0, columns);
}

/// `width` numbers, in vectors of the compiler's.
template <class T>
struct Row {
  using Vector [[gnu::vector_size(32)]] = T;
  using Unaligned [[gnu::vector_size(32), gnu::aligned(sizeof(T)), gnu::may_alias]] = T;
  static constexpr int64_t size = width * sizeof(T) / sizeof(Vector);
  Vector vectors[size];

  [[gnu::always_inline]] static Row load(const T* from) {
    Row row;
#pragma GCC unroll 16
    for (int64_t v = 0; v < size; ++v) {
      row.vectors[v] = reinterpret_cast<const Unaligned*>(from)[v];
    }
    return row;
  }
  [[gnu::always_inline]] void store(T* to) const {
#pragma GCC unroll 16
    for (int64_t v = 0; v < size; ++v) reinterpret_cast<Unaligned*>(to)[v] = vectors[v];
  }

  [[gnu::always_inline]] void add(T factor, const Row& other) {
#pragma GCC unroll 16
    for (int64_t v = 0; v < size; ++v) vectors[v] += factor * other.vectors[v];
  }

  [[gnu::always_inline]] T dot(const Row& other) const {
    Vector products = vectors[0] * other.vectors[0];
#pragma GCC unroll 16
    for (int64_t v = 1; v < size; ++v) products += vectors[v] * other.vectors[v];
    T sum = 0;
    for (size_t lane = 0; lane < sizeof(Vector) / sizeof(T); ++lane) sum += products[lane];
    return sum;
  }

  /// relu(x)^degree, or x for degree 0.
  [[gnu::always_inline]] Row activated(int64_t degree) const {
    Row result = *this;
#pragma GCC unroll 16
    for (auto& x : result.vectors) {
      if (degree > 0) x = x > 0 ? x : Vector{};
      if (degree > 1) x *= x;
    }
    return result;
  }

  /// The gradient before the activation of `this`, from that behind it.
  [[gnu::always_inline]] Row gradient(const Row& behind, int64_t degree) const {
    Row result = behind;
#pragma GCC unroll 16
    for (int64_t v = 0; v < size; ++v) {
      const Vector x = vectors[v];
      if (degree > 0) result.vectors[v] = x > 0 ? result.vectors[v] : Vector{};
      if (degree > 1) result.vectors[v] *= 2 * x;
    }
    return result;
  }
};

/// One block of columns. Table and sums are [.., width]; results and their gradients, which others read, are
/// rows of `stride` numbers.
template <class T>
struct Block {
  const T* table;
  const int64_t* rows;
  const T* weights;
  int64_t count;
  int64_t terms;
  int64_t stride;
  int64_t degree;

  [[gnu::always_inline]] void forward(T* sums, T* result) const {
    for (int64_t i = 0; i < count; ++i) {
      Row<T> sum = {};
      for (int64_t term = i * terms; term < (i + 1) * terms; ++term) {
        sum.add(weights[term], Row<T>::load(table + rows[term] * width));
      }
      sum.store(sums + i * width);
      sum.activated(degree).store(result + i * stride);
    }
  }

  [[gnu::always_inline]] void backward(const T* sums, const T* grad, T* table_grad,
                                       T* weights_grad) const {
    for (int64_t i = 0; i < count; ++i) {
      const auto inner =
          Row<T>::load(sums + i * width).gradient(Row<T>::load(grad + i * stride), degree);
      for (int64_t term = i * terms; term < (i + 1) * terms; ++term) {
        weights_grad[term] = inner.dot(Row<T>::load(table + rows[term] * width));
        T* target = table_grad + rows[term] * width;
        auto row = Row<T>::load(target);
        row.add(weights[term], inner);
        row.store(target);
      }
    }
  }
};

template <class T>
void forward_baseline(const Block<T>& block, T* sums, T* result) {
  block.forward(sums, result);
}
template <class T>
void backward_baseline(const Block<T>& block, const T* sums, const T* grad, T* table_grad,
                       T* weights_grad) {
  block.backward(sums, grad, table_grad, weights_grad);
}

#ifdef __x86_64__
// The same for wide vectors, which processors have had for ten years and compilers do not take for granted.
template <class T>
[[gnu::target("avx2,fma")]] void forward_wide(const Block<T>& block, T* sums, T* result) {
  block.forward(sums, result);
}
template <class T>
[[gnu::target("avx2,fma")]] void backward_wide(const Block<T>& block, const T* sums, const T* grad,
                                               T* table_grad, T* weights_grad) {
  block.backward(sums, grad, table_grad, weights_grad);
}
bool is_wide() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
template <class T>
auto forward_here() {
  return is_wide() ? forward_wide<T> : forward_baseline<T>;
}
template <class T>
auto backward_here() {
  return is_wide() ? backward_wide<T> : backward_baseline<T>;
}
#else
template <class T>
auto forward_here() {
  return forward_baseline<T>;
}
template <class T>
auto backward_here() {
  return backward_baseline<T>;
}
#endif

/// Block `b` of a packed table.
template <class T>
Block<T> block(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& weights,
               int64_t degree, int64_t b) {
  return {.table = table.const_data_ptr<T>() + b * table.stride(0),
          .rows = rows.const_data_ptr<int64_t>(),
          .weights = weights.const_data_ptr<T>(),
          .count = rows.size(0),
          .terms = rows.size(1),
          .stride = table.size(0) * width,
          .degree = degree};
}

struct SumsOfRows : torch::autograd::Function<SumsOfRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& table,
                            const at::Tensor& rows, const at::Tensor& weights, int64_t degree) {
    const auto blocks = packed(table);
    const auto sums = at::empty({blocks.size(0), rows.size(0), width}, table.options());
    const auto result = at::empty({rows.size(0), blocks.size(0) * width}, table.options());
    AT_DISPATCH_FLOATING_TYPES(table.scalar_type(), "sums_of_rows", [&] {
      const auto forward = forward_here<scalar_t>();
      at::parallel_for(0, blocks.size(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
          forward(block<scalar_t>(blocks, rows, weights, degree, b),
                  sums.mutable_data_ptr<scalar_t>() + b * sums.stride(0),
                  result.mutable_data_ptr<scalar_t>() + b * width);
        }
      });
    });
    context->save_for_backward({blocks, rows, weights, sums});
    context->saved_data["columns"] = table.size(1);
    context->saved_data["degree"] = degree;
    return result.narrow(1, 0, table.size(1));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const auto& blocks = saved[0];
    const auto& rows = saved[1];
    const auto& weights = saved[2];
    const auto& sums = saved[3];
    const int64_t columns = context->saved_data["columns"].toInt();
    const int64_t degree = context->saved_data["degree"].toInt();
    const auto grad = padded(grads[0]).contiguous();
    const auto table_grad = at::zeros_like(blocks);
    // Sums of each block apart, and added in their order: the same for any number of threads.
    const auto parts = at::empty({blocks.size(0), rows.size(0), rows.size(1)}, weights.options());
    AT_DISPATCH_FLOATING_TYPES(blocks.scalar_type(), "sums_of_rows", [&] {
      const auto backward = backward_here<scalar_t>();
      at::parallel_for(0, blocks.size(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
          backward(block<scalar_t>(blocks, rows, weights, degree, b),
                   sums.const_data_ptr<scalar_t>() + b * sums.stride(0),
                   grad.const_data_ptr<scalar_t>() + b * width,
                   table_grad.mutable_data_ptr<scalar_t>() + b * blocks.stride(0),
                   parts.mutable_data_ptr<scalar_t>() + b * parts.stride(0));
        }
      });
    });
    return {unpacked(table_grad, columns), at::Tensor(), parts.sum(0), at::Tensor()};
  }
};

}  // namespace

at::Tensor sums_of_rows(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& weights,
                        int64_t degree) {
  return SumsOfRows::apply(table, rows.contiguous(), weights.contiguous(), degree);
}

}  // namespace ddc::testbeds
