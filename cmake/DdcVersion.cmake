# Fails unless include/ddc/version.h states the version of the project.
set(header "${PROJECT_SOURCE_DIR}/include/ddc/version.h")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
file(READ "${header}" text)
foreach(expected IN ITEMS
    "kVersionMajor = ${PROJECT_VERSION_MAJOR};"
    "kVersionMinor = ${PROJECT_VERSION_MINOR};"
    "kVersionPatch = ${PROJECT_VERSION_PATCH};"
    "kVersion = \"${PROJECT_VERSION}\";")
  string(FIND "${text}" "${expected}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR
      "${header} must say '${expected}', as the CMake project has version ${PROJECT_VERSION}")
  endif()
endforeach()
