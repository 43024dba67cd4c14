#!/usr/bin/env bash
# sanitize.sh [--build] asan|tsan [TARGET…]: builds and runs tests under a sanitizer (clang 19), or only builds them;
# without targets, those of cmake/sanitize-asan.txt or -tsan.txt.
# asan: AddressSanitizer + UBSan over everything that is affordable. tsan: targets that do not link gRPC (Debian's
# libgrpc is not instrumented and reports races of its own).
set -euo pipefail
cd "$(dirname "$0")/.."
only_build=; [ "$1" != --build ] || { only_build=1; shift; }
preset=$1; shift
scripts/bootstrap.sh --clang
mkdir -p build
targets=${*:-$(sed 's/#.*//' "cmake/sanitize-$preset.txt" | xargs)}
if [ ! -f "build/$preset/build.ninja" ]; then
  cmake --preset "$preset" >"build/configure-$preset.log" 2>&1 || { tail -30 "build/configure-$preset.log" >&2; exit 1; }
fi
ninja -C "build/$preset" build.ninja >/dev/null  # a build folder of an older tree lists older targets
available=$(ninja -C "build/$preset" -t targets all | cut -d: -f1)
chosen=()
for target in $targets; do
  if grep -qx "$target" <<<"$available"; then chosen+=("$target"); else echo "sanitize: $target does not exist" >&2; exit 1; fi
done
scripts/build.sh "$preset" "${chosen[@]}"
[ -z "$only_build" ] || exit 0
export HANDOFF_SIM_SEEDS=${HANDOFF_SIM_SEEDS:-200}  # all of them, and the planted bugs, run without sanitizers
export UCX_MEM_EVENTS=n  # UCX patches malloc under the sanitizer otherwise, and crashes
pattern="^($(IFS='|'; echo "${chosen[*]}"))\$"
ctest --preset "$preset" --no-tests=error -j2 -R "$pattern"
