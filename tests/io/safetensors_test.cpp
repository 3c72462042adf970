#include "ddc/io/safetensors.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

namespace ddc::io {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().resolve_neg().contiguous();
  return std::string(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
}

void expect_same(const TensorFile& actual, const TensorFile& expected) {
  EXPECT_EQ(actual.metadata, expected.metadata);
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (size_t i = 0; i < expected.tensors.size(); ++i) {
    const auto& [name, tensor] = expected.tensors[i];
    SCOPED_TRACE(name);
    EXPECT_EQ(actual.tensors[i].first, name);
    EXPECT_EQ(actual.tensors[i].second.scalar_type(), tensor.scalar_type());
    EXPECT_EQ(actual.tensors[i].second.sizes(), tensor.sizes());
    EXPECT_TRUE(bytes_of(actual.tensors[i].second) == bytes_of(tensor));
  }
}

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void spill(const fs::path& path, const std::string& bytes) {
  fs::remove(path);  // ext4 waits for the disk when a file is truncated and written again
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

// A file by hand: the length, `header` as it is, `data`.
std::string craft(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

nlohmann::json header_of(const std::string& bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  return nlohmann::json::parse(bytes.substr(sizeof(length), length));
}

TensorFile small_file() {
  TensorFile file;
  file.tensors.emplace_back("flag", at::tensor({1, 0, 1}).to(at::kBool));
  file.tensors.emplace_back("weight", at::arange(6, at::kFloat).view({2, 3}));
  file.tensors.emplace_back("step", at::scalar_tensor(12, at::kLong));
  file.tensors.emplace_back("nothing", at::empty({0, 4}, at::kDouble));
  file.metadata = {{"format", "ddc"}, {"note", "a \"quote\", a \\ and ünïcode"}};
  return file;
}

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "ddc-safetensors-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ / "model.safetensors";
  }
  void TearDown() override { fs::remove_all(directory_); }

  TensorFile round_trip(const TensorFile& file) {
    write_safetensors(path_, file);
    return read_safetensors(path_);
  }

  // Expects that reading `bytes` fails, with an error that names the file and each of `parts`.
  void expect_rejected(const std::string& bytes, const std::vector<std::string>& parts) {
    spill(path_, bytes);
    try {
      read_safetensors(path_);
      ADD_FAILURE() << "accepted; expected an error with: " << parts.front();
    } catch (const c10::Error& error) {
      expect_mentions(error, parts);
    }
  }

  void expect_not_written(const TensorFile& file, const std::vector<std::string>& parts) {
    try {
      write_safetensors(path_, file);
      ADD_FAILURE() << "written; expected an error with: " << parts.front();
    } catch (const c10::Error& error) {
      expect_mentions(error, parts);
    }
  }

  void expect_mentions(const c10::Error& error, const std::vector<std::string>& parts) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    }
  }

  std::vector<std::string> names_on_disk() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  fs::path directory_;
  fs::path path_;
};

// ---- Round trips --------------------------------------------------------------------------------

TEST_F(Safetensors, RoundTripKeepsEveryDtypeBitForBit) {
  // Random bits hold NaNs, infinities, subnormals and -0.0 of every float type.
  TensorFile file;
  std::mt19937_64 random(1);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                    at::kInt, at::kShort, at::kChar, at::kByte, at::kBool}) {
    at::Tensor tensor = at::empty({5, 7, 3}, type);
    auto* bytes = static_cast<uint8_t*>(tensor.mutable_data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i) {
      bytes[i] = static_cast<uint8_t>(type == at::kBool ? random() % 2 : random() % 256);
    }
    file.tensors.emplace_back(c10::toString(type), tensor);
  }
  expect_same(round_trip(file), file);
}

