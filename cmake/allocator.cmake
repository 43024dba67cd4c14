# mimalloc in place of glibc's allocator, when it is there: the router allocates some hundred small blocks a request, from
# several threads, and a third of its CPU time was spent on that. Not under a sanitizer, which has an allocator of its own.
find_library(BATON_MIMALLOC mimalloc)
function(baton_allocator target)
  if(BATON_MIMALLOC AND NOT BATON_SANITIZE AND NOT BATON_FUZZ)
    target_link_libraries(${target} PRIVATE ${BATON_MIMALLOC})
  endif()
endfunction()
