#include "display.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <iostream>
#include <limits>
#include <string_view>
#include <utility>

#include "text.h"

namespace ddc::cli {
namespace {

struct Size {
  size_t columns = 80;
  size_t rows = 24;
};

Size terminal_size() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    return {};
  }
  return {size.ws_col, size.ws_row};
}

/// What is done, and what is not.
std::pair<const char*, const char*> glyphs() {
  static const bool utf8 = [] {
    std::setlocale(LC_CTYPE, "");
    return std::string_view(nl_langinfo(CODESET)) == "UTF-8";
  }();
  return utf8 ? std::pair("━", "─") : std::pair("#", "-");
}

std::string repeated(const char* glyph, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += glyph;
  return text;
}

std::string drawn(double fraction, size_t columns) {
  const auto& [done, rest] = glyphs();
  const auto filled =
      static_cast<size_t>(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(columns));
  return repeated(done, filled) + repeated(rest, columns - filled);
}

}  // namespace

bool Display::is_terminal() { return isatty(STDERR_FILENO) != 0; }

std::string Display::to_the_top() const {
  if (shown_.empty()) return "";
  // A terminal that has become narrower since has wrapped what was shown.
  const size_t columns = terminal_size().columns;
  size_t rows = 0;
  for (const auto& line : shown_) {
    rows += std::max<size_t>(1, (width(line) + columns - 1) / columns);
  }
  return rows > 1 ? "\r\033[" + std::to_string(rows - 1) + "A" : "\r";
}

void Display::show(std::vector<std::string> lines) {
  if (!watched_ || (lines.empty() && shown_.empty())) return;
  const auto size = terminal_size();
  // The last line may not be left by more lines than fit: those above could not be reached again.
  if (lines.size() > size.rows) {
    lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(size.rows) - 1, lines.end() - 1);
  }
  auto text = to_the_top();
  for (size_t i = 0; i < lines.size(); ++i) {
    // A full line would be wrapped by some terminals.
    lines[i] = cut(lines[i], size.columns - 1);
    text += (i > 0 ? "\n" : "") + lines[i] + "\033[K";
  }
  text += lines.empty() ? "\033[J\r\033[K" : "\033[J";
  shown_ = std::move(lines);
  std::cerr << text << std::flush;
}

void Display::show(const std::vector<Bar>& bars) {
  if (!watched_) return;
  constexpr size_t least_bar = 5;
  constexpr size_t most_bar = 40;
  const size_t columns = terminal_size().columns - 1;
  size_t label = 0;
  size_t text = 0;
  for (const auto& bar : bars) {
    label = std::max(label, width(bar.label));
    text = std::max(text, width(bar.text));
  }
  const size_t room = columns - std::min(columns, text + 4);
  // On a narrow terminal the label gives way first, and then the bar.
  label = std::min(label, std::max<size_t>(12, room - std::min(room, least_bar)));
  const size_t length = std::min(most_bar, room - std::min(room, label));
  std::vector<std::string> lines;
  for (const auto& bar : bars) {
    auto line = padded(cut(bar.label, label), label) + "  ";
    if (length >= least_bar) line += drawn(bar.fraction, length) + "  ";
    lines.push_back(line + bar.text);
  }
  show(std::move(lines));
}

void Display::say(const std::string& line) {
  const auto lines = shown_;
  show(std::vector<std::string>());
  std::cerr << line << '\n' << std::flush;
  show(lines);
}

std::string describe(const Standing& standing) {
  const auto steps = std::to_string(standing.steps);
  const auto step = std::to_string(standing.step);
  return std::string(steps.size() - std::min(steps.size(), step.size()), ' ') + step + '/' + steps +
         "  " + padded(time_left(standing.seconds_left), 9) + "  loss " +
         padded(number(standing.loss), 9) + "  drift " + padded(number(standing.drift), 9);
}

std::string time_left(double seconds) {
  return std::isfinite(seconds) ? duration(seconds) + " left" : "";
}

double seconds_left(double seconds, int64_t done, int64_t left) {
  if (done <= 0) return std::numeric_limits<double>::quiet_NaN();
  return seconds * static_cast<double>(left) / static_cast<double>(done);
}

}  // namespace ddc::cli
