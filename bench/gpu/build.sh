#!/usr/bin/env bash
# Builds with nvcc, for sm_90a, what a device runs: kernel_bench, golden, gpu_engine (its engine by g++) and the test
# programs of tests.txt, from the sources that the emulator runs, into build/cuda/run. They need libc, the driver and nothing else: they can be carried to
# another machine, all of them as build/cuda/run.tar.xz. Needs build/cuda/libbaton_cuda.a (scripts/build_cuda.sh) and no
# GPU. Goes on where it was interrupted; compiles again what a changed source or header asks for.
#   bench/gpu/build.sh             builds
#   bench/gpu/build.sh --sources   prints the digest of the sources; build/cuda/run/sources has that of what was built
set -euo pipefail
cd "$(dirname "$0")/../.."
digest_of_sources() {
  find kernels common engine kvtransfer tests/kernels tests/conformance tests/simt bench/gpu -type f \
    \( -name '*.h' -o -name '*.cuh' -o -name '*.cu' -o -name '*.cc' -o -name 'tests.txt' -o -name 'build.sh' \) |
    LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d' ' -f1
}
if [ "${1:-}" = --sources ]; then digest_of_sources; exit 0; fi
nvcc=$(scripts/cuda_toolchain.sh)
objects=build/cuda/bench programs=build/cuda/run
mkdir -p "$objects" "$programs"
rm -f "$programs/sources" "$programs.tar.xz"
sources_now=$(digest_of_sources)  # before anything is read: what changes meanwhile is not in the programs
# 20050: `inline` on kernels, which the host half needs.
flags=(-std=c++20 -O2 -I. -diag-suppress 20050 -gencode arch=compute_90a,code=sm_90a -Xcompiler "-Wall,-fPIC" -Xcompiler -Wno-missing-field-initializers)
export NVCC=$nvcc FLAGS="${flags[*]}" objects
VERSION=$("$nvcc" --version | tail -n 1); export VERSION
# key_of DEPENDENCIES: what an object was made of.
key_of() { { echo "$FLAGS $VERSION"; sed -E 's/^[^:]*://; s/\\$//' "$1" | tr -s ' ' '\n' | grep . | LC_ALL=C sort -u | xargs sha256sum; } | sha256sum; }
build_one() {
  local to; to=$objects/$(echo "${1%.cc}" | tr / _)
  if [ -e "$to.o" ] && [ -e "$to.d" ] && [ "$(key_of "$to.d" 2>/dev/null)" = "$(cat "$to.key" 2>/dev/null)" ]; then return; fi
  rm -f "$to.key"
  local TIMEFORMAT="  $to.o %U s of CPU, %R s"
  time $NVCC $FLAGS -MMD -MF "$to.d" -x cu -c "$1" -o "$to.o" || return 1
  key_of "$to.d" >"$to.key"
}
# Without device code: by g++, as the worker has it. One archive, of which a program takes what it needs.
build_host() {
  local to; to=$objects/host_$(echo "${1%.cc}" | tr / _)
  if [ -e "$to.o" ] && [ -e "$to.d" ] && [ "$(key_of "$to.d" 2>/dev/null)" = "$(cat "$to.key" 2>/dev/null)" ]; then return; fi
  rm -f "$to.key"
  local exact=''; case $1 in engine/model/files/dummy_weights.cc | engine/model/files/gguf_dequant.cc) exact=-ffp-contract=off ;; esac
  g++ -std=c++20 -O2 -DNDEBUG -DSPDLOG_FMT_EXTERNAL -DFMT_HEADER_ONLY -I. $exact -MMD -MF "$to.d" -c "$1" -o "$to.o" || return 1
  key_of "$to.d" >"$to.key"
}
export -f build_one build_host key_of
# link PROGRAM "SOURCES" [LIBRARIES…]. By g++, which understands what pkg-config says; there is no device code to link.
link() {
  local name=$1 of=() source; local -a sources=($2 common/check.cc); shift 2
  for source in "${sources[@]}"; do of+=("$objects/$(echo "${source%.cc}" | tr / _).o"); done
  # shellcheck disable=SC2046 # several libraries
  g++ "${of[@]}" -o "$programs/$name" -static-libstdc++ -static-libgcc build/cuda/libbaton_cuda.a \
    "-L$(dirname "$(dirname "$nvcc")")/lib" -lcudart_static -Wl,-Bstatic "$@" \
    $(pkg-config --static --libs absl_status absl_statusor absl_strings) -Wl,-Bdynamic -ldl -lrt -lpthread
}
cases=$(echo bench/gpu/kernel_bench.cc bench/gpu/run_each.cc bench/gpu/measure.cc bench/gpu/*_cases.cc)
micro=$(echo tests/conformance/*_kernels.cc)
tests=$(sed -E 's/#.*//; /^ *$/d' bench/gpu/tests.txt)
all=$(tr ' ' '\n' <<<"$(cut -d' ' -f2- <<<"$tests") $cases $micro bench/gpu/golden.cc bench/gpu/test_main.cc common/check.cc" | awk 'NF && !seen[$0]++')
host=$(printf '%s\n' engine/model/*.cc engine/model/config/*.cc engine/model/config/families/*.cc engine/model/files/*.cc engine/parallel/*.cc \
  engine/cache/kv_memory.cc kernels/quantized/*.cc common/*.cc bench/gpu/gpu_engine.cc bench/gpu/engine_*.cc)
xargs -n 1 -P "${BATON_CUDA_JOBS:-$(nproc)}" bash -c 'build_one "$0" || exit 255' <<<"$all"
xargs -n 1 -P "${BATON_CUDA_JOBS:-$(nproc)}" bash -c 'build_host "$0" || exit 255' <<<"$host"
rm -f "$objects/libengine.a"
ar rcs "$objects/libengine.a" $(for source in $host; do echo "$objects/host_$(echo "${source%.cc}" | tr / _).o"; done)
rm -f "$programs"/*
link kernel_bench "$cases"
link golden "bench/gpu/golden.cc bench/gpu/run_each.cc $micro"
# shellcheck disable=SC2046 # several libraries
link gpu_engine "bench/gpu/run_each.cc bench/gpu/measure.cc bench/gpu/roof_cases.cc" -Wl,--start-group "$objects"/host_bench_gpu_{gpu_engine,engine_model,engine_handoff}.o "$objects/libengine.a" \
  build/cuda/libbaton_cuda.a $(pkg-config --static --libs absl_flat_hash_map absl_str_format absl_status absl_statusor absl_strings) -lxxhash -Wl,--end-group
while read -r name sources; do link "$name" "$sources bench/gpu/test_main.cc" -lgtest -lgmock -lxxhash; done <<<"$tests"
echo "$sources_now" >"$programs/sources"
# The programs have most of the kernels in common: with a window that sees the program before, a thirtieth remains.
tar c -C "$(dirname "$programs")" run | xz -T1 --lzma2=preset=1,dict=64MiB >"$programs.tar.xz.part"
mv "$programs.tar.xz.part" "$programs.tar.xz"
echo "built $(find "$programs" -type f -executable | wc -l) programs in $programs, $(du -sm "$programs" | cut -f1) MB; $programs.tar.xz: $(du -sm "$programs.tar.xz" | cut -f1) MB"
# It is carried to the machine with the GPU (run.sh): so much at the most.
[ "$(stat -c %s "$programs.tar.xz")" -le 20000000 ] || { echo "bench/gpu: $programs.tar.xz is more than 20 MB" >&2; exit 1; }
