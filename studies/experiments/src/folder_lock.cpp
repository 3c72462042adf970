#include "folder_lock.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "files.h"

namespace ddc::experiments {
namespace {

constexpr auto patience = std::chrono::seconds(5);

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) : file_(-1) {
  std::filesystem::create_directories(folder);
  const auto path = folder / "lock";
  // Closed in the processes that this one starts: they would keep the lock.
  file_ = io::Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  TORCH_CHECK(file_.valid(), "cannot write '", path.string(), "': ", std::strerror(errno));
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    TORCH_CHECK(errno == EWOULDBLOCK || errno == EINTR, "cannot lock '", path.string(),
                "': ", std::strerror(errno));
    TORCH_CHECK(std::chrono::steady_clock::now() < deadline, "'", folder.string(),
                "' is in use by process ", read_text(path),
                ": wait until it ends, or choose another folder");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const auto process = std::to_string(getpid());
  TORCH_CHECK(
      ftruncate(file_.get(), 0) == 0 && pwrite(file_.get(), process.data(), process.size(), 0) > 0,
      "cannot write '", path.string(), "': ", std::strerror(errno));
}

}  // namespace ddc::experiments
