#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>

#include "ddc/geometry/observables.h"

namespace ddc {
namespace {

struct Line {
  double slope = 0;
  double offset = 0;
  double squares = 0;  ///< of residuals
  double total = 0;    ///< of y about its mean
};

Line line_through(const std::vector<double>& x, const std::vector<double>& y, size_t from,
                  size_t to) {
  const auto count = static_cast<double>(to - from);
  double x_mean = 0;
  double y_mean = 0;
  for (size_t i = from; i < to; ++i) {
    x_mean += x[i] / count;
    y_mean += y[i] / count;
  }
  double xx = 0;
  double xy = 0;
  Line line;
  for (size_t i = from; i < to; ++i) {
    xx += (x[i] - x_mean) * (x[i] - x_mean);
    xy += (x[i] - x_mean) * (y[i] - y_mean);
    line.total += (y[i] - y_mean) * (y[i] - y_mean);
  }
  line.slope = xx > 0 ? xy / xx : 0;
  line.offset = y_mean - line.slope * x_mean;
  for (size_t i = from; i < to; ++i) {
    const double rest = y[i] - line.offset - line.slope * x[i];
    line.squares += rest * rest;
  }
  return line;
}

/// log(end - arc).
std::vector<double> log_distances(const std::vector<double>& arc, size_t first, double end) {
  std::vector<double> result;
  for (size_t i = first; i < arc.size(); ++i) result.push_back(std::log(end - arc[i]));
  return result;
}

/// Where the minimum is, if the observable is a power of the distance to it: what leaves the smallest residuals, on a
/// grid that is refined by golden section.
double fitted_end(const std::vector<double>& arc, const std::vector<double>& logs, size_t first) {
  const double length = arc.back() - arc[first];
  const auto squares = [&](double z) {
    const auto x = log_distances(arc, first, arc.back() + length * std::exp(z));
    return line_through(x, logs, 0, logs.size()).squares;
  };
  const double from = std::log(1e-8);
  const double to = std::log(1e2);
  const int cells = 80;
  int best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= cells; ++i) {
    const double value = squares(from + (to - from) * i / cells);
    if (value < least) {
      least = value;
      best = i;
    }
  }
  double a = from + (to - from) * std::max(0, best - 1) / cells;
  double b = from + (to - from) * std::min(cells, best + 1) / cells;
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  double c = b - ratio * (b - a);
  double d = a + ratio * (b - a);
  double at_c = squares(c);
  double at_d = squares(d);
  for (int i = 0; i < 60; ++i) {
    if (at_c < at_d) {
      b = d;
      d = c;
      at_d = at_c;
      c = b - ratio * (b - a);
      at_c = squares(c);
    } else {
      a = c;
      c = d;
      at_c = at_d;
      d = a + ratio * (b - a);
      at_d = squares(d);
    }
  }
  return arc.back() + length * std::exp((a + b) / 2);
}

/// A confidence interval of the slope: residuals are drawn anew in blocks, since neighbours are alike.
std::pair<double, double> interval(const std::vector<double>& x, const std::vector<double>& y,
                                   const Line& line, const RateOptions& options) {
  const size_t count = x.size();
  const auto block =
      std::max<size_t>(2, static_cast<size_t>(std::lround(std::cbrt(static_cast<double>(count)))));
  std::vector<double> residuals;
  for (size_t i = 0; i < count; ++i) residuals.push_back(y[i] - line.offset - line.slope * x[i]);
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<size_t> start(0, count - block);
  std::vector<double> slopes;
  std::vector<double> drawn(count);
  for (int64_t k = 0; k < options.resamples; ++k) {
    size_t from = 0;
    for (size_t i = 0; i < count; ++i) {
      if (i % block == 0) from = start(random);
      drawn[i] = line.offset + line.slope * x[i] + residuals[from + i % block];
    }
    slopes.push_back(line_through(x, drawn, 0, count).slope);
  }
  std::sort(slopes.begin(), slopes.end());
  const double tail = (1 - options.confidence) / 2;
  const auto at = [&](double share) {
    const auto place = share * static_cast<double>(slopes.size() - 1);
    return slopes[static_cast<size_t>(std::lround(place))];
  };
  return {at(tail), at(1 - tail)};
}

double mean_of(const std::vector<double>& values, size_t from, size_t to) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(from),
                         values.begin() + static_cast<std::ptrdiff_t>(to), 0.0) /
         static_cast<double>(to - from);
}

template <class... Parts>
std::string words(const Parts&... parts) {
  std::ostringstream text;
  text.precision(3);
  (text << ... << parts);
  return text.str();
}

