#include "support/pretend_device.h"

#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ddc::tests::pretend {
namespace {

Traffic* current = nullptr;

}  // namespace

Traffic::Traffic() : outer_(std::exchange(current, this)) {}
Traffic::~Traffic() { current = outer_; }

struct Recorder {
  static void wait(const std::string& what) {
    if (current != nullptr) ++current->waits_[what];
  }
  static void decomposition(const std::string& what) {
    if (current != nullptr) ++current->decompositions_[what];
  }
  static void upload(const std::string& what) {
    if (current != nullptr) ++current->uploads_[what];
  }
};

int64_t total(const Traffic::Counts& counts) {
  int64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}

std::string listed(const Traffic::Counts& counts) {
  std::string result;
  for (const auto& [name, count] : counts) {
    result += (result.empty() ? "" : ", ") + std::to_string(count) + " " + name;
  }
  return result.empty() ? "none" : result;
}

namespace {

// ---- Memory -----------------------------------------------------------------------------------------

/// No pointer of the host has this bit.
constexpr uintptr_t kOnDevice = uintptr_t{1} << 62;

void* host_address(const void* device) {
  if (device == nullptr) return nullptr;
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(device) ^ kOnDevice);
}
void* device_address(void* host) { return host_address(host); }

/// Memory of the host as memory of the device. `host` is kept as long as it lives.
c10::DataPtr on_device(c10::DataPtr host) {
  void* const address = device_address(host.get());
  return {address, new c10::DataPtr(std::move(host)),
          [](void* kept) { delete static_cast<c10::DataPtr*>(kept); }, kDevice};
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    return on_device(c10::GetCPUAllocator()->allocate(bytes));
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(host_address(to), host_address(from), bytes);
  }
};
Memory memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory)

/// The only device, and its only stream.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream exchangeStream(c10::Stream) const override { return getStream(kDevice); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
[[maybe_unused]] const bool has_hooks = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

// ---- Operators --------------------------------------------------------------------------------------

bool is_on_device(const at::Tensor& tensor) { return tensor.device() == kDevice; }

at::Tensor tensor_like(const at::Tensor& like, c10::Storage storage, c10::DispatchKey key) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(key), like.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                      like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
    result.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return result;
}

/// Tensors of one call of an operator, as the device has them and as a kernel of the CPU sees them:
/// in the same memory, with the same ones sharing it.
class Call {
 public:
  at::Tensor to_host(const at::Tensor& tensor) {
    if (!tensor.defined() || !is_on_device(tensor)) return tensor;
    auto& host = hosts_[tensor.storage().unsafeGetStorageImpl()];
    if (!host) {
      host = c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                          c10::DataPtr(host_address(tensor.storage().data()), c10::kCPU),
                          c10::GetCPUAllocator(), /*resizable=*/true);
      devices_.emplace(host.unsafeGetStorageImpl(), tensor.storage());
    }
    auto result = tensor_like(tensor, host, c10::DispatchKey::CPU);
    arguments_.emplace_back(tensor, result);
    return result;
  }

  /// Carries over what the kernel has made of its arguments' sizes and memory.
  void update_arguments() {
    for (auto& [device, host] : hosts_) {
      if (host.data() == host_address(device->data())) continue;
      device->set_nbytes(host.nbytes());
      device->set_data_ptr_noswap(on_device(host.set_data_ptr(c10::DataPtr(nullptr, c10::kCPU))));
    }
    for (const auto& [device, host] : arguments_) {
      if (host.sizes() == device.sizes() && host.strides() == device.strides()) continue;
      device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(),
                                                          host.storage_offset());
    }
  }

  at::Tensor to_device(const at::Tensor& host) {
    if (!host.defined()) return host;
    for (const auto& [device, argument] : arguments_) {
      if (argument.is_same(host)) return device;
    }
    auto& storage = devices_[host.storage().unsafeGetStorageImpl()];
    if (!storage) {
      auto kept = std::make_unique<c10::Storage>(host.storage());
      const auto bytes = kept->nbytes();
      void* const address = device_address(kept->mutable_data());
      c10::DataPtr data(
          address, kept.release(), [](void* p) { delete static_cast<c10::Storage*>(p); }, kDevice);
      storage = c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), &memory,
                             /*resizable=*/true);
    }
    return tensor_like(host, storage, c10::DispatchKey::PrivateUse1);
  }

 private:
  std::unordered_map<c10::StorageImpl*, c10::Storage> hosts_;
  std::unordered_map<c10::StorageImpl*, c10::Storage> devices_;
  std::vector<std::pair<at::Tensor, at::Tensor>> arguments_;
};

