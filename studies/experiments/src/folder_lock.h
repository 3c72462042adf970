#pragma once

#include <filesystem>

#include "io/whole_file.h"

namespace ddc::experiments {

/// One process at a time works in a folder. The lock goes with the process, however that ends; its file
/// stays.
class FolderLock {
 public:
  /// Waits a few seconds for a holder that is about to leave, such as a run that still saves because the
  /// grid that it belonged to was killed. Throws, naming the process, if it stays.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  io::Descriptor file_;
};

}  // namespace ddc::experiments