/// The fit in one window; the reason is empty if it passes the gate.
Rate read_window(const std::vector<double>& arc, const std::vector<double>& all_logs, size_t first,
                 const RateOptions& options) {
  Rate result;
  result.first = static_cast<int64_t>(first);
  const std::vector<double> logs(all_logs.begin() + static_cast<std::ptrdiff_t>(first),
                                 all_logs.end());
  result.points = std::ssize(logs);
  double up = 0;
  double ways = 0;
  for (size_t i = 1; i < logs.size(); ++i) {
    up += std::max(0.0, logs[i] - logs[i - 1]);
    ways += std::abs(logs[i] - logs[i - 1]);
  }
  if (ways == 0) {
    result.reason = "plateau: the observable does not change";
    return result;
  }
  if (up > options.max_ascent * ways) {
    result.reason =
        words("not monotone: ", 100 * up / ways, " % of the way of log(observable) is up (at most ",
              100 * options.max_ascent, " %)");
    return result;
  }
  const double decades = (logs.front() - logs.back()) / std::log(10.0);
  if (decades < options.min_decades) {
    result.reason = words("plateau: the observable falls by ", decades,
                          " decades in the window (at least ", options.min_decades, ")");
    return result;
  }
  result.end = options.end ? *options.end : fitted_end(arc, logs, first);
  const auto x = log_distances(arc, first, result.end);
  const double reach = (x.front() - x.back()) / std::log(10.0);
  const auto line = line_through(x, logs, 0, logs.size());
  result.slope = line.slope;
  result.r_squared = line.total > 0 ? 1 - line.squares / line.total : 0;
  result.path_noise = std::sqrt(line.squares / static_cast<double>(logs.size()));
  std::tie(result.low, result.high) = interval(x, logs, line, options);
  result.order = options.of == RateOf::curvature ? 1 + line.slope / 2 : line.slope / 2;
  result.learning_coefficient = 1 / (2 * result.order);
  if (reach < options.min_decades) {
    result.reason = words("window too short: the distance to the minimum falls by ", reach,
                          " decades (at least ", options.min_decades, ")");
    return result;
  }
  if (result.r_squared < options.min_r_squared) {
    result.reason = words("not a power law: r^2 = ", result.r_squared, " (at least ",
                          options.min_r_squared, ")");
    return result;
  }
  // Halves of the way, not of the points, of which there may be many at one end.
  const double middle = (x.front() + x.back()) / 2;
  const auto half = static_cast<size_t>(
      std::partition_point(x.begin(), x.end(), [&](double each) { return each > middle; }) -
      x.begin());
  if (half < 3 || x.size() - half < 3) {
    result.reason = "window too short: fewer than three points in half of the way";
    return result;
  }
  const double before = line_through(x, logs, 0, half).slope;
  const double after = line_through(x, logs, half, x.size()).slope;
  const double scale = std::max(std::abs(line.slope), 1e-300);
  if (std::abs(after - before) > options.max_drift * scale) {
    result.reason = words("the local slope drifts: ", before, " in the first half of the way, ",
                          after, " in the second");
    return result;
  }
  if (result.high - result.low > 2 * options.max_uncertainty * scale) {
    result.reason = words("too noisy: the slope is between ", result.low, " and ", result.high);
    return result;
  }
  result.verdict = RateVerdict::readable;
  return result;
}

}  // namespace

Rate rate(const std::vector<double>& arc, const std::vector<double>& values,
          const RateOptions& options) {
  TORCH_CHECK_VALUE(arc.size() == values.size(), "rate: there are ", arc.size(),
                    " arc lengths and ", values.size(), " values");
  TORCH_CHECK_VALUE(options.min_points >= 6, "option min_points must be >= 6, got ",
                    options.min_points);
  TORCH_CHECK_VALUE(options.resamples >= 1, "option resamples must be >= 1, got ",
                    options.resamples);
  std::vector<double> lengths;
  std::vector<double> logs;
  for (size_t i = 0; i < arc.size(); ++i) {
    TORCH_CHECK_VALUE(std::isfinite(arc[i]) && std::isfinite(values[i]), "rate: point ", i, " (",
                      arc[i], ", ", values[i], ") is not finite");
    TORCH_CHECK_VALUE(values[i] > 0, "rate: the observable must be positive, is ", values[i],
                      " at point ", i);
    TORCH_CHECK_VALUE(i == 0 || arc[i] >= arc[i - 1], "rate: the arc length falls at point ", i);
    TORCH_CHECK_VALUE(!options.end || *options.end > arc[i], "rate: the end (", *options.end,
                      ") is before point ", i, " at ", arc[i]);
    // Where nothing moves there is nothing to read.
    if (!lengths.empty() && arc[i] == lengths.back()) continue;
    lengths.push_back(arc[i]);
    logs.push_back(std::log(values[i]));
  }
  Rate result;
  result.points = std::ssize(logs);
  const auto count = static_cast<int64_t>(logs.size());
  if (count < options.min_points) {
    result.reason =
        words("window too short: ", count, " points (at least ", options.min_points, ")");
    return result;
  }
  // Ends by means over a tenth, so that one point does not decide.
  const auto tenth = static_cast<size_t>(std::max<int64_t>(1, count / 10));
  const double change = mean_of(logs, logs.size() - tenth, logs.size()) - mean_of(logs, 0, tenth);
  if (change > 0.05) {
    result.verdict = RateVerdict::ascending;
    result.reason = words("the observable rises by a factor of ", std::exp(change));
    return result;
  }
  for (int64_t part = 0; part < 8; ++part) {
    const auto first = static_cast<size_t>(count * part / 10);
    if (count - static_cast<int64_t>(first) < options.min_points) break;
    const auto read = read_window(lengths, logs, first, options);
    if (read.verdict == RateVerdict::readable) return read;
    // Why the longest window was refused says most.
    if (part == 0) result = read;
  }
  return result;
}

}  // namespace ddc
