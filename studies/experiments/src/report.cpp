#include "ddc/experiments/report.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "assets.h"
#include "files.h"
#include "io/json_text.h"

namespace ddc::experiments {
namespace {

namespace fs = std::filesystem;

constexpr std::array outcomes = {Outcome::reproduced, Outcome::better, Outcome::not_reproduced,
                                 Outcome::not_run};

/// How many claims of `results` came out as `outcome`.
template <class Results>
size_t count(const Results& results, Outcome outcome) {
  size_t sum = 0;
  for (const Result& result : results) {
    sum += std::count_if(result.claims.begin(), result.claims.end(),
                         [&](const Claim& claim) { return claim.outcome == outcome; });
  }
  return sum;
}

/// "3.1 %"; empty where there is none.
std::string percent(const std::optional<double>& deviation) {
  if (!deviation || !std::isfinite(*deviation)) return "";
  const double value = 100 * *deviation;
  if (value != 0 && std::abs(value) < 0.1) return "< 0.1 %";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), std::abs(value) < 10 ? "%.1f %%" : "%.0f %%", value);
  return text.data();
}

/// A column of numbers is aligned at the right.
bool looks_like_number(std::string_view cell) {
  for (const std::string_view sign : {"-", "+", "−", "±", "<", ">", "≤", "≥", "~", "≈", " "}) {
    while (cell.starts_with(sign)) cell.remove_prefix(sign.size());
  }
  for (const std::string_view word : {"", "–", "—", "nan", "NaN", "inf"}) {
    if (cell == word) return true;
  }
  return cell.front() == '.' || (cell.front() >= '0' && cell.front() <= '9');
}

bool column_of_numbers(const Table& table, size_t column) {
  return std::ranges::all_of(table.rows, [&](const std::vector<std::string>& row) {
    return column >= row.size() || looks_like_number(row[column]);
  });
}

template <class Values>
std::string joined(const Values& values, const char* separator) {
  std::ostringstream out;
  const char* before = "";
  for (const auto& value : values) out << std::exchange(before, separator) << value;
  return out.str();
}

// --- HTML ----------------------------------------------------------------------------------------

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// The same, and no line ends within a number: not after the hyphen of 1e-3, nor before a ±.
std::string prose(std::string_view text) {
  static const std::regex number(
      "-?[0-9]+([.,][0-9]+)*(e[-+]?[0-9]+)?( ± [0-9]+([.,][0-9]+)*(e[-+]?[0-9]+)?)?");
  const std::string source = escaped(text);
  std::string out;
  auto at = source.cbegin();
  for (std::sregex_iterator match(source.begin(), source.end(), number), end; match != end;
       ++match) {
    const std::string found = match->str();
    if (found.find_first_of("- ") == std::string::npos) continue;
    out.append(at, (*match)[0].first)
        .append("<span class=\"unbroken\">")
        .append(found)
        .append("</span>");
    at = (*match)[0].second;
  }
  return out.append(at, source.cend());
}

using Fields = std::initializer_list<std::pair<std::string_view, std::string_view>>;

/// Puts the fields in place of their {{names}}. What is put in is not searched again.
std::string filled(std::string_view text, Fields fields) {
  std::string out;
  for (;;) {
    const size_t open = text.find("{{");
    out += text.substr(0, open);
    if (open == std::string_view::npos) return out;
    const size_t close = text.find("}}", open);
    const auto name = text.substr(open + 2, close - open - 2);
    const auto* field =
        std::ranges::find(fields, name, [](const auto& candidate) { return candidate.first; });
    TORCH_INTERNAL_ASSERT(field != fields.end(), "no field '", name, "' for a page");
    out += field->second;
    text.remove_prefix(close + 2);
  }
}

/// A name of the style sheet's.
const char* css_class(Outcome outcome) {
  switch (outcome) {
    case Outcome::reproduced:
      return "reproduced";
    case Outcome::better:
      return "better";
    case Outcome::not_reproduced:
      return "not-reproduced";
    case Outcome::not_run:
      break;
  }
  return "not-run";
}

/// So that a verdict is not told by its colour alone. The word beside it is what is read aloud.
std::string sign(Outcome outcome) {
  constexpr std::array signs = {"✓", "▲", "✗", "–"};
  return std::string("<span aria-hidden=\"true\">")
      .append(signs.at(static_cast<size_t>(outcome)))
      .append("</span>");
}

std::string badge(Outcome outcome, std::string_view text) {
  std::ostringstream out;
  out << "<span class=\"badge " << css_class(outcome) << "\">" << sign(outcome) << ' ' << text
      << "</span>";
  return out.str();
}

