# ddc_target(<target>): warnings, instrumentation and ccache, the same for all targets, so that they
# can share one precompiled header.

find_program(DDC_CCACHE ccache)
if(DDC_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # Without this sloppiness ccache refuses to work with precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${DDC_CCACHE}")
endif()

function(ddc_target target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
    # Designated initializers that leave out members with defaults are how the options are given.
    -Wno-missing-field-initializers
    $<$<BOOL:${DDC_WERROR}>:-Werror>
    $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # for ccache
  # For all, so that nothing compiled for one torch is left when another is in its place: its headers
  # need not look newer.
  target_compile_definitions(${target} PRIVATE DDC_TORCH_VERSION="${DDC_TORCH_VERSION}")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    # By default the compiler would say -fPIE, which does not go with the header of a library.
    target_compile_options(${target} PRIVATE -fPIC)
  else()
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()

  # The link options are public, because whoever links an instrumented library needs its runtime.
  if(DDC_SANITIZE)
    list(JOIN DDC_SANITIZE "," sanitizers)
    target_compile_options(${target} PRIVATE
      -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${sanitizers})
  endif()
  if(DDC_COVERAGE)
    # Without optimization the compiler does not see that TORCH_CHECK(false) throws.
    target_compile_options(${target} PRIVATE
      --coverage -fprofile-update=atomic -Wno-error=return-type)
    target_link_options(${target} PUBLIC --coverage)
  endif()
endfunction()

# ddc_unity(<target> [ALONE <source>...]): compiles six sources of a directory at a time, so that the
# headers of LibTorch are read and instantiated once for all. Names in unnamed namespaces then meet:
# sources that use one for different things are ALONE. clang-tidy reads the batches too.
option(DDC_UNITY "Compile sources in batches" ON)
function(ddc_unity target)
  cmake_parse_arguments(PARSE_ARGV 1 given "" "" ALONE)
  list(TRANSFORM given_ALONE PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  get_target_property(sources ${target} SOURCES)
  list(REMOVE_ITEM sources ${given_ALONE})
  set(batch 0)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH directory)
    if(NOT directory STREQUAL previous OR size EQUAL 6)
      math(EXPR batch "${batch} + 1")
      set(size 0)
    endif()
    set(previous "${directory}")
    math(EXPR size "${size} + 1")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${batch})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${DDC_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()
