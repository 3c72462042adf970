#include "kernels/tensors.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <unordered_map>

#include "kernels/kernels.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace ddc::kernels {
namespace {

/// Entries that are worth a thread's while, and those that one reads in a row: memory likes long stretches.
constexpr int64_t kPiece = 16384;
constexpr int64_t kStretch = 131072;

/// Calls body with a value of the tensor's type.
template <class Body>
void with_type(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kFloat) {
    body(float{});
  } else {
    body(double{});
  }
}

template <class T>
Matrix<const T> read(const at::Tensor& matrix) {
  return {matrix.const_data_ptr<T>(), matrix.size(0), matrix.size(1)};
}

/// Numbers in the matrix's type; null stays null.
template <class T>
class Converted {
 public:
  Converted(const double* values, int64_t count) {
    if (values != nullptr) values_.assign(values, values + count);
  }
  const T* get() const { return values_.empty() ? nullptr : values_.data(); }

 private:
  std::vector<T> values_;
};

int64_t grain(int64_t other_size) {
  return std::max<int64_t>(1, kPiece / std::max<int64_t>(1, other_size));
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         tensor.is_non_overlapping_and_dense();
}

}  // namespace

bool fits(const at::Tensor& tensor) {
  return (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble) &&
         is_dense(tensor);
}

bool fits_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2 && fits(tensor) && tensor.is_contiguous();
}

namespace {

// ThreadSanitizer knows nothing of the fork and join of libgomp, which is not compiled with it: it is told of them by
// the addresses of indices.
void release([[maybe_unused]] void* indices, [[maybe_unused]] int64_t count) {
#ifdef __SANITIZE_THREAD__
  for (int64_t i = 0; i < count; ++i) __tsan_release(static_cast<int64_t*>(indices) + i);
#endif
}
void acquire([[maybe_unused]] void* indices, [[maybe_unused]] int64_t count) {
#ifdef __SANITIZE_THREAD__
  for (int64_t i = 0; i < count; ++i) __tsan_acquire(static_cast<int64_t*>(indices) + i);
#endif
}

}  // namespace

/// An iterator over indices is ATen's compiled way to its threads.
void for_each_index(int64_t count, const std::function<void(int64_t)>& work) {
  auto indices = at::arange(count, at::kLong);
  auto iterator = at::TensorIterator::nullary_op(indices);
  const auto loop = [&](char** data, const int64_t* strides, int64_t inner, int64_t outer) {
    acquire(data[0], 1);
    for (int64_t j = 0; j < outer; ++j) {
      for (int64_t i = 0; i < inner; ++i) {
        work(*reinterpret_cast<const int64_t*>(data[0] + i * strides[0] + j * strides[1]));
      }
    }
    release(data[0], 1);
  };
  release(indices.data_ptr<int64_t>(), count);
  iterator.for_each(loop, /*grain_size=*/1);
  acquire(indices.data_ptr<int64_t>(), count);
}

void in_pieces(const std::vector<int64_t>& counts,
               const std::function<void(size_t, int64_t, int64_t)>& work) {
  std::vector<std::pair<size_t, int64_t>> pieces;
  for (size_t i = 0; i < counts.size(); ++i) {
    for (int64_t begin = 0; begin < counts[i]; begin += kStretch) pieces.emplace_back(i, begin);
  }
  one_by_one(pieces.size(), [&](size_t p) {
    const auto [i, begin] = pieces[p];
    work(i, begin, std::min(begin + kStretch, counts[i]));
  });
}

void one_by_one(size_t count, const std::function<void(size_t)>& work) {
  const int threads = at::get_num_threads();
  if (count <= 1 || threads == 1 || at::in_parallel_region()) {
    for (size_t i = 0; i < count; ++i) work(i);
    return;
  }
  std::atomic<size_t> next = 0;
  for_each_index(threads, [&](int64_t) {
    for (size_t i = next++; i < count; i = next++) work(i);
  });
}

namespace {

/// Whether all entries are less than `limit`, which `is_below` tells of those that loops can reach.
template <class IsBelow>
bool all_below(const std::vector<at::Tensor>& tensors, double limit, const IsBelow& is_below) {
  std::vector<int64_t> counts;
  std::vector<at::Tensor> fitting;
  std::unordered_map<at::Device, std::vector<at::Tensor>> others;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    if (fits(tensor) || (tensor.scalar_type() == at::kBFloat16 && is_dense(tensor))) {
      fitting.push_back(tensor);
      counts.push_back(tensor.numel());
    } else {
      others[tensor.device()].push_back(tensor);
    }
  }
  for (const auto& [device, on_it] : others) {
    // The host waits for a device once.
    const auto largest = at::_foreach_norm(on_it, std::numeric_limits<double>::infinity());
    std::vector<at::Tensor> below;
    for (const auto& each : largest) below.push_back(each < limit);
    if (!at::stack(below).all().item<bool>()) return false;
  }
  std::atomic<bool> below = true;
  in_pieces(counts, [&](size_t i, int64_t begin, int64_t end) {
    const auto look = [&](const auto* data) {
      if (!is_below(data + begin, end - begin)) below = false;
    };
    if (fitting[i].scalar_type() == at::kBFloat16) {
      return look(reinterpret_cast<const Bfloat16*>(fitting[i].const_data_ptr<at::BFloat16>()));
    }
    with_type(fitting[i], [&](auto zero) { look(fitting[i].const_data_ptr<decltype(zero)>()); });
  });
  return below;
}

}  // namespace

bool all_finite(const std::vector<at::Tensor>& tensors) {
  return all_below(tensors, std::numeric_limits<double>::infinity(),
                   [](const auto* data, int64_t count) { return all_finite(data, count); });
}

bool none_huge(const std::vector<at::Tensor>& tensors) {
  return all_below(tensors, kHuge,
                   [](const auto* data, int64_t count) { return none_huge(data, count); });
}

void squares(const at::Tensor& matrix, int64_t along, const double* weights, double* sums) {
  with_type(matrix, [&](auto zero) {
    using T = decltype(zero);
    const auto x = read<T>(matrix);
    const Converted<T> weight(weights, matrix.size(1 - along));
    at::parallel_for(0, matrix.size(along), grain(matrix.size(1 - along)),
                     [&](int64_t begin, int64_t end) {
                       if (along == 0) {
                         row_squares(x, weight.get(), begin, end, sums + begin);
                       } else {
                         column_squares(x, weight.get(), begin, end, sums + begin);
                       }
                     });
  });
}

at::Tensor squares(const at::Tensor& matrix, int64_t along, const at::Tensor& weights) {
  auto sums = at::empty({matrix.size(along)}, at::kDouble);
  const auto own = weights.defined() ? weights.to(at::kDouble).contiguous() : at::Tensor();
  squares(matrix, along, own.defined() ? own.const_data_ptr<double>() : nullptr,
          sums.mutable_data_ptr<double>());
  return sums.unsqueeze(1 - along);
}

at::Tensor column_sums(const at::Tensor& matrix) {
  auto sums = at::empty({1, matrix.size(1)}, at::kDouble);
  auto* out = sums.mutable_data_ptr<double>();
  with_type(matrix, [&](auto zero) {
    const auto x = read<decltype(zero)>(matrix);
    at::parallel_for(0, matrix.size(1), grain(matrix.size(0)),
                     [&](int64_t begin, int64_t end) { column_sums(x, begin, end, out + begin); });
  });
  return sums;
}

}  // namespace ddc::kernels
