# Precompiled headers: what nearly every source includes is parsed once per kind of target instead of once per source.
# With GCC, and under a sanitizer (clang). The fuzz targets go without; the debug preset too, and without batches, so a source
# that forgets an include is found there.
# More in them (simdjson, Asio, Protobuf, our own largest headers) helps no source: the compiler's collector walks all of it.
set(precompiled_default OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR BATON_SANITIZE)
  set(precompiled_default ON)
endif()
option(BATON_PRECOMPILED_HEADERS "Parse common headers once" ${precompiled_default})

if(BATON_PRECOMPILED_HEADERS)
  set(common_headers <algorithm> <atomic> <chrono> <cstdint> <functional> <map> <memory> <mutex> <optional> <span> <string>
    <string_view> <thread> <utility> <variant> <vector> <absl/container/flat_hash_map.h> <absl/status/statusor.h> <absl/strings/str_cat.h>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")  # ccache's condition for clang
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "// Carries precompiled headers.\n")
  add_library(baton_library_headers OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_precompile_headers(baton_library_headers PRIVATE ${common_headers})
  if(BATON_BUILD_TESTS)  # compiled as an executable's source is, and as baton_test does
    find_package(GTest REQUIRED)
    foreach(kind_and_level test:-O0 computing_test:-O1)
      string(REGEX MATCH "(.+):(.+)" matched ${kind_and_level})
      set(target baton_${CMAKE_MATCH_1}_headers)
      add_library(${target} OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE -fPIE $<$<CONFIG:RelWithDebInfo>:${CMAKE_MATCH_2}> $<$<CONFIG:RelWithDebInfo>:-g0>)
      if(kind_and_level STREQUAL computing_test:-O1)
        target_compile_options(${target} PRIVATE ${BATON_SANITIZED_COMPUTING})
      endif()
      target_link_libraries(${target} PRIVATE GTest::gmock)
      target_precompile_headers(${target} PRIVATE ${common_headers} <gmock/gmock.h> <gtest/gtest.h>)
    endforeach()
  endif()
endif()

# baton_precompiled(target library|test|computing_test): sources with compile options of their own must say so with
# SKIP_PRECOMPILE_HEADERS, targets with DISABLE_PRECOMPILE_HEADERS. A compiler cache hides one that was forgotten.
function(baton_precompiled target kind)
  if(BATON_PRECOMPILED_HEADERS)
    get_target_property(type ${target} TYPE)
    if(kind STREQUAL "library" AND type STREQUAL "EXECUTABLE")  # compiled as a library's source is
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE -fPIC)
    endif()
    target_precompile_headers(${target} REUSE_FROM baton_${kind}_headers)
  endif()
endfunction()
