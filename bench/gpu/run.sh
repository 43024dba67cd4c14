#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: builds the kernels, writes the golden file that binds the emulator, runs the kernels'
# tests and the contract of kernels/ops.h on the device, compute-sanitizer on small cases, times every kernel against
# its floor, beside cuBLAS (through torch) and FlashInfer when importable. One table, one JSON: OUT/results.json.
# Without a GPU it says so and succeeds.
#   bench/gpu/run.sh [--stage build|conformance|tests|kernels|sanitizer|libraries|report|all] [--out DIR] [--emulated BUILD]
# `build` needs no GPU, so that it can run elsewhere and build/cuda be carried over; every stage takes < 8 minutes.
# --emulated: a dry run of every stage with the emulator's programs of a build folder (ctest: bench_gpu_dry).
set -euo pipefail
cd "$(dirname "$0")/../.."
stage=all out=bench/results/gpu emulated=
while [ $# -gt 0 ]; do
  case $1 in
    --stage) stage=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --emulated) emulated=$2; shift 2 ;;
    *) sed -n '2,9p' "$0"; exit 2 ;;
  esac
done
stages=(build conformance tests kernels sanitizer libraries report)
if [ "$stage" = all ]; then
  wanted=("${stages[@]}")
elif [[ " ${stages[*]} " == *" $stage "* ]]; then
  wanted=("$stage")
else
  echo "bench/gpu: no stage $stage: ${stages[*]} all" >&2; exit 2
fi
limit_s=480
# The device's programs are those of build.sh; the emulator's have the same sources. program NAME: its path.
small=(cuda_kv_test cuda_kv_handoff_test cuda_rowwise_test cuda_row_ops_test cuda_moe_test)
filter=() limits=() golden=tests/conformance/golden.txt
if [ -n "$emulated" ]; then
  filter=(--gtest_filter='*Nothing*:*NoTokens*')  # the rest runs in ctest
  golden=$out/golden.txt
  limits=(--limits bench/gpu/access_limits.tsv)
fi
program() {
  local name=$1
  if [ -z "$emulated" ]; then
    if [ -e "build/cuda/tests/$name" ]; then echo "build/cuda/tests/$name"; else echo "build/cuda/$name"; fi
    return
  fi
  case $name in kernel_bench) name=bench_gpu_dry ;; golden) name=bench_gpu_golden ;; esac
  find "$emulated" -type f -executable -name "$name" | head -n 1
}
test_names() { sed -E 's/#.*//; /^ *$/d; s/ .*//' bench/gpu/tests.txt; }

stage_build() {
  if [ -z "$emulated" ]; then
    scripts/build_cuda.sh
    [ -e build/cuda/libbaton_cuda.a ] || { echo "bench/gpu: SKIPPED: there is no CUDA compiler"; exit 0; }
    bench/gpu/build.sh
  fi
  for name in kernel_bench golden $(test_names); do
    [ -x "$(program "$name")" ] || { echo "bench/gpu: $name is not built" >&2; return 1; }
  done
}
stage_conformance() { "$(program golden)" "$golden" | tee "$out/conformance.txt"; }
stage_tests() {
  local bad=0 name
  for name in $(test_names); do
    "$(program "$name")" --gtest_brief=1 --gtest_output="json:$out/tests/$name.json" "${filter[@]}" || bad=1
  done
  return $bad
}
stage_kernels() { "$(program kernel_bench)" --json "$out/kernels.json" "${limits[@]}"; }
stage_sanitizer() {
  local bad=0 tool name command
  for tool in memcheck racecheck synccheck; do
    command=(compute-sanitizer --tool "$tool" --error-exitcode 9)
    if [ -n "$emulated" ]; then
      command=(env)
    elif ! command -v compute-sanitizer >/dev/null; then
      echo "bench/gpu: $tool SKIPPED: no compute-sanitizer on PATH"; continue
    fi
    for name in "${small[@]}"; do "${command[@]}" "$(program "$name")" --gtest_brief=1 "${filter[@]}" || bad=1; done
  done
  return $bad
}
stage_libraries() { python3 bench/gpu/libraries.py --ours "$out/kernels.json" --json "$out/libraries.json"; }
stage_report() { python3 bench/gpu/report.py "$out"; }

mkdir -p "$out/tests"
bad=0
for name in "${wanted[@]}"; do
  if [ "$name" != build ] && [ -z "$emulated" ] && ! { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }; then
    echo "bench/gpu: stage $name: SKIPPED, needs an NVIDIA GPU (nvidia-smi lists none)"; continue
  fi
  [ "$name" != conformance ] || [ -n "$emulated" ] ||
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.sm,power.limit --format=csv | tee "$out/device.csv"
  begun=$SECONDS verdict=passed
  # In a subshell of its own, so that a failure inside ends the stage and not the run.
  set +e; (set -e; "stage_$name"); status=$?; set -e
  [ $status = 0 ] || { verdict=FAILED; bad=1; }
  took=$((SECONDS - begun))
  [ $took -le $limit_s ] || { verdict="$verdict, over $limit_s s"; bad=1; }
  echo "bench/gpu: stage $name: $verdict, $took s"
  [ "$name" = report ] || echo "$name $took ${verdict// /_}" >>"$out/stages.txt"
done
exit $bad