TEST_F(Safetensors, RoundTripKeepsNanPayloadsAndNegativeZero) {
  at::Tensor floats = at::empty({3}, at::kFloat);
  floats.mutable_data_ptr<float>()[0] = -0.0F;
  const std::array<uint32_t, 2> nans{0x7f800001, 0xffc12345};  // signalling; quiet with a payload
  std::memcpy(floats.mutable_data_ptr<float>() + 1, nans.data(), sizeof(nans));
  TensorFile file;
  file.tensors.emplace_back("f", floats);

  const TensorFile loaded = round_trip(file);
  std::array<uint32_t, 3> bits{};
  std::memcpy(bits.data(), loaded.find("f")->const_data_ptr(), sizeof(bits));
  EXPECT_EQ(bits, (std::array<uint32_t, 3>{0x80000000, 0x7f800001, 0xffc12345}));
}

TEST_F(Safetensors, RoundTripKeepsScalarAndEmptyShapes) {
  TensorFile file;
  file.tensors.emplace_back("scalar", at::scalar_tensor(2.5, at::kDouble));
  file.tensors.emplace_back("empty", at::empty({0}, at::kFloat));
  file.tensors.emplace_back("empty matrix", at::empty({3, 0, 2}, at::kLong));
  file.tensors.emplace_back("one", at::ones({1, 1, 1}, at::kByte));
  expect_same(round_trip(file), file);
}

TEST_F(Safetensors, RoundTripKeepsAFileWithoutTensors) {
  expect_same(round_trip({}), {});
  TensorFile file;
  file.metadata = {{"only", "metadata"}};
  expect_same(round_trip(file), file);
}

TEST_F(Safetensors, RoundTripKeepsTheOrderOfTheTensors) {
  expect_same(round_trip(small_file()), small_file());
}

TEST_F(Safetensors, RoundTripKeepsUnusualNamesAndMetadata) {
  TensorFile file;
  const std::string with_zero("zero\0inside", 11);
  for (const std::string& name : {std::string(), std::string("a.b/c d"), std::string("\"\\\n\t"),
                                  std::string("層.重み 🔥"), with_zero}) {
    file.tensors.emplace_back(name, at::ones({1}));
    file.metadata[name] = name;
  }
  expect_same(round_trip(file), file);
}

TEST_F(Safetensors, NonContiguousTensorsAreWrittenByTheirLogicalOrder) {
  const at::Tensor base = at::arange(24, at::kInt).view({4, 6});
  TensorFile file;
  file.tensors.emplace_back("transposed", base.t());
  file.tensors.emplace_back("strided", base.slice(1, 1, 6, 2));
  file.tensors.emplace_back("expanded", base.select(1, 0).unsqueeze(1).expand({4, 3}));
  file.tensors.emplace_back("offset", base.slice(0, 2, 4));
  file.tensors.emplace_back(
      "channels last",
      at::arange(24, at::kFloat).view({1, 2, 3, 4}).contiguous(at::MemoryFormat::ChannelsLast));
  const TensorFile loaded = round_trip(file);
  expect_same(loaded, file);
  EXPECT_TRUE(at::equal(*loaded.find("transposed"), base.t()));
  EXPECT_EQ(loaded.find("offset")->storage().nbytes(), 12 * sizeof(int32_t));
}

TEST_F(Safetensors, ALazilyNegatedTensorIsWrittenWithItsSign) {
  const at::Tensor complex = at::complex(at::ones({2}), at::ones({2}) * 3);
  const at::Tensor negated = at::imag(complex.conj());
  ASSERT_TRUE(negated.is_neg());
  TensorFile file;
  file.tensors.emplace_back("imag", negated);
  // A negative view that is contiguous, which contiguous() hands back as it is.
  file.tensors.emplace_back("dense", at::_neg_view(at::ones({2})));
  const TensorFile loaded = round_trip(file);
  EXPECT_TRUE(at::equal(*loaded.find("imag"), at::full({2}, -3.0)));
  EXPECT_TRUE(at::equal(*loaded.find("dense"), at::full({2}, -1.0)));
}

