#!/usr/bin/env bash
# All tests: C++ (ctest), then whole clusters of real processes. Prints one closing line, and then what was skipped, why
# and how much that is.
#   test.sh [ctest arguments]
set -uo pipefail
cd "$(dirname "$0")/.."
scripts/fetch_model.sh >/dev/null || echo "test: the demo model could not be fetched; its tests are skipped"
scripts/test_venv.sh || true
scripts/deploy_tools.sh || true
ctest --preset release -j2 --no-tests=error "$@" 2>&1 | tee build/ctest.log
status=${PIPESTATUS[0]}
scripts/skips.py build/release/Testing/Temporary/LastTest.log || status=1
exit $status
