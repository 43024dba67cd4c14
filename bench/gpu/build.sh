#!/usr/bin/env bash
# Builds build/cuda/kernel_bench, build/cuda/golden and build/cuda/tests/* with nvcc: the sources that the emulator runs,
# for sm_90a. Needs build/cuda/libbaton_cuda.a (scripts/build_cuda.sh); no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
nvcc=$(scripts/cuda_toolchain.sh)
objects=build/cuda/bench
mkdir -p "$objects" build/cuda/tests
# 20050: `inline` on kernels, which the host half needs.
flags=(-std=c++20 -O2 -I. -diag-suppress 20050 -gencode arch=compute_90a,code=sm_90a -Xcompiler "-Wall,-fPIC" -Xcompiler -Wno-missing-field-initializers)
libraries=(build/cuda/libbaton_cuda.a "-L$(dirname "$(dirname "$nvcc")")/lib" -lcudart_static -ldl -lrt -lpthread
  $(pkg-config --libs absl_status absl_statusor absl_strings))
export NVCC=$nvcc FLAGS="${flags[*]}" objects
build_one() {
  local to; to=$objects/$(echo "${1%.cc}" | tr / _).o
  [ "$to" -nt "$1" ] && [ "$to" -nt build/cuda/libbaton_cuda.a ] && return
  local TIMEFORMAT="  $to %U s of CPU, %R s"
  time $NVCC $FLAGS -x cu -c "$1" -o "$to"
}
export -f build_one
# link PROGRAM "SOURCES" "LIBRARIES". By g++, which understands what pkg-config says; there is no device code to link.
link() {
  local sources="$2 common/check.cc" of=() source
  for source in $sources; do of+=("$objects/$(echo "${source%.cc}" | tr / _).o"); done
  g++ "${of[@]}" -o "build/cuda/$1" "${libraries[@]}" $3
  echo "built build/cuda/$1"
}
gtest="-lgtest -lgtest_main"
cases=$(echo bench/gpu/kernel_bench.cc bench/gpu/*_cases.cc)
micro=$(echo tests/conformance/*_kernels.cc)
handoff="tests/kernels/cuda/kv_handoff_test.cc kvtransfer/transfer_plan.cc kvtransfer/kv_side.cc"
# The emulator's tests, for the device; the kernels they name are compiled into them. Longest first.
tests=(attention mla gemv gemm_wgmma gemm_quant gemm_grouped gemm kv moe rowwise)
xargs -n 1 -P "${BATON_CUDA_JOBS:-$(nproc)}" bash -c 'build_one "$0" || exit 255' <<<"$(printf 'tests/kernels/cuda/%s_test.cc ' "${tests[@]}") \
  $handoff $cases $micro bench/gpu/golden.cc tests/conformance/conformance_test.cc common/check.cc"
link kernel_bench "$cases" ""
link golden "bench/gpu/golden.cc $micro" ""
link tests/px_conformance_test "tests/conformance/conformance_test.cc $micro" "$gtest"
for test in "${tests[@]}"; do
  link "tests/cuda_${test}_test" "tests/kernels/cuda/${test}_test.cc" "$gtest"
done
link tests/cuda_kv_handoff_test "$handoff" "$gtest -lxxhash"