TEST_F(Safetensors, TensorsThatRequireGradAreWrittenAndLoadDetached) {
  at::Tensor leaf = at::ones({2, 2}).requires_grad_();
  TensorFile file;
  file.tensors.emplace_back("leaf", leaf);
  file.tensors.emplace_back("result", leaf * 2);
  const TensorFile loaded = round_trip(file);
  expect_same(loaded, file);
  EXPECT_FALSE(loaded.find("leaf")->requires_grad());
  EXPECT_TRUE(leaf.requires_grad());
}

TEST_F(Safetensors, LoadedTensorsOwnTheirMemory) {
  write_safetensors(path_, small_file());
  const TensorFile loaded = read_safetensors(path_);
  fs::resize_file(path_, 0);  // memory mapped from the file would now fault
  loaded.find("weight")->add_(1);
  EXPECT_TRUE(at::equal(*loaded.find("weight"), at::arange(1, 7, at::kFloat).view({2, 3})));
  expect_same({{loaded.tensors[0]}, {}}, {{small_file().tensors[0]}, {}});
}

TEST_F(Safetensors, FindReturnsNullForAnUnknownName) {
  const TensorFile file = small_file();
  EXPECT_EQ(file.find("weight"), &file.tensors[1].second);
  EXPECT_EQ(file.find("weigh"), nullptr);
  EXPECT_EQ(file.find("__metadata__"), nullptr);
}

TEST_F(Safetensors, TheDataIsAlignedAndCoversTheFile) {
  write_safetensors(path_, small_file());
  const std::string bytes = slurp(path_);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  EXPECT_EQ(length % 8, 0U);
  uint64_t total = 0;
  const nlohmann::json header = header_of(bytes);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const at::Tensor tensor = *small_file().find(name);
    EXPECT_EQ(entry["data_offsets"][0].get<uint64_t>() % tensor.element_size(), 0U) << name;
    total += tensor.nbytes();
  }
  EXPECT_EQ(bytes.size(), 8 + length + total);
}

TEST_F(Safetensors, ARelativePathIsWrittenInTheWorkingDirectory) {
  const fs::path before = fs::current_path();
  fs::current_path(directory_);
  write_safetensors("here.safetensors", small_file());
  fs::current_path(before);
  expect_same(read_safetensors(directory_ / "here.safetensors"), small_file());
}

TEST_F(Safetensors, ASaveReplacesASymbolicLinkAndNotItsTarget) {
  spill(directory_ / "elsewhere", "kept");
  fs::create_symlink("elsewhere", path_);
  write_safetensors(path_, small_file());
  EXPECT_EQ(slurp(directory_ / "elsewhere"), "kept");
  EXPECT_FALSE(fs::is_symlink(path_));
}

// ---- What the writer refuses --------------------------------------------------------------------

TEST_F(Safetensors, AnInvalidTensorIsRefusedAndThePreviousFileStays) {
  write_safetensors(path_, small_file());
  const auto with = [](const std::string& name, const at::Tensor& tensor) {
    TensorFile file = small_file();
    file.tensors.emplace_back(name, tensor);
    return file;
  };
  expect_not_written(with("weight", at::ones({1})), {"\"weight\"", "unique"});
  expect_not_written(with("__metadata__", at::ones({1})), {"\"__metadata__\"", "reserved"});
  expect_not_written(with("u", at::Tensor()), {"\"u\"", "undefined"});
  expect_not_written(with("c", at::ones({1}, at::kComplexFloat)),
                     {"\"c\"", "ComplexFloat", "BF16"});
  expect_not_written(with("s", at::eye(2).to_sparse()), {"\"s\"", "Sparse", "strided"});
  expect_not_written(with("m", at::empty({1}, at::TensorOptions().device(at::kMeta))),
                     {"\"m\"", "meta"});
  expect_not_written(with("\xff", at::ones({1})), {"UTF-8"});
  TensorFile bad_metadata = small_file();
  bad_metadata.metadata["key"] = "\xc3";
  expect_not_written(bad_metadata, {"metadata value", "UTF-8"});
  expect_same(read_safetensors(path_), small_file());
  EXPECT_EQ(names_on_disk(), std::vector<std::string>{"model.safetensors"});
}

