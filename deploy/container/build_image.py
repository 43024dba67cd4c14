#!/usr/bin/env python3
"""A container image, for CPUs or with a plugin for GPUs, without a container engine, a registry or root: Debian's packages that the program needs, file by file
into one layer. The same packages and program give the same digest: no times, no owners, sorted.

usage: build_image.py PACKAGE.deb OUT.tar [--cache DIR] [--cuda PLUGIN]     `make image` and `make image-cuda` do it
PLUGIN, libbaton_cuda.so, has CUDA's runtime within; the driver (libcuda.so.1) is the host's, which a container runtime for GPUs brings in.
OUT.tar is what `docker load` and `podman load` read, and an OCI layout (`skopeo copy oci-archive:OUT.tar …`); OUT.tar.spdx.json lists what
is in it. SOURCE_DATE_EPOCH (default 0) is every file's time."""
import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

import sbom

USER = 10001
PLUGIN = "usr/bin/libbaton_cuda.so"  # where the program looks without a flag: beside itself
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
ALONE = ["base-files", "ca-certificates", "coreutils", "dash"]  # without what they depend on: of coreutils, PROGRAMS alone
PROGRAMS = {"usr/bin/sleep", "usr/bin/test", "usr/bin/[", "usr/bin/dash", "usr/bin/sh"}
# Not needed to run: documents other than licences, translations, character sets, units, lists of other tools.
LEFT_OUT = re.compile(r"usr/share/(?!doc/[^/]+/copyright$|ca-certificates/|baton/)|usr/lib/(systemd|sysusers\.d|udev)/|usr/s?bin/|usr/lib/[^/]+/gconv/|"
                      r"usr/lib/[^/]+/(audit|pkgconfig|cmake)/|etc/(?!ssl/|os-release|debian_version)|var/|\S+\.(a|h|la)$|boot/|home/|root/|srv/|media/|mnt/|opt/")
TOP = {"bin", "sbin", "lib", "lib64", "libo32", "libx32", "lib32"}  # links into usr/


def fail(text):
    sys.exit(f"build_image: {text}")


def run(argv, **kw):
    result = subprocess.run(argv, capture_output=True, text=True, **kw)
    if result.returncode != 0:
        fail(f"{' '.join(argv[:3])}…: {(result.stderr or result.stdout).strip()[-600:]}")
    return result.stdout


def field(package, name):
    return run(["dpkg-deb", "-f", str(package), name]).strip()


def closure(package, cache):
    """The packages whose libraries the program needs, downloaded, by name: what a machine without any would install for them."""
    depends = [re.sub(r"[ (|].*", "", d.strip()) for d in field(package, "Depends").split(",")]
    wanted = sorted({d for d in depends if d != "passwd"})
    (cache / "partial").mkdir(parents=True, exist_ok=True)
    (cache / "status").write_text("")
    options = ["-o", f"Dir::State::status={cache}/status", "-o", f"Dir::Cache::archives={cache}", "-o", "Debug::NoLocking=1", "-o",
               "APT::Install-Recommends=0", "-o", "APT::Sandbox::User="]
    versions = dict(re.findall(r"^Inst (\S+) \((\S+)", run(["apt-get", *options, "-s", "install", *wanted]), re.M))
    run(["apt-get", *options, "-y", "--download-only", "install", *wanted])
    run(["apt-get", *options, "download", *ALONE], cwd=cache)
    alone = dict(re.findall(r"^Inst (\S+) \((\S+)", run(["apt-get", *options, "-s", "install", *ALONE]), re.M))
    reached = {name: versions[name] for name in closure_of(versions, wanted, cache)} | {name: alone[name] for name in ALONE}
    return {name: archive(name, reached[name], cache) for name in sorted(reached)}


def archive(name, version, cache):
    """A package's file; older ones may lie in the cache, too."""
    found = list(cache.glob(f"{name}_{version.replace(':', '%3a')}_*.deb"))
    return found[0] if found else fail(f"{name} {version} was not downloaded")


