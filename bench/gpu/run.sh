#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: writes the golden file that binds the emulator, measures the card's roofs and times
# every kernel against its floor there, runs whole steps of a model, hands prompts from one process to another, runs the kernels' tests and the contract of kernels/ops.h
# on the device, times cuBLAS (through torch) and FlashInfer when importable, and runs compute-sanitizer on small cases.
# One table, one JSON: OUT/results.json, written again after every stage. Without a GPU it says so and succeeds.
#   bench/gpu/run.sh [--stage STAGES] [--no-build] [--out DIR] [--seconds N] [--emulated BUILD]
#   bench/gpu/run.sh --order    prints the calls of eight minutes that a carried build is measured in, the most telling first
# STAGES: all, or of build, conformance, engine, kernels, handoff, tests, libraries, sanitizer, report those wanted, with commas.
# `build` needs no GPU: it can run elsewhere and build/cuda/run.tar.xz be carried over; what was built from these sources
# is taken as it is. --no-build takes what is there, of whatever sources, and compiles nothing. Every stage takes < 8 minutes, --seconds N all of them together: what no time is left for is named. A
# program that crashes or hangs is a line in the table and ends nothing else.
# --emulated: a dry run of every stage with the emulator's programs of a build folder (ctest: bench_gpu_dry).
# Ends with 0: all right, or nothing to run on; 1: something was wrong; 2: bad usage.
set -euo pipefail
cd "$(dirname "$0")/../.."
stage=all out=bench/results/gpu emulated='' seconds='' no_build=''
# What decides first: whether the emulator was right and what a step takes; then what a kernel takes beside its floor, and
# the handoff; at last what fails, and what takes long.
order() {
  local stages
  for stages in conformance,engine kernels,handoff tests,libraries,sanitizer,report; do
    echo "bench/gpu/run.sh --no-build --stage $stages --seconds 470 --out results"
  done
}
while [ $# -gt 0 ]; do
  case $1 in
    --stage) stage=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --no-build) no_build=1; shift ;;
    --emulated) emulated=$2; shift 2 ;;
    --order) order; exit ;;
    *) sed -n '2,16p' "$0"; exit 2 ;;
  esac
done
stages=(build conformance engine kernels handoff tests libraries sanitizer report)
if [ "$stage" = all ]; then wanted=("${stages[@]}"); else IFS=, read -ra wanted <<<"$stage"; fi
for name in "${wanted[@]}"; do
  if [[ " ${stages[*]} " != *" $name "* ]]; then echo "bench/gpu: no stage $name: ${stages[*]} all" >&2; exit 2; fi
done
limit_s=480
# The device's programs are those of build.sh; the emulator's have the same sources.
filter=() limits=() golden=tests/conformance/golden.txt engine=(--model bench/gpu/models/llama-3-8b)
if [ -n "$emulated" ]; then
  filter=(--gtest_filter='*Nothing*:*NoTokens*')  # the rest runs in ctest
  golden=$out/golden.txt
  limits=(--limits bench/gpu/access_limits.tsv)
  engine=(--model bench/gpu/models/tiny --tiny)
fi
# Of the emulator's tests several share a program: what starts one is its ctest entry's command.
declare -A entries
if [ -n "$emulated" ]; then
  while IFS=$'\t' read -r name command; do entries[$name]=$command; done < <(ctest --test-dir "$emulated" --show-only=json-v1 2>/dev/null |
    python3 -c 'import json, sys; [print(t["name"], *t.get("command", []), sep="\t") for t in json.loads(sys.stdin.read() or "{}").get("tests", [])]')
