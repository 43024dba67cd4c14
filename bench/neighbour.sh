#!/usr/bin/env bash
# A starved neighbour: a disaggregated cluster's rate beside a process that spins, as a ratio to its rate alone.
#   neighbour.sh [MODEL] [ROUNDS]     (default: the demo's model, 5 rounds; JSON on the last line)
# Rounds alternate alone / beside; the ratio is of medians. Fails when a worker was declared dead or a request failed.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:-$(scripts/fetch_model.sh --path)}
rounds=${2:-5}
folder=$(mktemp -d)
build/baton serve "$model" --prefill 1 --decode 1 --served-model-name model --port 0 --grpc-port 0 --admin-port 0 \
  --ready-file "$folder/ready" >"$folder/log" 2>&1 &
server=$!
spinner=
clean() {
  [ -z "$spinner" ] || kill "$spinner" 2>/dev/null || true
  kill -TERM "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  rm -rf "$folder"
}
trap clean EXIT
until [ -s "$folder/ready" ]; do
  kill -0 "$server" 2>/dev/null || { tail -5 "$folder/log" >&2; exit 1; }
  sleep 0.1
done
. "$folder/ready"  # BATON_HTTP

load() {  # one round; prints output tokens/s
  build/release/bench/bench_serve_load --url "$BATON_HTTP" --model model --clients 4 --requests 12 --max-tokens 64 --json "$folder/load.json" >"$folder/out"
  python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); assert r["failed"] == 0, r; print(r["output_tokens"] / r["seconds"])' "$folder/load.json"
}

load >/dev/null  # first touches
: >"$folder/alone"; : >"$folder/beside"
for _ in $(seq "$rounds"); do
  load >>"$folder/alone"
  (while :; do :; done) &
  spinner=$!
  load >>"$folder/beside"
  kill "$spinner"
  wait "$spinner" 2>/dev/null || true
  spinner=
done
lost=$(grep -cE 'lost:|declared dead' "$folder/log" || true)
python3 - "$folder/alone" "$folder/beside" "$lost" "$(nproc)" <<'PY'
import json, statistics, sys
alone, beside = ([float(line) for line in open(path)] for path in sys.argv[1:3])
a, b = statistics.median(alone), statistics.median(beside)
print(f"alone  {a:6.1f} tokens/s ({min(alone):.1f} to {max(alone):.1f})")
print(f"beside {b:6.1f} tokens/s ({min(beside):.1f} to {max(beside):.1f}) a spinning process on {sys.argv[4]} CPUs: {b / a:.2f}x (bar 0.30x); workers lost: {sys.argv[3]}")
print(json.dumps({"alone": alone, "beside": beside, "ratio": round(b / a, 3), "workers_lost": int(sys.argv[3]), "cpus": int(sys.argv[4])}))
sys.exit(0 if int(sys.argv[3]) == 0 else 1)
PY