def closure_of(versions, wanted, cache):
    """Those that are reached by dependencies on libraries, not by what only a package's own installation runs (debconf, dpkg)."""
    provides = {}
    for name, version in versions.items():
        for virtual in filter(None, field(archive(name, version, cache), "Provides").split(",")):
            provides[re.sub(r"[ (].*", "", virtual.strip())] = name
    reached, todo = set(), list(wanted)
    while todo:
        name = todo.pop()
        name = name if name in versions else provides.get(name, name)
        if name in reached or name not in versions:
            continue
        reached.add(name)
        needs = re.sub(r"\([^)]*\)", "", field(archive(name, versions[name], cache), "Depends"))
        todo += [d.strip().removesuffix(":any") for d in re.split("[,|]", needs) if d.strip().startswith(("lib", "gcc", "ocl", "zlib", "ibverbs"))]
    return reached


def placed(name):
    """Where a package's file lies in the image: /lib and its like are links into /usr."""
    name = name.removeprefix("./").rstrip("/")
    return f"usr/{name}" if name.split("/")[0] in TOP else name


def files_of(package):
    """Path -> (member, bytes) of what the image takes of a package."""
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True).stdout
    out = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            path = placed(member.name)
            if member.isdir() or (LEFT_OUT.match(path) and path not in PROGRAMS and not path.startswith("usr/bin/baton")):
                continue
            if member.islnk():  # the same bytes again: rare and small
                target = tar.getmember(member.linkname)
                out[path] = (target, tar.extractfile(target).read())
            else:
                out[path] = (member, tar.extractfile(member).read() if member.isreg() else b"")
    return out


def entry(path, kind, mode, data=b"", link="", owner=0):
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.size, info.linkname, info.uid, info.gid, info.mtime = kind, mode, len(data), link, owner, owner, EPOCH
    return info, data


def own_files(packages, package, plugin):
    """What no package has: users, folders, links, the list of contents, the plugin."""
    text = {"etc/passwd": f"root:x:0:0:root:/:/bin/sh\nbaton:x:{USER}:{USER}:Baton:/tmp:/bin/sh\n", "etc/group": f"root:x:0:\nbaton:x:{USER}:\n",
            "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
            "usr/share/baton/sbom.spdx.json": sbom.document(packages, package, EPOCH, plugin)}
    out = {path: entry(path, tarfile.REGTYPE, 0o644, body.encode()) for path, body in text.items()}
    if plugin:
        out[PLUGIN] = entry(PLUGIN, tarfile.REGTYPE, 0o755, stripped(plugin))
    for top in ("bin", "sbin", "lib", "lib64"):
        out[top] = entry(top, tarfile.SYMTYPE, 0o777, link=f"usr/{top}")
    for folder in ("dev", "proc", "sys", "models", "etc/baton", "usr/sbin", "usr/lib64"):
        out[folder] = entry(folder, tarfile.DIRTYPE, 0o755)
    out["tmp"] = entry("tmp", tarfile.DIRTYPE, 0o1777)
    for folder in ("run/baton", "etc/baton/tls"):  # a volume that is mounted there takes its owner
        out[folder] = entry(folder, tarfile.DIRTYPE, 0o755, owner=USER)
    return out


def stripped(plugin):
    """A library without what only debuggers read; what it needs must be the program's, too, or the driver's."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "plugin.so"
        run(["strip", "--strip-unneeded", "-o", str(out), str(plugin)])
        return out.read_bytes()


def check_libraries(entries):
    """Every library that the plugin names is in the image, or the driver's."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(entries[PLUGIN][1])
        file.flush()
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run(["readelf", "-d", file.name]))
    names = {pathlib.PurePosixPath(name).name for name in entries}
    if absent := [n for n in needed if n not in names and n != "libcuda.so.1"]:
        fail(f"the plugin needs {', '.join(absent)}, which no package of the image has")