TEST_F(Safetensors, AHeaderAboveTheLimitIsRefused) {
  TensorFile file;
  for (int i = 0; i < 25; ++i) file.metadata[std::to_string(i)] = std::string(4'000'000, 'x');
  expect_not_written(file, {"100000000"});
  EXPECT_TRUE(names_on_disk().empty());
}

// ---- What the reader rejects --------------------------------------------------------------------

TEST_F(Safetensors, AMissingFileOrADirectoryIsRejected) {
  try {
    read_safetensors(path_);
    ADD_FAILURE();
  } catch (const c10::Error& error) {
    expect_mentions(error, {"No such file"});
  }
  fs::create_directory(path_);
  try {
    read_safetensors(path_);
    ADD_FAILURE();
  } catch (const c10::Error& error) {
    expect_mentions(error, {"not a regular file"});
  }
}

TEST_F(Safetensors, AFileShorterThanTheLengthIsRejected) {
  expect_rejected("", {"not a safetensors file", "0 bytes"});
  expect_rejected("1234567", {"not a safetensors file", "7 bytes"});
}

TEST_F(Safetensors, AHeaderLengthBeyondTheFileOrTheLimitIsRejected) {
  std::string bytes = craft("{}");
  bytes[0] = 3;
  expect_rejected(bytes, {"3 bytes", "only 2 bytes follow"});
  expect_rejected(std::string(8, '\xff') + "{}", {"18446744073709551615", "100000000"});

  // One byte above the limit, in a (sparse) file which is long enough.
  const uint64_t length = 100'000'001;
  spill(path_, std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + "{");
  fs::resize_file(path_, sizeof(length) + length);
  try {
    read_safetensors(path_);
    ADD_FAILURE();
  } catch (const c10::Error& error) {
    expect_mentions(error, {"100000001", "100000000"});
  }
}

TEST_F(Safetensors, AForeignFileIsNamedForWhatItLooksLike) {
  expect_rejected(std::string("PK\x03\x04\0\0\x08\x08\0\0archive/data.pkl", 26),
                  {"not a safetensors file", "zip", ".pt"});
  expect_rejected(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8", 12),
                  {"not a safetensors file", "pickle"});
  expect_rejected("\x80\x04}\x94.", {"not a safetensors file", "pickle"});
  expect_rejected("just some text, long enough", {"not a safetensors file"});
}

