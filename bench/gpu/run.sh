#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: builds the kernels, writes the golden file that binds the emulator, runs the kernels'
# tests on the device, times every kernel against its floor, beside cuBLAS (through torch) and FlashInfer when importable.
# One table, one JSON per stage under OUT. Without a GPU it says so and succeeds.
#   bench/gpu/run.sh [--stage build|conformance|tests|kernels|sanitizer|libraries|all] [--out DIR]
# `build` needs no GPU, so that it can run elsewhere and build/cuda be carried over; every other stage takes < 8 minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
stage=all out=bench/results/gpu
while [ $# -gt 0 ]; do
  case $1 in
    --stage) stage=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    *) sed -n '2,7p' "$0"; exit 2 ;;
  esac
done
is() { [ "$stage" = all ] || [ "$stage" = "$1" ]; }

if is build; then
  scripts/build_cuda.sh
  [ -e build/cuda/libbaton_cuda.a ] || { echo "bench/gpu: SKIPPED: there is no CUDA compiler"; exit 0; }
  bench/gpu/build.sh
  [ "$stage" = build ] && exit 0
fi
# From here on a GPU is needed.
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  is build && echo "bench/gpu: stage build: done (needs no GPU; build/cuda may be carried to a machine with one)"
  for name in conformance tests kernels sanitizer libraries; do
    if is "$name"; then echo "bench/gpu: stage $name: SKIPPED, needs an NVIDIA GPU (nvidia-smi lists none)"; fi
  done
  exit 0
fi
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.sm,power.limit --format=csv | tee "$out/device.csv"
bad=0
if is conformance; then build/cuda/golden tests/conformance/golden.txt || bad=1; fi
if is tests; then
  for test in build/cuda/tests/*; do
    "$test" --gtest_brief=1 --gtest_output="json:$out/$(basename "$test").json" || bad=1
  done
fi
if is kernels; then build/cuda/kernel_bench --json "$out/kernels.json" || bad=1; fi
if is sanitizer; then
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck; do
      for test in build/cuda/tests/cuda_{kv,kv_handoff,rowwise,moe}_test; do
        compute-sanitizer --tool "$tool" --error-exitcode 9 "$test" --gtest_brief=1 || bad=1
      done
    done
  else
    echo "bench/gpu: sanitizer stage SKIPPED: no compute-sanitizer on PATH"
  fi
fi
if is libraries; then python3 bench/gpu/libraries.py --ours "$out/kernels.json" --json "$out/libraries.json" || bad=1; fi
exit $bad
