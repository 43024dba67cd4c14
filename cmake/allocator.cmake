# mimalloc in place of glibc's allocator, when it is there: the router allocates some hundred small blocks a request, from
# several threads, and a third of its CPU time was spent on that. Not under a sanitizer, which has an allocator of its own.
find_library(BATON_MIMALLOC mimalloc)
find_path(BATON_MIMALLOC_HEADER mimalloc.h PATH_SUFFIXES mimalloc)
function(baton_allocator target)
  if(BATON_MIMALLOC AND NOT BATON_SANITIZE AND NOT BATON_FUZZ)
    target_link_libraries(${target} PRIVATE ${BATON_MIMALLOC})
    if(BATON_MIMALLOC_HEADER)
      target_include_directories(${target} PRIVATE ${BATON_MIMALLOC_HEADER})
      target_compile_definitions(${target} PRIVATE BATON_HAS_MIMALLOC)
    endif()
  endif()
endfunction()
