#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

// What an experiment has found, as data: the table, the claims beside the paper's numbers, and the
// curves. It is what `ddc experiment` writes to result.json, what `ddc report` draws, and what is kept in
// docs/results. It knows nothing of networks.

namespace ddc::experiments {

using Json = nlohmann::json;

enum class Outcome {
  reproduced,      ///< within the paper's spread, or the stated tolerance
  better,          ///< beyond what the paper reports, in the direction that is wished for
  not_reproduced,  ///< and `note` says what we found out about why
  not_run,         ///< the runs that it needs are missing, or the quick version has no say in it
};
const char* to_string(Outcome outcome);

/// A number of the paper, and ours.
struct Claim {
  std::string what;
  /// As the paper states it: "-0.032 ± 0.050".
  std::string paper;
  std::string measured;
  /// |ours - paper's| / |paper's|, or whatever `deviation_of` says; unset where there is nothing to compare.
  std::optional<double> deviation;
  Outcome outcome = Outcome::not_run;
  std::string note;
};

/// Cells are text, formatted by the experiment.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

/// One run's curve. Where y is not finite it is null.
struct Series {
  std::string arm;
  uint64_t seed = 0;
  std::vector<double> x;
  std::vector<double> y;
};

/// Curves over steps: an arm's seeds have one colour, a median and a band.
struct Curves {
  std::string title;
  std::string x = "step";
  std::string y;
  bool log_y = false;
  std::vector<Series> series;
};

/// A heat map per arm over two settings, all on one colour scale. `z[i][j]` belongs to `y[i]`, `x[j]`; NaN
/// where there is nothing.
struct HeatMap {
  std::string title;
  std::string x;
  std::string y;
  std::string z;
  struct Panel {
    std::string arm;
    std::vector<std::string> x;
    std::vector<std::string> y;
    std::vector<std::vector<double>> z;
  };
  std::vector<Panel> panels;
};

struct Result {
  std::string name;
  std::string title;
  std::string question;
  /// What the answer is, in a sentence or two; may be empty.
  std::string answer;
  /// The exact command that made it.
  std::string command;
  bool quick = false;
  /// Runs that are not finished, by their folders' names.
  std::vector<std::string> missing;
  std::vector<uint64_t> seeds;
  int64_t threads = 1;
  /// "ddc", "torch", "compiler".
  std::map<std::string, std::string> versions;
  Table table;
  std::vector<Claim> claims;
  std::vector<Curves> curves;
  std::vector<HeatMap> heat_maps;
};

void to_json(Json& json, const Result& result);
/// Throws, naming the field, unless it is what to_json writes.
void from_json(const Json& json, Result& result);

}  // namespace ddc::experiments
