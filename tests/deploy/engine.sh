#!/usr/bin/env bash
# Starts a compose file's own services with podman and crun, asks the router, and stops them; nothing of it outlives the namespaces it runs in.
#   unshare --mount --net --pid --fork --kill-child --mount-proc engine.sh FOLDER ARCHIVE COMPOSE SERVICE…
# FOLDER gets `answer` and SERVICE.log. Exit 77, with the reason: no container runs on this machine.
set -euo pipefail
folder=$1 archive=$2 compose=$3
shift 3
mkdir -p "$folder"/{containers,networks}
umount /sys/fs/cgroup/unified 2>/dev/null || true # crun refuses machines that have both kinds of cgroups
mount -t tmpfs run /run
mkdir -p /var/lib/containers
mount --bind "$folder/containers" /var/lib/containers
ip link set lo up
cat >"$folder/containers.conf" <<CONF
[containers]
cgroups = "disabled"
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
runtime_supports_nocgroups = ["crun"]
[engine.runtimes]
crun = ["$(dirname "$(realpath "$0")")/crun"]
[network]
network_backend = "netavark"
network_config_dir = "$folder/networks"
CONF
export CONTAINERS_CONF=$folder/containers.conf TMPDIR=$folder
podman load -q -i "$archive" >/dev/null
podman run --rm --network none "$IMAGE" version >"$folder/trial" 2>&1 || { echo "podman runs no container here: $(tail -1 "$folder/trial")"; exit 77; }
podman-compose -f "$compose" up -d "$@" >"$folder/compose.log" 2>&1 # by name: this podman-compose knows no profiles
ask() { curl -sS --fail-with-body -m 60 "http://127.0.0.1:8000$1" "${@:2}" -H "Authorization: Bearer $BATON_API_KEY"; }
until ask /ready >"$folder/ready" 2>&1; do
  [ $SECONDS -lt 90 ] || break
  sleep 0.1
done
ask /v1/chat/completions -H 'Content-Type: application/json' -d @"$folder/question" >"$folder/answer" || true
for service in "$@"; do podman logs "$(basename "$(dirname "$compose")")_${service}_1" >"$folder/$service.log" 2>&1 || true; done
podman-compose -f "$compose" down >>"$folder/compose.log" 2>&1
