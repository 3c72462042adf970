#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>

// A pretend accelerator: LibTorch's PrivateUse1 backend over memory of this machine.
//
// What runs on it must keep apart what is on the device and what is not. An address on it is none of the
// host's, so that code that looks behind a pointer crashes, as it does with real ones. An operator that
// gets tensors from both sides throws, but for scalars on the CPU. Operators for which a host waits for
// its accelerator are counted. Results are those of the CPU.

namespace ddc::tests::pretend {

inline const c10::Device kDevice{c10::DeviceType::PrivateUse1, 0};

/// Counts what crosses between the host and the device while it is alive, by operator.
class Traffic {
 public:
  using Counts = std::map<std::string, int64_t>;

  Traffic();
  ~Traffic();
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  /// The host waits for a value: `.item()`, copies to the CPU, shapes that depend on values.
  const Counts& waits() const { return waits_; }
  /// Eigenvectors and singular values, whose kernels tell the host whether they have converged: it waits,
  /// and there is no operator that does not.
  const Counts& decompositions() const { return decompositions_; }
  /// Copies from the CPU.
  const Counts& uploads() const { return uploads_; }

 private:
  friend struct Recorder;
  Counts waits_;
  Counts decompositions_;
  Counts uploads_;
  Traffic* outer_;
};

int64_t total(const Traffic::Counts& counts);
/// "3 aten::_local_scalar_dense, 1 copy to cpu"
std::string listed(const Traffic::Counts& counts);

}  // namespace ddc::tests::pretend
