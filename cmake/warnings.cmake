# baton_warnings(target): the warnings every hand-written target is built with. Generated code does not call it.
function(baton_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers)
  if(BATON_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# baton_library(name SOURCES... ) : a static library of this folder with the project's warnings.
function(baton_library name)
  add_library(${name} STATIC ${ARGN})
  baton_warnings(${name})
endfunction()
