#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace ddc::tests {

/// Expects a TORCH_CHECK error whose message names every one of `parts`.
inline void expect_error(const std::function<void()>& action,
                         const std::vector<std::string>& parts) {
  try {
    action();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    for (const auto& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
    }
    return;
  }
  ADD_FAILURE() << "no error was raised; expected one that names '" << parts.front() << "'";
}

}  // namespace ddc::tests
