#include "io/whole_file.h"

#include <c10/util/Exception.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

namespace ddc::io {
namespace {

namespace fs = std::filesystem;

std::string reason(int error) { return std::generic_category().message(error); }

template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

std::string temporary_prefix(const std::string& target_name) { return "." + target_name + ".tmp-"; }

// The pid in `.<target>.tmp-<pid>-<n>`, or nothing when `name` is not of that form.
std::optional<pid_t> temporary_owner(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* const end = name.data() + name.size();
  pid_t pid = 0;
  const auto after_pid = std::from_chars(name.data() + prefix.size(), end, pid);
  if (after_pid.ec != std::errc{} || pid <= 0) return std::nullopt;
  if (after_pid.ptr == end || *after_pid.ptr != '-') return std::nullopt;
  uint64_t counter = 0;
  const auto after_counter = std::from_chars(after_pid.ptr + 1, end, counter);
  if (after_counter.ec != std::errc{} || after_counter.ptr != end) return std::nullopt;
  return pid;
}

bool still_names(int directory, const char* name, int fd) {
  struct stat by_name {};
  struct stat by_fd {};
  return ::fstatat(directory, name, &by_name, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(fd, &by_fd) == 0 && by_name.st_dev == by_fd.st_dev &&
         by_name.st_ino == by_fd.st_ino;
}

// Removes the temporaries of this target whose writer is gone. The pid alone cannot tell: in a
// container every run may get the same pid, and containers that share a volume do not see each
// other's. So a writer also holds a lock on its temporary, which dies with it, and only a temporary
// that can be locked goes. Best effort: what cannot be decided (no permission, a file system
// without locks) stays.
void remove_stale_temporaries(int directory, const std::string& target_name) {
  struct Close {
    void operator()(DIR* stream) const { ::closedir(stream); }
  };
  const int listing_fd = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (listing_fd < 0) return;
  const std::unique_ptr<DIR, Close> listing(::fdopendir(listing_fd));
  if (!listing) {
    ::close(listing_fd);
    return;
  }
  const std::string prefix = temporary_prefix(target_name);
  while (const dirent* entry = ::readdir(listing.get())) {
    const char* const name = entry->d_name;
    const auto owner = temporary_owner(name, prefix);
    if (!owner) continue;
    const bool owner_is_gone = ::kill(*owner, 0) == -1 && errno == ESRCH;
    if (!owner_is_gone && *owner != ::getpid()) continue;
    // Open for writing, which NFS wants of an exclusive lock.
    const Descriptor file(::openat(directory, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file.valid() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (still_names(directory, name, file.get())) ::unlinkat(directory, name, 0);
  }
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

NewFile::NewFile(fs::path target, std::string what)
    : target_(std::move(target)),
      target_name_(target_.filename().string()),
      what_(std::move(what)) {
  TORCH_CHECK(target_.has_filename(), "cannot write ", what_, " ", target_,
              ": the path has no file name");
  const fs::path parent = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  directory_ = Descriptor(retry_interrupted(
      [&] { return ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  TORCH_CHECK(directory_.valid(), "cannot write ", what_, " ", target_,
              ": cannot open its directory: ", reason(errno));
  remove_stale_temporaries(directory_.get(), target_name_);

  static std::atomic<uint64_t> counter{0};
  const std::string prefix = temporary_prefix(target_name_) + std::to_string(::getpid()) + "-";
  while (name_.empty()) {
    const std::string name = prefix + std::to_string(counter++);
    fd_ = Descriptor(retry_interrupted([&] {
      return ::openat(directory_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                      0666);
    }));
    // Left by a namesake process and not removable: the next number is free.
    if (!fd_.valid() && errno == EEXIST) continue;
    TORCH_CHECK(fd_.valid(), "cannot write ", what_, " ", target_,
                ": cannot create the temporary file ", name, " in its directory: ", reason(errno));
    // A failure only means that the file system has no locks; see remove_stale_temporaries.
    retry_interrupted([&] { return ::flock(fd_.get(), LOCK_EX); });
    // Before we had the lock, another save may have taken the file for stale and removed it.
    struct stat status {};
    if (::fstat(fd_.get(), &status) == 0 && status.st_nlink == 0) continue;
    name_ = name;
  }
}

NewFile::~NewFile() {
  if (!name_.empty()) ::unlinkat(directory_.get(), name_.c_str(), 0);
}

void NewFile::write(const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = retry_interrupted([&] { return ::write(fd_.get(), bytes, size); });
    TORCH_CHECK(written > 0, "cannot write ", what_, " ", target_, ": write failed with ", size,
                " bytes of a block left: ", written == 0 ? "no progress" : reason(errno));
    bytes += written;
    size -= static_cast<size_t>(written);
  }
}

void NewFile::replace_target() {
  // The data must be on disk before the name points to it: a rename may outlive a power cut that
  // the data does not.
  TORCH_CHECK(retry_interrupted([&] { return ::fsync(fd_.get()); }) == 0, "cannot write ", what_,
              " ", target_, ": fsync failed: ", reason(errno));
  TORCH_CHECK(
      ::renameat(directory_.get(), name_.c_str(), directory_.get(), target_name_.c_str()) == 0,
      "cannot write ", what_, " ", target_, ": cannot rename ", name_, " over it: ", reason(errno));
  name_.clear();
  // EINVAL: a file system on which directories cannot be synced.
  TORCH_CHECK(
      retry_interrupted([&] { return ::fsync(directory_.get()); }) == 0 || errno == EINVAL, what_,
      " ", target_,
      " is written, but a power cut may undo it: fsync of its directory failed: ", reason(errno));
}

OldFile::OldFile(fs::path path, std::string what) : path_(std::move(path)), what_(std::move(what)) {
  fd_ = Descriptor(retry_interrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC); }));
  TORCH_CHECK(fd_.valid(), "cannot read ", what_, " ", path_, ": ", reason(errno));
  struct stat status {};
  TORCH_CHECK(::fstat(fd_.get(), &status) == 0, "cannot read ", what_, " ", path_, ": ",
              reason(errno));
  TORCH_CHECK(S_ISREG(status.st_mode), "cannot read ", what_, " ", path_,
              ": it is not a regular file");
  size_ = static_cast<uint64_t>(status.st_size);
}

void OldFile::read(uint64_t offset, void* data, uint64_t size) const {
  char* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t count = retry_interrupted(
        [&] { return ::pread(fd_.get(), bytes, size, static_cast<off_t>(offset)); });
    TORCH_CHECK(count >= 0, "cannot read ", what_, " ", path_, ": ", reason(errno));
    TORCH_CHECK(count > 0, what_, " ", path_, " became shorter while it was read, at byte ",
                offset);
    bytes += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<uint64_t>(count);
  }
}

}  // namespace ddc::io