TEST_F(Safetensors, AHeaderThatIsNotAJsonObjectIsRejected) {
  expect_rejected(craft(""), {"start with '{'"});
  expect_rejected(craft("[]"), {"start with '{'"});
  expect_rejected(craft(" {}"), {"start with '{'"});
  expect_rejected(craft("{"), {"not valid JSON"});
  expect_rejected(craft("{}}"), {"not valid JSON", "byte 3"});
  expect_rejected(craft("{\"a\""), {"not valid JSON"});
  expect_rejected(craft("{\"\xff\":1}"), {"not valid JSON"});
  expect_rejected(craft(std::string("{}\0}", 4)), {"not valid JSON", "byte 2"});
  expect_rejected(craft("{\"a\":" + std::string(100'000, '[')), {"\"a\"", "an array"});
}

TEST_F(Safetensors, AnEntryThatIsNotAnObjectIsRejected) {
  for (const std::string value : {"1", "-1", "1.5", "\"x\"", "true", "null", "[]"}) {
    expect_rejected(craft("{\"w\":" + value + "}"), {"\"w\"", "must be an object"});
    expect_rejected(craft("{\"__metadata__\":" + value + "}"),
                    {"\"__metadata__\"", "must be an object"});
  }
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":" + dtype + ",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST_F(Safetensors, AnUnknownDtypeIsRejected) {
  expect_rejected(craft("{" + entry("w", "\"F8_E4M3\"", "[1]", "[0,1]") + "}", "x"),
                  {"\"w\"", "\"F8_E4M3\"", "BF16"});
  expect_rejected(craft("{" + entry("w", "\"f32\"", "[1]", "[0,4]") + "}", "xxxx"),
                  {"\"w\"", "\"f32\""});
  expect_rejected(craft("{" + entry("w", "32", "[1]", "[0,4]") + "}", "xxxx"),
                  {"\"w\"", "32", "dtype", "must be a string"});
}

TEST_F(Safetensors, ABadShapeIsRejected) {
  const auto with_shape = [](const std::string& shape) {
    return craft("{" + entry("w", "\"F32\"", shape, "[0,4]") + "}", "xxxx");
  };
  expect_rejected(with_shape("[-1]"), {"\"w\"", "-1", "shape", "at least 0"});
  expect_rejected(with_shape("[1.0]"), {"\"w\"", "1.0", "shape"});
  expect_rejected(with_shape("[\"1\"]"), {"\"w\"", "shape"});
  expect_rejected(with_shape("[[1]]"), {"\"w\"", "shape"});
  expect_rejected(with_shape("[null]"), {"\"w\"", "shape"});
  expect_rejected(with_shape("1"), {"\"w\"", "shape", "must be an array"});
  expect_rejected(with_shape("{}"), {"\"w\"", "shape", "must be an array"});
  expect_rejected(with_shape("[9223372036854775808]"), {"\"w\"", "9223372036854775808"});
  expect_rejected(with_shape("[18446744073709551616]"), {"\"w\"", "shape"});
  expect_rejected(with_shape("[9223372036854775807]"), {"\"w\"", "overflows"});
  // 2^31 * 2^31 * 4 bytes = 2^64, which wraps to 0.
  expect_rejected(with_shape("[2147483648,2147483648]"), {"\"w\"", "overflows"});
  expect_rejected(with_shape("[4611686018427387905]"), {"\"w\"", "overflows"});
  expect_rejected(craft("{" + entry("w", "\"F32\"", "[0,4294967296,4294967296]", "[0,0]") + "}"),
                  {"\"w\"", "overflows"});
}

TEST_F(Safetensors, OffsetsThatDoNotFitAreRejected) {
  const auto with_offsets = [](const std::string& offsets) {
    return craft("{" + entry("w", "\"F32\"", "[2]", offsets) + "}", "12345678");
  };
  expect_rejected(with_offsets("[0,16]"), {"\"w\"", "[0, 16]", "out of range", "8 bytes"});
  expect_rejected(with_offsets("[0,18446744073709551615]"), {"\"w\"", "out of range"});
  expect_rejected(with_offsets("[8,0]"), {"\"w\"", "begin must not be after"});
  expect_rejected(with_offsets("[0,4]"), {"\"w\"", "4 bytes", "take 8"});
  expect_rejected(with_offsets("[-8,0]"), {"\"w\"", "-8", "data_offsets"});
  expect_rejected(with_offsets("[0]"), {"\"w\"", "1 data_offsets"});
  expect_rejected(with_offsets("[0,8,8]"), {"\"w\"", "3 data_offsets"});
  expect_rejected(with_offsets("[]"), {"\"w\"", "0 data_offsets"});
  expect_rejected(with_offsets("[0.0,8.0]"), {"\"w\"", "data_offsets"});
}

TEST_F(Safetensors, OverlapsAndHolesAreRejected) {
  const auto two = [](const std::string& first, const std::string& second, size_t data) {
    return craft(
        "{" + entry("a", "\"U8\"", "[4]", first) + "," + entry("b", "\"U8\"", "[4]", second) + "}",
        std::string(data, 'x'));
  };
  expect_rejected(two("[0,4]", "[2,6]", 6), {"\"b\"", "overlaps"});
  expect_rejected(two("[0,4]", "[0,4]", 4), {"overlaps"});
  expect_rejected(two("[0,4]", "[5,9]", 9), {"\"b\"", "hole after 4"});
  expect_rejected(two("[1,5]", "[5,9]", 9), {"\"a\"", "hole after 0"});
  expect_rejected(two("[0,4]", "[4,8]", 9), {"end at data offset 8 of 9", "hole"});
  expect_rejected(craft("{}", "x"), {"hole"});
  spill(path_, two("[4,8]", "[0,4]", 8));  // any order of the names is fine
  EXPECT_EQ(read_safetensors(path_).tensors.size(), 2U);
}

TEST_F(Safetensors, MissingAndUnknownFieldsAreRejected) {
  expect_rejected(craft("{\"w\":{}}"), {"\"w\"", "no dtype"});
  expect_rejected(craft("{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}"),
                  {"\"w\"", "no shape"});
  expect_rejected(craft("{\"w\":{\"dtype\":\"U8\",\"shape\":[0]}}"), {"\"w\"", "no data_offsets"});
  expect_rejected(craft("{\"w\":{\"scale\":2}}"), {"\"w\"", "\"scale\""});
}

TEST_F(Safetensors, DuplicateKeysAreRejected) {
  const std::string w = entry("w", "\"U8\"", "[0]", "[0,0]");
  expect_rejected(craft("{" + w + "," + w + "}"), {"\"w\"", "twice"});
  // Spelt differently, equal once decoded.
  expect_rejected(craft("{" + w + "," + entry("\\u0077", "\"U8\"", "[0]", "[0,0]") + "}"),
                  {"\"w\"", "twice"});
  expect_rejected(craft("{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}"),
                  {"\"w\"", "\"dtype\"", "twice"});
  expect_rejected(craft("{\"w\":{\"shape\":[],\"shape\":[]}}"), {"\"w\"", "\"shape\"", "twice"});
  expect_rejected(craft("{\"w\":{\"data_offsets\":[0,0],\"data_offsets\":[0,0]}}"),
                  {"\"w\"", "\"data_offsets\"", "twice"});
  expect_rejected(craft("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}"), {"\"k\"", "twice"});
  expect_rejected(craft("{\"__metadata__\":{},\"__metadata__\":{}}"),
                  {"\"__metadata__\"", "twice"});
}

TEST_F(Safetensors, MetadataThatIsNotAStringIsRejected) {
  for (const std::string value : {"1", "-1", "1.5", "true", "null", "[]", "{}"}) {
    expect_rejected(craft("{\"__metadata__\":{\"step\":" + value + "}}"),
                    {"\"step\"", "must be a string"});
  }
}

TEST_F(Safetensors, ABoolThatIsNeitherZeroNorOneIsRejected) {
  expect_rejected(craft("{" + entry("b", "\"BOOL\"", "[3]", "[0,3]") + "}", {0, 1, 2}),
                  {"\"b\"", "byte 2", "index 2"});
}

TEST_F(Safetensors, AnErrorStaysShortAndAsciiForAHostileName) {
  spill(path_, craft("{\"" + std::string(50'000, 'n') + "\":1}"));
  try {
    read_safetensors(path_);
    ADD_FAILURE();
  } catch (const c10::Error& error) {
    EXPECT_LT(std::strlen(error.what_without_backtrace()), 1000U);
  }
  expect_rejected(craft("{\"層\":1}"), {"\"\\u5c64\""});
}

TEST_F(Safetensors, EveryPrefixOfAFileIsRejected) {
  write_safetensors(path_, small_file());
  const std::string bytes = slurp(path_);
  for (size_t size = 0; size < bytes.size(); ++size) {
    spill(path_, bytes.substr(0, size));
    EXPECT_THROW(read_safetensors(path_), c10::Error) << "prefix of " << size << " bytes";
  }
  spill(path_, bytes + "x");
  EXPECT_THROW(read_safetensors(path_), c10::Error);
}

TEST_F(Safetensors, AHeaderWithFlippedBytesLoadsOrThrowsAndNeverCrashes) {
  write_safetensors(path_, small_file());
  const std::string bytes = slurp(path_);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  std::mt19937_64 random(20240607);
  int loaded = 0;
  int rejected = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string broken = bytes;
    const uint64_t flips = 1 + random() % 3;
    for (uint64_t flip = 0; flip < flips; ++flip) {
      const size_t at = random() % (sizeof(length) + length);
      // Half of the time one of JSON's own characters, which gets further into the parser.
      constexpr std::string_view kJson = "{}[]\",:0123456789-.eE\\ntrufalse ";
      broken[at] = random() % 2 ? kJson[random() % kJson.size()] : static_cast<char>(random());
    }
    spill(path_, broken);
    try {
      const TensorFile file = read_safetensors(path_);
      for (const auto& [name, tensor] : file.tensors) {
        EXPECT_LE(tensor.nbytes(), bytes.size()) << name;
      }
      ++loaded;
    } catch (const c10::Error&) {
      ++rejected;
    }
  }
  EXPECT_GT(loaded, 0);  // a changed letter of a name is no error
  EXPECT_GT(rejected, 0);
}

// ---- Atomicity ----------------------------------------------------------------------------------

// Two versions which differ in size and in every element, so that no mixture passes for either.
TensorFile version(int which) {
  TensorFile file;
  file.metadata["version"] = std::to_string(which);
  for (int i = 0; i < 4; ++i) {
    file.tensors.emplace_back("t" + std::to_string(i),
                              at::full({(which + 1) * 16 * 1024 + i}, which + 1, at::kFloat));
  }
  return file;
}

pid_t a_dead_pid() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  return pid;
}

TEST_F(Safetensors, AKilledSaveLeavesACompleteFileAndNoTemporaryAfterTheNext) {
  const std::array<TensorFile, 2> versions{version(0), version(1)};
  write_safetensors(path_, versions[0]);
  std::mt19937_64 random(7);
  int killed_midway = 0;
  std::array<int, 2> found{};
  for (int round = 0; round < 60; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // Dense tensors need no kernel, so the child does not miss the OpenMP threads that a fork
      // loses.
      try {
        for (int i = round;; ++i) write_safetensors(path_, versions[i % 2]);
      } catch (...) {
        ::_exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a save in the child failed";

    const TensorFile loaded = read_safetensors(path_);
    const int which = loaded.metadata.at("version") == "1";
    expect_same(loaded, versions[which]);
    ++found[which];

    killed_midway += names_on_disk().size() > 1;
    write_safetensors(path_, versions[round % 2]);
    ASSERT_EQ(names_on_disk(), std::vector<std::string>{"model.safetensors"});
  }
  // Otherwise the test has tested nothing.
  EXPECT_GT(killed_midway, 5);
  EXPECT_GT(found[0], 0);
  EXPECT_GT(found[1], 0);
}

TEST_F(Safetensors, OnlyStaleTemporariesOfTheSameTargetAreRemoved) {
  const std::string dead = std::to_string(a_dead_pid());
  const std::string alive = std::to_string(::getppid());
  const std::string own = std::to_string(::getpid());
  const std::vector<std::string> stale{
      ".model.safetensors.tmp-" + dead + "-0",
      ".model.safetensors.tmp-" + dead + "-71",
      // From an earlier process with our pid, as containers have: nobody holds its lock.
      ".model.safetensors.tmp-" + own + "-4000000000",
  };
  std::vector<std::string> kept{
      ".model.safetensors.tmp-" + alive + "-0",
      ".other.safetensors.tmp-" + dead + "-0",
      ".model.safetensors.tmp-" + dead,
      ".model.safetensors.tmp-" + dead + "-0.bak",
      ".model.safetensors.tmp-" + dead + "-x",
      ".model.safetensors.tmp-notes",
      ".model.safetensors.tmp--1-0",
      "model.safetensors.tmp-" + dead + "-0",
  };
  for (const auto& name : stale) spill(directory_ / name, "x");
  for (const auto& name : kept) spill(directory_ / name, "x");
  write_safetensors(path_, small_file());
  kept.emplace_back("model.safetensors");
  std::sort(kept.begin(), kept.end());
  EXPECT_EQ(names_on_disk(), kept);
}

TEST_F(Safetensors, ATemporaryWhoseWriterLivesInAnotherPidNamespaceIsKept) {
  // Its pid means nothing here, but its lock does.
  const std::string name = ".model.safetensors.tmp-" + std::to_string(a_dead_pid()) + "-0";
  const int writer = ::open((directory_ / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  ASSERT_GE(writer, 0);
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);
  write_safetensors(path_, small_file());
  EXPECT_EQ(names_on_disk(), (std::vector<std::string>{name, "model.safetensors"}));
  ::close(writer);
  write_safetensors(path_, small_file());
  EXPECT_EQ(names_on_disk(), std::vector<std::string>{"model.safetensors"});
}

TEST_F(Safetensors, ThreadsThatSaveToOnePathAllSucceed) {
  const std::array<TensorFile, 2> versions{version(0), version(1)};
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        try {
          write_safetensors(path_, versions[t % 2]);
          const TensorFile loaded = read_safetensors(path_);
          failures += loaded.tensors.size() != 4;
        } catch (const c10::Error& error) {
          ++failures;
          ADD_FAILURE() << error.what_without_backtrace();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(names_on_disk(), std::vector<std::string>{"model.safetensors"});
}

// Caps the size of files this process writes, so that a save fails midway, after a short write.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    rlimit limited = before_;
    limited.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(Safetensors, ASaveThatFailsMidwayLeavesThePreviousFileAndNoTemporary) {
  write_safetensors(path_, version(0));
  write_safetensors(directory_ / "whole", version(1));
  const rlim_t whole = fs::file_size(directory_ / "whole");
  fs::remove(directory_ / "whole");
  // In the length, in the header, inside of the data, before the last byte.
  for (const rlim_t bytes : {rlim_t{3}, rlim_t{100}, rlim_t{300'001}, whole - 1}) {
    {
      const FileSizeLimit limit(bytes);
      expect_not_written(version(1), {"write failed", "File too large"});
    }
    expect_same(read_safetensors(path_), version(0));
    EXPECT_EQ(names_on_disk(), std::vector<std::string>{"model.safetensors"});
  }
}

TEST_F(Safetensors, ASaveToAnImpossiblePathFails) {
  const fs::path base = path_;
  path_ = base / "missing" / "model.safetensors";
  expect_not_written(small_file(), {"cannot open its directory", "No such file"});
  spill(base, "a regular file");
  path_ = base / "model.safetensors";
  expect_not_written(small_file(), {"cannot open its directory", "Not a directory"});
  EXPECT_EQ(slurp(base), "a regular file");
  path_ = directory_ / "";
  expect_not_written(small_file(), {"no file name"});
  path_ = directory_ / std::string(250, 'n');
  expect_not_written(small_file(), {"File name too long"});
  EXPECT_EQ(names_on_disk(), std::vector<std::string>{"model.safetensors"});
}

TEST_F(Safetensors, AFailedRenameRemovesTheTemporary) {
  fs::create_directories(path_ / "occupied");
  expect_not_written(small_file(), {"cannot rename", "Is a directory"});
  EXPECT_EQ(names_on_disk(), std::vector<std::string>{"model.safetensors"});
  EXPECT_TRUE(fs::is_directory(path_ / "occupied"));
}

}  // namespace
}  // namespace ddc::io
