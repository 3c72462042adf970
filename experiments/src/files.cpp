#include "files.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace ddc::experiments {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "cannot read '", path.string(), "'");
  std::ostringstream text;
  text << file.rdbuf();
  TORCH_CHECK(file, "cannot read '", path.string(), "'");
  return text.str();
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  auto temporary = path;
  temporary += ".tmp" + std::to_string(getpid());
  {
    std::ofstream file(temporary, std::ios::binary);
    file << text;
    file.close();
    if (!file) {
      std::filesystem::remove(temporary);
      TORCH_CHECK(false, "cannot write '", path.string(), "'");
    }
  }
  std::filesystem::rename(temporary, path);
}

}  // namespace ddc::experiments
