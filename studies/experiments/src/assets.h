#pragma once

#include <string_view>

// The files that the pages are made of, as they were when this was built.

namespace ddc::experiments::assets {

std::string_view report_html();
std::string_view index_html();
std::string_view report_css();
std::string_view report_js();
std::string_view plotly_js();

}  // namespace ddc::experiments::assets
