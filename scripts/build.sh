#!/usr/bin/env bash
# build.sh [preset] [target…]: configures when needed, builds, and says how long it took.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}; shift || true
start=$(date +%s)
if [ ! -f "build/$preset/build.ninja" ]; then
  echo "Configuring ($preset)…"
  mkdir -p build
  cmake --preset "$preset" >"build/configure-$preset.log" 2>&1 || { tail -30 "build/configure-$preset.log" >&2; exit 1; }
fi
if [ -t 1 ]; then
  cmake --build "build/$preset" ${1:+--target "$@"}
else  # not a terminal: a line every few seconds instead of one per file
  NINJA_STATUS='[%f/%t %es] ' stdbuf -oL cmake --build "build/$preset" ${1:+--target "$@"} 2>&1 |
    awk -v start="$start" '/^\[/ { line=$0; now=systime(); if (now-last>=5) { print substr(line,1,120); last=now; fflush() } next } { print; fflush() } END { if (line) print substr(line,1,120) }'
fi
echo "Built ($preset) in $(($(date +%s) - start)) s."
