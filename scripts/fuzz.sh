#!/usr/bin/env bash
# fuzz.sh [--build | SECONDS]: builds the fuzz targets with clang and runs each. Without an argument: the inputs of its corpus
# and then as many as tests/fuzz/CMakeLists.txt says, from one seed, so that the gate says the same of the same tree on a slow
# machine and on a fast one; with SECONDS: that long, from a seed of its own. Findings stay in build/fuzz/tests/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh --clang
mkdir -p build
only_build=; [ "${1:-}" != --build ] || { only_build=1; shift; }
cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
  -DBATON_CARGO_TARGET_DIR="$PWD/build/cargo" -DBATON_FUZZ=ON -DBATON_FUZZ_SECONDS="${1:-0}" -DBATON_FUZZ_SEED="$(($# == 0))" >build/configure-fuzz.log 2>&1 || { tail -30 build/configure-fuzz.log >&2; exit 1; }
ninja -C build/fuzz fuzz_targets
[ -z "$only_build" ] || exit 0
ctest --test-dir build/fuzz -L fuzz -j2 --no-tests=error --output-on-failure
