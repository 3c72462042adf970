#pragma once

#include <string>
#include <vector>

#include "ddc/experiments/settings.h"

namespace ddc::experiments {

/// The entry called `name`; throws, suggesting the nearest, if there is none.
template <class Entry>
const Entry& find_entry(const char* kind, const std::vector<Entry>& entries,
                        const std::string& name) {
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  TORCH_CHECK_VALUE(false, unknown(kind, name, names), " (ddc list)");
}

}  // namespace ddc::experiments
