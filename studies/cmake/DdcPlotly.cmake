# Finds the bundle of Plotly, for the charts of reports: DDC_PLOTLY_JS, by default that of the Python package
# plotly in DDC_PYTHON.
set(DDC_PLOTLY_JS "" CACHE FILEPATH "plotly.min.js; empty: that of plotly in DDC_PYTHON")
if(NOT DDC_PLOTLY_JS AND EXISTS "${DDC_PYTHON}")
  # find_spec does not import plotly.
  execute_process(
    COMMAND "${DDC_PYTHON}" -c
      "import importlib.util as u; print(*u.find_spec('plotly').submodule_search_locations)"
    OUTPUT_VARIABLE plotly_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(DDC_PLOTLY_JS "${plotly_root}/package_data/plotly.min.js")
endif()
if(NOT EXISTS "${DDC_PLOTLY_JS}")
  message(FATAL_ERROR
    "no Plotly for the reports of experiments: install plotly into the Python ${DDC_PYTHON} "
    "(pip install plotly==7.1.0), or set DDC_PLOTLY_JS to a plotly.min.js")
endif()
message(STATUS "Plotly: ${DDC_PLOTLY_JS}")
