#include "ddc/experiments/result.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "io/json_text.h"

namespace ddc::experiments {
namespace {

constexpr std::array<std::pair<Outcome, const char*>, 4> outcomes = {{
    {Outcome::reproduced, "reproduced"},
    {Outcome::better, "better"},
    {Outcome::not_reproduced, "not reproduced"},
    {Outcome::not_run, "not run"},
}};

/// What a document must hold to be read as a T, and the words for it.
template <class T>
struct Shape;
template <>
struct Shape<bool> {
  static constexpr const char* rule = "true or false";
  static bool fits(const Json& json) { return json.is_boolean(); }
};
template <>
struct Shape<double> {
  static constexpr const char* rule = "a number";
  static bool fits(const Json& json) { return json.is_number(); }
};
template <>
struct Shape<uint64_t> {
  static constexpr const char* rule = "a whole number of at least 0";
  static bool fits(const Json& json) { return json.is_number_unsigned(); }
};
template <>
struct Shape<int64_t> {
  static constexpr const char* rule = "a whole number of 64 bits";
  static bool fits(const Json& json) {
    constexpr uint64_t most = std::numeric_limits<int64_t>::max();
    return json.is_number_unsigned() ? json.get<uint64_t>() <= most : json.is_number_integer();
  }
};
template <>
struct Shape<std::string> {
  static constexpr const char* rule = "a text";
  static bool fits(const Json& json) { return json.is_string(); }
};
template <class T>
struct Shape<std::vector<T>> {
  static constexpr const char* rule =
      std::is_same_v<T, std::string> ? "a list of texts" : "a list of whole numbers of at least 0";
  static bool fits(const Json& json) {
    return json.is_array() && std::ranges::all_of(json, Shape<T>::fits);
  }
};
template <>
struct Shape<std::map<std::string, std::string>> {
  static constexpr const char* rule = "an object of texts";
  static bool fits(const Json& json) {
    return json.is_object() &&
           std::ranges::all_of(json, [](const Json& value) { return value.is_string(); });
  }
};

/// A part of a document that knows where it is, so that errors can say it: "claims[2].outcome".
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  Reader at(const char* field) const {
    const std::string path = where_.empty() ? field : std::string(where_).append(".").append(field);
    TORCH_CHECK_VALUE(json_.is_object() && json_.contains(field), "the field '", path,
                      "' is missing");
    return {json_.at(field), path};
  }

  std::vector<Reader> items() const {
    check(json_.is_array(), "must be an array");
    std::vector<Reader> items;
    for (const auto& item : json_) {
      const std::string index = std::to_string(items.size());
      items.emplace_back(item, std::string(where_).append("[").append(index).append("]"));
    }
    return items;
  }

  template <class T>
  void get_to(T& value) const {
    check(Shape<T>::fits(json_), std::string("must be ").append(Shape<T>::rule));
    json_.get_to(value);
  }

  bool is_null() const { return json_.is_null(); }

  void check(bool holds, const std::string& rule) const {
    TORCH_CHECK_VALUE(holds, "the field '", where_, "' ", rule, ", but is ", io::shown(json_));
  }

