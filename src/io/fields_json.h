#pragma once

#include <c10/util/Exception.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "ddc/options.h"
#include "io/json_text.h"

// JSON of structs whose fields are listed once, by an overload
//
//     template <class Archive, Is<Leg> T>
//     void fields(Archive& archive, T& leg) {
//       archive.field("tensor", leg.tensor);           must be in the file
//       archive.optional("offset", leg.offset);        is in the file only if it says something
//     }
//
// that serves to write and to read. Integers (and the entries of lists of them) may have a least value as
// third argument. Errors name the place in the file, the value and the rule.

namespace ddc::fields_json {

using json = nlohmann::ordered_json;

constexpr size_t kWidth = 100;
/// More entries (1 GB) than all channel maps of a model have.
constexpr int64_t kMostEntries = 1 << 27;

template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;
template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;

inline std::string inside(const std::string& path, const char* name) {
  return path.empty() ? std::string(name) : path + "." + name;
}

inline std::string inside(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

/// A piece of the file in an error message.
inline std::string shown(const json& node) { return io::shown(node); }

// ---- Numbers ------------------------------------------------------------------------------------

// JSON has no word for what a measurement that went wrong returns.
inline json written_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

inline std::optional<double> read_number(const json& node) {
  if (node.is_number()) return node.get<double>();
  if (node == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (node == "inf") return std::numeric_limits<double>::infinity();
  if (node == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

inline std::optional<int64_t> read_integer(const json& node) {
  if (!node.is_number_integer()) return std::nullopt;
  if (node.is_number_unsigned() &&
      node.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  return node.get<int64_t>();
}

/// Integers, as [first, step, count] for each piece of constant step where that is shorter: channel
/// maps of heads and of fused tensors are a few such pieces.
inline json written_list(const std::vector<int64_t>& values) {
  json runs = json::array();
  for (size_t i = 0; i < values.size();) {
    const int64_t step = i + 1 < values.size() ? values[i + 1] - values[i] : 0;
    size_t end = i + 1;
    while (end < values.size() && values[end] - values[end - 1] == step) ++end;
    runs.push_back({values[i], end - i > 1 ? step : 0, end - i});
    i = end;
  }
  json compact = {{"runs", std::move(runs)}};
  json plain = values;
  return compact.dump().size() < plain.dump().size() ? compact : plain;
}

// ---- Writing ------------------------------------------------------------------------------------

inline bool says_nothing(const json& node) {
  return node.is_null() || node == false || node == 0 || node == "" ||
         (node.is_structured() && node.empty());
}

class Writer {
 public:
  explicit Writer(std::string path) : path_(std::move(path)) {}

  template <class T>
  void field(const char* name, const T& value, int64_t /*least*/ = 0) {
    object_[name] = written(value, inside(path_, name));
  }
  template <class T>
  void optional(const char* name, const T& value, int64_t /*least*/ = 0) {
    auto node = written(value, inside(path_, name));
    if (!says_nothing(node)) object_[name] = std::move(node);
  }

  template <class T>
  static json written(const T& value, const std::string& path) {
    if constexpr (std::is_enum_v<T>) {
      return to_string(value);
    } else if constexpr (std::same_as<T, double>) {
      return written_number(value);
    } else if constexpr (std::same_as<T, std::string>) {
      check_text(value, path);
      return value;
    } else if constexpr (std::is_arithmetic_v<T>) {
      return value;
    } else if constexpr (is_optional<T>) {
      return value ? written(*value, path) : json();
    } else if constexpr (std::same_as<T, std::vector<int64_t>>) {
      return written_list(value);
    } else if constexpr (is_vector<T>) {
      json list = json::array();
      for (size_t i = 0; i < value.size(); ++i) list.push_back(written(value[i], inside(path, i)));
      return list;
    } else {
      Writer writer(path);
      fields(writer, value);
      return std::move(writer.object_);
    }
  }

 private:
  static void check_text(const std::string& text, const std::string& path) {
    try {
      static_cast<void>(json(text).dump());
    } catch (const json::type_error&) {
      TORCH_CHECK(false, "symmetries: ", path, " is ", shown(text), ", must be valid UTF-8");
    }
  }

  json object_ = json::object();
  std::string path_;
};

/// Lines for people: what fits on a line is written on one.
inline void lay_out(const json& node, size_t indent, std::string& text) {
  auto line = node.dump();
  if (!node.is_structured() || indent + line.size() <= kWidth) {
    text += line;
    return;
  }
  text += node.is_object() ? "{" : "[";
  bool first = true;
  for (const auto& [key, value] : node.items()) {
    text += first ? "\n" : ",\n";
    first = false;
    text.append(indent + 1, ' ');
    if (node.is_object()) text += json(key).dump() + ": ";
    lay_out(value, indent + 1, text);
  }
  text += "\n";
  text.append(indent, ' ');
  text += node.is_object() ? "}" : "]";
}

// ---- Reading ------------------------------------------------------------------------------------

class Reader {
 public:
  /// `longest` is the most entries that a list of runs may stand for, and `room` what is left for all lists
  /// of the text: a short one must not fill memory.
  Reader(const json& object, std::string path, int64_t longest,
         std::shared_ptr<int64_t> room = std::make_shared<int64_t>(kMostEntries))
      : object_(object), path_(std::move(path)), longest_(longest), room_(std::move(room)) {
    if (!object.is_object()) reject(path_, object, "an object");
  }

  template <class T>
  void field(const char* name, T& value, int64_t least = kAny) const {
    const auto found = object_.find(name);
    TORCH_CHECK(found != object_.end(), "symmetries: ", inside(path_, name), " is missing");
    read(*found, inside(path_, name), value, least);
  }
  template <class T>
  void optional(const char* name, T& value, int64_t least = kAny) const {
    if (object_.contains(name)) field(name, value, least);
  }

  [[noreturn]] static void reject(const std::string& path, const json& node,
                                  const std::string& rule) {
    TORCH_CHECK(false, "symmetries: ", path.empty() ? "the text" : path, " is ", shown(node),
                ", must be ", rule);
  }

 private:
  static constexpr int64_t kAny = std::numeric_limits<int64_t>::min();

  template <class T>
  void read(const json& node, const std::string& path, T& value, int64_t least) const {
    if constexpr (std::is_enum_v<T>) {
      value = word<T>(node, path);
    } else if constexpr (std::same_as<T, bool>) {
      if (!node.is_boolean()) reject(path, node, "true or false");
      value = node.get<bool>();
    } else if constexpr (std::same_as<T, int64_t>) {
      value = integer(node, path, least);
    } else if constexpr (std::same_as<T, double>) {
      const auto number = read_number(node);
      if (!number) reject(path, node, "a number, \"inf\", \"-inf\" or \"nan\"");
      value = *number;
    } else if constexpr (std::same_as<T, std::string>) {
      if (!node.is_string()) reject(path, node, "a string");
      value = node.get<std::string>();
    } else if constexpr (is_optional<T>) {
      if (!node.is_null()) read(node, path, value.emplace(), least);
    } else if constexpr (is_vector<T>) {
      if constexpr (std::same_as<T, std::vector<int64_t>>) {
        if (node.is_object()) return read_runs(node, path, value, least);
      }
      if (!node.is_array()) reject(path, node, "a list");
      value.resize(node.size());
      for (size_t i = 0; i < node.size(); ++i) read(node[i], inside(path, i), value[i], least);
    } else {
      Reader reader(node, path, longest_, room_);
      fields(reader, value);
    }
  }

  static int64_t integer(const json& node, const std::string& path, int64_t least) {
    const auto number = read_integer(node);
    if (!number) reject(path, node, "an integer");
    if (*number < least) reject(path, node, std::string(">= ").append(std::to_string(least)));
    return *number;
  }

  template <class Enum>
  static Enum word(const json& node, const std::string& path) {
    std::string known;
    for (size_t i = 0; i < EnumNames<Enum>.size(); ++i) {
      if (node == EnumNames<Enum>[i]) return static_cast<Enum>(i);
      known.append(known.empty() ? "" : ", ").append(EnumNames<Enum>[i]);
    }
    reject(path, node, std::string("one of: ").append(known));
  }

  void read_runs(const json& node, const std::string& path, std::vector<int64_t>& values,
                 int64_t least) const {
    const auto runs = node.find("runs");
    if (runs == node.end() || !runs->is_array()) {
      reject(path, node, "a list, or {\"runs\": [[first, step, count], ...]}");
    }
    values.clear();
    for (size_t i = 0; i < runs->size(); ++i) {
      const auto& run = (*runs)[i];
      const auto where = inside(inside(path, "runs"), i);
      if (!run.is_array() || run.size() != 3) reject(where, run, "[first, step, count]");
      const int64_t first = integer(run[0], where, least);
      const int64_t step = integer(run[1], where, kAny);
      const int64_t count = integer(run[2], where, 1);
      const auto room = longest_ - static_cast<int64_t>(values.size());
      if (count > room) {
        reject(where, run,
               std::string("no longer than the axes of the parameters (")
                   .append(std::to_string(longest_))
                   .append(" indices)"));
      }
      *room_ -= count;
      if (*room_ < 0) {
        reject(where, run,
               "a run that leaves all lists together below " + std::to_string(kMostEntries) +
                   " entries");
      }
      // In floating point, where it cannot overflow.
      const double last =
          static_cast<double>(first) + static_cast<double>(step) * static_cast<double>(count - 1);
      if (last < static_cast<double>(least) || std::abs(last) > 1e15) {
        reject(where, run,
               std::string("a run of integers >= ")
                   .append(std::to_string(least))
                   .append(" and below 1e15"));
      }
      for (int64_t k = 0; k < count; ++k) values.push_back(first + k * step);
    }
  }

  const json& object_;
  std::string path_;
  int64_t longest_;
  std::shared_ptr<int64_t> room_;
};

}  // namespace ddc::fields_json
