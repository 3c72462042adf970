// The targets of libFuzzer on a fixed set of inputs: seeds, what fuzzing has found before, and changes of
// them by a generator with a fixed seed.

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>

#include "fuzz/targets.h"

namespace ddc::fuzz {
namespace {

namespace fs = std::filesystem;

/// Whether it was read. Anything but an error in words ends the test.
bool reads(const Target& target, const std::string& bytes) {
  try {
    target.run(bytes);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

std::string changed(std::string bytes, const std::vector<std::string>& others,
                    std::mt19937_64& random) {
  const auto below = [&](size_t n) {
    return static_cast<size_t>(random() % std::max<size_t>(n, 1));
  };
  static const std::array<std::string, 12> words = {"null", "-1",   "1e999", "18446744073709551616",
                                                    "[",    "{",    "\"\"",  "true",
                                                    "nan",  "\xff", ",",     ":"};
  for (size_t change = 0; change <= below(3); ++change) {
    const size_t at = below(bytes.size() + 1);
    switch (below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(at, 1 + below(16));
        break;
      case 2:
        bytes.insert(at, words[below(words.size())]);
        break;
      case 3: {  // a number in place of another
        const auto digit = bytes.find_first_of("0123456789", at);
        if (digit != std::string::npos) bytes.replace(digit, 1, words[below(4)]);
        break;
      }
      case 4:
        bytes.resize(at);
        break;
      default: {
        const auto& other = others[below(others.size())];
        const size_t from = below(other.size());
        bytes.insert(at, other.substr(from, below(64)));
      }
    }
  }
  return bytes;
}

class FuzzReplay : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, FuzzReplay, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& each : targets()) names.push_back(each.name);
                           return names;
                         }()),
                         [](const auto& instance) { return instance.param; });

TEST_P(FuzzReplay, ReadsOrRefusesInWords) {
  const auto& tried = target(GetParam());
  const auto seeds = tried.seeds();
  for (const auto& seed : seeds) EXPECT_TRUE(reads(tried, seed));
  const auto corpus = fs::path(DDC_SOURCE_DIR) / "tests" / "fuzz" / "corpus" / tried.name;
  if (fs::exists(corpus)) {
    for (const auto& entry : fs::directory_iterator(corpus)) {
      std::ostringstream bytes;
      bytes << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      SCOPED_TRACE(entry.path().filename().string());
      EXPECT_NO_THROW(reads(tried, bytes.str()));
    }
  }
  for (const auto& seed : tried.refused()) EXPECT_FALSE(reads(tried, seed));
  // As many inputs as there is time for, and at least some on the slowest machine.
  constexpr uint64_t kSeed = 1;
  constexpr auto kTime = std::chrono::seconds(10);
  constexpr int kLeast = 300;
  constexpr int kMost = 20'000;
  std::mt19937_64 random(kSeed);
  const auto start = std::chrono::steady_clock::now();
  int refused = 0;
  int tries = 0;
  while (tries < kLeast || (tries < kMost && std::chrono::steady_clock::now() - start < kTime)) {
    const auto bytes = changed(seeds[random() % seeds.size()], seeds, random);
    ASSERT_NO_THROW(refused += reads(tried, bytes) ? 0 : 1)
        << "input " << tries << " of seed " << kSeed;
    ++tries;
  }
  std::cout << tries << " inputs of seed " << kSeed << ", " << refused << " of them refused\n";
  EXPECT_GT(refused, tries / 4);
}

}  // namespace
}  // namespace ddc::fuzz
