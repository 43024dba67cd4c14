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
    "engine": {"common", "kernels"},
    "kvtransfer": {"common", "proto"},
    "worker": {"common", "proto", "kernels", "engine", "kvtransfer", "text"},
    "prefill_worker": {"common", "proto", "kernels", "engine", "kvtransfer", "worker"},
    "decode_worker": {"common", "proto", "kernels", "engine", "kvtransfer", "worker"},
    "router": {"common", "proto", "text"},
    "load": {"common"},
    "plan": {"common", "kernels", "engine", "worker"},
}
# One room of a folder that may depend on single headers of another.
SINGLE = {"engine/sampling/": {"text/compilation.h", "text/grammar.h", "text/grammar_kind.h"}}
EVERYTHING = {"cli", "sim", "tests", "bench"}
# Inside a folder: its rooms, and the rooms of the same folder that each may include from ("" is the folder itself, which
# may include all of its rooms unless it has a line here). A room that has no line is free.
ROOMS = {
    "engine/step": {"cache", "model", "parallel", "sampling"},
    "engine/cache": {"model"},
    "engine/model": {"model/config", "model/config/families", "model/files", "parallel"},
    "engine/model/config": {"model/config/families"},
    "engine/model/config/families": {"model/config"},
    "engine/model/files": {"model", "model/config"},
    "engine/parallel": {"model/config"},
    "engine/sampling": set(),
    "kernels": {"quantized"},
    "kernels/cpu": {"", "cpu/isa", "quantized"},
    "kernels/cuda": {"", "px", "runtime"},
    "kernels/cuda/attention": {"", "cuda", "cuda/kv", "px", "runtime"},
    "kernels/cuda/host": {"", "cuda", "cuda/attention", "cuda/instances", "cuda/kv", "cuda/linear", "cuda/moe", "cuda/rows", "plugin", "px", "quantized", "runtime"},
    "kernels/cuda/instances": {"", "cuda", "cuda/attention", "cuda/kv", "cuda/linear", "cuda/moe", "cuda/rows", "px", "runtime"},
    "kernels/cuda/kv": {"", "cuda", "px", "runtime"},
    "kernels/cuda/linear": {"", "cuda", "cuda/rows", "px", "quantized", "runtime"},
    "kernels/cuda/moe": {"", "cuda", "cuda/linear", "px", "runtime"},
    "kernels/cuda/rows": {"", "cuda", "cuda/kv", "px", "runtime"},
    "kernels/px": {"simt"},
    "kernels/runtime": {"px", "simt"},
    "kernels/simt": set(),
    "kvtransfer": set(),
    "kvtransfer/shm": {"", "tcp"},
    "kvtransfer/sim": {""},
    "kvtransfer/tcp": {""},
    "kvtransfer/transports": {"", "shm", "tcp", "ucx"},
    "kvtransfer/ucx": {""},
    "prefill_worker/handoff": set(),
    "decode_worker/handoff": set(),
    "router/admission": {""},
    "router/dialect": set(),
    "router/discovery": {"", "outbound"},
    "router/events": {"", "fleet"},
    "router/fleet": {"", "index", "outbound", "policy"},
    "router/grpc": {"", "admission", "request"},
    "router/http": {"", "admission", "dialect", "events", "request"},
    "router/index": set(),
    "router/metrics": {"", "fleet", "telemetry"},
    "router/outbound": {""},
    "router/policy": {""},
    "router/request": {"", "admission", "dialect", "events", "fleet", "metrics", "policy", "telemetry"},
    "router/telemetry": {"", "outbound"},
    "worker": set(),
    "worker/process": {"", "ranks", "relay", "transfer"},
    "worker/ranks": {"", "transfer"},
    "worker/relay": set(),
    "worker/transfer": set(),
}
# Includes against the arrows that stand today. None may be added; one that is gone must leave the list.
STANDING = set()
# Vendor headers stay inside their backend folder.
VENDOR = [
    (re.compile(r"^cuda(_runtime|_runtime_api)?\.h$|^cuda_(bf16|fp8|fp16)\.h$"), ("kernels/cuda/", "kernels/runtime/", "kernels/px/")),
    (re.compile(r"^uc[pts]/|^ucp\.h$"), ("kvtransfer/ucx/",)),
    (re.compile(r"^(oneapi/)?dnnl"), ("kernels/cpu/",)),
    (re.compile(r"^boost/beast"), ("router/http/", "common/http/", "common/asio/", "cli/http_client.cc")),
    (re.compile(r"^ares(_[a-z]+)?\.h$"), ("router/discovery/",)),
    (re.compile(r"^nghttp2/"), ("router/outbound/",)),
]
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
# Headers that may show generated messages: services and codecs.
PB_HEADER = re.compile(r"(service|codec|stream|client|reactor|relay|watch)[a-z_]*\.h$")


