#include "ddc/io/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <variant>

#include "coordinates/coordinate_system.h"
#include "ddc/io/safetensors.h"
#include "gauge/gauge_fields.h"

namespace ddc {
namespace {

constexpr std::string_view kModel = "model/";
constexpr std::string_view kOptimizer = "optimizer/";
constexpr std::string_view kPlacement = "placement/";
constexpr std::string_view kRng = "rng/cpu";
constexpr std::string_view kNote = "note.";
constexpr const char* kFormatKey = "ddc.format";
constexpr const char* kFormat = "checkpoint-1";
constexpr const char* kDescription = "ddc.optimizer";
constexpr const char* kHeld = "ddc.placement";

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

/// The gauges that a placement holds, and how.
std::string description_of(const Placement& placement) {
  auto gauges = nlohmann::json::array();
  for (const auto& gauge : placement.coordinate_system().plan().gauges) {
    auto treatment = nlohmann::json::object();
    for (const auto& [name, value] : values_of(gauge.treatment)) {
      treatment[name] = std::visit([](const auto& v) { return nlohmann::json(v); }, value);
    }
    gauges.push_back(
        {{"gauge", fields_json::Writer::written(gauge.gauge, "")}, {"treatment", treatment}});
  }
  return nlohmann::json{{"version", 1}, {"gauges", gauges}}.dump();
}

using State = std::map<std::string, at::Tensor>;

/// What a placement remembers, by the name that it has in a file.
std::map<std::string, at::Tensor*> named_state(Placement& placement) {
  std::map<std::string, at::Tensor*> result;
  for (const auto& [gauge, field, tensor] : placement.state()) result[gauge + "." + field] = tensor;
  return result;
}

/// Throws, naming the tensor, unless `given` is what the placement remembers: all of it, and nothing else.
void check_state(Placement& placement, const State& given) {
  const auto own = named_state(placement);
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    TORCH_CHECK(found != given.end(), "it has no tensor 'placement/", name, "'");
    const auto& value = found->second;
    TORCH_CHECK(value.sizes() == tensor->sizes() && value.scalar_type() == tensor->scalar_type(),
                "its tensor 'placement/", name, "' is of type ", value.scalar_type(), " and shape ",
                value.sizes(), ", expected ", tensor->scalar_type(), " and ", tensor->sizes());
    TORCH_CHECK(!value.is_floating_point() || value.isfinite().all().item<bool>(),
                "its tensor 'placement/", name, "' is not finite");
  }
  for (const auto& entry : given) {
    TORCH_CHECK(own.contains(entry.first), "its tensor 'placement/", entry.first,
                "' is nothing that the placement remembers");
  }
}

std::map<std::string, std::string> load(const io::TensorFile& file, const Parameters& model,
                                        LiftedOptimizer* optimizer, Placement* placement,
                                        bool rng) {
  const auto format = file.metadata.find(kFormatKey);
  TORCH_CHECK(
      format != file.metadata.end(),
      "it is a safetensors file, but not a checkpoint of this library (its metadata has no ",
      kFormatKey, " = ", kFormat, ")");
  TORCH_CHECK(format->second == kFormat, "its ", kFormatKey, " is '", format->second.substr(0, 60),
              "', this library reads '", kFormat, "'");
  Parameters saved;
  OptimizerState state;
  State held;
  at::Tensor rng_state;
  for (const auto& [name, tensor] : file.tensors) {
    if (starts_with(name, kModel)) {
      saved.add(name.substr(kModel.size()), tensor);
    } else if (starts_with(name, kOptimizer)) {
      state.tensors[name.substr(kOptimizer.size())] = tensor;
    } else if (starts_with(name, kPlacement)) {
      held[name.substr(kPlacement.size())] = tensor;
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
  if (placement != nullptr) {
    const auto description = file.metadata.find(kHeld);
    TORCH_CHECK(description != file.metadata.end(), "it holds no state of a placement");
    TORCH_CHECK(
        description->second == description_of(*placement),
        "it was saved with other gauges, or another treatment of them, than the placement's");
    check_state(*placement, held);
  }
  // Nothing from here on can fail.
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : model) at::Tensor(tensor).copy_(saved[name].tensor);
  if (placement != nullptr) {
    for (const auto& [name, tensor] : named_state(*placement)) tensor->copy_(held.at(name));
    placement->loaded();
  }
  if (rng) at::Generator(at::detail::getDefaultCPUGenerator()).set_state(rng_state);
  std::map<std::string, std::string> notes;
  for (const auto& [key, text] : file.metadata) {
    if (starts_with(key, kNote)) notes[key.substr(kNote.size())] = text;
  }
  return notes;
}

}  // namespace

namespace {

io::TensorFile file_of(const Parameters& model, const CheckpointOptions& options) {
  io::TensorFile file;
  file.metadata[kFormatKey] = kFormat;
  for (const auto& [key, text] : options.notes) file.metadata[join(kNote, key)] = text;
  for (const auto& [name, tensor] : model) file.tensors.emplace_back(join(kModel, name), tensor);
  return file;
}

void write(const std::filesystem::path& path, io::TensorFile file,
           const CheckpointOptions& options) {
  if (options.rng) {
    file.tensors.emplace_back(kRng, at::detail::getDefaultCPUGenerator().get_state());
  }
  io::write_safetensors(path, file);
}

std::map<std::string, std::string> load(const std::filesystem::path& path, const Parameters& model,
                                        LiftedOptimizer* optimizer, Placement* placement,
                                        const CheckpointOptions& options) {
  const auto file = io::read_safetensors(path);
  try {
    return load(file, model, optimizer, placement, options.rng);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "checkpoint '", path.string(), "': ", error.what_without_backtrace());
  }
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Parameters& model,
                     const LiftedOptimizer* optimizer, const CheckpointOptions& options) {
  auto file = file_of(model, options);
  if (optimizer != nullptr) {
    const auto state = optimizer->state_dict();
    file.metadata[kDescription] = state.description;
    for (const auto& [name, tensor] : state.tensors) {
      file.tensors.emplace_back(join(kOptimizer, name), tensor);
    }
  }
  write(path, std::move(file), options);
}

std::map<std::string, std::string> load_checkpoint(const std::filesystem::path& path,
                                                   const Parameters& model,
                                                   LiftedOptimizer* optimizer,
                                                   const CheckpointOptions& options) {
  return load(path, model, optimizer, nullptr, options);
}

void save_checkpoint(const std::filesystem::path& path, const Parameters& model,
                     Placement& placement, const CheckpointOptions& options) {
  auto file = file_of(model, options);
  file.metadata[kHeld] = description_of(placement);
  for (const auto& [name, tensor] : named_state(placement)) {
    file.tensors.emplace_back(join(kPlacement, name), *tensor);
  }
  write(path, std::move(file), options);
}

std::map<std::string, std::string> load_checkpoint(const std::filesystem::path& path,
                                                   const Parameters& model, Placement& placement,
                                                   const CheckpointOptions& options) {
  return load(path, model, nullptr, &placement, options);
}

}  // namespace ddc
