#include "ddc/io/safetensors.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "io/whole_file.h"

namespace ddc::io {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little,
              "tensor data is copied to and from the file as is, and the format is little-endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kAlignment = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr const char* kWhat = "safetensors file";
constexpr std::string_view kMetadataKey = "__metadata__";

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 10> kDtypes{{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
}};

std::string supported_dtypes() {
  std::string list;
  for (const auto& [name, type] : kDtypes) {
    list += list.empty() ? "" : ", ";
    list += name;
  }
  return list;
}

std::optional<std::string_view> dtype_name(at::ScalarType type) {
  for (const auto& [name, candidate] : kDtypes) {
    if (candidate == type) return name;
  }
  return std::nullopt;
}

std::optional<at::ScalarType> dtype_called(std::string_view wanted) {
  for (const auto& [name, type] : kDtypes) {
    if (name == wanted) return type;
  }
  return std::nullopt;
}

// A string of the file inside an error message: quoted, ASCII and short whatever a broken file
// holds, so that the message can be printed and handed to Python.
std::string shown(std::string_view text) {
  constexpr size_t kLimit = 120;
  const bool cut = text.size() > kLimit;
  return nlohmann::json(text.substr(0, kLimit))
             .dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) +
         (cut ? "..." : "");
}

// ---- Writing ------------------------------------------------------------------------------------

void check_writable(const fs::path& path, const TensorFile& file) {
  std::unordered_set<std::string_view> names;
  for (const auto& [name, tensor] : file.tensors) {
    TORCH_CHECK(name != kMetadataKey, "cannot write safetensors file ", path, ": tensor name ",
                shown(name), " is reserved by the format");
    TORCH_CHECK(names.insert(name).second, "cannot write safetensors file ", path, ": tensor name ",
                shown(name), " is used twice, names must be unique");
    TORCH_CHECK(tensor.defined(), "cannot write safetensors file ", path, ": tensor ", shown(name),
                " is undefined");
    TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_nested(),
                "cannot write safetensors file ", path, ": tensor ", shown(name), " has layout ",
                tensor.is_nested() ? "nested" : c10::str(tensor.layout()),
                ", only strided (dense) tensors can be stored");
    TORCH_CHECK(!tensor.is_meta(), "cannot write safetensors file ", path, ": tensor ", shown(name),
                " is on the meta device and has no data");
    TORCH_CHECK(dtype_name(tensor.scalar_type()), "cannot write safetensors file ", path,
                ": tensor ", shown(name), " has dtype ", tensor.scalar_type(), ", supported are ",
                supported_dtypes());
  }
}

std::string json_string(const fs::path& path, std::string_view text, std::string_view what) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    TORCH_CHECK(false, "cannot write safetensors file ", path, ": ", what, " ", shown(text),
                " is not valid UTF-8");
  }
}

// The order of the tensors in the data. Wide elements first keeps each tensor aligned to its
// element size for readers that map the file; the reference implementation does the same.
std::vector<size_t> data_order(const TensorFile& file) {
  std::vector<size_t> order(file.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return file.tensors[a].second.element_size() > file.tensors[b].second.element_size();
  });
  return order;
}

std::string make_header(const fs::path& path, const TensorFile& file,
                        const std::vector<size_t>& order) {
  std::vector<uint64_t> begin(file.tensors.size());
  uint64_t next = 0;
  for (const size_t i : order) {
    begin[i] = next;
    next += file.tensors[i].second.nbytes();
  }

  std::string header = "{";
  if (!file.metadata.empty()) {
    header += json_string(path, kMetadataKey, "metadata key") + ":{";
    for (const auto& [key, value] : file.metadata) {
      header += json_string(path, key, "metadata key") + ":" +
                json_string(path, value, "metadata value") + ",";
    }
    header.back() = '}';
    header += ",";
  }
  // Written by hand, in the order of the tensors: nlohmann's object either sorts or takes quadratic
  // time.
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    const auto& [name, tensor] = file.tensors[i];
    header += json_string(path, name, "tensor name") + ":{\"dtype\":\"" +
              std::string(*dtype_name(tensor.scalar_type())) +
              "\",\"shape\":" + nlohmann::json(tensor.sizes().vec()).dump() +
              ",\"data_offsets\":[" + std::to_string(begin[i]) + "," +
              std::to_string(begin[i] + tensor.nbytes()) + "]},";
  }
  if (header.back() == ',') header.pop_back();
  header += "}";
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  TORCH_CHECK(header.size() <= kMaxHeaderBytes, "cannot write safetensors file ", path,
              ": its header takes ", header.size(), " bytes, the format allows ", kMaxHeaderBytes);
  return header;
}

