#include "ddc/experiments/result.h"

#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <utility>

namespace ddc::experiments {
namespace {

constexpr std::array<std::pair<Outcome, const char*>, 4> outcomes = {{
    {Outcome::reproduced, "reproduced"},
    {Outcome::better, "better"},
    {Outcome::not_reproduced, "not reproduced"},
    {Outcome::not_run, "not run"},
}};

Outcome outcome_of(const std::string& text) {
  for (const auto& [outcome, name] : outcomes) {
    if (text == name) return outcome;
  }
  TORCH_CHECK_VALUE(false, "unknown outcome '", text, "' of a claim");
}

/// JSON has no NaN and no infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }
double number(const Json& json) { return json.is_null() ? NAN : json.get<double>(); }

Json numbers(const std::vector<double>& values) {
  Json json = Json::array();
  for (const double value : values) json.push_back(number(value));
  return json;
}

std::vector<double> numbers(const Json& json) {
  std::vector<double> values;
  for (const auto& value : json) values.push_back(number(value));
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

Claim to_claim(const Json& json) {
  Claim claim;
  claim.what = json.at("what");
  claim.paper = json.at("paper");
  claim.measured = json.at("measured");
  if (!json.at("deviation").is_null()) claim.deviation = json.at("deviation").get<double>();
  claim.outcome = outcome_of(json.at("outcome"));
  claim.note = json.at("note");
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

Curves to_curves(const Json& json) {
  Curves curves;
  curves.title = json.at("title");
  curves.x = json.at("x");
  curves.y = json.at("y");
  curves.log_y = json.at("log_y");
  for (const auto& one : json.at("series")) {
    curves.series.push_back({.arm = one.at("arm"),
                             .seed = one.at("seed"),
                             .x = numbers(one.at("x")),
                             .y = numbers(one.at("y"))});
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

HeatMap to_heat_map(const Json& json) {
  HeatMap map;
  map.title = json.at("title");
  map.x = json.at("x");
  map.y = json.at("y");
  map.z = json.at("z");
  for (const auto& one : json.at("panels")) {
    HeatMap::Panel panel;
    one.at("arm").get_to(panel.arm);
    one.at("x").get_to(panel.x);
    one.at("y").get_to(panel.y);
    for (const auto& row : one.at("z")) panel.z.push_back(numbers(row));
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
  result.name = json.at("name");
  result.title = json.at("title");
  result.question = json.at("question");
  result.answer = json.at("answer");
  result.command = json.at("command");
  result.quick = json.at("quick");
  json.at("missing").get_to(result.missing);
  json.at("seeds").get_to(result.seeds);
  result.threads = json.at("threads");
  json.at("versions").get_to(result.versions);
  json.at("table").at("columns").get_to(result.table.columns);
  json.at("table").at("rows").get_to(result.table.rows);
  result.claims.clear();
  for (const auto& claim : json.at("claims")) result.claims.push_back(to_claim(claim));
  result.curves.clear();
  for (const auto& curves : json.at("curves")) result.curves.push_back(to_curves(curves));
  result.heat_maps.clear();
  for (const auto& map : json.at("heat_maps")) result.heat_maps.push_back(to_heat_map(map));
}

}  // namespace ddc::experiments
