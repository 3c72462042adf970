#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddc::cli {

/// A line of a display: a label, how much is done, and what there is to say.
struct Bar {
  std::string label;
  double fraction = 0;
  std::string text;
};

/// Lines at the end of standard error that are redrawn in place. When nobody is watching they are not
/// shown at all.
class Display {
 public:
  Display() = default;
  ~Display() { show(std::vector<std::string>()); }
  Display(const Display&) = delete;
  Display& operator=(const Display&) = delete;

  bool is_watched() const { return watched_; }
  /// In place of the lines before. They are cut to the width of the terminal, and to its height; the
  /// last one stays.
  void show(std::vector<std::string> lines);
  /// Labels, bars and texts one below the other.
  void show(const std::vector<Bar>& bars);
  /// A line that stays, above those that are redrawn, and whether somebody is watching or not.
  void say(const std::string& line);

 private:
  bool watched_ = is_terminal();
  std::vector<std::string> shown_;

  static bool is_terminal();
  std::string to_the_top() const;
};

/// How far a run is. What is not known is NaN.
struct Standing {
  int64_t step = 0;
  int64_t steps = 0;
  double loss = 0;
  double drift = 0;
  double seconds_left = 0;
};
/// "300/4000  0:12 left  loss 0.0123  drift 1e-07", in columns; what matters most on a narrow terminal
/// comes first.
std::string describe(const Standing& standing);

/// If `done` of the work took `seconds` and `left` of it is left; NaN if nothing is done yet.
double seconds_left(double seconds, int64_t done, int64_t left);
/// "0:12 left"; empty if that is not known.
std::string time_left(double seconds);

}  // namespace ddc::cli
