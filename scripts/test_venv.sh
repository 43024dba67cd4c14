#!/usr/bin/env bash
# A virtual environment under build/ with the public clients that the cluster tests run (openai, langchain-openai, locust, schemathesis).
# Never needed to run Baton; without a package index the tests that use it are skipped with that reason.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/venv
stamp=$venv/.requirements
[ -f "$stamp" ] && cmp -s "$stamp" tests/cluster/requirements.txt && exit 0
rm -rf $venv
/usr/bin/python3 -m venv $venv
if ! $venv/bin/pip --disable-pip-version-check install -q --retries 1 --timeout 20 -r tests/cluster/requirements.txt >build/venv.log 2>&1; then
  echo "test_venv: public clients could not be installed: $(tail -1 build/venv.log)"
  exit 1
fi
cp tests/cluster/requirements.txt "$stamp"
