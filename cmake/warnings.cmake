# baton_warnings(target): the warnings every hand-written target is built with. Generated code does not call it.
function(baton_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # libstdc++ 12's std::stable_sort uses what it deprecates itself.
    target_compile_options(${target} PRIVATE -Wno-deprecated-declarations)
  endif()
  if(BATON_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# baton_library(name SOURCES... ) : a static library of this folder with the project's warnings.
function(baton_library name)
  add_library(${name} STATIC ${ARGN})
  baton_warnings(${name})
  baton_precompiled(${name} library)
endfunction()
