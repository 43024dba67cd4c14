#!/usr/bin/env bash
# What the tests of deploy/ want beside `make setup`, into build/deploy-tools; a test whose tool is missing is skipped and says so.
#   deploy_tools.sh --root    a fresh Debian to install the package on (needs root; a minute, 200 MB, once)
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build/deploy-tools
mkdir -p $tools

debian_root() {
  local root=$tools/debian part=$tools/debian.part mirror
  [ -e $root/etc/debian_version ] && return
  [ "$(id -u)" = 0 ] || { echo 'deploy_tools: --root needs root' >&2; return 1; }
  command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
  mirror=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
  [ -n "$mirror" ] || mirror=$(awk '$1=="deb"{print $2; exit}' /etc/apt/sources.list)
  rm -rf --one-file-system $part
  debootstrap --variant=minbase --include=ca-certificates bookworm $part "$mirror" >$tools/debian.log 2>&1 ||
    { tail -3 $tools/debian.log >&2; return 1; }
  rm -f $part/var/cache/apt/archives/*.deb
  for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do  # how this machine reaches its package index
    [ ! -e "$file" ] || install -D -m 644 "$(readlink -f "$file")" "$part$file"
  done
  find /etc/apt/apt.conf.d -type f ! -name 'docker-*' -exec cp {} $part/etc/apt/apt.conf.d/ \;
  mv $part $root
}

[ "${1:-}" != --root ] || debian_root
