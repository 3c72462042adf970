#include "text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string_view>

namespace ddc::cli {
namespace {

bool continues_a_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

size_t width(const std::string& text) {
  return text.size() -
         static_cast<size_t>(std::count_if(text.begin(), text.end(), continues_a_character));
}

std::string padded(const std::string& text, size_t columns) {
  return text + std::string(columns - std::min(columns, width(text)), ' ');
}

std::string cut(const std::string& text, size_t columns) {
  if (width(text) <= columns) return text;
  if (columns == 0) return "";
  size_t end = 0;
  for (size_t characters = 0; end < text.size(); ++end) {
    if (!continues_a_character(text[end]) && ++characters == columns) break;
  }
  return text.substr(0, end) + "~";
}

std::string number(double value) {
  if (std::isnan(value)) return "-";
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.4g", value);
  return buffer;
}

std::string duration(double seconds) {
  const auto whole = std::llround(seconds);
  char buffer[32];
  if (whole < 3600) {
    std::snprintf(buffer, sizeof(buffer), "%lld:%02lld", whole / 60, whole % 60);
  } else {
    std::snprintf(buffer, sizeof(buffer), "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                  whole % 60);
  }
  return buffer;
}

std::string aligned(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += padded(row[i], widths[i] + 2);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string wrapped(const std::string& text, size_t columns, size_t indent) {
  const std::string margin(indent, ' ');
  std::string lines;
  std::string line;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + width(line) + 1 + width(word) > columns) {
      lines += margin + line + '\n';
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return line.empty() ? lines : lines + margin + line + '\n';
}

size_t page_width() {
  constexpr size_t most = 100;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return most;
  return std::min<size_t>(size.ws_col, most);
}

std::string quoted(const std::vector<std::string>& words) {
  constexpr std::string_view plain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%+,-./:=@_";
  std::string text;
  for (const auto& word : words) {
    if (!text.empty()) text += ' ';
    if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char letter : word) {
      if (letter == '\'') {
        text += "'\\''";
      } else {
        text += letter;
      }
    }
    text += '\'';
  }
  return text;
}

std::vector<std::string> called_with() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

}  // namespace ddc::cli