// ---- Reading ------------------------------------------------------------------------------------

struct Entry {
  std::string name;
  std::optional<at::ScalarType> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;

  uint64_t begin() const { return (*offsets)[0]; }
  uint64_t end() const { return (*offsets)[1]; }
};

// Reads the header event by event: a parsed nlohmann::json would have dropped all but the last of
// duplicate keys, and the order of the names.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const fs::path& path) : path_(path) {}

  std::vector<Entry> take_entries() { return std::move(entries_); }
  std::map<std::string, std::string> take_metadata() { return std::move(metadata_); }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTop:
        if (key_ == kMetadataKey) {
          state_ = State::kMetadata;
        } else {
          state_ = State::kEntry;
          entries_.push_back(Entry{key_, {}, {}, {}});
        }
        return true;
      default:
        reject_value("an object");
    }
  }

  bool key(string_t& text) override {
    switch (state_) {
      case State::kTop:
        TORCH_CHECK(names_.insert(text).second, "safetensors file ", path_, ": the name ",
                    shown(text), " appears twice in the header, names must be unique");
        key_ = text;
        break;
      case State::kMetadata:
        TORCH_CHECK(!metadata_.contains(text), "safetensors file ", path_, ": the metadata key ",
                    shown(text), " appears twice, keys must be unique");
        metadata_key_ = text;
        break;
      default:
        TORCH_CHECK(text == "dtype" || text == "shape" || text == "data_offsets",
                    "safetensors file ", path_, ": tensor ", shown(key_), " has the unknown field ",
                    shown(text), ", the format has dtype, shape and data_offsets");
        TORCH_CHECK(!has_field(text), "safetensors file ", path_, ": tensor ", shown(key_),
                    " has the field ", shown(text), " twice");
        field_ = text;
    }
    return true;
  }

  bool string(string_t& text) override {
    if (state_ == State::kMetadata) {
      metadata_.emplace(metadata_key_, std::move(text));
      return true;
    }
    if (state_ != State::kEntry || field_ != "dtype") reject_value("the string " + shown(text));
    entry().dtype = dtype_called(text);
    TORCH_CHECK(entry().dtype, "safetensors file ", path_, ": tensor ", shown(key_),
                " has the unknown dtype ", shown(text), ", supported are ", supported_dtypes());
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::kEntry && field_ == "shape") {
      state_ = State::kShape;
      entry().shape.emplace();
    } else if (state_ == State::kEntry && field_ == "data_offsets") {
      state_ = State::kOffsets;
      entry().offsets.emplace();
    } else {
      reject_value("an array");
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) {
      TORCH_CHECK(value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                  "safetensors file ", path_, ": tensor ", shown(key_), " has the size ", value,
                  " in its shape, which overflows 64 bits");
      entry().shape->push_back(static_cast<int64_t>(value));
    } else if (state_ == State::kOffsets) {
      entry().offsets->push_back(value);
    } else {
      reject_value("the number " + std::to_string(value));
    }
    return true;
  }

  bool number_integer(number_integer_t value) override {
    reject_value("the number " + std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    reject_value("the number " + shown(text));
  }
  bool boolean(bool value) override { reject_value(value ? "true" : "false"); }
  bool null() override { reject_value("null"); }
  bool binary(binary_t&) override { reject_value("binary data"); }

  bool end_array() override {
    TORCH_CHECK(state_ != State::kOffsets || entry().offsets->size() == 2, "safetensors file ",
                path_, ": tensor ", shown(key_), " has ", entry().offsets->size(),
                " data_offsets, there must be 2");
    state_ = State::kEntry;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kEntry) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        TORCH_CHECK(has_field(field), "safetensors file ", path_, ": tensor ", shown(key_),
                    " has no ", field);
      }
    }
    state_ = State::kTop;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    TORCH_CHECK(false, "safetensors file ", path_,
                ": its header is not valid JSON, the error is at byte ", position,
                " of the header");
  }

 private:
  enum class State { kStart, kTop, kMetadata, kEntry, kShape, kOffsets };

  Entry& entry() { return entries_.back(); }

  bool has_field(std::string_view field) {
    if (field == "dtype") return entry().dtype.has_value();
    if (field == "shape") return entry().shape.has_value();
    return entry().offsets.has_value();
  }

  [[noreturn]] void reject_value(const std::string& found) const {
    switch (state_) {
      case State::kStart:
        TORCH_CHECK(false, "safetensors file ", path_, ": its header is ", found,
                    ", it must be an object");
      case State::kTop:
        TORCH_CHECK(false, "safetensors file ", path_, ": the entry ", shown(key_),
                    " of the header is ", found, ", it must be an object");
      case State::kMetadata:
        TORCH_CHECK(false, "safetensors file ", path_, ": the metadata value of ",
                    shown(metadata_key_), " is ", found, ", it must be a string");
      case State::kEntry:
        TORCH_CHECK(false, "safetensors file ", path_, ": tensor ", shown(key_), " has ", found,
                    " as its ", field_, ", it must be ",
                    field_ == "dtype" ? "a string" : "an array");
      default:
        TORCH_CHECK(false, "safetensors file ", path_, ": tensor ", shown(key_), " has ", found,
                    " in its ", field_, ", there must be integers of at least 0");
    }
  }

  const fs::path& path_;
  State state_ = State::kStart;
  std::string key_;
  std::string metadata_key_;
  std::string field_;
  std::unordered_set<std::string> names_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Says what a file that is not a safetensors file probably is. Only asked once the file is
