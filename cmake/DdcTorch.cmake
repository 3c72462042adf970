# Finds LibTorch: where Torch_DIR or CMAKE_PREFIX_PATH say, else in the Python DDC_PYTHON.
set(DDC_TORCH_VERSION 2.13.0)
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
  find_package(Torch QUIET)
  if(NOT Torch_FOUND)
    message(FATAL_ERROR
      "no LibTorch: install torch ${DDC_TORCH_VERSION} into the Python ${DDC_PYTHON} "
      "(pip install torch==${DDC_TORCH_VERSION}), or set Torch_DIR")
  endif()
endblock()
message(STATUS "LibTorch ${Torch_VERSION}: ${Torch_DIR}")
if(DDC_BUILD_PYTHON AND NOT Torch_VERSION VERSION_EQUAL DDC_TORCH_VERSION)
  message(FATAL_ERROR
    "ddc's Python package is built for torch ${DDC_TORCH_VERSION}, found ${Torch_VERSION} in ${Torch_DIR}. "
    "Install it (pip install torch==${DDC_TORCH_VERSION}), then: pip install --no-build-isolation .")
endif()
