#include "assets.h"

// The assembler copies the files into the library as they are; as string literals, Plotly's five
// megabytes would be beyond what compilers must accept. CMakeLists.txt says where they are.
#define DDC_ASSET(name, path)                                                           \
  __asm__(                                                                              \
      ".pushsection .rodata\n"                                                          \
      "ddc_asset_" #name                                                                \
      ":\n"                                                                             \
      ".incbin \"" path                                                                 \
      "\"\n"                                                                            \
      "ddc_asset_" #name                                                                \
      "_end:\n"                                                                         \
      ".popsection\n");                                                                 \
  extern "C" __attribute__((visibility("hidden"))) const char ddc_asset_##name[];       \
  extern "C" __attribute__((visibility("hidden"))) const char ddc_asset_##name##_end[]; \
  std::string_view ddc::experiments::assets::name() {                                   \
    return {ddc_asset_##name, ddc_asset_##name##_end};                                  \
  }

DDC_ASSET(report_html, DDC_ASSETS_DIR "/report.html")
DDC_ASSET(index_html, DDC_ASSETS_DIR "/index.html")
DDC_ASSET(report_css, DDC_ASSETS_DIR "/report.css")
DDC_ASSET(report_js, DDC_ASSETS_DIR "/report.js")
DDC_ASSET(plotly_js, DDC_PLOTLY_JS)
