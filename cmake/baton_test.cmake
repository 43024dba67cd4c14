# baton_test(name [COMPUTES] SOURCES a.cc b.cc LIBS x y [LABELS unit] [TIMEOUT s]): one GoogleTest binary, one ctest entry.
# The sources live in tests/<folder>/, mirroring the tree.
if(BATON_BUILD_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
endif()

# baton_replaced(library a.cc …): sources of a library, or of those beside it in its folder, that a test compiles again in a
# version of its own. They are a batch by themselves, which the linker then does not take; so a test replaces all of a batch or
# nothing. Other sources go on in batches as everywhere (without groups CMake would not batch them).
function(baton_replaced library)
  get_target_property(folder ${library} SOURCE_DIR)
  get_property(neighbours DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(neighbour ${neighbours})
    get_target_property(sources ${neighbour} SOURCES)
    set(others)
    foreach(source ${sources})
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder})
      if(NOT source IN_LIST ARGN)
        list(APPEND others ${source})
      endif()
    endforeach()
    list(LENGTH sources all)
    list(LENGTH others left)
    if(left EQUAL all)
      continue()
    endif()
    set_target_properties(${neighbour} PROPERTIES UNITY_BUILD_MODE GROUP)
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${neighbour} PROPERTIES UNITY_GROUP replaced)
    set(place 0)
    foreach(source ${others})
      math(EXPR batch "${place} / ${CMAKE_UNITY_BUILD_BATCH_SIZE}")
      math(EXPR place "${place} + 1")
      set_source_files_properties(${source} TARGET_DIRECTORY ${neighbour} PROPERTIES UNITY_GROUP ${batch})
    endforeach()
  endforeach()
endfunction()

# baton_planted(name library a.cc …): objects of a library's sources, named from the root, with their planted bugs.
function(baton_planted name library)
  list(TRANSFORM ARGN PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE sources)
  add_library(${name} OBJECT ${sources})
  baton_hand_written(${name})
  target_compile_definitions(${name} PRIVATE BATON_PLANTED_BUGS)
  target_link_libraries(${name} PUBLIC ${library})
  baton_replaced(${library} ${sources})
endfunction()

# How a test's sources are compiled, and what it is linked with.
function(baton_test_program name computes)
  baton_warnings(${name})
  # Compiled without optimization, and without lines for debuggers (the debug preset has them), a third less to wait for:
  # what tests run hard is in libraries. A test whose own sources compute much (oracles, simulated worlds) says so with
  # COMPUTES, a folder of them with set(BATON_TESTS_COMPUTE ON).
  if(computes OR BATON_TESTS_COMPUTE)
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1> $<$<CONFIG:RelWithDebInfo>:-g0> ${BATON_SANITIZED_COMPUTING})
    baton_precompiled(${name} computing_test)
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0> $<$<CONFIG:RelWithDebInfo>:-g0>)
    baton_precompiled(${name} test)
  endif()
  target_link_libraries(${name} PRIVATE ${ARGN} GTest::gmock)
  # Nor of the libraries: half of a link is copying their lines, and a program is a third as large without.
  target_link_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-Wl,--strip-debug>)
endfunction()

# A ctest entry: baton_test_entry(name COMMAND … LIBS … [LABELS …] [TIMEOUT s]).
function(baton_test_entry name)
  cmake_parse_arguments(arg "" "TIMEOUT" "COMMAND;LIBS;LABELS" ${ARGN})
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
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
  set_property(GLOBAL PROPERTY baton_command_of_${name} ${arg_COMMAND})
endfunction()

function(baton_test name)
  if(NOT BATON_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "COMPUTES" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  baton_test_program(${name} ${arg_COMPUTES} ${arg_LIBS})
  target_link_libraries(${name} PRIVATE GTest::gtest_main)
  baton_test_entry(${name} COMMAND ${name} LIBS ${arg_LIBS} LABELS ${arg_LABELS} TIMEOUT ${arg_TIMEOUT})
endfunction()

# baton_tests(program [PREFIX x_] [COMPUTES] SOURCES a_test.cc b_test.cc LIBS y z): a ctest entry for each source, x_a_test and
# x_b_test, of one program, whose sources share the headers that they read. Under a sanitizer, and without batches, each is a
# program of its own, with the entry's name.
function(baton_tests program)
  if(NOT BATON_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "COMPUTES" "PREFIX" "SOURCES;LIBS" ${ARGN})
  set(together ON)
  if(BATON_SANITIZE OR NOT BATON_BATCHES)
    set(together OFF)
  endif()
  set(computes)
  if(arg_COMPUTES)
    set(computes COMPUTES)
  endif()
  if(together)
    add_executable(${program} ${arg_SOURCES} ${CMAKE_SOURCE_DIR}/tests/tests_of_source.cc)
    set_target_properties(${program} PROPERTIES UNITY_BUILD_BATCH_SIZE 8)  # so long does whoever edits one of them wait
    baton_test_program(${program} ${arg_COMPUTES} ${arg_LIBS})
  endif()
  foreach(source ${arg_SOURCES})
    cmake_path(GET source STEM stem)
    if(together)
      baton_test_entry(${arg_PREFIX}${stem} COMMAND ${program} ${source} LIBS ${arg_LIBS})
    else()
      baton_test(${arg_PREFIX}${stem} ${computes} SOURCES ${source} LIBS ${arg_LIBS})
    endif()
  endforeach()
endfunction()

# baton_test_again(name of variable=value filter): some tests of an entry once more, in another environment.
function(baton_test_again name of environment filter)
  get_property(command GLOBAL PROPERTY baton_command_of_${of})
  add_test(NAME ${name} COMMAND ${command} "--gtest_filter=${filter}")
  set_tests_properties(${name} PROPERTIES ENVIRONMENT ${environment} LABELS unit)
endfunction()
