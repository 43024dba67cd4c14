# -DBATON_CUDA=ON: the GPU plugin is compiled with everything else and lies beside `baton`, which finds it there without a
# path. It needs a CUDA compiler (scripts/cuda_toolchain.sh), no GPU, and fails without one.
option(BATON_CUDA "Compile the GPU plugin and put it beside baton" OFF)

# baton_cuda_plugin(program): `make cuda`, then the plugin beside the program.
function(baton_cuda_plugin program)
  if(NOT BATON_CUDA)
    return()
  endif()
  add_custom_target(baton_cuda_plugin ALL
    COMMAND ${CMAKE_COMMAND} -E env BATON_REQUIRE_CUDA=1 ${CMAKE_SOURCE_DIR}/scripts/build_cuda.sh
    COMMAND ${CMAKE_COMMAND} -E copy_if_different ${CMAKE_SOURCE_DIR}/build/cuda/libbaton_cuda.so $<TARGET_FILE_DIR:${program}>
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endfunction()
