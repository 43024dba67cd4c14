# Language level and the sanitizer switch of the presets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

option(BATON_WERROR "Treat compiler warnings as errors" ON)
option(BATON_BUILD_TESTS "Build the tests" ON)
option(BATON_BUILD_BENCH "Build the benchmarks" ON)
option(BATON_KV_DIGESTS "Verify KV by digests; OFF only to measure what they cost" ON)
set(BATON_SANITIZE "" CACHE STRING "Sanitizers to build with: empty, 'address,undefined' or 'thread'")

if(BATON_SANITIZE)
  add_compile_options(-fsanitize=${BATON_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${BATON_SANITIZE})
  set(BATON_SANITIZED_COMPUTING -O1)  # what computes much, where all else is not optimized
endif()

if(NOT BATON_KV_DIGESTS)
  add_compile_definitions(BATON_NO_KV_DIGESTS)
endif()

# Every source names headers from the repository root: #include "common/status.h".
include_directories(${CMAKE_SOURCE_DIR})
