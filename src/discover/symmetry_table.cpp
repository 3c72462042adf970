// The table that is printed of a symmetry group.

#include "discover/symmetry_table.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <set>

namespace ddc {
namespace {

/// Width of lines where nobody says another.
constexpr size_t kWidth = 200;
/// Width of the column of tensors at least.
constexpr size_t kFewest = 24;

std::string formatted(const char* format, double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string scientific(double value) {
  // printf may give it a sign.
  return std::isnan(value) ? "nan" : formatted("%.1e", value);
}

/// Text of a count, which is an estimate sometimes: no more digits than it has.
std::string count(double value) {
  return value == std::round(value) ? formatted("%.0f", value) : formatted("%.1f", value);
}

std::string plural(int64_t number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

/// Characters of UTF-8 text; those after the first byte of one all begin with the bits 10.
size_t length(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & '\xc0') != '\x80'; }));
}

struct Column {
  std::string title;
  std::vector<std::string> cells;
  bool right = false;

  size_t width() const {
    size_t width = length(title);
    for (const auto& cell : cells) width = std::max(width, length(cell));
    return width;
  }
};

void print(std::ostream& out, const std::vector<Column>& columns) {
  const auto line = [&](const auto& text_of) {
    std::string text;
    for (const auto& column : columns) {
      const auto& cell = text_of(column);
      const std::string padding(column.width() - length(cell), ' ');
      text += text.empty() && &column == &columns.front() ? "" : "  ";
      text += column.right ? padding + cell : cell + padding;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out << text << '\n';
  };
  line([](const Column& column) -> const std::string& { return column.title; });
  for (size_t row = 0; row < columns.front().cells.size(); ++row) {
    line([row](const Column& column) -> const std::string& { return column.cells[row]; });
  }
}

/// What happens to a leg's tensor, along its axis: "[1]^-2" under a scale, "[0]-2s" under a shift (of a
/// row "-2s"), "[0]^+1" and "[1]^-T" on the two sides of a linear gauge.
std::string motion(const Gauge& gauge, const Leg& leg) {
  const auto axis =
      leg.axis < 0 ? "" : std::string("[").append(std::to_string(leg.axis)).append("]");
  const auto exponent = formatted("%+g", leg.exponent);
  switch (gauge.action) {
    case Action::scale:
      return axis + "^" + exponent;
    case Action::shift:
      return axis + (std::abs(leg.exponent) == 1 ? exponent.substr(0, 1) : exponent) + "s";
    case Action::linear:
      return axis + (leg.exponent < 0 ? "^-T" : "^+1");
    case Action::exchange:
      if (!leg.through.bias.empty()) return axis;
      return axis + (&leg == &gauge.legs.front() ? "+s" : "-s");
    case Action::rotation:
      break;
  }
  return axis;
}

/// "fc2.weight[1]^-2"; of an exchange, what gets from where: "fc1.bias<-fc1.weight[1]".
std::string leg_text(const Gauge& gauge, const Leg& leg, size_t prefix) {
  const auto text = leg.tensor.substr(prefix) + motion(gauge, leg);
  if (gauge.action != Action::exchange || leg.through.bias.empty()) return text;
  const bool same = leg.through.bias.compare(0, prefix, leg.tensor, 0, prefix) == 0;
  return leg.through.bias.substr(same ? prefix : 0) + "<-" + text;
}

/// The legs from `first` on, as numbers of those that move alike: "2x[0]^+1 3x[1]^-1".
std::string rest_text(const Gauge& gauge, size_t first) {
  std::vector<std::pair<std::string, int64_t>> counts;
  for (size_t k = first; k < gauge.legs.size(); ++k) {
    const auto text = motion(gauge, gauge.legs[k]);
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](const auto& entry) { return entry.first == text; });
    if (known == counts.end()) {
      counts.emplace_back(text, 1);
    } else {
      ++known->second;
    }
  }
  std::string result;
  for (const auto& [text, number] : counts) {
    result.append(result.empty() ? "" : " ")
        .append(std::to_string(number))
        .append("x")
        .append(text);
  }
  return result;
}

/// The length of the dotted path that all names begin with: "layers.0." of those of one layer.
size_t common_prefix(const std::vector<Leg>& legs) {
  size_t length = legs.front().tensor.size();
  for (const auto& leg : legs) {
    const auto& first = legs.front().tensor;
    size_t same = 0;
    while (same < std::min(length, leg.tensor.size()) && first[same] == leg.tensor[same]) ++same;
    length = same;
  }
  const size_t dot = legs.front().tensor.rfind('.', length == 0 ? 0 : length - 1);
  return legs.size() < 2 || length == 0 || dot == std::string::npos ? 0 : dot + 1;
}

std::string legs_text(const Gauge& gauge, size_t width) {
  if (gauge.legs.empty()) return "";
  const size_t prefix = common_prefix(gauge.legs);
  const auto begin =
      prefix == 0 ? std::string() : gauge.legs.front().tensor.substr(0, prefix) + "{";
  const std::string end = prefix == 0 ? "" : "}";
  const auto joined = [&](size_t named) {
    std::string text;
    for (size_t k = 0; k < named; ++k) text += leg_text(gauge, gauge.legs[k], prefix) + " ";
    text += rest_text(gauge, named);
    text.erase(text.find_last_not_of(' ') + 1);
    return begin + text + end;
  };
  size_t named = gauge.legs.size();
  while (named > 0 && gauge.legs.size() > 1 && length(joined(named)) > width) --named;
  return joined(named);
}