def layer(packages, package, plugin=None):
    """The layer's bytes, not compressed."""
    entries = {}
    for path in [*packages.values(), package]:
        for name, (member, data) in files_of(path).items():
            mode = member.mode & 0o755  # nobody becomes another user
            entries[name] = entry(name, tarfile.SYMTYPE, 0o777, link=member.linkname) if member.issym() else entry(name, tarfile.REGTYPE, mode, data)
    entries.update(own_files(packages, package, plugin))
    if plugin:
        check_libraries(entries)
    if "usr/bin/sh" not in entries:
        entries["usr/bin/sh"] = entry("usr/bin/sh", tarfile.SYMTYPE, 0o777, link="dash")
    certificates = b"".join(data for name, (_, data) in sorted(entries.items()) if name.startswith("usr/share/ca-certificates/"))
    entries = {name: e for name, e in entries.items() if not name.startswith("usr/share/ca-certificates/")}
    entries["etc/ssl/certs/ca-certificates.crt"] = entry("etc/ssl/certs/ca-certificates.crt", tarfile.REGTYPE, 0o644, certificates)
    for name in list(entries):
        for parent in pathlib.PurePosixPath(name).parents:
            if str(parent) != "." and str(parent) not in entries:
                entries[str(parent)] = entry(str(parent), tarfile.DIRTYPE, 0o755)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(entries):
            info, data = entries[name]
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def image(raw, version, cuda=False):
    """Name -> bytes of the archive, and the image's digest."""
    title = "baton-cuda" if cuda else "baton"
    env = ["PATH=/usr/bin", "BATON_READY_FILE=/run/baton/ready"]
    env += ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"] if cuda else []
    packed = gzip.compress(raw, 3, mtime=0)
    config = json.dumps({
        "architecture": run(["dpkg", "--print-architecture"]).strip(), "os": "linux", "created": sbom.time(EPOCH),
        "config": {
            "User": f"{USER}:{USER}", "Entrypoint": ["/usr/bin/baton"], "Cmd": ["help"], "WorkingDir": "/", "StopSignal": "SIGTERM",
            "Env": env, "ExposedPorts": {f"{p}/tcp": {} for p in (8000, 8001, 9100, 9101)},
            "Healthcheck": {"Test": ["CMD", "/usr/bin/test", "-e", "/run/baton/ready"], "Interval": 5 * 10**9, "StartPeriod": 3600 * 10**9},
            "Labels": {"org.opencontainers.image.title": title, "org.opencontainers.image.version": version,
                       "org.opencontainers.image.licenses": "Apache-2.0",
                       "org.opencontainers.image.description": "Serves large language models: prefill and decode on different workers"}},
        "rootfs": {"type": "layers", "diff_ids": [digest(raw)]}, "history": [{"created": sbom.time(EPOCH), "created_by": "deploy/container/build_image.py"}],
    }, sort_keys=True).encode()
    blob = lambda d: "blobs/sha256/" + digest(d)[7:]  # noqa: E731
    kind = "application/vnd.oci.image."
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": kind + "manifest.v1+json",
        "config": {"mediaType": kind + "config.v1+json", "digest": digest(config), "size": len(config)},
        "layers": [{"mediaType": kind + "layer.v1.tar+gzip", "digest": digest(packed), "size": len(packed)}]}, sort_keys=True).encode()
    index = json.dumps({"schemaVersion": 2, "manifests": [{
        "mediaType": kind + "manifest.v1+json", "digest": digest(manifest), "size": len(manifest),
        "annotations": {"org.opencontainers.image.ref.name": f"{title}:{version}"}}]}, sort_keys=True).encode()
    load = json.dumps([{"Config": blob(config), "RepoTags": [f"{title}:{version}"], "Layers": [blob(packed)]}]).encode()
    return {blob(packed): packed, blob(config): config, blob(manifest): manifest, "index.json": index, "manifest.json": load,
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}, digest(manifest)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("build/image/packages"), help="where packages are kept")
    parser.add_argument("--cuda", type=pathlib.Path, metavar="PLUGIN", help="libbaton_cuda.so, for GPUs")
    arguments = parser.parse_args()
    if arguments.cuda and not arguments.cuda.is_file():
        fail(f"{arguments.cuda} is not there: `make cuda` compiles it")
    packages = closure(arguments.package, arguments.cache.resolve())
    raw = layer(packages, arguments.package, arguments.cuda)
    files, name = image(raw, field(arguments.package, "Version"), bool(arguments.cuda))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(arguments.out, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(files):
            info, data = entry(path, tarfile.REGTYPE, 0o644, files[path])
            tar.addfile(info, io.BytesIO(data))
    pathlib.Path(f"{arguments.out}.spdx.json").write_text(sbom.document(packages, arguments.package, EPOCH, arguments.cuda))
    print(f"{arguments.out}: {name}, {len(raw) / 1e6:.0f} MB unpacked, {arguments.out.stat().st_size / 1e6:.0f} MB packed, {len(packages)} packages")


if __name__ == "__main__":
    main()
