#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "ddc/optim/lifted.h"
#include "ddc/parameters.h"
#include "ddc/placement.h"

// Checkpoints: model, optimizer and (where asked) random numbers in one safetensors file, keyed by
// name and readable from Python:
//
//     model/<parameter>             optimizer/param.<parameter>.exp_avg
//     rng/cpu                       optimizer/gauge.<gauge>.log_unit
//                                   placement/<gauge>.<field>
//
// and in the metadata `ddc.format`, `ddc.optimizer` (one line of JSON: param groups with options,
// and gauges), `ddc.placement` (gauges and their treatment) and `note.<key>` for every note.
//
// Resuming is exact to the last bit: 50 steps, save, load in a new process and 50 more steps are the
// same as 100 steps. A file appears whole or not at all, and replaces its predecessor only when it
// is safely on disk; a process killed while saving leaves the old one.

namespace ddc {

struct CheckpointOptions {
  /// Also save (or restore) the state of LibTorch's default CPU generator.
  bool rng = false;
  /// Text of the caller's own, kept in the file ("epoch": "3").
  std::map<std::string, std::string> notes = {};
};

/// `optimizer` may be null.
void save_checkpoint(const std::filesystem::path& path, const Parameters& model,
                     const LiftedOptimizer* optimizer, const CheckpointOptions& options = {});

/// Restores what `save_checkpoint` saved, in place, and returns the notes. All or nothing: a file
/// that is truncated, foreign, or does not fit in a name, a shape or a type is refused with an error
/// that names the file and the tensor, and leaves model, optimizer and generator as they were.
std::map<std::string, std::string> load_checkpoint(const std::filesystem::path& path,
                                                   const Parameters& model,
                                                   LiftedOptimizer* optimizer,
                                                   const CheckpointOptions& options = {});

/// The same of parameters that `placement` holds behind an optimizer that is not of this library. That one's
/// state is written beside it (`torch::save(optimizer, path)`).
void save_checkpoint(const std::filesystem::path& path, const Parameters& model,
                     Placement& placement, const CheckpointOptions& options = {});

/// Restores them, in place, into a placement of the same gauges and treatment, wherever it has moved the
/// parameters that were there. What it remembers is of the place that the file was written at, canonical or
/// original.
std::map<std::string, std::string> load_checkpoint(const std::filesystem::path& path,
                                                   const Parameters& model, Placement& placement,
                                                   const CheckpointOptions& options = {});

}  // namespace ddc
