#include "fuzz/targets.h"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "ddc/discover/symmetry_group.h"
#include "ddc/io/safetensors.h"
#include "ddc/optim/muon.h"
#include "ddc/testbeds/blocks.h"
#include "fuzz/files.h"

namespace ddc::fuzz {
namespace {

namespace fs = std::filesystem;

/// Thrown where a reader has taken something for what it is not.
void require(bool is_so, const char* what) {
  if (!is_so) throw std::logic_error(what);
}

/// A file in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(memfd_create("fuzz", 0)) {
    require(fd_ >= 0, "memfd_create failed");
    for (size_t done = 0; done < bytes.size();) {
      const auto count = ::write(fd_, bytes.data() + done, bytes.size() - done);
      require(count > 0, "write failed");
      done += static_cast<size_t>(count);
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(fd_); }
  fs::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// ---- safetensors ------------------------------------------------------------------------------------

void run_safetensors(std::string_view bytes) {
  const MemoryFile file(bytes);
  const auto read = io::read_safetensors(file.path());
  for (const auto& [name, tensor] : read.tensors) {
    require(static_cast<int64_t>(tensor.nbytes()) <= static_cast<int64_t>(bytes.size()),
            "a tensor is larger than its file");
  }
}

std::vector<std::string> seeds_of_safetensors() {
  const auto path = folder() / "seed.safetensors";
  std::vector<std::string> seeds;
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kLong, at::kBool}) {
    io::write_safetensors(path, {.tensors = {{"weight", at::ones({2, 3}, at::kDouble).to(type)},
                                             {"empty", at::ones({0, 3}, type)},
                                             {"number", at::ones({}, type)}},
                                 .metadata = {{"key", "value"}, {"other", "\xc3\xa9"}}});
    seeds.push_back(contents(path));
  }
  return seeds;
}

// ---- Symmetries ---------------------------------------------------------------------------------------

void run_symmetries(std::string_view bytes) {
  const auto text = SymmetryGroup::parse(std::string(bytes)).to_json();
  require(SymmetryGroup::parse(text).to_json() == text, "symmetries change when they are written");
}

std::vector<std::string> seeds_of_symmetries() {
  std::vector<std::string> seeds;
  for (const auto& bed :
       {testbeds::rms_norm_block({.gauges = testbeds::GaugeSet::full}),
        testbeds::layer_norm_block({.gauges = testbeds::GaugeSet::with_residual_rotation})}) {
    const auto params = bed.init(1, at::kFloat);
    SymmetryGroup group;
    group.parameters = fingerprint(params);
    for (const auto& gauge : bed.gauges(params)) group.findings.push_back({.gauge = gauge});
    seeds.push_back(group.to_json());
  }
  return seeds;
}

// ---- The description of an optimizer's state -------------------------------------------------------------

struct Trained {
  Trained() : bed(testbeds::rms_norm_block({.gauges = testbeds::GaugeSet::full})) {
    const auto params = bed.init(1, at::kFloat);
    optimizer = std::make_unique<DDCMuon>(params, bed.gauges(params));
    state = optimizer->state_dict();
  }
  testbeds::Testbed bed;
  std::unique_ptr<LiftedOptimizer> optimizer;
  OptimizerState state;
};

Trained& trained() {
  static Trained made;
  return made;
}

void run_description(std::string_view bytes) {
  auto state = trained().state;
  state.description = std::string(bytes);
  const auto before = trained().optimizer->state_dict().description;
  try {
    trained().optimizer->load_state_dict(state);
  } catch (const c10::Error&) {
    require(trained().optimizer->state_dict().description == before,
            "a state that was refused has changed the optimizer");
    throw;
  }
}

std::vector<std::string> seeds_of_description() { return {trained().state.description}; }

/// Texts that are refused and were a segmentation fault, or took its place.
std::vector<std::string> deep_texts() {
  std::vector<std::string> texts;
  for (const size_t levels : {65, 100'000}) {
    const std::string nested = std::string(levels, '[') + std::string(levels, ']');
    texts.push_back(nested);
    texts.push_back("{\"version\":2,\"groups\":[{\"params\":" + nested + "}]}");
  }
  return texts;
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {"safetensors", run_safetensors, seeds_of_safetensors},
      {"symmetries", run_symmetries, seeds_of_symmetries, deep_texts},
      {"description", run_description, seeds_of_description, deep_texts}};
  return all;
}

}  // namespace ddc::fuzz