std::string verdict(const Finding& finding) {
  const bool still = finding.engagement && !finding.engagement->engaged;
  return still ? "verified, not moved by AdamW" : "verified";
}

size_t width_of(const std::vector<Column>& columns) {
  size_t width = 0;
  for (const auto& column : columns) width += column.width() + 2;
  return width;
}

void print_findings(std::ostream& out, const SymmetryGroup& group, size_t width) {
  Column name{"gauge"};
  Column kind{"kind"};
  Column notation{"group"};
  Column dimension{"dim", {}, true};
  Column tensors{"tensors"};
  Column residual{"residual", {}, true};
  Column plain{"AdamW", {}, true};
  Column lifted{"DDC", {}, true};
  Column verdicts{"verdict"};
  bool measured = false;
  for (const auto& finding : group.findings) {
    const auto& engagement = finding.engagement;
    measured = measured || engagement.has_value();
    name.cells.push_back(finding.gauge.name);
    kind.cells.push_back(finding.gauge.kind);
    notation.cells.push_back(finding.group);
    dimension.cells.push_back(std::to_string(finding.dimension));
    residual.cells.push_back(scientific(finding.residual));
    plain.cells.push_back(engagement ? scientific(engagement->plain) : "-");
    lifted.cells.push_back(engagement ? scientific(engagement->lifted) : "-");
    verdicts.cells.push_back(verdict(finding));
  }
  std::vector<Column> columns = {name, kind, notation, dimension, tensors, residual};
  if (measured) columns.insert(columns.end(), {plain, lifted});
  columns.push_back(verdicts);
  const size_t taken = width_of(columns) - tensors.width();
  const size_t room = std::max(kFewest, width - std::min(width, taken));
  for (const auto& finding : group.findings) {
    columns[4].cells.push_back(legs_text(finding.gauge, room));
  }
  for (const char* least : {"tensors", "kind", "verdict"}) {
    if (width >= kWidth || width_of(columns) <= width + 2) break;
    std::erase_if(columns, [&](const Column& column) { return column.title == least; });
  }
  print(out, columns);
}

void print_refusals(std::ostream& out, const std::vector<Refusal>& refusals) {
  Column name{"refused"};
  Column kind{"kind"};
  Column residual{"residual", {}, true};
  Column reason{"reason"};
  for (const auto& refusal : refusals) {
    name.cells.push_back(refusal.name);
    kind.cells.push_back(refusal.kind);
    residual.cells.push_back(scientific(refusal.residual));
    reason.cells.push_back(refusal.reason);
  }
  print(out, {name, kind, residual, reason});
}

/// How many of the parameters some gauge moves.
int64_t tensors_moved(const SymmetryGroup& group) {
  std::set<std::string> names;
  for (const auto& finding : group.findings) {
    const bool exchange = finding.gauge.action == Action::exchange;
    for (const auto& leg : finding.gauge.legs) {
      // The matrices of an exchange are read only.
      if (!exchange || leg.through.empty()) names.insert(leg.tensor);
      if (!leg.through.bias.empty() && (exchange || !leg.through.shift.empty())) {
        names.insert(leg.through.bias);
      }
    }
  }
  return std::ssize(names);
}

void print_completeness(std::ostream& out, const Completeness& completeness) {
  const bool estimate = completeness.method != "exact";
  const double structural = completeness.kernel - static_cast<double>(completeness.dead);
  out << "explains " << completeness.explained << " of " << (estimate ? "at most " : "")
      << count(structural) << " directions that no batch sees";
  if (completeness.dead > 0) out << " (+" << completeness.dead << " dead)";
  out << "; " << completeness.method << ", " << plural(completeness.parameters, "parameter");
  if (!estimate) out << ", gap " << scientific(completeness.gap);
  out << '\n';
  if (completeness.per_tensor.empty()) return;
  Column tensor{"unexplained in"};
  Column dimensions{"dim", {}, true};
  for (const auto& share : completeness.per_tensor) {
    if (share.dimensions < 0.005 && share.tensor != completeness.per_tensor.front().tensor)
      continue;
    tensor.cells.push_back(share.tensor);
    dimensions.cells.push_back(formatted("%.2f", share.dimensions));
  }
  print(out, {tensor, dimensions});
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const SymmetryGroup& group) {
  print_table(out, group, kWidth);
  return out;
}

void print_table(std::ostream& out, const SymmetryGroup& group, size_t width) {
  if (group.findings.empty()) {
    out << "no gauge was found on " << plural(std::ssize(group.parameters.entries), "tensor")
        << '\n';
  } else {
    print_findings(out, group, width);
    out << "all together: " << plural(std::ssize(group.findings), "gauge") << " of dimension "
        << group.dimension() << " on " << tensors_moved(group) << " of "
        << plural(std::ssize(group.parameters.entries), "tensor") << ", residual "
        << scientific(group.joint_residual) << " (passes up to "
        << scientific(group.joint_tolerance) << ")\n";
  }
  if (!group.refusals.empty()) {
    out << '\n';
    print_refusals(out, group.refusals);
  }
  if (group.completeness) {
    out << '\n';
    print_completeness(out, *group.completeness);
  }
  if (!group.notes.empty()) out << '\n';
  for (const auto& note : group.notes) out << "note: " << note << '\n';
}

}  // namespace ddc
