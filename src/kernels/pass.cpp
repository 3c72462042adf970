#include "kernels/pass.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <unordered_map>

#include "kernels/tensors.h"

namespace ddc::kernels {
namespace {

/// Entries that a thread takes at a time: memory likes long stretches.
constexpr int64_t kShare = 131072;
/// Parts of a matrix that sum up columns on their own.
constexpr int64_t kParts = 32;
/// Rows of which a part has a multiple.
constexpr int64_t kRowsOfPart = 64;

/// Memory from the start of a cache line on: loads that straddle two cost a third of a pass. What a thread frees
/// it keeps for the next step, which asks for the same again: fresh pages cost as much as what is computed there.
class Kept {
 public:
  Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() {
    for (const auto& [size, free] : free_) {
      for (void* data : free) ::operator delete(data, kLine);
    }
  }

  void* take(size_t size) {
    auto& free = free_[size];
    if (free.empty()) return ::operator new(size, kLine);
    void* data = free.back();
    free.pop_back();
    bytes_ -= size;
    return data;
  }
  void give(void* data, size_t size) {
    if (bytes_ + size > kMost) return ::operator delete(data, kLine);
    free_[size].push_back(data);
    bytes_ += size;
  }

  static Kept& of_thread() {
    thread_local Kept kept;
    return kept;
  }