 private:
  const Json& json_;
  std::string where_;
};

Outcome to_outcome(const Reader& json) {
  std::string text;
  json.get_to(text);
  for (const auto& [outcome, name] : outcomes) {
    if (text == name) return outcome;
  }
  json.check(false, "must be an outcome");
  return Outcome::not_run;
}

/// JSON has no NaN and no infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }
double number(const Reader& json) {
  double value = NAN;
  if (!json.is_null()) json.get_to(value);
  return value;
}

Json numbers(const std::vector<double>& values) {
  Json json = Json::array();
  for (const double value : values) json.push_back(number(value));
  return json;
}

std::vector<double> numbers(const Reader& json) {
  std::vector<double> values;
  for (const auto& value : json.items()) values.push_back(number(value));
  return values;
}

Json to_object(const Claim& claim) {
  return {{"what", claim.what},
          {"paper", claim.paper},
          {"measured", claim.measured},
          {"deviation", claim.deviation ? number(*claim.deviation) : Json()},
          {"outcome", to_string(claim.outcome)},
          {"note", claim.note}};
}

Claim to_claim(const Reader& json) {
  Claim claim;
  json.at("what").get_to(claim.what);
  json.at("paper").get_to(claim.paper);
  json.at("measured").get_to(claim.measured);
  if (!json.at("deviation").is_null()) claim.deviation = number(json.at("deviation"));
  claim.outcome = to_outcome(json.at("outcome"));
  json.at("note").get_to(claim.note);
  return claim;
}

Json to_object(const Curves& curves) {
  Json series = Json::array();
  for (const auto& one : curves.series) {
    series.push_back(
        {{"arm", one.arm}, {"seed", one.seed}, {"x", numbers(one.x)}, {"y", numbers(one.y)}});
  }
  return {{"title", curves.title},
          {"x", curves.x},
          {"y", curves.y},
          {"log_y", curves.log_y},
          {"series", std::move(series)}};
}

Curves to_curves(const Reader& json) {
  Curves curves;
  json.at("title").get_to(curves.title);
  json.at("x").get_to(curves.x);
  json.at("y").get_to(curves.y);
  json.at("log_y").get_to(curves.log_y);
  for (const auto& one : json.at("series").items()) {
    Series series;
    one.at("arm").get_to(series.arm);
    one.at("seed").get_to(series.seed);
    series.x = numbers(one.at("x"));
    series.y = numbers(one.at("y"));
    one.at("y").check(series.y.size() == series.x.size(), "must be as long as x");
    curves.series.push_back(std::move(series));
  }
  return curves;
}

Json to_object(const HeatMap& map) {
  Json panels = Json::array();
  for (const auto& panel : map.panels) {
    Json z = Json::array();
    for (const auto& row : panel.z) z.push_back(numbers(row));
    panels.push_back({{"arm", panel.arm}, {"x", panel.x}, {"y", panel.y}, {"z", std::move(z)}});
  }
  return {{"title", map.title},
          {"x", map.x},
          {"y", map.y},
          {"z", map.z},
          {"panels", std::move(panels)}};
}

HeatMap to_heat_map(const Reader& json) {
  HeatMap map;
  json.at("title").get_to(map.title);
  json.at("x").get_to(map.x);
  json.at("y").get_to(map.y);
  json.at("z").get_to(map.z);
  for (const auto& one : json.at("panels").items()) {
    HeatMap::Panel panel;
    one.at("arm").get_to(panel.arm);
    one.at("x").get_to(panel.x);
    one.at("y").get_to(panel.y);
    for (const auto& row : one.at("z").items()) {
      panel.z.push_back(numbers(row));
      row.check(panel.z.back().size() == panel.x.size(), "must be as long as x");
    }
    one.at("z").check(panel.z.size() == panel.y.size(), "must be as long as y");
    map.panels.push_back(std::move(panel));
  }
  return map;
}

template <class T>
Json objects(const std::vector<T>& values) {
  Json json = Json::array();
  for (const auto& value : values) json.push_back(to_object(value));
  return json;
}

}  // namespace

const char* to_string(Outcome outcome) {
  for (const auto& [known, name] : outcomes) {
    if (known == outcome) return name;
  }
  return "?";
}

void to_json(Json& json, const Result& result) {
  json = {{"name", result.name},
          {"title", result.title},
          {"question", result.question},
          {"answer", result.answer},
          {"command", result.command},
          {"quick", result.quick},
          {"missing", result.missing},
          {"seeds", result.seeds},
          {"threads", result.threads},
          {"versions", result.versions},
          {"table", {{"columns", result.table.columns}, {"rows", result.table.rows}}},
          {"claims", objects(result.claims)},
          {"curves", objects(result.curves)},
          {"heat_maps", objects(result.heat_maps)}};
}

void from_json(const Json& json, Result& result) {
  const Reader reader(json, "");
  result = {};
  reader.at("name").get_to(result.name);
  reader.at("title").get_to(result.title);
  reader.at("question").get_to(result.question);
  reader.at("answer").get_to(result.answer);
  reader.at("command").get_to(result.command);
  reader.at("quick").get_to(result.quick);
  reader.at("missing").get_to(result.missing);
  reader.at("seeds").get_to(result.seeds);
  reader.at("threads").get_to(result.threads);
  reader.at("versions").get_to(result.versions);
  reader.at("table").at("columns").get_to(result.table.columns);
  for (const auto& row : reader.at("table").at("rows").items()) {
    row.get_to(result.table.rows.emplace_back());
    row.check(result.table.rows.back().size() == result.table.columns.size(),
              "must have a cell for each column");
  }
  for (const auto& claim : reader.at("claims").items()) result.claims.push_back(to_claim(claim));
  for (const auto& curves : reader.at("curves").items()) {
    result.curves.push_back(to_curves(curves));
  }
  for (const auto& map : reader.at("heat_maps").items()) {
    result.heat_maps.push_back(to_heat_map(map));
  }
}

}  // namespace ddc::experiments