// rejected: the first bytes of a sound file are a length and may look like anything.
std::string foreign_format(std::string_view first_bytes) {
  if (first_bytes.starts_with("PK\x03\x04")) {
    return "; it looks like a zip archive, such as a .pt file of torch.save";
  }
  if (first_bytes.size() >= 2 && first_bytes[0] == '\x80' && first_bytes[1] >= 1 &&
      first_bytes[1] <= 5) {
    return "; it looks like a Python pickle, such as an old .pt file of torch.save";
  }
  return "";
}

std::string read_header(const fs::path& path, const OldFile& file) {
  const uint64_t file_size = file.size();
  std::array<char, kLengthBytes> first{};
  const uint64_t available = std::min(file_size, kLengthBytes);
  file.read(0, first.data(), available);
  const std::string_view first_bytes(first.data(), available);
  TORCH_CHECK(file_size >= kLengthBytes, path, " is not a safetensors file: it has ", file_size,
              " bytes, and the length of the header alone takes ", kLengthBytes,
              foreign_format(first_bytes));

  uint64_t length = 0;
  std::memcpy(&length, first.data(), kLengthBytes);
  TORCH_CHECK(length <= kMaxHeaderBytes, path,
              " is not a safetensors file: the length of its header would be ", length,
              " bytes, the format allows ", kMaxHeaderBytes, foreign_format(first_bytes));
  TORCH_CHECK(length <= file_size - kLengthBytes, path,
              " is truncated or not a safetensors file: the length of its header is ", length,
              " bytes, but only ", file_size - kLengthBytes, " bytes follow",
              foreign_format(first_bytes));

  std::string header(length, '\0');
  file.read(kLengthBytes, header.data(), length);
  TORCH_CHECK(header.starts_with('{'), path,
              " is not a safetensors file: its header must be a JSON object and start with '{'",
              foreign_format(first_bytes));
  // nlohmann takes a zero byte for the end of its input and would ignore what follows.
  const size_t zero = header.find('\0');
  TORCH_CHECK(zero == std::string::npos, "safetensors file ", path,
              ": its header is not valid JSON, byte ", zero, " of the header is zero");
  return header;
}

