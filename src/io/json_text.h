#pragma once

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <string>

// JSON of files that others may have written: what every reader of this library reads it by. Errors are
// sentences that say where the text is from, never those of the parser.

namespace ddc::io {

/// Documents have a handful of levels; one of thousands overflows the stack when it is freed.
constexpr int kMostJsonLevels = 64;

/// A piece of a document in an error message: ASCII and short, whatever it is.
template <class Json>
std::string shown(const Json& node, size_t limit = 60) {
  auto text = node.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > limit) text = text.substr(0, limit) + "...";
  return text;
}

/// Parses a text. `what` is the subject of the errors: "symmetries: the text".
template <class Json = nlohmann::json>
Json parse_json(const std::string& text, const std::string& what, int most = kMostJsonLevels) {
  // nlohmann takes a zero byte for the end of its input and would ignore what follows.
  const size_t zero = text.find('\0');
  TORCH_CHECK(zero == std::string::npos, what, " is not JSON, byte ", zero, " is zero");
  try {
    return Json::parse(
        text, [&](int depth, typename Json::parse_event_t /*event*/, Json& /*node*/) {
          TORCH_CHECK(depth <= most, what, " is nested deeper than ", most, " levels");
          return true;
        });
  } catch (const typename Json::parse_error& error) {
    TORCH_CHECK(false, what, " is not JSON, or is truncated: the error is at byte ", error.byte,
                " of ", text.size());
  } catch (const typename Json::exception&) {
    TORCH_CHECK(false, what, " holds a number that is out of range");
  }
}

}  // namespace ddc::io
