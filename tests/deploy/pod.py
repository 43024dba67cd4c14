"""One container, as a kubelet would start it: a root of its own with the container's volumes, its user without privileges, its command and
environment to the letter. Runs as the first process of fresh namespaces (mounts, processes) inside the pod's network.

usage: ip netns exec POD unshare --mount --pid --fork --kill-child pod.py SPEC.json
The specification: root (an empty folder), image (its unpacked layer) or programs {path in the container: path here}, volumes [{path, files
{name: base64} | bind (writable with `rw`) | empty (of `size` bytes)}], hosts (lines), user, argv, env."""
import base64
import ctypes
import json
import os
import pathlib
import subprocess
import sys

PR_SET_NO_NEW_PRIVS = 38


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def bind(source, target, writable=False):
    if pathlib.Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount("--bind", source, target)
    if not writable:
        mount("-o", "remount,bind,ro", target)


def layered(root, image):
    """The image with a layer over it that takes the mount points; all of it is read only in the end."""
    mount("-t", "tmpfs", "layers", root)
    for folder in ("over", "work", "root"):
        (root / folder).mkdir(mode=0o755)
    mount("-t", "overlay", "-o", f"lowerdir={image},upperdir={root}/over,workdir={root}/work", "pod", root / "root")
    return root / "root"


def system(root, spec):
    """What a container gets from outside of its image."""
    for folder in ("proc", "dev", "sys", "etc"):
        (root / folder).mkdir(exist_ok=True)
    mount("-t", "proc", "proc", root / "proc")
    mount("--rbind", "/dev", root / "dev")
    mount("-t", "sysfs", "-o", "ro", "sysfs", root / "sys")
    (root / "etc" / "hosts").write_text("".join(f"{line}\n" for line in ["127.0.0.1 localhost", *spec["hosts"]]))


def programs(root, spec):
    """Without an image: this machine's libraries and a few of its programs."""
    for folder in ("lib", "lib64", "usr/lib", "usr/lib64"):
        if (here := pathlib.Path("/") / folder).is_symlink():
            (root / folder).symlink_to(os.readlink(here))
        elif here.exists():
            bind(here, root / folder)
    for path, source in spec["programs"].items():
        bind(source, root / path.lstrip("/"))
    (root / "bin").symlink_to("usr/bin")
    (root / "etc" / "passwd").write_text(f"baton:x:{spec['user']}:{spec['user']}::/:/usr/sbin/nologin\n")
    for name in ("ld.so.cache", "nsswitch.conf"):
        if os.path.exists(f"/etc/{name}"):
            bind(f"/etc/{name}", root / "etc" / name)


def volume(root, spec, what):
    """A Secret's files are the group's to read, an empty folder is the group's to write, a folder of the machine is read only."""
    target = root / what["path"].lstrip("/")
    if "bind" in what:
        return bind(what["bind"], target, what.get("rw", False))
    target.mkdir(parents=True, exist_ok=True)
    mount("-t", "tmpfs", "-o", f"mode=0770,gid={spec['user']}" + (f",size={what['size']}" if "size" in what else ""), "volume", target)
    for name, data in what.get("files", {}).items():
        file = target / name
        file.write_bytes(base64.b64decode(data))
        file.chmod(0o440)
        os.chown(file, 0, spec["user"])
    if "files" in what:
        mount("-o", "remount,ro", target)


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    root = pathlib.Path(spec["root"])
    mount("--make-rprivate", "/")
    if "image" in spec:
        root = layered(root, spec["image"])
    else:
        mount("-t", "tmpfs", "-o", "mode=0755", "pod", root)
    system(root, spec)
    if "programs" in spec:
        programs(root, spec)
    for what in spec["volumes"]:
        volume(root, spec, what)
    mount("-o", "remount,ro", root)
    os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setgid(spec["user"])
    os.setuid(spec["user"])
    assert ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    os.execve(spec["argv"][0], spec["argv"], spec["env"])


if __name__ == "__main__":
    main()
