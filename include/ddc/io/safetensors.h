#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Named tensors in one file, in the safetensors format (readable from Python with `safetensors`).
//
// The format:
//   8 bytes    N, the length of the header, unsigned and little-endian
//   N bytes    the header, a JSON object, padded with spaces so that the data starts 8-byte
//   aligned:
//                {"__metadata__": {"step": "12"},
//                 "weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//   the rest   the data: each tensor's elements, row-major and little-endian. Offsets count from
//   the
//              start of the data; together the tensors cover it without overlap and without holes.
// No code is stored, so a file from a stranger can at worst be rejected.
//
// Durability: a save happens wholly or not at all. The bytes go to a temporary file beside the
// target (`.<name>.tmp-<pid>-<n>`), which is fsynced and then renamed over the target; the
// directory is fsynced last. Whenever the process is killed or the machine loses power, the path
// holds either the complete previous file or the complete new one, and once write_safetensors
// returns it is the new one, on disk.
namespace ddc::io {

// Contents of one file.
struct TensorFile {
  // Names are unique, and "__metadata__" is reserved by the format. The order survives a round
  // trip.
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::map<std::string, std::string> metadata;

  // The tensor called `name`, or nullptr. Linear in the number of tensors; valid until `tensors`
  // changes.
  const at::Tensor* find(std::string_view name) const;
};

// Saves `file` at `path`, replacing what is there. Takes the dtypes F64 F32 F16 BF16 I64 I32 I16 I8
// U8 BOOL on any device, any strides, with or without grad; each tensor is written out by itself
// even when it shares storage with another.
//
// Throws c10::Error on failure, with the previous file untouched and the temporary removed. One
// failure comes too late for that and says so: if only the final fsync of the directory fails, the
// new file is in place, but a power cut may bring the previous one back.
//
// Several threads or processes may save to one path: each save is atomic and the last one stays.
// Temporaries which killed processes left for this target are removed along the way. A symbolic
// link at `path` is replaced, not followed.
void write_safetensors(const std::filesystem::path& path, const TensorFile& file);

// Loads a file, on the CPU and into memory of its own. Everything is checked before a tensor is
// returned; a file that breaks a rule of the format is rejected with a c10::Error which names the
// file, the tensor and the rule.
TensorFile read_safetensors(const std::filesystem::path& path);

}  // namespace ddc::io
