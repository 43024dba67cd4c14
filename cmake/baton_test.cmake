# baton_test(name SOURCES a.cc b.cc LIBS x y [LABELS unit] [TIMEOUT s]): one GoogleTest binary, one ctest entry.
# The sources live in tests/<folder>/, mirroring the tree.
if(BATON_BUILD_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
endif()

function(baton_test name)
  if(NOT BATON_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  baton_warnings(${name})
  # A third less to wait for than -O2; what tests run hard is in libraries.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  baton_precompiled(${name} test)
  target_link_libraries(${name} PRIVATE ${arg_LIBS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endfunction()
