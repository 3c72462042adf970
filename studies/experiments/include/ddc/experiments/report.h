#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ddc/experiments/result.h"

// Results as pages for people. A page of HTML is one file that needs no other and asks the network for
// nothing: the style, the script and Plotly's bundle (MIT licence; its notice stays at its head) are built
// into the library, from experiments/report and Plotly's Python package.

namespace ddc::experiments {

/// The page of one experiment.
std::string report_page(const Result& result);

/// Lists experiments, each with a link to `NAME.html` beside it.
std::string index_page(const std::vector<Result>& results);

/// docs/results/README.md, which `ddc report docs/results --markdown` generates.
std::string results_markdown(const std::vector<Result>& results);

/// What `directory` holds, in the order of the files' names: its `result.json` (an experiment's folder),
/// else its `*.json` (docs/results) and the `result.json` of its subfolders. Throws where there is none,
/// where a file is no result, and where two have one name.
std::vector<Result> read_results(const std::filesystem::path& directory);

/// Writes the reports on read_results(directory), each file wholly or not at all, and returns their paths:
/// `report.html` in an experiment's folder; else `NAME.html` of each, and then `index.html`.
std::vector<std::filesystem::path> write_report(const std::filesystem::path& directory);

}  // namespace ddc::experiments
