#!/usr/bin/env bash
# fuzz.sh [SECONDS]: builds the fuzz targets with clang and runs each for a bounded time (default 20 s). Findings stay in
# build/fuzz/tests/fuzz; run a target there by hand for longer.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh --clang
mkdir -p build
cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
  -DBATON_FUZZ=ON -DBATON_FUZZ_SECONDS="${1:-20}" >build/configure-fuzz.log 2>&1 || { tail -30 build/configure-fuzz.log >&2; exit 1; }
ninja -C build/fuzz fuzz_targets
ctest --test-dir build/fuzz -L fuzz -j2 --no-tests=error --output-on-failure