template <class Results>
std::string verdicts(const Results& results) {
  if (std::ranges::all_of(results, [](const Result& one) { return one.claims.empty(); })) return "";
  std::ostringstream out;
  out << "  <ul class=\"verdicts\" aria-label=\"Verdicts on the claims of the paper\">\n";
  for (const Outcome outcome : outcomes) {
    const size_t number = count(results, outcome);
    out << "    <li class=\"" << css_class(outcome) << (number == 0 ? " none" : "") << "\"><strong>"
        << number << ' ' << sign(outcome) << "</strong> " << to_string(outcome) << "</li>\n";
  }
  out << "  </ul>\n";
  return out.str();
}

/// A section with a heading. `id` names it.
std::string section(const char* id, const char* heading, const std::string& content) {
  std::ostringstream out;
  out << "<section aria-labelledby=\"" << id << "\">\n  <h2 id=\"" << id << "\">" << heading
      << "</h2>\n"
      << content << "</section>\n";
  return out.str();
}

/// The box in which a wide table scrolls; with the keyboard too, hence the tabindex.
std::string scroll_box(const char* label, const std::string& table) {
  std::ostringstream out;
  out << "  <div class=\"scroll\" role=\"region\" aria-labelledby=\"" << label
      << "\" tabindex=\"0\">\n"
      << table << "  </div>\n";
  return out.str();
}

std::string missing_section(const Result& result) {
  if (result.missing.empty()) return "";
  std::ostringstream out;
  out << "  <p class=\"warning\">" << result.missing.size()
      << (result.missing.size() == 1 ? " run is" : " runs are")
      << " not finished; what follows is without " << (result.missing.size() == 1 ? "it" : "them")
      << ".</p>\n  <details><summary>Their names</summary>\n  <ul class=\"missing\">\n";
  for (const auto& run : result.missing)
    out << "    <li><code>" << escaped(run) << "</code></li>\n";
  out << "  </ul></details>\n";
  return section("missing", "Missing runs", out.str());
}

std::string claims_section(const Result& result) {
  if (result.claims.empty()) return "";
  // On a phone, where there is no room for a head, the label stands before the cell.
  const auto cell = [](const char* label, const std::string& text) {
    std::ostringstream out;
    out << "<td" << (text.empty() ? " class=\"nothing\"" : "") << " data-label=\"" << label << "\">"
        << prose(text) << "</td>";
    return out.str();
  };
  std::ostringstream out;
  out << "  <table class=\"claims\">\n    <thead><tr>";
  for (const char* head : {"Claim", "Paper", "Measured", "Deviation", "Verdict", "Note"}) {
    out << "<th scope=\"col\">" << head << "</th>";
  }
  out << "</tr></thead>\n    <tbody>\n";
  for (const auto& claim : result.claims) {
    out << "    <tr><th scope=\"row\">" << prose(claim.what) << "</th>"
        << cell("Paper", claim.paper) << cell("Measured", claim.measured)
        << cell("Deviation", percent(claim.deviation)) << "<td>"
        << badge(claim.outcome, to_string(claim.outcome)) << "</td><td class=\"note\">"
        << prose(claim.note) << "</td></tr>\n";
  }
  out << "    </tbody>\n  </table>\n";
  return section("claims", "Beside the paper", scroll_box("claims", out.str()));
}

std::string table_section(const Table& table) {
  if (table.columns.empty()) return "";
  std::vector<const char*> classes;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    classes.push_back(i > 0 && column_of_numbers(table, i) ? " class=\"number\"" : "");
  }
  std::ostringstream out;
  out << "  <table class=\"results\">\n    <thead><tr>";
  for (size_t i = 0; i < table.columns.size(); ++i) {
    out << "<th scope=\"col\"" << classes[i] << ">" << prose(table.columns[i]) << "</th>";
  }
  out << "</tr></thead>\n    <tbody>\n";
  for (const auto& row : table.rows) {
    out << "    <tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const char* tag = i == 0 ? "th" : "td";
      out << "<" << tag << (i == 0 ? " scope=\"row\"" : classes.at(i)) << ">" << prose(row[i])
          << "</" << tag << ">";
    }
    out << "</tr>\n";
  }
  out << "    </tbody>\n  </table>\n";
  return section("results", "Results", scroll_box("results", out.str()));
}

