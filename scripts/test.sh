#!/usr/bin/env bash
# All tests: C++ (ctest), then whole clusters of real processes. Prints one closing line and what was skipped and why.
#   test.sh [ctest arguments]
set -uo pipefail
cd "$(dirname "$0")/.."
scripts/fetch_model.sh >/dev/null || echo "test: the demo model could not be fetched; its tests are skipped"
scripts/test_venv.sh || true
ctest --preset release -j2 --no-tests=error "$@" 2>&1 | tee build/ctest.log
status=${PIPESTATUS[0]}
# Each skipped test with its reason, in GoogleTest's words and in unittest's.
awk '/: Skipped$/ { getline reason }
  /^\[  SKIPPED \] .* ms\)$/ { print "skipped: " $4 ": " reason }
  / \.\.\. skipped / { sub(/ \(.*\.\.\. skipped/, ":"); print "skipped: " $0 }' \
  build/release/Testing/Temporary/LastTest.log 2>/dev/null | sort -u || true
exit $status
