#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

namespace ddc::testbeds {

/// The bytes of a file in the format of MNIST (idx, of unsigned bytes, with so many axes), gzipped or
/// not: uint8. Throws, naming the file, if it is anything else or not complete.
at::Tensor read_idx(const std::filesystem::path& path, int64_t axes);

}  // namespace ddc::testbeds
