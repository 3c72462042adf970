#include "ddc/experiments/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/folder.h"

namespace ddc::tests {
namespace {

namespace fs = std::filesystem;
using experiments::index_page;
using experiments::Json;
using experiments::Outcome;
using experiments::Result;
using experiments::results_markdown;
using experiments::write_report;
using testing::HasSubstr;
using testing::Not;

Result some_result() {
  Result result;
  result.name = "relu";
  result.title = "ReLU teacher-student";
  result.question = "Does it stay?";
  result.answer = "It does.";
  result.command = "ddc experiment relu --seeds 42,142";
  result.seeds = {42, 142};
  result.threads = 2;
  result.versions = {{"ddc", "0.1.0"}, {"torch", "2.13.0"}};
  result.table = {.columns = {"arm", "drift"}, .rows = {{"AdamW", "0.11"}, {"DDCAdam", "1e-15"}}};
  result.claims = {{.what = "drift of AdamW",
                    .paper = "0.10 ± 0.02",
                    .measured = "0.11",
                    .deviation = 0.1,
                    .outcome = Outcome::reproduced},
                   {.what = "drift of DDCAdam",
                    .paper = "1e-12",
                    .measured = "1e-15",
                    .outcome = Outcome::better},
                   {.what = "exponent",
                    .paper = "-0.03",
                    .measured = "-0.4",
                    .deviation = 12.25,
                    .outcome = Outcome::not_reproduced,
                    .note = "the initial scale matters"}};
  result.curves = {{.title = "Loss",
                    .y = "loss",
                    .log_y = true,
                    .series = {{.arm = "AdamW", .seed = 42, .x = {0, 10, 20}, .y = {1, NAN, 0.25}},
                               {.arm = "AdamW", .seed = 142, .x = {0, 10}, .y = {1, 0.5}}}}};
  result.heat_maps = {
      {.title = "Steps",
       .x = "lr",
       .y = "wd",
       .z = "steps",
       .panels = {{.arm = "AdamW", .x = {"1e-3", "3e-3"}, .y = {"1"}, .z = {{300, NAN}}}}}};
  return result;
}

/// The body without its scripts: a failure would print the five megabytes of Plotly.
std::string text_of_page(const Result& result) {
  const auto page = experiments::report_page(result);
  const size_t begin = page.find("<body>");
  return page.substr(begin, page.find("<script>\n") - begin);
}

/// The JSON that the charts of `page` are drawn from.
Json chart_data(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(Result, IsTheSameAfterAWayThroughJson) {
  const Json json = some_result();
  const auto again = Json::parse(json.dump()).get<Result>();
  EXPECT_EQ(Json(again), json);
  EXPECT_EQ(again.claims[0].deviation, 0.1);
  EXPECT_EQ(again.claims[1].deviation, std::nullopt);
  EXPECT_EQ(again.claims[2].outcome, Outcome::not_reproduced);
  EXPECT_EQ(again.curves[0].series[0].seed, 42);
}

TEST(Result, KeepsWhereThereIsNoNumber) {
  auto result = some_result();
  result.curves[0].series[1].y[0] = std::numeric_limits<double>::infinity();
  const Json json = result;
  EXPECT_TRUE(json["curves"][0]["series"][0]["y"][1].is_null());
  EXPECT_TRUE(json["curves"][0]["series"][1]["y"][0].is_null());
  const auto again = json.get<Result>();
  EXPECT_TRUE(std::isnan(again.curves[0].series[0].y[1]));
  EXPECT_TRUE(std::isnan(again.curves[0].series[1].y[0]));
  EXPECT_TRUE(std::isnan(again.heat_maps[0].panels[0].z[0][1]));
}

TEST(Result, SaysWhichFieldIsWrong) {
  const auto expect_named = [](const char* pointer, const Json& value, const std::string& field) {
    Json json = some_result();
    json[Json::json_pointer(pointer)] = value;
    expect_error([&] { json.get<Result>(); }, {"'" + field + "'"});
  };
  expect_named("/title", 3, "title");
  expect_named("/claims", "none", "claims");
  expect_named("/claims/2/outcome", "fine", "claims[2].outcome");
  expect_named("/claims/0", Json::object(), "claims[0].what");
  expect_named("/curves/0/series/1/y/1", "0.5", "curves[0].series[1].y[1]");
  expect_named("/curves/0/series/1/y", {1}, "curves[0].series[1].y");
  expect_named("/heat_maps/0/panels/0/z/0", {1}, "heat_maps[0].panels[0].z[0]");
  expect_named("/heat_maps/0/panels/0/z", Json::array(), "heat_maps[0].panels[0].z");
  expect_named("/table/rows/1", {"DDCAdam"}, "table.rows[1]");
  expect_error([] { Json::array().get<Result>(); }, {"'name'", "missing"});
}

TEST(ReportPage, SaysWhatTheResultSays) {
  const auto page = text_of_page(some_result());
  for (const char* part :
       {"<h1>ReLU teacher-student</h1>", "Does it stay?", "It does.", "drift of DDCAdam",
        "the initial scale matters", "ddc experiment relu --seeds 42,142", "42, 142", "2.13.0",
        "<td data-label=\"Deviation\">10 %</td>", "<td class=\"number\">0.11</td>", "<noscript>"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
}

TEST(ReportPage, CountsTheVerdicts) {
  auto result = some_result();
  result.claims.push_back(result.claims[0]);
  const auto page = text_of_page(result);
  EXPECT_THAT(page, HasSubstr("<li class=\"reproduced\"><strong>2 "));
  EXPECT_THAT(page, HasSubstr("<li class=\"better\"><strong>1 "));
  EXPECT_THAT(page, HasSubstr("<li class=\"not-reproduced\"><strong>1 "));
  EXPECT_THAT(page, HasSubstr("<li class=\"not-run none\"><strong>0 "));
}

TEST(ReportPage, HasOnlyTheSectionsThatThereIsSomethingFor) {
  EXPECT_THAT(text_of_page(some_result()), Not(HasSubstr("Missing runs")));
  EXPECT_THAT(text_of_page(some_result()), Not(HasSubstr("quick version")));
  Result bare;
  bare.title = "Nothing yet";
  bare.quick = true;
  bare.missing = {"adamw-42"};
  const auto page = text_of_page(bare);
  EXPECT_THAT(page, HasSubstr("Missing runs"));
  EXPECT_THAT(page, HasSubstr("<code>adamw-42</code>"));
  EXPECT_THAT(page, HasSubstr("quick version"));
  for (const char* id :
       {"id=\"claims\"", "id=\"results\"", "id=\"charts\"", "class=\"verdicts\""}) {
    EXPECT_THAT(page, Not(HasSubstr(id)));
  }
}

TEST(ReportPage, EscapesWhatTheResultSays) {
  const std::string nasty = "</script><script>alert('1')</script> {{title}} & \"<!--";
  auto result = some_result();
  for (auto* text : {&result.name, &result.title, &result.question, &result.answer, &result.command,
                     &result.versions["ddc"], &result.table.columns[0], &result.table.rows[1][1],
                     &result.claims[0].what, &result.claims[0].paper, &result.claims[0].measured,
                     &result.claims[0].note, &result.curves[0].title,
                     &result.curves[0].series[0].arm, &result.heat_maps[0].panels[0].arm}) {
    *text = nasty;
  }
  result.missing = {nasty};
  const auto page = text_of_page(result);
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; "
                              "{{title}} &amp; &quot;&lt;!--"));
  EXPECT_EQ(chart_data(page)["curves"][0]["series"][0]["arm"], nasty);
  EXPECT_EQ(chart_data(page)["heat_maps"][0]["panels"][0]["arm"], nasty);
}

TEST(ReportPage, KeepsTheLicenceOfPlotly) {
  const auto page = experiments::report_page(some_result());
  EXPECT_NE(page.find("Licensed under the MIT license"), std::string::npos);
}

TEST(ReportPage, BreaksNoLineWithinANumber) {
  auto result = some_result();
  result.answer = "At lr 1e-3 it is -0.4 ± 0.1, for 4000 steps of seed-42.";
  EXPECT_THAT(text_of_page(result),
              HasSubstr("At lr <span class=\"unbroken\">1e-3</span> it is <span class=\"unbroken\">"
                        "-0.4 ± 0.1</span>, for 4000 steps of seed<span class=\"unbroken\">-42"
                        "</span>."));
}

TEST(IndexPage, LinksEveryReportAndCountsItsVerdicts) {
  auto other = some_result();
  other.name = "layer_norm";
  other.title = "LayerNorm <2>";
  other.quick = true;
  const auto page = index_page({some_result(), other});
  EXPECT_THAT(page, HasSubstr("<a href=\"relu.html\">ReLU teacher-student</a>"));
  EXPECT_THAT(page, HasSubstr("<a href=\"layer_norm.html\">LayerNorm &lt;2&gt;</a>"));
  EXPECT_THAT(page, HasSubstr("</span> 1 not reproduced</span>"));
  EXPECT_THAT(page, HasSubstr("<li class=\"reproduced\"><strong>2 "));
  EXPECT_THAT(page, HasSubstr("quick version"));
}

TEST(ResultsMarkdown, HasTheTablesAndTheCommandOfEveryResult) {
  const auto text = results_markdown({some_result()});
  EXPECT_THAT(text, HasSubstr("Generated by `ddc report docs/results --markdown`"));
  EXPECT_THAT(text, HasSubstr("| ReLU teacher-student | 1 | 1 | 1 | 0 |\n"));
  EXPECT_THAT(text, HasSubstr("\n## ReLU teacher-student\n\nDoes it stay?\n"));
  EXPECT_THAT(text, HasSubstr("\n    ddc experiment relu --seeds 42,142\n"));
  EXPECT_THAT(text,
              HasSubstr("\n| Claim | Paper | Measured | Deviation | Verdict | Note |\n| --- |"));
  EXPECT_THAT(text, HasSubstr("| exponent | -0.03 | -0.4 | 1225 % | not reproduced | the initial "
                              "scale matters |\n"));
  EXPECT_THAT(text, HasSubstr("\n| arm | drift |\n| --- | ---: |\n| AdamW | 0.11 |\n"));
}

TEST(ResultsMarkdown, EscapesWhatWouldBeMarkup) {
  auto result = some_result();
  result.table.rows[0][0] = "a|b\nc <i> *d* e_f `g` \\ & $x$";
  result.command = "ddc\n```";
  const auto text = results_markdown({result});
  EXPECT_THAT(text,
              HasSubstr("| a\\|b c &lt;i> \\*d\\* e\\_f \\`g\\` \\\\ &amp; \\$x\\$ | 0.11 |\n"));
  EXPECT_THAT(text, HasSubstr("\n    ddc\n    ```\n"));
}

class WriteReport : public testing::Test {
 protected:
  void save(const fs::path& name, const std::string& text) const {
    fs::create_directories((directory_ / name).parent_path());
    std::ofstream(directory_ / name) << text;
  }
  void save(const fs::path& name, const std::string& result_name, const std::string& title) const {
    auto result = some_result();
    result.name = result_name;
    result.title = title;
    save(name, Json(result).dump());
  }
  std::string read(const fs::path& name) const {
    std::ostringstream text;
    text << std::ifstream(directory_ / name).rdbuf();
    return text.str();
  }
  /// The names of all files, so that nothing temporary is left unseen.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(directory_)) {
      if (entry.is_regular_file()) {
        names.push_back(fs::relative(entry.path(), directory_).string());
      }
    }
    return names;
  }

