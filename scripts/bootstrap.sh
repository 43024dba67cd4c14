#!/usr/bin/env bash
# Installs what building and running Baton needs on Debian 12, and says so first. Does nothing when all is there.
#   bootstrap.sh            packages for `make build`, `make demo` and `make test`
#   bootstrap.sh --clang    also clang 19 (sanitizers, fuzzing, clang-tidy, clang-format)
set -euo pipefail

packages=(
  g++ cmake make ninja-build pkg-config git ca-certificates ccache mold                 # build
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev                                  # gRPC
  libdnnl-dev libxxhash-dev libboost1.81-dev libssl-dev libc-ares-dev                   # kernels, hashing, HTTP, DNS
  libnghttp2-dev                                                                        # the streams from router to workers
  libsimdjson-dev nlohmann-json3-dev libyaml-cpp-dev libcli11-dev libspdlog-dev         # formats, flags, logs
  libucx-dev                                                                            # KV transfer
  libedit-dev                                                                           # what is typed into `baton chat`
  prometheus-cpp-dev                                                                    # metrics
  libmimalloc-dev                                                                       # the allocator
  libgtest-dev libgmock-dev                                                             # tests
  python3 python3-pip python3-venv                                                      # the model's package, cluster tests
  dpkg-dev file                                                                         # the Debian package: which libraries it needs
  iproute2                                                                              # tests over several hosts
)
[ "${1:-}" = --clang ] && packages+=(clang-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev lld-19)

cargo_is_enough() {  # tokenizers, minijinja and llguidance need Rust 1.87; the first on PATH, or Debian's
  local cargo version
  for cargo in cargo /usr/bin/cargo; do
    version=$("$cargo" --version 2>/dev/null | awk '{print $2}') || continue
    if [ -n "$version" ] && [ "$(printf '%s\n1.87.0\n' "$version" | sort -V | head -1)" = 1.87.0 ]; then return 0; fi
  done
  return 1
}

missing=()
installed=" $(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null | awk '$1=="installed"{printf "%s ", $2}')"
for package in "${packages[@]}"; do
  case "$installed" in *" $package "*) ;; *) missing+=("$package") ;; esac
done
cargo_is_enough || missing+=(cargo-web rustc-web)  # also where an older one is installed
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "bootstrap: this machine has no apt-get. Install the equivalents of: ${missing[*]}" >&2
  exit 2
fi
sudo=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "bootstrap: not root and no sudo. As root: apt-get install ${missing[*]}" >&2; exit 2; }
  sudo=(sudo)
fi
echo "Baton needs these Debian packages and installs them now (apt-get, no recommended extras):"
echo "  ${missing[*]}"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
start=$(date +%s)
if ! { "${sudo[@]}" apt-get update -qq && "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -20 "$log" >&2
  echo "bootstrap: apt-get failed (the lines above say why; full log: $log)" >&2
  exit 2
fi
rm -f "$log"
if ! cargo_is_enough; then
  echo "bootstrap: Baton needs Rust 1.87, Debian's cargo-web here is $(dpkg-query -W -f '${Version}' cargo-web). The suite bookworm-security" >&2
  echo "  has a newer one: add it to apt's sources and run this again." >&2
  exit 2
fi
echo "Installed in $(($(date +%s) - start)) s."
