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

# baton_library(name SOURCES... ) : a static library of this folder, built as all that is written by hand.
function(baton_library name)
  add_library(${name} STATIC ${ARGN})
  baton_hand_written(${name})
endfunction()

# baton_hand_written(target): warnings and precompiled headers for a library or a program that is not a test.
function(baton_hand_written target)
  baton_warnings(${target})
  baton_precompiled(${target} library)
endfunction()
