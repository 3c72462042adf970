# Finds LibTorch: where Torch_DIR or CMAKE_PREFIX_PATH say, else in the Python DDC_PYTHON.
set(DDC_TORCH_MINIMUM 2.10)
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
  # A torch with CUDA would search for nvcc, and stop without it; nothing here compiles CUDA, and torch's
  # wheels bring the libraries. The target by which torch knows that it has searched keeps it from that.
  if(NOT TARGET torch::cudart)
    add_library(torch::cudart INTERFACE IMPORTED)
  endif()
  # Wheels have no libkineto, of which TorchConfig.cmake warns; nothing here needs it.
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  find_package(Torch QUIET)
  if(NOT Torch_FOUND)
    message(FATAL_ERROR
      "no LibTorch: install torch ${DDC_TORCH_MINIMUM} or newer into the Python ${DDC_PYTHON} "
      "(pip install 'torch>=${DDC_TORCH_MINIMUM}'), or set Torch_DIR")
  endif()
endblock()
message(STATUS "LibTorch ${Torch_VERSION}: ${Torch_DIR}")
if(Torch_VERSION VERSION_LESS DDC_TORCH_MINIMUM)
  message(FATAL_ERROR
    "ddc needs torch ${DDC_TORCH_MINIMUM} or newer, found ${Torch_VERSION} in ${Torch_DIR}. "
    "Upgrade it (pip install --upgrade 'torch>=${DDC_TORCH_MINIMUM}'), then build again")
endif()
# As torch.__version__ has it before the +, which tells CPU from CUDA.
string(REGEX REPLACE "\\+.*" "" DDC_TORCH_VERSION "${Torch_VERSION}")
