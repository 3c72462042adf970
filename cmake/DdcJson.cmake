# Finds nlohmann_json: its CMake package, else the headers of the Python package nlohmann-json in DDC_PYTHON.
find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  if(EXISTS "${DDC_PYTHON}")
    execute_process(
      COMMAND "${DDC_PYTHON}" -c
        "import importlib.util as u; print(*u.find_spec('nlohmann_json').submodule_search_locations)"
      OUTPUT_VARIABLE json_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT EXISTS "${json_root}/include/nlohmann/json.hpp")
    message(FATAL_ERROR
      "no nlohmann_json: install it into the Python ${DDC_PYTHON} (pip install nlohmann-json), or for all "
      "(Debian: apt-get install nlohmann-json3-dev)")
  endif()
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
  target_include_directories(nlohmann_json::nlohmann_json INTERFACE "${json_root}/include")
endif()