def breaches(root):
    standing = set(STANDING)
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
            continue
        name = path.relative_to(root).as_posix()
        folder = name.split("/")[0]
        if folder not in ALLOWED and folder not in EVERYTHING:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if match and (name, match.group(2)) in STANDING:
                standing.discard((name, match.group(2)))
            elif match and (reason := why_forbidden(name, folder, match.group(2))):
                yield f"{name}:{number}: #include {match.group(2)}: {reason}"
    for name, included in sorted(standing):
        yield f"{name} does not include {included} any more: take it off the list in check_includes.py"


def why_forbidden(name, folder, included):
    for pattern, homes in VENDOR:
        if pattern.search(included) and folder in ALLOWED and not name.startswith(homes):
            return f"belongs to {', '.join(homes)} only"
    if folder in EVERYTHING:
        return None
    if included.endswith(".pb.h") and name.endswith(".h") and not PB_HEADER.search(name):
        return "generated messages belong in headers of services and codecs only"
    target = included.split("/")[0]
    if "/" not in included or target not in ALLOWED | {f: set() for f in EVERYTHING}:
        return None
    if target == folder:
        return why_room(name, folder, included)
    if any(name.startswith(room) and included in headers for room, headers in SINGLE.items()):
        return None
    if target not in ALLOWED[folder]:
        return f"{folder} may not depend on {target}"
    return None


def why_room(name, folder, included):
    """Inside one folder."""
    home, target = name.rsplit("/", 1)[0], included.rsplit("/", 1)[0]
    if home == target or home not in ROOMS:
        return None
    room = target.removeprefix(folder).removeprefix("/")
    return None if room in ROOMS[home] else f"{home} may not depend on {target}"


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
    ("engine/sampling/a.cc", "text/tokenizer.h"),
    ("engine/step/a.cc", "text/grammar.h"),
    ("engine/step/tcp/a.cc", "proto/step.pb.h"),
    ("engine/cache/a.h", "engine/step/step_plan.h"),
    ("engine/model/a.cc", "engine/cache/kv_cache.h"),
    ("engine/model/config/families/a.cc", "engine/step/engine.h"),
    ("kernels/cpu/a.cc", "kernels/cuda/host/cuda_ops.h"),
    ("kernels/cuda/a.cc", "kernels/cpu/cpu_ops.h"),
    ("kernels/ops.h", "kernels/cpu/cpu_ops.h"),
    ("kvtransfer/slot_verify.cc", "kvtransfer/tcp/tcp_transport.h"),
    ("kvtransfer/ucx/a.cc", "kvtransfer/shm/shm_transport.h"),
    ("decode_worker/handoff/a.cc", "decode_worker/ticket_desk.h"),
    ("router/http/a.cc", "router/fleet/fleet.h"),
    ("router/policy/a.cc", "router/request/request_flow.h"),
    ("router/discovery/a.cc", "router/fleet/fleet.h"),
    ("router/fleet/a.cc", "ares.h"),
    ("load/a.cc", "router/http/http_server.h"),
    ("plan/a.cc", "router/policy/scorer.h"),
    ("load/summary.cc", "boost/beast/http.hpp"),
    ("engine/a.cc", "cuda_runtime.h"),
    ("kvtransfer/tcp/a.cc", "ucp/api/ucp.h"),
]


def self_test():
    missed = [(n, i) for n, i in PLANTED if not why_forbidden(n, n.split("/")[0], i)]
    fine = [("engine/sampling/a.h", "text/grammar.h"),
            ("worker/relay/codec.h", "proto/worker.pb.h"), ("engine/step/a.cc", "engine/cache/kv_cache.h"), ("router/server.cc", "router/http/a.h"),
            ("kernels/cuda/a.cc", "kernels/ops.h"), ("decode_worker/ticket_desk.cc", "decode_worker/handoff/handoff.h")]
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
