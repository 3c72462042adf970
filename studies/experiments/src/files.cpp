#include "files.h"

#include <c10/util/Exception.h>

#include <fstream>
#include <sstream>

#include "io/whole_file.h"

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
  io::NewFile file(path, "text");
  file.write(text.data(), text.size());
  file.replace_target();
}

}  // namespace ddc::experiments