fi
# find_program NAME: `program` is then the words that start it, its path first.
find_program() {
  local name=$1
  if [ -z "$emulated" ]; then program=("build/cuda/run/$name"); return; fi
  case $name in kernel_bench) name=bench_gpu_dry ;; golden) name=bench_gpu_golden ;; gpu_engine) name=bench_gpu_engine_dry ;; *)
    if [ -n "${entries[$name]:-}" ]; then IFS=$'\t' read -ra program <<<"${entries[$name]}"; return; fi ;;
  esac
  program=("$(find "$emulated" -type f -executable -name "$name" | head -n 1)")
}
test_names() { sed -E 's/#.*//; /^ *$/d; s/ .*//' bench/gpu/tests.txt; }
# seconds_left: of the stage, and of the whole run less what its report needs.
seconds_left() {
  local left=$((limit_s - (SECONDS - begun)))
  if [ -n "$seconds" ] && [ $((seconds - 10 - SECONDS)) -lt $left ]; then left=$((seconds - 10 - SECONDS)); fi
  echo "$left"
}
# limited SECONDS NAME COMMAND…: runs it, for no longer than that and than is left; one line of programs.txt says how it
# ended. Fails when it did not end well.
limited() {
  local most=$1 name=$2 left code=0 verdict started=$SECONDS; shift 2
  left=$(seconds_left)
  if [ "$left" -lt 5 ]; then
    verdict="left out, no time is left"
  else
    timeout -k 5 $((most < left ? most : left)) "$@" || code=$?
    case $code in
      0) verdict=passed ;;
      1) verdict=FAILED ;;
      3) verdict="no device" ;;
      124 | 137) verdict="no end within $((most < left ? most : left)) s" ;;
      *) if [ $code -gt 128 ]; then verdict="killed by signal $((code - 128))"; else verdict="exit code $code"; fi ;;
    esac
  fi
  echo "$running $name $((SECONDS - started)) ${verdict// /_}" >>"$out/programs.txt"
  [ "$verdict" = passed ] || { echo "bench/gpu: $name: $verdict" >&2; return 1; }
}

is_built() {
  for name in kernel_bench golden gpu_engine $(test_names); do
    find_program "$name"
    [ -x "${program[0]}" ] || { echo "bench/gpu: $name is not built${no_build:+, and --no-build builds nothing}" >&2; return 1; }
  done
}
stage_build() {
  if [ -z "$emulated" ]; then
    if [ "$(cat build/cuda/run/sources 2>/dev/null)" = "$(bench/gpu/build.sh --sources)" ]; then
      echo "bench/gpu: build/cuda/run is of these sources"
    elif [ -n "$no_build" ]; then
      echo "bench/gpu: build/cuda/run is of other sources than these, and is taken as it is"
    else
      scripts/build_cuda.sh
      [ -e build/cuda/libbaton_cuda.a ] || { echo "bench/gpu: SKIPPED: there is no CUDA compiler"; exit 0; }
      bench/gpu/build.sh
    fi
  fi
  is_built
}
stage_conformance() {
  local bad=0
  find_program golden
  limited 240 golden "${program[@]}" "$golden" >"$out/conformance.txt" || bad=1
  cat "$out/conformance.txt"
  [ "$golden" = "$out/golden.txt" ] || cp "$golden" "$out/golden.txt" || bad=1
  return $bad
}
stage_kernels() {
  find_program kernel_bench
  limited $limit_s kernel_bench "${program[@]}" --json "$out/kernels.json" "${limits[@]}"
}
# What the results are called, and how the model runs: a row's bits fixed, by speed alone, with half of the KV's bytes.
engine_runs() { printf '%s\n' deterministic 'fast --no-deterministic' 'fp8_kv --kv fp8'; }
stage_engine() {
  local bad=0 name flags
  find_program gpu_engine
  while read -r name flags; do
    # shellcheck disable=SC2086 # several flags
    limited 150 "gpu_engine:$name" "${program[@]}" "${engine[@]}" --json "$out/engine_$name.json" --seconds 100 $flags </dev/null || bad=1
  done < <(engine_runs)
  return $bad
}
# Two processes on the GPU: a prompt of one goes on in the other.
stage_handoff() {
  find_program gpu_engine
  limited 240 gpu_engine:handoff "${program[@]}" "${engine[@]}" --handoff --json "$out/engine_handoff.json" </dev/null
}
stage_tests() {
  local bad=0 name
  for name in $(test_names); do
    rm -f "$out/tests/$name.json"
    find_program "$name"
    limited 120 "$name" "${program[@]}" --gtest_brief=1 --gtest_output="json:$out/tests/$name.json" "${filter[@]}" || bad=1
  done
  return $bad
}
stage_libraries() { limited 240 libraries.py python3 bench/gpu/libraries.py --ours "$out/kernels.json" --json "$out/libraries.json"; }
# Where toolkits, profilers and Python wheels keep it. find_sanitizer: its path, or nothing.
find_sanitizer() {
  local root at
  command -v compute-sanitizer && return
  for root in ${CUDA_HOME:-} /usr/local/cuda /usr/local/cuda-* /opt/cuda build/cuda-toolchain/site/nvidia/* \
    $(python3 -c 'import glob, sys; print(*[d for p in sys.path for d in glob.glob(p + "/nvidia/*/")])' 2>/dev/null); do
    for at in "${root%/}/bin/compute-sanitizer" "${root%/}/compute-sanitizer/compute-sanitizer"; do
      if [ -x "$at" ] || { [ -f "$at" ] && chmod +x "$at" 2>/dev/null; }; then echo "$at"; return; fi
    done
  done
}
# TOOL PROGRAM FILTER: what each tool looks at; a tool makes a kernel tens of times slower.
sanitized() {
  local tool
  for tool in memcheck racecheck synccheck; do
    echo "$tool cuda_kv_test *"
    echo "$tool cuda_rowwise_test *"
    echo "$tool cuda_row_ops_test *"
    echo "$tool cuda_moe_test *Stable*:*NaNs*"
    echo "$tool cuda_sampler_test *NothingAllowed*:*EveryPolicy*"
    echo "$tool cuda_attention_test CudaDecodeAttention.Draft*:*WindowSoftCap*:*Fp8*"
    echo "$tool cuda_mla_test *WindowsSinks*"
    echo "$tool cuda_gemv_test *Bits*"
    echo "$tool cuda_gemm_test *EveryTile*"
    echo "$tool cuda_gemm_quant_test *Equals*"
    echo "$tool cuda_gemm_e4m3_test *Equals*"
    echo "$tool cuda_gemm_grouped_test *Combines*:*BitsOfItsExperts*"
    echo "$tool cuda_kv_handoff_test *EveryElement*"
  done
  echo "memcheck cuda_gemm_wgmma_test *MmaSync*"
}
stage_sanitizer() {
  local bad=0 tool name only path log
  path=$(find_sanitizer)
  if [ -z "$emulated" ] && [ -z "$path" ]; then
    echo "bench/gpu: SKIPPED: no compute-sanitizer on PATH, in a toolkit or in Python's wheels"; return 0
  fi
  log=$out/sanitizer.txt
  : >"$log"
  export BATON_SWEEP_SEEDS=1
  while read -r tool name only; do
    find_program "$name"
    local command=("$path" --tool "$tool" --error-exitcode 9 "${program[@]}" "--gtest_filter=$only")
    if [ -n "$emulated" ]; then command=("${program[@]}" "${filter[@]}"); fi
    limited 90 "$tool:$name" "${command[@]}" --gtest_brief=1 </dev/null >"$log.one" 2>&1 || bad=1
    cat "$log.one" >>"$log"
    grep -E 'ERROR SUMMARY|bench/gpu:' "$log.one" || true
    if grep -q 'Device not supported' "$log.one"; then
      echo "bench/gpu: SKIPPED: compute-sanitizer does not support this device"; bad=0; break
    fi
  done < <(sanitized)
  rm -f "$log.one"
  return $bad
}
stage_report() { python3 bench/gpu/report.py "$out"; }

