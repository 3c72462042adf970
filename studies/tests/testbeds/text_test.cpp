#include "text.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/folder.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;
using tests::Folder;

std::string big_endian(size_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 255);
  return bytes;
}

/// Writes what Unix `compress` does, without its header: codes of one width in groups of eight.
class Compressor {
 public:
  explicit Compressor(size_t clear_at) : clear_at_(clear_at) {}

  std::string operator()(const std::string& text) {
    std::string known;
    for (const char byte : text) {
      const auto longer = known + byte;
      if (longer.size() == 1 || table_.contains(longer)) {
        known = longer;
        continue;
      }
      put(code(known));
      // The decoder has not made this entry yet when it reads the next code.
      if (width_ < 16 && free_ >= size_t{1} << width_) set_width(width_ + 1);
      if (free_ < size_t{1} << 16) table_[longer] = free_++;
      if (free_ == clear_at_) {
        put(256);
        set_width(9);
        table_.clear();
        free_ = 257;
      }
      known = std::string(1, byte);
    }
    put(code(known));
    return bytes_;
  }

 private:
  size_t code(const std::string& known) const {
    return known.size() == 1 ? static_cast<unsigned char>(known[0]) : table_.at(known);
  }
  void put(size_t value) {
    for (size_t i = 0; i < width_; ++i, ++bit_) {
      if (bit_ % 8 == 0) bytes_ += '\0';
      bytes_.back() = static_cast<char>(bytes_.back() | (value >> i & 1) << (bit_ % 8));
    }
    ++in_group_;
  }
  void set_width(size_t width) {
    while (in_group_ % 8 != 0) put(0);
    in_group_ = 0;
    width_ = width;
  }

  size_t clear_at_;
  std::map<std::string, size_t> table_;
  size_t free_ = 257;
  size_t width_ = 9;
  size_t bit_ = 0;
  size_t in_group_ = 0;
  std::string bytes_;
};

/// The format of the program `bible`.
std::string packed(const std::string& text, size_t window, size_t clear_at = 0) {
  std::vector<std::string> windows;
  for (size_t start = 0; start < text.size(); start += window) {
    windows.push_back(Compressor(clear_at)(text.substr(start, window)));
  }
  std::string bytes = "EC02Compressed Data File";
  bytes.resize(84, '\0');
  bytes += big_endian(window) + big_endian(windows.size());
  size_t start = 92 + 4 * (windows.size() + 1) + 3;
  bytes += big_endian(start);
  for (const auto& code : windows) bytes += big_endian(start += code.size());
  bytes += "\x1f\x9d\x90";
  for (const auto& code : windows) bytes += code;
  return bytes;
}

/// Words that recur, as in a text, and bytes that do not.
std::string sample_text(size_t size) {
  const std::vector<std::string> words = {"and ", "the ", "begat ", "unto ", "aaaaa", "\n"};
  std::mt19937 source(1);
  std::string text;
  while (text.size() < size) {
    text += words[source() % words.size()];
    if (source() % 2 == 0) text += static_cast<char>(source() & 255);
  }
  text.resize(size);
  return text;
}

TEST(Text, PlainFilesAreThemselves) {
  const Folder folder;
  const std::string bytes("one\0two\nEC02", 12);
  EXPECT_EQ(load_text(folder.write("text", bytes)), bytes);
}

TEST(Text, PackedFilesAreUnpacked) {
  const Folder folder;
  // Codes grow to 13 bits and more in the last of these.
  for (const size_t size : {1, 300, 5000, 60000}) {
    const auto text = sample_text(size);
    EXPECT_EQ(load_text(folder.write("packed", packed(text, size))), text) << size;
    EXPECT_EQ(load_text(folder.write("windows", packed(text, size / 3 + 1))), text) << size;
  }
}

TEST(Text, TablesMayBeCleared) {
  const Folder folder;
  const auto text = sample_text(50000);
  EXPECT_EQ(load_text(folder.write("cleared", packed(text, text.size(), /*clear_at=*/3000))), text);
}

TEST(Text, TablesMayFillUp) {
  const Folder folder;
  std::string noise;
  std::mt19937 source(1);
  while (noise.size() < 200000) noise += static_cast<char>(source() & 255);
  EXPECT_EQ(load_text(folder.write("full", packed(noise, noise.size()))), noise);
}

TEST(Text, ACodeMayBeTheOneThatItMakes) {
  const Folder folder;
  const std::string text(500, 'a');
  EXPECT_EQ(load_text(folder.write("packed", packed(text, 500))), text);
}

TEST(Text, ReadsTheStartOfDebiansFile) {
  // The first bytes of the King James text as Debian has them, up to where a code ends.
  std::string bytes = "EC02";
  bytes.resize(84, '\0');
  bytes += big_endian(65536) + big_endian(1) + big_endian(103) + big_endian(103 + 18);
  for (const int byte : {0x1f, 0x9d, 0x90, 0x48, 0xde, 0xb0, 0xc9, 0x03, 0x42, 0x48, 0x1a,
                         0x31, 0x6c, 0xca, 0xb0, 0x00, 0x11, 0xa4, 0x0e, 0x1d, 0x34}) {
    bytes += static_cast<char>(byte);
  }
  const Folder folder;
  EXPECT_EQ(load_text(folder.write("packed", bytes)), "Holy Bible, Auth");
}

TEST(Text, WhatCannotBeReadIsNamed) {
  const Folder folder;
  const auto whole = packed(sample_text(3000), 1000);
  expect_error([&] { load_text(folder / "nothing"); }, {"cannot read", "nothing"});
  expect_error([&] { load_text(folder.string()); }, {"cannot read", folder.string()});
  expect_error([&] { load_text(folder.write("short", whole.substr(0, 90))); }, {"short", "header"});
  expect_error([&] { load_text(folder.write("cut", whole.substr(0, whole.size() - 100))); },
               {"cut", "window 2"});
  auto other = whole;
  other[92 + 4 * 4] = 'x';
  expect_error([&] { load_text(folder.write("other", other)); }, {"other", "compress"});
  auto wrong = whole;
  for (size_t i = 92 + 4 * 4 + 3; i < 92 + 4 * 4 + 3 + 20; ++i) wrong[i] = '\xff';
  expect_error([&] { load_text(folder.write("wrong", wrong)); }, {"wrong", "means nothing yet"});
  auto longer = whole;
  longer.replace(84, 4, big_endian(999));
  expect_error([&] { load_text(folder.write("longer", longer)); }, {"longer", "more than 999"});
}

}  // namespace
}  // namespace ddc::testbeds