  tests::Folder temporary_;
  const fs::path& directory_ = temporary_.path();
};

TEST_F(WriteReport, PutsTheReportBesideAnExperimentsResult) {
  save("result.json", "relu", "A");
  save("config.json", "{}");
  EXPECT_THAT(write_report(directory_), testing::ElementsAre(directory_ / "report.html"));
  EXPECT_TRUE(read("report.html") ==
              experiments::report_page(experiments::read_results(directory_).at(0)));
  EXPECT_THAT(files(), testing::UnorderedElementsAre("result.json", "config.json", "report.html"));
}

TEST_F(WriteReport, ReplacesAnOlderReport) {
  save("report.html", "old");
  save("result.json", "relu", "A");
  write_report(directory_);
  EXPECT_NE(read("report.html").find("<title>A</title>"), std::string::npos);
}

TEST_F(WriteReport, WritesAnIndexOfSeveralResults) {
  save("b.json", "b", "B");
  save("a.json", "a", "A");
  save("c/result.json", "c", "C");
  save("runs/notes.txt", "no result");
  save("README.md", "no result");
  EXPECT_THAT(write_report(directory_),
              testing::ElementsAre(directory_ / "a.html", directory_ / "b.html",
                                   directory_ / "c.html", directory_ / "index.html"));
  EXPECT_NE(read("a.html").find("<title>A</title>"), std::string::npos);
  EXPECT_NE(read("c.html").find("<title>C</title>"), std::string::npos);
  EXPECT_EQ(read("index.html"), index_page(experiments::read_results(directory_)));
}

TEST_F(WriteReport, SaysOfAFieldThatDoesNotFitWhatItMustBe) {
  const Json document(some_result());
  const auto refused = [&](const char* place, const Json& value, const std::string& rule) {
    auto changed = document;
    changed[Json::json_pointer(place)] = value;
    save("torn.json", changed.dump());
    try {
      write_report(directory_);
      ADD_FAILURE() << place << " is read";
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_THAT(text, HasSubstr(rule + ", but is "));
      EXPECT_THAT(text, Not(HasSubstr("json.exception")));
    }
  };
  refused("/name", 3, "the field 'name' must be a text");
  refused("/quick", "no", "the field 'quick' must be true or false");
  refused("/threads", 18446744073709551615U, "'threads' must be a whole number of 64 bits");
  refused("/seeds", {1, -1}, "'seeds' must be a list of whole numbers of at least 0");
  refused("/missing", {1}, "'missing' must be a list of texts");
  refused("/versions", {{"ddc", 2}}, "'versions' must be an object of texts");
  refused("/claims/0/deviation", "much", "'claims[0].deviation' must be a number");
}

TEST_F(WriteReport, SaysWhatIsWrong) {
  expect_error([&] { write_report(directory_ / "absent"); }, {"no directory", "absent"});
  expect_error([&] { write_report(directory_); }, {"nothing to report", directory_.string()});
  save("torn.json", "{\"name\": ");
  expect_error([&] { write_report(directory_); }, {"torn.json", "truncated: the error is at byte"});
  save("torn.json", std::string(100'000, '[') + std::string(100'000, ']'));
  expect_error([&] { write_report(directory_); }, {"torn.json", "nested deeper than 64 levels"});
  save("torn.json", R"({"name": 1e999})");
  expect_error([&] { write_report(directory_); }, {"torn.json", "number that is out of range"});
  save("torn.json", "{\"name\": \"a\"}");
  expect_error([&] { write_report(directory_); }, {"torn.json", "'title'"});
  save("torn.json", "../a", "A");
  expect_error([&] { write_report(directory_); }, {"torn.json", "'../a'"});
  save("torn.json", "index", "A");
  expect_error([&] { write_report(directory_); }, {"torn.json", "'index'"});
  save("torn.json", "a", "A");
  save("whole.json", "a", "A");
  expect_error([&] { write_report(directory_); }, {"torn.json", "whole.json", "'a'"});
  EXPECT_THAT(files(), testing::UnorderedElementsAre("torn.json", "whole.json"));
}

}  // namespace
}  // namespace ddc::tests