mkdir -p "$out/tests"
if [ -z "$emulated" ] && [ ! -e build/cuda/run/sources ] && [ -e build/cuda/run.tar.xz ]; then
  tar xJf build/cuda/run.tar.xz -C build/cuda || # without xz
    python3 -c 'import tarfile; tarfile.open("build/cuda/run.tar.xz").extractall("build/cuda")'
fi
bad=0
for name in "${wanted[@]}"; do
  if [ "$name" != build ] && [ "$name" != report ] && [ -z "$emulated" ] && ! { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }; then
    echo "bench/gpu: stage $name: SKIPPED, needs an NVIDIA GPU (nvidia-smi lists none)"; continue
  fi
  if [ "$name" = report ] && [ ! -e "$out/programs.txt" ] && [ "$stage" = all ]; then continue; fi  # nothing ran
  [ "$name" != conformance ] || [ -n "$emulated" ] ||
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.sm,power.limit --format=csv | tee "$out/device.csv" || true
  begun=$SECONDS verdict=passed running=$name
  # What an earlier run of the stage left is no longer so.
  if [ -e "$out/programs.txt" ]; then sed -i "/^$name /d" "$out/programs.txt"; fi
  # In a subshell of its own, so that a failure inside ends the stage and not the run.
  set +e; (set -e; "stage_$name"); status=$?; set -e
  [ $status = 0 ] || { verdict=FAILED; bad=1; }
  took=$((SECONDS - begun))
  [ $took -le $limit_s ] || { verdict="$verdict, over $limit_s s"; bad=1; }
  echo "bench/gpu: stage $name: $verdict, $took s"
  if [ "$name" != report ]; then
    echo "$name $took ${verdict// /_}" >>"$out/stages.txt"
    if [ "$name" != build ]; then python3 bench/gpu/report.py "$out" >/dev/null 2>&1 || true; fi  # so far
  fi
done
exit $bad
