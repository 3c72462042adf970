#include <algorithm>
#include <iomanip>
#include <ostream>

#include "ddc/optim/lifted.h"

namespace ddc {

int64_t Report::dimension() const {
  int64_t sum = 0;
  for (const auto& gauge : gauges) sum += gauge.dimension;
  return sum;
}

int64_t Report::degenerate_channels() const {
  int64_t sum = 0;
  for (const auto& gauge : gauges) sum += gauge.degenerate_channels;
  return sum;
}

double Report::largest_imbalance() const {
  double largest = 0;
  for (const auto& gauge : gauges) largest = std::max(largest, gauge.imbalance);
  return largest;
}

std::ostream& operator<<(std::ostream& out, const Report& report) {
  size_t name_width = 5;
  size_t kind_width = 4;
  size_t coordinates_width = 6;
  for (const auto& gauge : report.gauges) {
    name_width = std::max(name_width, gauge.name.size());
    kind_width = std::max(kind_width, gauge.kind.size());
    coordinates_width = std::max(coordinates_width, gauge.coordinates.size());
  }
  const auto flags = out.flags();
  const auto precision = out.precision();
  const auto text = [&](const std::string& value, size_t width) {
    out << std::left << std::setw(static_cast<int>(width + 2)) << value;
  };
  const auto line = [&](const std::string& name, const std::string& kind, const std::string& group,
                        const std::string& coordinates) {
    text(name, name_width);
    text(kind, kind_width);
    text(group, 10);
    text(coordinates, coordinates_width);
    out << std::right;
  };
  line("gauge", "kind", "group", "coords");
  out << std::setw(9) << "channels" << std::setw(12) << "degenerate" << std::setw(11)
      << (report.place == Place::canonical ? "off by" : "corrected") << std::setw(8) << "frames"
      << '\n';
  for (const auto& gauge : report.gauges) {
    line(gauge.name, gauge.kind, gauge.group, gauge.coordinates);
    out << std::setw(9) << gauge.channels << std::setw(12) << gauge.degenerate_channels
        << std::setw(11) << std::setprecision(2) << std::scientific << gauge.imbalance
        << std::setw(8) << gauge.frames_recomputed << '\n';
  }
  out << report.gauges.size() << " gauges of dimension " << report.dimension() << " on "
      << report.gauged_tensors << " of " << report.tensors << " tensors\n";
  if (!report.gauges.empty()) {
    out << (report.place == Place::canonical ? "weights at their canonical place"
                                             : "weights in place");
    if (!report.why_in_place.empty()) out << ": " << report.why_in_place;
    out << '\n';
  }
  const auto& cost = report.cost;
  out << std::setprecision(3) << std::defaultfloat << "a step moves " << cost.bytes / 1e6
      << " MB and computes " << cost.flops / 1e9 << " GFlop of matrix products";
  if (cost.steps > 0) {
    out << "; the last " << cost.steps << " took " << 1e3 * cost.seconds << " ms each";
  }
  if (cost.share > 0) out << ", " << 100 * cost.share << " % of a training step";
  out << '\n';
  out.flags(flags);
  out.precision(precision);
  return out;
}

}  // namespace ddc