 private:
  static constexpr std::align_val_t kLine{64};
  static constexpr size_t kMost = 1 << 23;
  std::unordered_map<size_t, std::vector<void*>> free_;
  size_t bytes_ = 0;
};

template <class T>
struct Aligned {
  using value_type = T;
  T* allocate(size_t count) { return static_cast<T*>(Kept::of_thread().take(count * sizeof(T))); }
  void deallocate(T* data, size_t count) { Kept::of_thread().give(data, count * sizeof(T)); }
  bool operator==(const Aligned& /*other*/) const { return true; }
};
template <class T>
using Numbers = std::vector<T, Aligned<T>>;

template <class T>
Numbers<T> converted(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// 1 / x of those that gradients are divided by; nothing where there is no gradient.
template <class T>
Numbers<T> inverses(const std::vector<double>& values, const void* gradient) {
  Numbers<T> result(gradient == nullptr ? 0 : values.size());
  for (size_t i = 0; i < result.size(); ++i) result[i] = static_cast<T>(1 / values[i]);
  return result;
}

template <class T>
const T* data_of(const Numbers<T>& values) {
  return values.empty() ? nullptr : values.data();
}

/// A matrix with edges while it is stepped: numbers in the type that is computed in, and sums of columns
/// apart for each part, so that they do not depend on who computes what.
template <class T>
class Rows {
 public:
  Rows(const PassEntry& entry, const Stepped<T, T>& stepped)
      : stepped_(stepped),
        edges_(*entry.edges),
        size_(entry.weights.dim() == 2 ? entry.weights.size(0) : 1),
        columns_(entry.weights.size(-1)),
        row_(converted<T>(edges_.rows)),
        row_inverse_(inverses<T>(edges_.rows, stepped.gradient)),
        column_(converted<T>(edges_.columns)),
        column_inverse_(inverses<T>(edges_.columns, stepped.gradient)),
        row_shift_(converted<T>(edges_.row_shift)),
        row_pattern_(converted<T>(edges_.row_pattern)),
        column_shift_(converted<T>(edges_.column_shift)),
        column_pattern_(converted<T>(edges_.column_pattern)),
        out_row_(converted<T>(edges_.out_rows)),
        out_column_(converted<T>(edges_.out_columns)),
        centre_pattern_(converted<T>(edges_.centre_pattern)) {
    for (const auto& [cosine, sine] : edges_.turns) {
      turns_.push_back({static_cast<T>(cosine), static_cast<T>(sine)});
    }
    for (size_t k = 0; k < 2; ++k) {
      row_dots_[k] = converted<T>(edges_.row_dots[k].weights);
      column_dots_[k] = converted<T>(edges_.column_dots[k].weights);
      edges_.row_dots[k].sums.assign(row_dots_[k].empty() ? 0 : rows(), 0);
    }
    edges_.row_squares.assign(edges_.wants_row_squares ? rows() : 0, 0);
    edges_.overlaps.assign(edges_.wants_overlaps ? edges_.items.size() : 0, {0, 0});
    const int64_t items = edges_.items.empty() ? size_ : static_cast<int64_t>(edges_.items.size());
    const int64_t least = std::max<int64_t>(1, kShare / std::max<int64_t>(1, columns_));
    per_part_ = std::max((items + kParts - 1) / kParts, least);
    if (sums_columns()) {
      per_part_ = (per_part_ + kRowsOfPart - 1) / kRowsOfPart * kRowsOfPart;
      parts_of_columns_.assign(3 * columns_ * ((items + per_part_ - 1) / per_part_), 0);
    }
    for (int64_t begin = 0; begin < items; begin += per_part_) {
      parts_.push_back({begin, std::min(begin + per_part_, items)});
    }
  }

  size_t parts() const { return parts_.size(); }

  void run(size_t part, const Constants& constants) {
    RowEdges<T> rows_of;
    rows_of.columns = columns_;
    if (!edges_.items.empty()) {
      rows_of.items = reinterpret_cast<const int64_t(*)[2]>(edges_.items.data());
    }
    rows_of.row = data_of(row_);
    rows_of.row_inverse = data_of(row_inverse_.empty() ? row_ : row_inverse_);
    rows_of.column = data_of(column_);
    rows_of.column_inverse = data_of(column_inverse_.empty() ? column_ : column_inverse_);
    rows_of.row_shift = data_of(row_shift_);
    rows_of.row_pattern = data_of(row_pattern_);
    rows_of.column_shift = data_of(column_shift_);
    rows_of.column_pattern = data_of(column_pattern_);
    if (!turns_.empty()) rows_of.turn = reinterpret_cast<const T(*)[2]>(turns_.data());
    rows_of.out_row = data_of(out_row_);
    rows_of.out_column = data_of(out_column_);
    rows_of.centres = !centre_pattern_.empty();
    rows_of.centre_pattern = data_of(centre_pattern_);
    const auto filled = [](auto& values) { return values.empty() ? nullptr : values.data(); };
    rows_of.row_squares = filled(edges_.row_squares);
    for (size_t k = 0; k < 2; ++k) {
      rows_of.row_dots[k] = {data_of(row_dots_[k]), filled(edges_.row_dots[k].sums)};
    }
    if (!edges_.overlaps.empty()) {
      rows_of.overlap = reinterpret_cast<double(*)[2]>(edges_.overlaps.data());
    }
    Numbers<T> scratch;
    if (sums_columns()) {
      scratch.resize(static_cast<size_t>(3 * columns_));
      rows_of.scratch = scratch.data();
      double* sums = &parts_of_columns_[part * static_cast<size_t>(3 * columns_)];
      if (edges_.wants_column_squares) rows_of.column_squares = sums;
      for (size_t k = 0; k < 2; ++k) {
        if (column_dots_[k].empty()) continue;
        rows_of.column_dots[k] = {column_dots_[k].data(),
                                  sums + static_cast<int64_t>(k + 1) * columns_};
      }
    }
    const auto [begin, end] = parts_[part];
    std::visit([&, first = begin, last = end](
                   const auto& given) { step_rows_(stepped_, rows_of, first, last, given); },
               constants);
  }

  /// Adds up what parts have summed.
  void finish() {
    const auto total = [&](bool wanted, size_t place, std::vector<double>& sums) {
      sums.assign(wanted ? static_cast<size_t>(columns_) : 0, 0);
      for (size_t part = 0; wanted && part < parts_.size(); ++part) {
        const double* own = &parts_of_columns_[(3 * part + place) * static_cast<size_t>(columns_)];
        for (size_t j = 0; j < sums.size(); ++j) sums[j] += own[j];
      }
    };
    total(edges_.wants_column_squares, 0, edges_.column_squares);
    for (size_t k = 0; k < 2; ++k) {
      total(!column_dots_[k].empty(), k + 1, edges_.column_dots[k].sums);
    }
  }

 private:
  size_t rows() const { return static_cast<size_t>(size_); }
  bool sums_columns() const {
    return edges_.wants_column_squares || !column_dots_[0].empty() || !column_dots_[1].empty();
  }

  Stepped<T, T> stepped_;
  Edges& edges_;
  int64_t size_;
  int64_t columns_;
  Numbers<T> row_, row_inverse_, column_, column_inverse_;
  Numbers<T> row_shift_, row_pattern_, column_shift_, column_pattern_;
  Numbers<T> out_row_, out_column_, centre_pattern_;
  std::vector<std::array<T, 2>> turns_;
  std::array<Numbers<T>, 2> row_dots_, column_dots_;
  int64_t per_part_ = 0;
  std::vector<std::pair<int64_t, int64_t>> parts_;
  Numbers<double> parts_of_columns_;
};

}  // namespace

bool PassEntry::fits() const {
  const auto type = weights.scalar_type();
  const auto computed = type == at::kBFloat16 ? at::kFloat : type;
  const auto is_alike = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
           tensor.strides() == weights.strides() && tensor.sizes() == weights.sizes();
  };
  if (type != at::kFloat && type != at::kDouble && type != at::kBFloat16) return false;
  return is_alike(weights) && weights.is_non_overlapping_and_dense() && is_alike(gradient) &&
         gradient.scalar_type() == type &&
         std::all_of(state.begin(), state.end(), [&](const at::Tensor& tensor) {
           return is_alike(tensor) && tensor.scalar_type() == computed;
         });
}

bool takes_edges(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
         (tensor.dim() == 1 || tensor.dim() == 2) &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
}

namespace {

/// Calls body with the entry's memory, typed.
template <class Body>
void with_types(const PassEntry& entry, const Body& body) {
  const auto call = [&]<class S, class T, class Held>(S*, T*, Held*) {
    const auto state = [&](size_t i) {
      return entry.state.size() > i ? entry.state[i].mutable_data_ptr<T>() : nullptr;
    };
    const auto* gradient =
        entry.gradient.defined() ? entry.gradient.const_data_ptr<Held>() : nullptr;
    body(Stepped<S, T>{reinterpret_cast<S*>(entry.weights.mutable_data_ptr<Held>()),
                       reinterpret_cast<const S*>(gradient), state(0), state(1)});
  };
  switch (entry.weights.scalar_type()) {
    case at::kFloat:
      return call(static_cast<float*>(nullptr), static_cast<float*>(nullptr),
                  static_cast<float*>(nullptr));
    case at::kDouble:
      return call(static_cast<double*>(nullptr), static_cast<double*>(nullptr),
                  static_cast<double*>(nullptr));
    default:
      return call(static_cast<Bfloat16*>(nullptr), static_cast<float*>(nullptr),
                  static_cast<at::BFloat16*>(nullptr));
  }
}

}  // namespace

void run(const std::vector<PassEntry>& entries) {
  // Last first: a check of gradients has left the last ones in the cache.
  std::vector<std::function<void()>> finish;
  std::vector<std::vector<std::function<void()>>> shares;
  int64_t in_last = kShare;
  const auto add_share = [&](int64_t size, std::function<void()> work) {
    // Small tensors go together.
    if (in_last + size > kShare) {
      shares.emplace_back();
      in_last = 0;
    }
    shares.back().push_back(std::move(work));
    in_last += size;
  };
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const int64_t count = entry->weights.numel();
    if (count == 0) continue;
    with_types(*entry, [&]<class S, class T>(const Stepped<S, T>& stepped) {
      if constexpr (std::is_same_v<S, T>) {
        if (entry->edges != nullptr) {
          const auto rows = std::make_shared<Rows<T>>(*entry, stepped);
          for (size_t part = 0; part < rows->parts(); ++part) {
            add_share(count / static_cast<int64_t>(rows->parts()),
                      [rows, part, &constants = entry->constants] { rows->run(part, constants); });
          }
          finish.emplace_back([rows] { rows->finish(); });
          return;
        }
      }
      for (int64_t begin = 0; begin < count; begin += kShare) {
        const int64_t end = std::min(begin + kShare, count);
        add_share(end - begin, [stepped, begin, end, &constants = entry->constants] {
          std::visit(
              [&]<class Given>(const Given& given) {
                if constexpr (!std::is_same_v<Given, MoveConstants>) {
                  step_(stepped, begin, end, given);
                }
              },
              constants);
        });
      }
    });
  }
  one_by_one(shares.size(), [&](size_t i) {
    for (const auto& work : shares[i]) work();
  });
  for (const auto& each : finish) each();
  // As an operation of ATen would: autograd has to know.
  for (const auto& entry : entries) {
    const auto* move = std::get_if<MoveConstants>(&entry.constants);
    if (move == nullptr || move->store) entry.weights.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace ddc::kernels
