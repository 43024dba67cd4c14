#!/usr/bin/env bash
# Prints the path of an nvcc: the installed toolkit's, else that of pinned Python wheels under build/cuda-toolchain.
# The emulator and `make test` need no CUDA file at all; this is for `make cuda` and bench/gpu only.
# Exit 3: there is no toolkit and none could be fetched (the reason is on stderr).
set -euo pipefail
cd "$(dirname "$0")/.."
if command -v nvcc >/dev/null && nvcc --version | grep -qE 'release 1[3-9]'; then
  command -v nvcc
  exit 0
fi
site=$PWD/build/cuda-toolchain/site
wheels=$(grep -vE '^(#|$)' scripts/cuda_wheels.txt)
if [ "$(cat "$site/.installed" 2>/dev/null)" != "$wheels" ]; then
  rm -rf "$site"
  mkdir -p "$site"
  if ! python3 -m pip install -q --disable-pip-version-check --no-deps --only-binary=:all: --target "$site" \
    -r scripts/cuda_wheels.txt >"$site.log" 2>&1; then
    echo "no CUDA toolkit 13 on PATH, and its wheels cannot be installed: $(tail -1 "$site.log")" >&2
    exit 3
  fi
  echo "$wheels" >"$site/.installed"
fi
nvcc=$site/nvidia/cu13/bin/nvcc
[ -e "$nvcc" ] || { echo "the wheels of scripts/cuda_wheels.txt hold no nvcc" >&2; exit 3; }
chmod +x "$nvcc" "$site"/nvidia/cu13/bin/* "$site"/nvidia/cu13/nvvm/bin/* 2>/dev/null || true
echo "$nvcc"
