# baton_test(name [COMPUTES] SOURCES a.cc b.cc LIBS x y [LABELS unit] [TIMEOUT s]): one GoogleTest binary, one ctest entry.
# The sources live in tests/<folder>/, mirroring the tree.
if(BATON_BUILD_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
endif()

# baton_replaced(library a.cc …): sources of a library that a test compiles again in a version of its own. In the library each
# is an object by itself, which the linker then does not take.
function(baton_replaced library)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${library} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# baton_planted(name library a.cc …): objects of a library's sources, named from the root, with their planted bugs.
function(baton_planted name library)
  list(TRANSFORM ARGN PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE sources)
  add_library(${name} OBJECT ${sources})
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  baton_hand_written(${name})
  target_compile_definitions(${name} PRIVATE BATON_PLANTED_BUGS)
  target_link_libraries(${name} PUBLIC ${library})
  baton_replaced(${library} ${sources})
endfunction()

function(baton_test name)
  if(NOT BATON_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "COMPUTES" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  baton_warnings(${name})
  # Compiled without optimization, and without lines for debuggers (the debug preset has them), a third less to wait for:
  # what tests run hard is in libraries. A test whose own sources compute much (oracles, simulated worlds) says so with
  # COMPUTES, a folder of them with set(BATON_TESTS_COMPUTE ON).
  if(arg_COMPUTES OR BATON_TESTS_COMPUTE)
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1> $<$<CONFIG:RelWithDebInfo>:-g0> ${BATON_SANITIZED_COMPUTING})
    baton_precompiled(${name} computing_test)
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0> $<$<CONFIG:RelWithDebInfo>:-g0>)
    baton_precompiled(${name} test)
  endif()
  target_link_libraries(${name} PRIVATE ${arg_LIBS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)  # of a test that hangs: no machine is so slow
  endif()
  if(BATON_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 2")
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  # What runs kernels on the emulator: `ctest -L emulator`, and scripts/emulator_time.py says how long all of it takes.
  foreach(library baton_cuda_emulated baton_gpu_runtime baton_micro_kernels ops_backends)
    if(library IN_LIST arg_LIBS)
      list(APPEND arg_LABELS emulator)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES arg_LABELS)
  # testing::TempDir(): nobody else's, neither another checkout's nor another user's who ran the tests here before.
  set(scratch ${CMAKE_CURRENT_BINARY_DIR}/${name}.tmp)
  file(MAKE_DIRECTORY ${scratch})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} ENVIRONMENT "TEST_TMPDIR=${scratch}/")
endfunction()