/// Applies `map` to all tensors in a value; to those in a list with `in_list`.
template <class Map>
c10::IValue mapped(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) return map(value.toTensor(), /*in_list=*/false);
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    for (const at::Tensor& each : value.toTensorVector()) result.push_back(map(each, true));
    return result;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> result;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      result.push_back(each ? std::optional(map(*each, true)) : std::nullopt);
    }
    return result;
  }
  if (value.isDevice() && value.toDevice() == kDevice) return c10::Device(c10::kCPU);
  return value;
}

/// Their results have as many entries as values say.
const std::set<std::string> kShapedByValues = {
    "aten::nonzero", "aten::masked_select", "aten::bincount",           "aten::_unique2",
    "aten::_unique", "aten::unique_dim",    "aten::unique_consecutive", "aten::repeat_interleave"};
const std::set<std::string> kDecompositions = {"aten::_linalg_eigh", "aten::_linalg_svd",
                                               "aten::linalg_eig",   "aten::_linalg_eigvals",
                                               "aten::linalg_lstsq", "aten::geqrf"};
/// Other operators pass scalars of the CPU on to their kernels; these make tensors on the device of them.
const std::set<std::string> kUploadsScalars = {"aten::where"};

void record(const c10::FunctionSchema& schema, bool has_host_scalar) {
  const auto& name = schema.name();
  bool returns_value = false;
  for (const auto& result : schema.returns()) {
    const auto kind = result.type()->kind();
    returns_value = returns_value || kind == c10::TypeKind::NumberType ||
                    kind == c10::TypeKind::BoolType || kind == c10::TypeKind::IntType ||
                    kind == c10::TypeKind::FloatType;
  }
  if (returns_value || kShapedByValues.contains(name)) Recorder::wait(name);
  if (kDecompositions.contains(name)) Recorder::decomposition(name);
  if (has_host_scalar && kUploadsScalars.contains(name)) Recorder::upload("scalar of " + name);
}

/// Any operator, by the CPU's kernel.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  Call call;
  bool has_host_scalar = false;
  const auto first = stack->size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    auto& value = (*stack)[first + i];
    value = mapped(value, [&](const at::Tensor& tensor, bool in_list) {
      if (tensor.defined() && !is_on_device(tensor)) {
        const bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
        TORCH_CHECK(tensor.dim() == 0 && !in_list && !is_written,
                    "Expected all tensors to be on the same device: ", schema.operator_name(),
                    " got '", argument.name(), "' of shape ", tensor.sizes(), " on ",
                    tensor.device(), " together with tensors on ", kDevice);
        has_host_scalar = true;
      }
      return call.to_host(tensor);
    });
  }
  record(schema, has_host_scalar);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.update_arguments();
  const auto first_result = stack->size() - schema.returns().size();
  for (size_t i = first_result; i < stack->size(); ++i) {
    (*stack)[i] =
        mapped((*stack)[i], [&](const at::Tensor& tensor, bool) { return call.to_device(tensor); });
  }
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (!is_on_device(to)) Recorder::wait("copy to cpu");
  if (!is_on_device(from)) Recorder::upload("copy from cpu");
  Call call;
  call.to_host(to).copy_(call.to_host(from), non_blocking);
  return to;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", &copy_from);
  // Views are new tensors on the same memory, and touch none of it.
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
}

}  // namespace
}  // namespace ddc::tests::pretend
