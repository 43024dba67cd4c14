#!/usr/bin/env bash
# python_packages.sh FOLDER REQUIREMENTS: a virtual environment with what the file lists, installed anew when the list has
# changed. By uv, which needs a fifth of pip's time, where the package index gives it; else by pip. A failure ends with 1; what went
# wrong is in FOLDER.log.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$1 list=$2 uv=build/uv/bin/uv
mkdir -p build
exec 8>build/.uv.lock
flock 8  # several scripts ask, also for the same folder: the gate installs while it builds
cmp -s "$list" "$folder/.requirements" && exit
if ! [ -x $uv ]; then
  rm -rf build/uv
  { /usr/bin/python3 -m venv build/uv && build/uv/bin/pip --disable-pip-version-check install -q --retries 1 --timeout 20 uv; } >build/uv.log 2>&1
fi
rm -rf "$folder"
by_uv() {
  [ -x $uv ] || return
  local index; index=$(build/uv/bin/pip config get global.index-url 2>/dev/null) && export UV_DEFAULT_INDEX=$index
  UV_HTTP_TIMEOUT=20 $uv venv -q --python /usr/bin/python3 "$folder" &&
    UV_HTTP_TIMEOUT=20 $uv pip install -q --python "$folder/bin/python" -r "$list"
}
by_pip() {
  rm -rf "$folder"
  /usr/bin/python3 -m venv "$folder" &&
    "$folder/bin/pip" --disable-pip-version-check install -q --retries 1 --timeout 20 -r "$list"
}
by_uv >"$folder.log" 2>&1 || by_pip >>"$folder.log" 2>&1 || exit 1
cp "$list" "$folder/.requirements"
