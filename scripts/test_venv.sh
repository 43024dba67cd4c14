#!/usr/bin/env bash
# Virtual environments under build/ with the public clients that the cluster tests run: build/venv (openai, langchain-openai, locust,
# schemathesis …), and build/venv-instructor, since instructor wants an older openai than the tests of openai do.
# Never needed to run Baton; without a package index the tests that use it are skipped with that reason.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
install() { # FOLDER REQUIREMENTS
  scripts/python_packages.sh "$1" "$2" && return
  echo "test_venv: the public clients of $2 could not be installed: $(tail -1 "$1.log")"
  failed=1
}
install build/venv tests/cluster/requirements.txt
install build/venv-instructor tests/cluster/requirements-instructor.txt
exit $failed