std::string charts_section(const Result& result) {
  if (result.curves.empty() && result.heat_maps.empty()) return "";
  std::ostringstream out;
  if (!result.curves.empty()) {
    out << "  <p class=\"hint\">Thin lines are single seeds; an arm of several has a bold line, "
           "their "
           "median, and a band from the lowest to the highest. The names show and hide arms.</p>\n";
  }
  out << "  <noscript><p class=\"warning\">The charts are drawn by JavaScript, which is switched "
         "off. "
         "The tables are complete without it.</p></noscript>\n"
         "  <div class=\"charts\" id=\"curves\"></div>\n  <div class=\"charts\" "
         "id=\"heat-maps\"></div>\n";
  return section("charts", "Charts", out.str());
}

std::string facts(const Result& result) {
  std::ostringstream out;
  const auto fact = [&](std::string_view term, std::string_view text) {
    out << "    <dt>" << escaped(term) << "</dt><dd>" << escaped(text) << "</dd>\n";
  };
  fact("Version", result.quick ? "quick" : "full");
  fact(result.seeds.size() == 1 ? "Seed" : "Seeds", joined(result.seeds, ", "));
  fact("Threads", std::to_string(result.threads));
  for (const auto& [name, version] : result.versions) fact(name, version);
  return out.str();
}

