#!/usr/bin/env python3
"""Fails on an include that the architecture forbids (docs/architecture.md: folders and who may depend on whom).

usage: check_includes.py [ROOT]      --self-test plants breaches and checks that each is found
"""
import pathlib
import re
import sys

# folder -> folders it may include from (itself is always allowed)
ALLOWED = {
    "common": set(),
    "proto": set(),
    "text": {"common"},
    "kernels": {"common"},
    "engine": {"common", "kernels", "text"},
    "kvtransfer": {"common", "proto"},
    "worker": {"common", "proto", "kernels", "engine", "kvtransfer"},
    "prefill_worker": {"common", "proto", "kernels", "engine", "kvtransfer", "worker"},
    "decode_worker": {"common", "proto", "kernels", "engine", "kvtransfer", "worker"},
    "router": {"common", "proto", "text"},
}
EVERYTHING = {"cli", "sim", "tests", "bench"}
# Within engine: only sampling sees text (grammar masks), only the TCP step channel sees proto.
NARROW = {("engine", "text"): "engine/sampling/"}
EXTRA = {"engine/step/tcp/": {"proto"}}
# Vendor headers stay inside their backend folder.
VENDOR = [
    (re.compile(r"^cuda(_runtime|_runtime_api)?\.h$|^cuda_(bf16|fp8|fp16)\.h$"), ("kernels/cuda/", "kernels/runtime/", "kernels/px/")),
    (re.compile(r"^nccl\.h$"), ("engine/parallel/nccl/",)),
    (re.compile(r"^uc[pts]/|^ucp\.h$"), ("kvtransfer/ucx/",)),
    (re.compile(r"^(oneapi/)?dnnl"), ("kernels/cpu/",)),
    (re.compile(r"^boost/beast"), ("router/http/", "cli/http_client.cc")),
]
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
# Headers that may show generated messages: services and codecs.
PB_HEADER = re.compile(r"(service|codec|stream|client|reactor|relay|watch)[a-z_]*\.h$")


def breaches(root):
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
            continue
        name = path.relative_to(root).as_posix()
        folder = name.split("/")[0]
        if folder not in ALLOWED and folder not in EVERYTHING:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                reason = why_forbidden(name, folder, match.group(2))
                if reason:
                    yield f"{name}:{number}: #include {match.group(2)}: {reason}"


def why_forbidden(name, folder, included):
    for pattern, homes in VENDOR:
        if pattern.search(included) and folder in ALLOWED and not name.startswith(homes):
            return f"belongs to {', '.join(homes)} only"
    if folder in EVERYTHING:
        return None
    if included.endswith(".pb.h") and name.endswith(".h") and not PB_HEADER.search(name):
        return "generated messages belong in headers of services and codecs only"
    target = included.split("/")[0]
    if "/" not in included or target not in ALLOWED | {f: set() for f in EVERYTHING} or target == folder:
        return None
    extra = {t for prefix, targets in EXTRA.items() if name.startswith(prefix) for t in targets}
    if target not in ALLOWED[folder] | extra:
        return f"{folder} may not depend on {target}"
    home = NARROW.get((folder, target))
    if home and not name.startswith(home):
        return f"only {home} may depend on {target}"
    return None


PLANTED = [
    ("router/a.cc", "engine/step/engine.h"),
    ("router/a.cc", "kernels/ops.h"),
    ("engine/cache/a.h", "kvtransfer/transport.h"),
    ("kvtransfer/a.h", "engine/cache/block_pool.h"),
    ("prefill_worker/a.cc", "decode_worker/handoff.h"),
    ("decode_worker/a.cc", "prefill_worker/lanes.h"),
    ("engine/model/a.cc", "text/tokenizer.h"),
    ("engine/step/a.cc", "proto/worker.pb.h"),
    ("worker/config.h", "proto/worker.pb.h"),
    ("common/a.h", "kernels/ops.h"),
    ("engine/a.cc", "cuda_runtime.h"),
    ("kvtransfer/tcp/a.cc", "ucp/api/ucp.h"),
]


def self_test():
    missed = [(n, i) for n, i in PLANTED if not why_forbidden(n, n.split("/")[0], i)]
    fine = [("engine/sampling/a.cc", "text/grammar.h"), ("engine/step/tcp/a.cc", "proto/step.pb.h"), ("worker/codec.h", "proto/worker.pb.h")]
    wrong = [(n, i) for n, i in fine if why_forbidden(n, n.split("/")[0], i)]
    for n, i in missed:
        print(f"planted breach not found: {n} includes {i}")
    for n, i in wrong:
        print(f"allowed include refused: {n} includes {i}")
    return 1 if missed or wrong else 0


if __name__ == "__main__":
    if "--self-test" in sys.argv:
        sys.exit(self_test())
    found = list(breaches(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(found) if found else "includes: no breach")
    sys.exit(1 if found else 0)
