#include "idx.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/idx_files.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;
using tests::Folder;
using tests::gzipped;
using tests::idx_bytes;

TEST(Idx, ReadsBytesInTheirShape) {
  const Folder folder;
  const auto bytes = idx_bytes({2, 3}, std::string("\0\1\2\xfd\xfe\xff", 6));
  const auto expected = at::tensor({0, 1, 2, 253, 254, 255}, at::kByte).view({2, 3});
  EXPECT_TRUE(at::equal(read_idx(folder.write("plain", bytes), 2), expected));
  EXPECT_TRUE(at::equal(read_idx(folder.write("a.gz", gzipped(folder, bytes)), 2), expected));
}

TEST(Idx, WhatIsNotIdxIsNamed) {
  const Folder folder;
  const auto bytes = idx_bytes({2, 3}, "abcdef");
  expect_error([&] { read_idx(folder / "none.gz", 2); }, {"no file", "none.gz"});
  expect_error([&] { read_idx(folder.string(), 2); }, {"no file", folder.string()});
  expect_error([&] { read_idx(folder.write("axes", bytes), 3); },
               {"axes", "with 3 axes", "2050", "2051"});
  expect_error([&] { read_idx(folder.write("words", "once upon a time"), 2); },
               {"words", "no idx file"});
  expect_error(
      [&] {
        read_idx(folder.write("huge", idx_bytes({1u << 31, 1u << 31}, "")), 2);
      },
      {"huge", "2147483648"});
  expect_error([&] { read_idx(folder.write("empty", idx_bytes({0}, "")), 1); }, {"empty", "[0]"});
}

TEST(Idx, IncompleteFilesAreNamed) {
  const Folder folder;
  const auto bytes = idx_bytes({2, 3}, "abcdef");
  expect_error([&] { read_idx(folder.write("nothing", ""), 2); }, {"nothing", "too early"});
  expect_error([&] { read_idx(folder.write("header", bytes.substr(0, 9)), 2); },
               {"header", "too early"});
  expect_error([&] { read_idx(folder.write("short", bytes.substr(0, 16)), 2); },
               {"short", "2 bytes too early"});
  expect_error([&] { read_idx(folder.write("long", bytes + "g"), 2); }, {"long", "goes on"});
}

TEST(Idx, DamagedArchivesAreNamed) {
  const Folder folder;
  std::string noise;
  for (int i = 0; i < 3000; ++i) noise += static_cast<char>(i * i % 251);
  const auto archive = gzipped(folder, idx_bytes({3000}, noise));
  expect_error([&] { read_idx(folder.write("cut.gz", archive.substr(0, archive.size() / 2)), 1); },
               {"cut.gz", "damaged or incomplete"});
  // All the data are there, but not the checksum behind them.
  expect_error([&] { read_idx(folder.write("tail.gz", archive.substr(0, archive.size() - 6)), 1); },
               {"tail.gz", "damaged or incomplete"});
  auto flipped = archive;
  flipped[flipped.size() - 6] = static_cast<char>(flipped[flipped.size() - 6] ^ 1);
  expect_error([&] { read_idx(folder.write("flipped.gz", flipped), 1); },
               {"flipped.gz", "damaged or incomplete"});
}

}  // namespace
}  // namespace ddc::testbeds
