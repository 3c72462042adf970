# Finds LibTorch: where Torch_DIR or CMAKE_PREFIX_PATH say, else in the Python DDC_PYTHON.
block(PROPAGATE Torch_VERSION)
  if(NOT Torch_DIR AND EXISTS "${DDC_PYTHON}")
    # find_spec does not import torch, which would take seconds.
    execute_process(
      COMMAND "${DDC_PYTHON}" -c
        "import importlib.util as u; print(*u.find_spec('torch').submodule_search_locations)"
      OUTPUT_VARIABLE torch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(torch_root)
      list(APPEND CMAKE_PREFIX_PATH "${torch_root}/share/cmake")
    endif()
  endif()
  # Wheels have no libkineto, of which TorchConfig.cmake warns; nothing here needs it.
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  find_package(Torch REQUIRED)
endblock()
message(STATUS "LibTorch ${Torch_VERSION}: ${Torch_DIR}")
