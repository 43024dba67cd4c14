#!/usr/bin/env bash
# build.sh [preset] [target…]: configures when needed, builds, and says how long it took.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}; shift || true
start=$(date +%s)
if [ ! -f "build/$preset/build.ninja" ]; then
  export CCACHE_DEPEND=1  # what the compiler cache has not seen is not preprocessed before it is compiled: up to 1 s a batch
  echo "Configuring ($preset)…"
  mkdir -p build
  cmake --preset "$preset" >"build/configure-$preset.log" 2>&1 || { tail -30 "build/configure-$preset.log" >&2; exit 1; }
fi
if [ -t 1 ]; then
  cmake --build "build/$preset" ${1:+--target "$@"}
else  # not a terminal: a line every few seconds instead of one per file
  NINJA_STATUS='[%f/%t %es] ' cmake --build "build/$preset" ${1:+--target "$@"} 2>&1 | {
    line=
    said=-5
    while IFS= read -r line; do
      if [[ $line != '['* ]]; then
        echo "$line"
      elif ((SECONDS - said >= 5)); then
        echo "${line:0:120}"
        said=$SECONDS
        line=
      fi
    done
    [[ $line != '['* ]] || echo "${line:0:120}"
  }
fi
echo "Built ($preset) in $(($(date +%s) - start)) s."
