# Installs the build, then configures, builds and runs this project against the installation.

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Leftovers of an earlier run could hide a file that is no longer installed.
file(REMOVE_RECURSE "${WORK_DIR}")
cmake_path(GET TORCH_DIR PARENT_PATH torch_prefix)

run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --config "${CONFIG}" --prefix "${WORK_DIR}/prefix")
# Escaped, for a list has to pass through as one argument.
string(REPLACE ";" "\\;" launcher "${LAUNCHER}")
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK_DIR}/build" -G "${GENERATOR}"
    "-DCMAKE_BUILD_TYPE=${CONFIG}"
    "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${launcher}"
    "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix\;${torch_prefix}")
run("${CMAKE_COMMAND}" --build "${WORK_DIR}/build" --config "${CONFIG}")
find_program(consumer consumer
  PATHS "${WORK_DIR}/build" PATH_SUFFIXES "${CONFIG}" NO_DEFAULT_PATH REQUIRED)
run("${consumer}")
