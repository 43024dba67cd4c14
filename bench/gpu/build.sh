#!/usr/bin/env bash
# Builds build/cuda/kernel_bench, build/cuda/golden and the programs of tests.txt in build/cuda/tests with nvcc: the
# sources that the emulator runs, for sm_90a. Needs build/cuda/libbaton_cuda.a (scripts/build_cuda.sh); no GPU.
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
cases=$(echo bench/gpu/kernel_bench.cc bench/gpu/*_cases.cc)
micro=$(echo tests/conformance/*_kernels.cc)
tests=$(sed -E 's/#.*//; /^ *$/d' bench/gpu/tests.txt)
sources=$(cut -d' ' -f2- <<<"$tests" | tr ' ' '\n' | awk '!seen[$0]++')
xargs -n 1 -P "${BATON_CUDA_JOBS:-$(nproc)}" bash -c 'build_one "$0" || exit 255' <<<"$(awk '!seen[$0]++' <<<"$sources
$(tr ' ' '\n' <<<"$cases $micro") bench/gpu/golden.cc common/check.cc")"
link kernel_bench "$cases" ""
link golden "bench/gpu/golden.cc $micro" ""
while read -r name sources; do link "tests/$name" "$sources" "-lgtest -lgtest_main -lgmock -lxxhash"; done <<<"$tests"
