#!/usr/bin/env bash
# Compiles every CUDA source for sm_90a, sm_80 and sm_100 (BATON_CUDA_ARCHS); archives sm_90a, links the plugin
# build/cuda/libbaton_cuda.so of --device cuda, and checks registers, spills, shared memory and PTX instruction counts
# against kernels/cuda/ptxas_table.tsv. No GPU is needed. Without a toolkit and without the network it says so and
# succeeds, unless BATON_REQUIRE_CUDA=1.
# usage: scripts/build_cuda.sh [--update-table]
set -euo pipefail
cd "$(dirname "$0")/.."
if ! nvcc=$(scripts/cuda_toolchain.sh); then
  echo "make cuda: SKIPPED (see the line above)"
  [ "${BATON_REQUIRE_CUDA:-0}" = 1 ] && exit 1
  exit 0
fi
out=build/cuda
archs=${BATON_CUDA_ARCHS:-90a 80 100}
mkdir -p "$out"
echo "nvcc: $nvcc, ${BATON_CUDA_JOBS:-$(nproc)} jobs"
# name_of SOURCE: of its files in the folder.
name_of() { local name=${1%.*}; name=${name#build/cuda/}; echo "${name//\//_}"; }
# digest SOURCE DIRECTORY: what it and everything of ours that it includes are made of, in a file.
digest() {
  local headers; headers=$(g++ -std=c++20 -I. -MM -x c++ "$1" | tr -d '\\:' | tr ' ' '\n' | grep -E '\.(h|cuh|cu|cc)$' | sort -u)
  cat scripts/build_cuda.sh kernels/px/*.cuh $headers | sha256sum >"$2/$(name_of "$1").digest"
}
# compile NVCC SOURCE ARCH DIRECTORY: one object per (source, architecture), of sm_80 and sm_100 the device's half only;
# rebuilt when a source, a header or the compiler changed.
compile() {
  local nvcc=$1 source=$2 arch=$3 out=$4
  local name; name=$(name_of "$source")
  local key; key="$(cat "$out/$name.digest") $nvcc"
  name=$name.$arch
  if [ -e "$out/$name.o" ] && [ "$(cat "$out/$name.key" 2>/dev/null)" = "$key" ]; then return; fi
  local keep TIMEFORMAT="  $name %U s of CPU, %R s"; keep=$(mktemp -d "$PWD/$out/keep.XXXXXX")
  # 20050: `inline` on kernels, which the host half needs.
  # shellcheck disable=SC2086 # several flags
  local what=-c; [ "$arch" = 90a ] || what=-cubin
  if ! time "$nvcc" -std=c++20 -O3 -lineinfo -I. -diag-suppress 20050 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror,-fPIC \
    -Xcompiler -Wno-missing-field-initializers -gencode "arch=compute_$arch,code=sm_$arch" -Xptxas -v --keep --keep-dir "$keep" \
    -x cu $what "$source" -o "$out/$name.o" >"$out/$name.log" 2>&1; then
    cat "$out/$name.log" >&2; rm -rf "$keep" "$out/$name.o"; return 1
  fi
  cp "$keep"/*.ptx "$out/$name.ptx" || return 1
  rm -rf "$keep"
  echo "$key" >"$out/$name.key"
}
export -f name_of digest compile
rm -rf "$out"/keep.*
# What only calls the kernels, in two halves: most of what one source costs is the headers that all of them include.
batches=("$out/host_0.cc" "$out/host_1.cc")
which=0
rm -f "${batches[@]}"
for source in kernels/cuda/host/*.cc; do
  echo "#include \"$source\"" >>"${batches[$((which++ % 2))]}"
done
# Kernels (.cu) for every architecture, what only calls them (.cc) for the one that is archived. Longest first.
sources=$(echo kernels/cuda/instances/attention*.cu "${batches[@]}" kernels/cuda/instances/gemm*.cu $(find kernels -name '*.cu' | LC_ALL=C sort | grep -v -e /attention -e /gemm))
jobs=$(for source in $sources; do
  for arch in $archs; do
    # Calling code once; wgmma is sm_90a's alone.
    if [[ $arch != 90a && ($source != *.cu || $source == *_wgmma.cu) ]]; then continue; fi
    echo "$source $arch"
  done
done)
# What no longer has a source goes.
known=$(while read -r source arch; do echo "$(name_of "$source").$arch"; done <<<"$jobs")
for log in "$out"/*.log; do
  if [ -e "$log" ] && ! grep -qx "$(basename "${log%.log}")" <<<"$known"; then rm -f "${log%.log}".*; fi
done
tr ' ' '\n' <<<"$sources" | xargs -P "${BATON_CUDA_JOBS:-$(nproc)}" -L 1 bash -c 'digest "$1" "$0" || exit 255' "$out"
xargs -P "${BATON_CUDA_JOBS:-$(nproc)}" -L 1 bash -c 'compile "$2" "$0" "$1" "$3" || exit 255' <<<"$(sed "s#\$# $nvcc $out#" <<<"$jobs")"
rm -f "$out/libbaton_cuda.a"
ar rcs "$out/libbaton_cuda.a" "$out"/*.90a.o
# The plugin holds everything but the driver and abseil, which is the program's too.
g++ -std=c++20 -O2 -fPIC -I. -c common/check.cc -o "$out/check.o"
g++ -shared -Wl,-z,defs -o "$out/libbaton_cuda.so" "$out"/*.90a.o "$out/check.o" "-L$(dirname "$(dirname "$nvcc")")/lib" \
  -lcudart_static -ldl -lrt -lpthread $(pkg-config --libs absl_status absl_statusor absl_strings)
echo "built $out/libbaton_cuda.a and the plugin $out/libbaton_cuda.so: baton worker --device cuda --device-plugin $out/libbaton_cuda.so"
python3 scripts/check_ptxas.py "$out" kernels/cuda/ptxas_table.tsv "$@"
