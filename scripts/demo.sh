#!/usr/bin/env bash
# The demo: router, prefill worker and decode worker on loopback with a real model, one answer over the OpenAI API and one
# over gRPC, the KV that moved between the workers, then a clean stop.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fetch_model.sh | sed '$d'
model=$(scripts/fetch_model.sh --path)
mkdir -p build
log=build/demo.log
ready=build/demo.ready
rm -f "$ready"

echo "Starting router, prefill worker and decode worker on loopback (log: $log)…"
build/baton serve "$model" --prefill 1 --decode 1 --served-model-name smollm2 --port 0 --grpc-port 0 --admin-port 0 --ready-file "$ready" >"$log" 2>&1 &
server=$!
trap 'kill -TERM $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
until [ -s "$ready" ]; do
  kill -0 $server 2>/dev/null || { tail -5 "$log" >&2; echo "demo: the server did not start (see $log)" >&2; exit 1; }
  sleep 0.05
done
. "$ready"  # BATON_HTTP, BATON_GRPC
grep -E 'KV cache size|Maximum concurrency|ready in' "$log" | sed 's/^/  /' || true

host=${BATON_HTTP#http://}
metric() { { exec 3<>"/dev/tcp/${1%:*}/${1##*:}"; printf 'GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3; cat <&3; exec 3>&-; } | tr -d '\r' | grep "^$2{" | grep 'role="prefill"' | head -1; }
# shipped MORE_THAN: the bytes that prefill sent, once a report tells of more than MORE_THAN of them (5 s at the most).
shipped() {
  local line
  for _ in {1..50}; do
    line=$(metric "$host" baton_kv_transfer_bytes_total || true)
    if awk -v least="$1" '{ exit !($NF > least) }' <<<"${line:-0}"; then break; fi
    sleep 0.1
  done
  echo "$line"
}

echo
echo "── OpenAI API, streamed: What is a relay race?"
build/baton chat --url "$BATON_HTTP" --message 'What is a relay race? Answer in two sentences.' --max-tokens 96 --temperature 0 --stats
echo
first=$(shipped 0)
echo "── gRPC, streamed: Name three fruits."
build/baton chat --grpc "$BATON_GRPC" --message 'Name three fruits.' --max-tokens 48 --temperature 0 --stats
echo
bytes=$(shipped "${first##* }")
rate=$(metric "$host" baton_kv_transfer_gigabytes_per_second)
peer=$(metric "$host" baton_kv_peer_gigabytes_per_second)
label() { sed -n "s/.*$1=\"\([^\"]*\)\".*/\1/p" <<<"$2"; }
echo "KV moved from prefill to decode: $(awk '{printf "%.1f MB", $NF / 1e6}' <<<"$bytes"), $(awk '{printf "%.2f GB/s", $NF}' <<<"$rate") gathered, sent, verified and placed"
echo "Its connection: $(label transport "$peer") ($(label path "$peer")), $(awk '{printf "%.2f GB/s", $NF}' <<<"$peer") in its self-test"
echo
echo "Try next:"
echo "  make serve                       # leaves this cluster running on port 8000"
echo "  build/baton chat                 # talk to it"
echo "  curl -N http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\"
echo "    -d '{\"model\":\"SmolLM2-135M-Instruct.Q4_1\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'"
kill -TERM $server
wait $server && status=0 || status=$?
trap - EXIT
[ $status -eq 0 ] || { tail -5 "$log" >&2; echo "demo: the server stopped with exit code $status" >&2; exit 1; }
echo "Stopped cleanly."
