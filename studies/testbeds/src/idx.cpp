#include "idx.h"

#include <ATen/ATen.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace ddc::testbeds {
namespace {

/// What no data set of small images reaches, and a header that is not one may well say.
constexpr int64_t most_bytes = int64_t{1} << 31;

class GzipFile {
 public:
  explicit GzipFile(const std::filesystem::path& path)
      : path_(path.string()), file_(gzopen(path.c_str(), "rb"), gzclose) {
    TORCH_CHECK(file_, "cannot read '", path_, "'");
  }

  void read(void* bytes, int64_t count) {
    constexpr int64_t most = 1 << 30;
    auto* next = static_cast<char*>(bytes);
    while (count > 0) {
      const int got = gzread(file_.get(), next, static_cast<unsigned>(std::min(count, most)));
      check(got);
      TORCH_CHECK(got > 0, "'", path_, "' ends ", count, " bytes too early");
      next += got;
      count -= got;
    }
  }

  /// Also compares the checksum that follows the last byte.
  void expect_end() {
    char byte = 0;
    const int got = gzread(file_.get(), &byte, 1);
    check(got);
    TORCH_CHECK(got == 0, "'", path_, "' goes on where its header says that it ends");
  }

 private:
  /// A file that was cut off gives what it has first; only the error code then tells.
  void check(int got) {
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    TORCH_CHECK(got >= 0 && (code == Z_OK || code == Z_STREAM_END), "'", path_,
                "' is damaged or incomplete: ", message);
  }

  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

}  // namespace

at::Tensor read_idx(const std::filesystem::path& path, int64_t axes) {
  TORCH_CHECK(std::filesystem::is_regular_file(path), "there is no file '", path.string(), "'");
  GzipFile file(path);
  const auto number = [&] {
    unsigned char bytes[4];
    file.read(bytes, 4);
    return int64_t{bytes[0]} << 24 | int64_t{bytes[1]} << 16 | int64_t{bytes[2]} << 8 | bytes[3];
  };
  constexpr int64_t unsigned_bytes = 0x08;
  const int64_t magic = number();
  TORCH_CHECK(magic == (unsigned_bytes << 8 | axes), "'", path.string(),
              "' is no idx file of unsigned bytes with ", axes, " axes: it starts with ", magic,
              ", not ", unsigned_bytes << 8 | axes);
  std::vector<int64_t> shape;
  int64_t count = 1;
  for (int64_t axis = 0; axis < axes; ++axis) {
    shape.push_back(number());
    // Divided, not multiplied: the product may be too large for any number.
    TORCH_CHECK(shape.back() > 0 && count <= most_bytes / shape.back(), "'", path.string(),
                "' says that its axes have sizes ", at::IntArrayRef(shape));
    count *= shape.back();
  }
  auto result = at::empty(shape, at::kByte);
  file.read(result.data_ptr(), count);
  file.expect_end();
  return result;
}

}  // namespace ddc::testbeds
