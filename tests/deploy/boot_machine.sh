#!/usr/bin/env bash
# Boots the systemd of a Debian root in namespaces of its own. /root/trial/N are commands: a unit runs them in order when the machine is up,
# leaves N.out and N.code beside them, stops at the first that fails, and writes `done`.
#   unshare --mount --pid --fork --net --uts --ipc --cgroup --kill-child boot_machine.sh ROOT
set -euo pipefail
root=$1
cat >"$root/root/trial/run" <<'RUN'
touch /root/trial/started
for n in $(ls /root/trial | grep '^[0-9]*$' | sort -n); do
  code=0
  HOME=/root DEBIAN_FRONTEND=noninteractive /bin/sh "/root/trial/$n" >"/root/trial/$n.out" 2>&1 </dev/null || code=$?
  echo $code >"/root/trial/$n.code"
  [ $code = 0 ] || break
done
journalctl --no-pager -u 'baton-*' >/root/trial/journal 2>&1 || true
touch /root/trial/done
RUN
units=$root/etc/systemd/system
mkdir -p "$units/multi-user.target.wants"
printf '[Service]\nType=oneshot\nExecStart=/bin/sh /root/trial/run\n' >"$units/trial.service"
ln -sf /etc/systemd/system/trial.service "$units/multi-user.target.wants/trial.service"
ln -sf /lib/systemd/system/multi-user.target "$units/default.target"

mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind /dev/$device "$root/dev/$device"
done
mkdir "$root"/dev/{shm,pts,mqueue,hugepages}
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
if grep -q 'name=systemd' /proc/self/cgroup; then
  mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
  mkdir "$root/sys/fs/cgroup/systemd"
  mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
else
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
fi
ip link set lo up
cd "$root"
mkdir -p oldroot
pivot_root . oldroot
umount -l /oldroot
exec env -i container=other /lib/systemd/systemd --log-target=journal --show-status=no </dev/null
