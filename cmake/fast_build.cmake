# Sources of a target are compiled in batches: most of what one costs is the headers it includes. So the names in the
# anonymous namespaces of a folder are told apart (tests/architecture/check_names.py finds those that are not); who must not share a
# translation unit says so with SKIP_UNITY_BUILD_INCLUSION (a source) or UNITY_BUILD OFF (a target).
option(BATON_BATCHES "Compile the sources of a target in batches" ON)
set(CMAKE_UNITY_BUILD ${BATON_BATCHES})
if(BATON_FUZZ)  # its instrumented objects stand before the libraries' own, which the linker then does not take one by one
  set(CMAKE_UNITY_BUILD OFF)
endif()
# Sixteen to a batch, and GCC collects its garbage from 512 MiB on, not from 128: a tenth less to compute. Where each core has
# 3 GiB, thirty-two to a batch and nothing is collected below 2 GiB: another tenth, and a compiler takes up to 1.8 GiB.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
set(collect_from_kib 524288)
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR roomy_mib "${cores} * 3072")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND memory_mib GREATER roomy_mib)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 32)
  set(collect_from_kib 2097152)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND BATON_BATCHES)
  add_compile_options(-Wno-subobject-linkage)  # takes the sources of a batch for headers
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=${collect_from_kib})
endif()

# ccache and a fast linker are used when present; neither is needed.
find_program(BATON_CCACHE ccache)
if(BATON_CCACHE)
  # Its condition for caching what uses precompiled headers: no source here asks for the time it was compiled at.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${BATON_CCACHE})
endif()
if(NOT DEFINED BATON_LINKER)
  find_program(BATON_MOLD mold)
  find_program(BATON_LLD NAMES ld.lld ld.lld-19)
  if(BATON_MOLD)
    set(BATON_LINKER mold)
  elseif(BATON_LLD)
    set(BATON_LINKER lld)
  endif()
endif()
if(BATON_LINKER)
  add_link_options(-fuse-ld=${BATON_LINKER})
endif()
if(BATON_LINKER STREQUAL mold)
  execute_process(COMMAND mold --version OUTPUT_VARIABLE mold_version ERROR_QUIET)
  string(REGEX MATCH "[0-9]+[.][0-9.]+" mold_version "${mold_version}")
  if(mold_version VERSION_LESS 2.4)
    add_library(aligned_tls OBJECT cmake/aligned_tls.cc)
    set_target_properties(aligned_tls PROPERTIES POSITION_INDEPENDENT_CODE ON)
    link_libraries($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:aligned_tls>>)
  endif()
endif()
