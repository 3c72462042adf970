#include "ddc/io/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <string_view>

#include "ddc/io/safetensors.h"

namespace ddc {
namespace {

constexpr std::string_view kModel = "model/";
constexpr std::string_view kOptimizer = "optimizer/";
constexpr std::string_view kRng = "rng/cpu";
constexpr std::string_view kNote = "note.";
constexpr const char* kFormatKey = "ddc.format";
constexpr const char* kFormat = "checkpoint-1";
constexpr const char* kDescription = "ddc.optimizer";

std::string join(std::string_view prefix, const std::string& name) {
  return std::string(prefix) + name;
}

bool starts_with(const std::string& text, std::string_view prefix) {
  return text.rfind(prefix, 0) == 0;
}

void check_model(const Parameters& model, const Parameters& saved) {
  for (const auto& [name, tensor] : model) {
    TORCH_CHECK(saved.contains(name), "it has no tensor for parameter '", name, "'");
    const auto& value = saved[name].tensor;
    TORCH_CHECK(value.sizes() == tensor.sizes(), "parameter '", name, "' has shape ",
                tensor.sizes(), " in the model and ", value.sizes(), " in the file");
    TORCH_CHECK(value.scalar_type() == tensor.scalar_type(), "parameter '", name, "' is ",
                tensor.scalar_type(), " in the model and ", value.scalar_type(), " in the file");
  }
  for (const auto& entry : saved) {
    TORCH_CHECK(model.contains(entry.name), "its parameter '", entry.name, "' is not in the model");
  }
}

std::map<std::string, std::string> load(const io::TensorFile& file, const Parameters& model,
                                        LiftedOptimizer* optimizer, bool rng) {
  const auto format = file.metadata.find(kFormatKey);
  TORCH_CHECK(
      format != file.metadata.end(),
      "it is a safetensors file, but not a checkpoint of this library (its metadata has no ",
      kFormatKey, " = ", kFormat, ")");
  TORCH_CHECK(format->second == kFormat, "its ", kFormatKey, " is '", format->second.substr(0, 60),
              "', this library reads '", kFormat, "'");
  Parameters saved;
  OptimizerState state;
  at::Tensor rng_state;
  for (const auto& [name, tensor] : file.tensors) {
    if (starts_with(name, kModel)) {
      saved.add(name.substr(kModel.size()), tensor);
    } else if (starts_with(name, kOptimizer)) {
      state.tensors[name.substr(kOptimizer.size())] = tensor;
    } else if (name == kRng) {
      rng_state = tensor;
    } else {
      TORCH_CHECK(false, "tensor '", name, "' belongs to no part of a checkpoint");
    }
  }
  check_model(model, saved);
  if (rng) {
    TORCH_CHECK(rng_state.defined(), "it holds no state of the random number generator");
    try {
      at::make_generator<at::CPUGeneratorImpl>().set_state(rng_state);
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "its tensor '", kRng, "' is not the state of a random number generator: ",
                  error.what_without_backtrace());
    }
  }
  if (optimizer != nullptr) {
    const auto description = file.metadata.find(kDescription);
    TORCH_CHECK(description != file.metadata.end(), "it holds no optimizer state");
    state.description = description->second;
    optimizer->load_state_dict(state);
  }
  // Nothing from here on can fail.
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : model) at::Tensor(tensor).copy_(saved[name].tensor);
  if (rng) at::Generator(at::detail::getDefaultCPUGenerator()).set_state(rng_state);
  std::map<std::string, std::string> notes;
  for (const auto& [key, text] : file.metadata) {
    if (starts_with(key, kNote)) notes[key.substr(kNote.size())] = text;
  }
  return notes;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Parameters& model,
                     const LiftedOptimizer* optimizer, const CheckpointOptions& options) {
  io::TensorFile file;
  file.metadata[kFormatKey] = kFormat;
  for (const auto& [key, text] : options.notes) file.metadata[join(kNote, key)] = text;
  for (const auto& [name, tensor] : model) file.tensors.emplace_back(join(kModel, name), tensor);
  if (optimizer != nullptr) {
    const auto state = optimizer->state_dict();
    file.metadata[kDescription] = state.description;
    for (const auto& [name, tensor] : state.tensors) {
      file.tensors.emplace_back(join(kOptimizer, name), tensor);
    }
  }
  if (options.rng) {
    file.tensors.emplace_back(kRng, at::detail::getDefaultCPUGenerator().get_state());
  }
  io::write_safetensors(path, file);
}

std::map<std::string, std::string> load_checkpoint(const std::filesystem::path& path,
                                                   const Parameters& model,
                                                   LiftedOptimizer* optimizer,
                                                   const CheckpointOptions& options) {
  const auto file = io::read_safetensors(path);
  try {
    return load(file, model, optimizer, options.rng);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "checkpoint '", path.string(), "': ", error.what_without_backtrace());
  }
}

}  // namespace ddc
