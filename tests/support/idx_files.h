#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/folder.h"

// Small files in the format of MNIST.

namespace ddc::tests {

inline std::string idx_bytes(const std::vector<uint32_t>& shape, const std::string& bytes) {
  std::string file = {'\0', '\0', '\x08', static_cast<char>(shape.size())};
  for (const uint32_t size : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) file += static_cast<char>(size >> shift & 255);
  }
  return file + bytes;
}

inline std::string gzipped(const Folder& folder, const std::string& bytes) {
  const auto path = folder / "gzipped.tmp";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  std::ifstream written(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(written), {}};
}

/// Images of class k have a bright column k among dim pixels.
inline void write_images(const Folder& folder, const std::string& part, uint32_t count) {
  constexpr uint32_t side = 12;
  std::string images;
  std::string labels;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t label = i * 7 % 10;
    labels += static_cast<char>(label);
    for (uint32_t pixel = 0; pixel < side * side; ++pixel) {
      images += static_cast<char>(pixel % side == label ? 200 + i % 50 : (pixel * i) % 60);
    }
  }
  folder.write(part + "-images-idx3-ubyte.gz",
               gzipped(folder, idx_bytes({count, side, side}, images)));
  folder.write(part + "-labels-idx1-ubyte.gz", gzipped(folder, idx_bytes({count}, labels)));
}

}  // namespace ddc::tests