/// What the charts show. The escapes keep a text with </script> or <!-- from ending the element.
std::string chart_data(const Result& result) {
  const Json all = result;
  const Json data = {{"curves", all.at("curves")}, {"heat_maps", all.at("heat_maps")}};
  std::string out;
  for (const char c : data.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

// --- Markdown ------------------------------------------------------------------------------------

/// Text on one line, in which nothing is markup.
std::string markdown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      out += ' ';
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      if (std::string_view("\\`*_[]|$~#").find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

void add_row(std::ostream& out, const std::vector<std::string>& cells) {
  out << '|';
  for (const auto& cell : cells) out << ' ' << markdown(cell) << " |";
  out << '\n';
}

void add_table(std::ostream& out, const Table& table) {
  add_row(out, table.columns);
  out << '|';
  for (size_t i = 0; i < table.columns.size(); ++i) {
    out << (i > 0 && column_of_numbers(table, i) ? " ---: |" : " --- |");
  }
  out << '\n';
  for (const auto& row : table.rows) add_row(out, row);
}

Table claims_table(const Result& result) {
  Table table{.columns = {"Claim", "Paper", "Measured", "Deviation", "Verdict", "Note"},
              .rows = {}};
  for (const auto& claim : result.claims) {
    table.rows.push_back({claim.what, claim.paper, claim.measured, percent(claim.deviation),
                          to_string(claim.outcome), claim.note});
  }
  return table;
}

void add_result(std::ostream& out, const Result& result) {
  out << "\n## " << markdown(result.title) << "\n\n" << markdown(result.question) << '\n';
  if (!result.answer.empty()) out << "\n**Answer.** " << markdown(result.answer) << '\n';
  // Indented and not fenced: nothing in the command can end it.
  out << "\n    ";
  for (const char c : result.command) out << c << (c == '\n' ? "    " : "");
  out << "\n\n";
  if (result.quick) out << "The quick version. ";
  out << (result.seeds.size() == 1 ? "Seed " : "Seeds ") << joined(result.seeds, ", ") << "; "
      << result.threads << (result.threads == 1 ? " thread" : " threads");
  for (const auto& [name, version] : result.versions) {
    out << "; " << markdown(name) << ' ' << markdown(version);
  }
  out << ".\n";
  if (!result.missing.empty()) {
    out << "\n<details><summary>Missing runs: " << result.missing.size() << "</summary>\n\n"
        << markdown(joined(result.missing, ", ")) << "\n</details>\n";
  }
  if (!result.claims.empty()) {
    out << '\n';
    add_table(out, claims_table(result));
  }
  if (!result.table.columns.empty()) {
    out << '\n';
    add_table(out, result.table);
  }
}

// --- Files ---------------------------------------------------------------------------------------

Result read_result(const fs::path& path) {
  Result result;
  const auto text = read_text(path);
  try {
    io::parse_json(text, "the text").get_to(result);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, path,
                      " is no result of an experiment: ", error.what_without_backtrace());
  }
  // It becomes the name of a file beside index.html, and a link.
  const bool plain = std::ranges::all_of(result.name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  TORCH_CHECK_VALUE(
      plain && !result.name.empty() && result.name.front() != '.' && result.name != "index", path,
      ": an experiment's name is of letters, digits, '-', '_' and '.', and not "
      "'index', but the field 'name' is '",
      result.name, "'");
  return result;
}

fs::path own_result(const fs::path& directory) { return directory / "result.json"; }

}  // namespace

std::string report_page(const Result& result) {
  std::string answer;
  if (!result.answer.empty()) {
    answer.append("  <p class=\"answer\">").append(prose(result.answer)).append("</p>\n");
  }
  return filled(
      assets::report_html(),
      {{"name", escaped(result.name)},
       {"title", escaped(result.title)},
       {"question", prose(result.question)},
       {"answer", answer},
       {"quick_badge", result.quick ? " <span class=\"badge quick\">quick version</span>" : ""},
       {"quick_note",
        result.quick
            ? "  <p class=\"warning\">This is the quick version of the experiment: smaller and "
              "shorter "
              "than what the paper ran. It shows that everything works; its numbers do not stand "
              "beside the paper's.</p>\n"
            : ""},
       {"verdicts", verdicts(std::array{std::cref(result)})},
       {"missing", missing_section(result)},
       {"claims", claims_section(result)},
       {"table", table_section(result.table)},
       {"charts", charts_section(result)},
       {"command", escaped(result.command)},
       {"facts", facts(result)},
       {"style", assets::report_css()},
       {"data", chart_data(result)},
       {"plotly", assets::plotly_js()},
       {"script", assets::report_js()}});
}

std::string index_page(const std::vector<Result>& results) {
  std::ostringstream out;
  for (const auto& result : results) {
    out << "<li><h2><a href=\"" << escaped(result.name) << ".html\">" << escaped(result.title)
        << "</a></h2>\n  <p>" << prose(result.question) << "</p>\n  ";
    for (const Outcome outcome : outcomes) {
      const size_t number = count(std::array{std::cref(result)}, outcome);
      if (number == 0) continue;
      out << badge(outcome, std::to_string(number).append(" ").append(to_string(outcome)));
    }
    if (result.quick) out << "<span class=\"badge quick\">quick version</span>";
    out << "</li>\n";
  }
  return filled(assets::index_html(), {{"style", assets::report_css()},
                                       {"verdicts", verdicts(results)},
                                       {"experiments", out.str()}});
}

std::string results_markdown(const std::vector<Result>& results) {
  std::ostringstream out;
  out << "# Results\n\nGenerated by `ddc report docs/results --markdown` from the `*.json` beside "
         "it; "
         "do not edit.\n\n";
  std::vector<std::string> columns = {"Experiment"};
  for (const Outcome outcome : outcomes) columns.emplace_back(to_string(outcome));
  Table summary{.columns = columns, .rows = {}};
  for (const auto& result : results) {
    std::vector<std::string> row = {result.title};
    for (const Outcome outcome : outcomes) {
      row.push_back(std::to_string(count(std::array{std::cref(result)}, outcome)));
    }
    summary.rows.push_back(std::move(row));
  }
  add_table(out, summary);
  for (const auto& result : results) add_result(out, result);
  return out.str();
}

std::vector<Result> read_results(const fs::path& directory) {
  TORCH_CHECK(fs::is_directory(directory), "there is no directory ", directory);
  if (fs::exists(own_result(directory))) return {read_result(own_result(directory))};
  std::set<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.is_directory()) {
      if (fs::exists(own_result(entry.path()))) paths.insert(own_result(entry.path()));
    } else if (entry.path().extension() == ".json") {
      paths.insert(entry.path());
    }
  }
  TORCH_CHECK(!paths.empty(), "nothing to report in ", directory,
              ": it has no result.json, no other *.json and no folder with a result.json");
  std::vector<Result> results;
  std::map<std::string, fs::path> known;
  for (const auto& path : paths) {
    results.push_back(read_result(path));
    const auto [other, is_new] = known.emplace(results.back().name, path);
    TORCH_CHECK_VALUE(is_new, path, " and ", other->second, " are both results of '",
                      results.back().name, "'");
  }
  return results;
}

std::vector<fs::path> write_report(const fs::path& directory) {
  const auto results = read_results(directory);
  if (fs::exists(own_result(directory))) {
    const auto path = directory / "report.html";
    write_text(path, report_page(results.front()));
    return {path};
  }
  std::vector<fs::path> written;
  for (const auto& result : results) {
    written.push_back(directory / std::string(result.name).append(".html"));
    write_text(written.back(), report_page(result));
  }
  written.push_back(directory / "index.html");
  write_text(written.back(), index_page(results));
  return written;
}

}  // namespace ddc::experiments