uint64_t checked_byte_count(const fs::path& path, const Entry& entry) {
  // Sizes of 0 count as 1: the strides of an empty tensor are products of its other sizes, and
  // those must not overflow either.
  auto bytes = static_cast<int64_t>(c10::elementSize(*entry.dtype));
  bool empty = false;
  for (const int64_t size : *entry.shape) {
    empty = empty || size == 0;
    TORCH_CHECK(!c10::mul_overflows(bytes, std::max<int64_t>(size, 1), &bytes), "safetensors file ",
                path, ": tensor ", shown(entry.name),
                " has a shape whose size in bytes overflows 64 bits, at the size ", size);
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

void check_data_layout(const fs::path& path, const std::vector<Entry>& entries,
                       uint64_t data_size) {
  for (const Entry& entry : entries) {
    TORCH_CHECK(entry.begin() <= entry.end(), "safetensors file ", path, ": tensor ",
                shown(entry.name), " has data_offsets [", entry.begin(), ", ", entry.end(),
                "], the begin must not be after the end");
    TORCH_CHECK(entry.end() <= data_size, "safetensors file ", path, ": tensor ", shown(entry.name),
                " has data_offsets [", entry.begin(), ", ", entry.end(), "], out of range of the ",
                data_size, " bytes of data: the file is truncated or corrupt");
    const uint64_t bytes = checked_byte_count(path, entry);
    TORCH_CHECK(entry.end() - entry.begin() == bytes, "safetensors file ", path, ": tensor ",
                shown(entry.name), " has data_offsets [", entry.begin(), ", ", entry.end(), "], ",
                entry.end() - entry.begin(), " bytes, but its shape and dtype take ", bytes);
  }

  std::vector<const Entry*> in_order;
  in_order.reserve(entries.size());
  for (const Entry& entry : entries) in_order.push_back(&entry);
  std::sort(in_order.begin(), in_order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->begin(), a->end()) < std::pair(b->begin(), b->end());
  });
  uint64_t covered = 0;
  for (const Entry* entry : in_order) {
    TORCH_CHECK(entry->begin() >= covered, "safetensors file ", path, ": tensor ",
                shown(entry->name), " begins at data offset ", entry->begin(),
                " and overlaps the tensor before it, which ends at ", covered);
    TORCH_CHECK(entry->begin() == covered, "safetensors file ", path, ": tensor ",
                shown(entry->name), " begins at data offset ", entry->begin(),
                " and leaves a hole after ", covered, ", tensors must cover the data");
    covered = entry->end();
  }
  TORCH_CHECK(covered == data_size, "safetensors file ", path, ": its tensors end at data offset ",
              covered, " of ", data_size, ", a hole at the end; tensors must cover the data");
}

at::Tensor read_tensor(const fs::path& path, const OldFile& file, uint64_t data_start,
                       const Entry& entry) {
  at::Tensor tensor =
      at::empty(*entry.shape, at::TensorOptions().dtype(*entry.dtype).device(at::kCPU));
  const uint64_t bytes = entry.end() - entry.begin();
  file.read(data_start + entry.begin(), tensor.mutable_data_ptr(), bytes);
  if (*entry.dtype == at::kBool) {
    // A C++ bool with another value is undefined behaviour in every kernel that reads it.
    const auto* values = static_cast<const uint8_t*>(tensor.const_data_ptr());
    const auto* bad = std::find_if(values, values + bytes, [](uint8_t v) { return v > 1; });
    TORCH_CHECK(bad == values + bytes, "safetensors file ", path, ": tensor ", shown(entry.name),
                " of dtype BOOL holds the byte ", static_cast<int>(*bad), " at index ",
                bad - values, ", it must be 0 or 1");
  }
  return tensor;
}

}  // namespace

const at::Tensor* TensorFile::find(std::string_view name) const {
  for (const auto& [candidate, tensor] : tensors) {
    if (candidate == name) return &tensor;
  }
  return nullptr;
}

void write_safetensors(const fs::path& path, const TensorFile& file) {
  check_writable(path, file);
  const std::vector<size_t> order = data_order(file);
  const std::string header = make_header(path, file, order);

  NewFile target(path, kWhat);
  const uint64_t length = header.size();
  target.write(&length, kLengthBytes);
  target.write(header.data(), header.size());
  for (const size_t i : order) {
    // One at a time, so that the copies do not add up. A tensor with the lazy negative bit is
    // contiguous while its memory still holds the opposite sign.
    const at::Tensor tensor = file.tensors[i].second.detach().cpu().resolve_neg().contiguous();
    target.write(tensor.const_data_ptr(), tensor.nbytes());
  }
  target.replace_target();
}

TensorFile read_safetensors(const fs::path& path) {
  const OldFile old(path, kWhat);
  const std::string header = read_header(path, old);
  HeaderReader reader(path);
  nlohmann::json::sax_parse(header, &reader);
  const std::vector<Entry> entries = reader.take_entries();
  const uint64_t data_start = kLengthBytes + header.size();
  // Before any allocation: the layout bounds what is allocated by the size of the file.
  check_data_layout(path, entries, old.size() - data_start);

  TensorFile file;
  file.metadata = reader.take_metadata();
  file.tensors.reserve(entries.size());
  for (const Entry& entry : entries) {
    file.tensors.emplace_back(entry.name, read_tensor(path, old, data_start, entry));
  }
  return file;
}

}  // namespace ddc::io
