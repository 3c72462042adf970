#include "ddc/optim/report.h"

#include <algorithm>
#include <iomanip>
#include <ostream>

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
  size_t width = 5;
  for (const auto& gauge : report.gauges) width = std::max(width, gauge.name.size());
  const auto w = static_cast<int>(width);
  const auto flags = out.flags();
  out << std::left << std::setw(w) << "gauge" << "  " << std::setw(15) << "kind" << std::setw(12)
      << "group" << std::setw(10) << "coords" << std::right << std::setw(9) << "channels"
      << std::setw(12) << "degenerate" << std::setw(11) << "corrected" << '\n';
  for (const auto& gauge : report.gauges) {
    out << std::left << std::setw(w) << gauge.name << "  " << std::setw(15) << gauge.kind
        << std::setw(12) << gauge.group << std::setw(10) << gauge.coordinates << std::right
        << std::setw(9) << gauge.channels << std::setw(12) << gauge.degenerate_channels
        << std::setw(11) << std::setprecision(2) << std::scientific << gauge.imbalance << '\n';
  }
  out << report.gauges.size() << " gauges of dimension " << report.dimension() << " on "
      << report.gauged_tensors << " of " << report.tensors << " tensors\n";
  out.flags(flags);
  return out;
}

}  // namespace ddc
