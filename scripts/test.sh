#!/usr/bin/env bash
# All tests: C++ (ctest), then whole clusters of real processes. Prints one closing line, then how long the emulated GPU
# took, what was skipped, why and how much that is, and last what failed and why.
#   test.sh [ctest arguments]
set -uo pipefail
cd "$(dirname "$0")/.."
scripts/fetch_model.sh >/dev/null || echo "test: the demo model could not be fetched; its tests are skipped"
scripts/test_venv.sh || true
scripts/deploy_tools.sh || true
# Tests of clusters wait more than they work: three at a time for two cores, and at most eight, whose models fit 16 GiB.
cores=$(nproc)
at_a_time=$((cores + cores / 2 < 8 ? (cores > 1 ? cores + cores / 2 : 2) : 8))
ctest --preset release -j"$at_a_time" --no-tests=error "$@" 2>&1 | tee build/ctest.log
status=${PIPESTATUS[0]}
scripts/emulator_time.py build/release build/ctest.log
scripts/skips.py build/release/Testing/Temporary/LastTest.log || status=1
[ "$status" = 0 ] || scripts/failures.py build/release/Testing/Temporary/LastTest.log
exit $status
