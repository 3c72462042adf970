#include "text.h"

#include <c10/util/Exception.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

namespace ddc::testbeds {
namespace {

// A packed text starts with these bytes. Numbers have 32 bits, the highest first: at byte 84 the size of a
// window, at 88 how many windows there are, from 92 on where each of them starts, and where the last one
// ends. The header of `compress` (codes of up to 16 bits, one of them clears) comes before the first
// window and holds for all.
constexpr std::string_view packed_magic = "EC02";
constexpr size_t window_size_at = 84;
constexpr size_t windows_at = 88;
constexpr size_t starts_at = 92;
constexpr std::string_view compress_header = "\x1f\x9d\x90";

/// Reads codes, lowest bit first. Those of one width come in groups of eight, of which the last may be
/// filled up with zeros.
class Codes {
 public:
  explicit Codes(std::string_view bytes) : bytes_(bytes) {}

  std::optional<size_t> next() {
    if (bit_ + width_ > 8 * bytes_.size()) return std::nullopt;
    size_t code = 0;
    for (size_t i = 0; i < width_; ++i, ++bit_) {
      const auto byte = static_cast<unsigned char>(bytes_[bit_ / 8]);
      code |= static_cast<size_t>(byte >> (bit_ % 8) & 1) << i;
    }
    return code;
  }

  size_t width() const { return width_; }

  /// Goes on with codes of another width, in a new group.
  void set_width(size_t width) {
    const size_t group = 8 * width_;
    group_start_ += (bit_ - group_start_ + group - 1) / group * group;
    bit_ = group_start_;
    width_ = width;
  }

 private:
  std::string_view bytes_;
  size_t width_ = 9;
  size_t bit_ = 0;
  size_t group_start_ = 0;
};

/// Decodes the LZW code of Unix `compress`. A code below 256 is a byte. Each code makes an entry for the
/// next free one: the text of the code before it and one byte more, which is a part of what has been
/// decoded (up to its last byte, which is yet to come).
std::string decompressed(std::string_view bytes, size_t most) {
  constexpr size_t clear = 256;
  constexpr size_t least_width = 9;
  constexpr size_t most_width = 16;
  struct Part {
    size_t start;
    size_t length;
  };
  std::string text;
  // Parts of the codes from 256 on. The place of the code that clears is never read.
  std::vector<Part> parts(1);
  std::optional<Part> previous;
  Codes codes(bytes);
  while (true) {
    if (codes.width() < most_width && clear + parts.size() >= size_t{1} << codes.width()) {
      codes.set_width(codes.width() + 1);
    }
    const auto code = codes.next();
    if (!code) return text;
    if (*code == clear) {
      codes.set_width(least_width);
      parts.clear();
      continue;
    }
    if (previous && clear + parts.size() < size_t{1} << most_width) {
      parts.push_back({previous->start, previous->length + 1});
    }
    const size_t start = text.size();
    if (*code < clear) {
      text += static_cast<char>(*code);
    } else {
      TORCH_CHECK(previous && *code - clear < parts.size(), "code ", *code, " means nothing yet");
      const auto [from, length] = parts[*code - clear];
      for (size_t i = 0; i < length; ++i) text += text[from + i];
    }
    previous = {start, text.size() - start};
    TORCH_CHECK(text.size() <= most, "a window has more than ", most, " bytes");
  }
}

std::string unpacked(std::string_view bytes) {
  const auto number = [&](size_t at) {
    TORCH_CHECK(at + 4 <= bytes.size(), "it ends in the middle of its header");
    size_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    return value;
  };
  const size_t window_size = number(window_size_at);
  const size_t windows = number(windows_at);
  const auto start = [&](size_t window) { return number(starts_at + 4 * window); };
  TORCH_CHECK(start(0) <= bytes.size() && start(0) >= compress_header.size() &&
                  bytes.substr(start(0) - compress_header.size(), compress_header.size()) ==
                      compress_header,
              "its windows are not in the code of `compress -b 16`");
  std::string text;
  for (size_t window = 0; window < windows; ++window) {
    const size_t from = start(window);
    const size_t to = start(window + 1);
    TORCH_CHECK(from <= to && to <= bytes.size(), "window ", window, " is said to be bytes ", from,
                " to ", to, " of ", bytes.size());
    const auto part = decompressed(bytes.substr(from, to - from), window_size);
    TORCH_CHECK(part.size() == window_size || window + 1 == windows, "window ", window, " has ",
                part.size(), " bytes, not ", window_size);
    text += part;
  }
  return text;
}

}  // namespace

std::string load_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file && !std::filesystem::is_directory(path), "cannot read the text '", path.string(),
              "'");
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!bytes.starts_with(packed_magic)) return bytes;
  try {
    return unpacked(bytes);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "cannot unpack the text '", path.string(),
                "': ", error.what_without_backtrace());
  }
}

}  // namespace ddc::testbeds
