#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

// Files that are read and written as a whole. `what` names the kind of file in errors ("safetensors
// file").

namespace ddc::io {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

/// Writes a file wholly or not at all: the bytes go to a temporary file beside the target, which
/// `replace_target` renames over it once they are on disk. Destroyed before, it leaves the target
/// as it was and no temporary. (Durability: ddc/io/safetensors.h.)
class NewFile {
 public:
  NewFile(std::filesystem::path target, std::string what);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  void write(const void* data, size_t size);
  void replace_target();

 private:
  std::filesystem::path target_;
  std::string target_name_;
  std::string what_;
  /// All names are taken relative to this descriptor, so that a change of the working directory
  /// during the save cannot scatter the steps over two directories.
  Descriptor directory_{-1};
  std::string name_;
  Descriptor fd_{-1};
};

/// A regular file, open for reading.
class OldFile {
 public:
  OldFile(std::filesystem::path path, std::string what);

  uint64_t size() const { return size_; }
  void read(uint64_t offset, void* data, uint64_t size) const;

 private:
  std::filesystem::path path_;
  std::string what_;
  Descriptor fd_{-1};
  uint64_t size_ = 0;
};

}  // namespace ddc::io
