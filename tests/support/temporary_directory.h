#pragma once

#include <c10/util/Exception.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace ddc::tests {

/// A directory of its own, also among shards that run at the same time; gone with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "ddc_test_XXXXXX").string();
    TORCH_CHECK(mkdtemp(name.data()) != nullptr, "cannot make a temporary directory");
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace ddc::tests
