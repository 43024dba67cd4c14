#!/usr/bin/env python3
"""What make cuda must refuse, through the real compiler and the committed table: builds a copy of the tree as it is, which
passes, and one with a spill and missing instructions planted, each of which must be named. Takes what `make cuda` has
built and compiles only what the plants touch (sm_90a, a minute or two): by hand, after a change of the table or its check."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What is planted: file, what stands there, what instead, and what the check must say of it.
PLANTS = {
    "a spill": ("kernels/cuda/rows/sampler.cuh", "PX_BOUNDS(kRowThreads, PX_SM100_OR(1, 2))", "PX_BOUNDS(kRowThreads, 4)",
                "SampleKernel (sm_90a): {n} bytes of spills"),
    "wgmma left out": ("kernels/cuda/linear/gemm_wgmma.cuh", "kk < kGemmStepK / 16; ++kk) Wgmma<kColumns>(d",
                       "kk < kGemmStepK / 16; ++kk) if (kk > 0) Wgmma<kColumns>(d",
                       "WgmmaGemmKernel<WgmmaTile<128>,float> (sm_90a): wgmma {n}, the table says {n}"),
    "a copy through registers": ("kernels/cuda/attention/mla_decode.cuh",
                                 "px::CpAsync16(stage + Layout::Offset(row, chunk), kv.k + at, valid);",
                                 "px::StoreShared(reinterpret_cast<px::U128*>(stage + Layout::Offset(row, chunk)), "
                                 "valid ? px::Load(reinterpret_cast<const px::U128*>(kv.k + at)) : px::U128{});",
                                 "MlaDecodeKernel<bf16,true> (sm_90a): cp_async {n}, the table says {n}"),
    "a fragment loaded twice": ("kernels/cuda/attention/mla_decode.cuh",
                                "    px::MmaBf16(s[0], a, b[0], b[1]);",
                                "    px::MmaBf16(s[0], a, b[0], b[1]);\n"
                                "    px::LdMatrixX4(b, k + MlaLayout::Offset(k_row, 2 * d + k_chunk));",
                                "MlaDecodeKernel<bf16,true> (sm_90a): ldmatrix {n}, the table says {n}"),
    "no wait for the kernel before": ("kernels/cuda/rows/embedding.cuh", "  px::GridDependencyWait();\n", "",
                                      "EmbeddingKernel<bf16> (sm_90a): griddep 1, the table says 2"),
    "a vector taken apart": ("kernels/cuda/moe/moe_combine.cuh", "      LoadFour(p.y +", "      LoadApart(p.y +",
                             "MoeCombineKernel (sm_90a): wide {n}, the table says {n}"),
    "a vector read byte by byte": ("kernels/cuda/rows/soft_cap.cuh", "    px::Store(x, px::Mul(p.cap, px::Tanh(px::Load(x) / p.cap)));",
                                   "    float old;\n    memcpy(&old, reinterpret_cast<const char*>(x), 4);\n"
                                   "    px::Store(x, px::Mul(p.cap, px::Tanh(old / p.cap)));",
                                   "SoftCapKernel (sm_90a): bytes 4, the table says 0"),
}
LOAD_APART = """/// Four loads.
PX_DEVICE void LoadApart(const px::bf16* p, float (&out)[4]) {
  for (int i = 0; i < 4; ++i) out[i] = px::ToFloat(px::Load(p + i));
}
"""


def copy_tree(to):
    """The sources that make cuda reads, and what it built of them. The compiler is the same path: nothing is rebuilt."""
    names = subprocess.run(["git", "ls-files", "kernels", "common", "scripts"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in names.stdout.split():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    (to / "build/cuda").mkdir(parents=True)
    for file in (ROOT / "build/cuda").glob("*.90a.*"):
        shutil.copy2(file, to / "build/cuda")


def plant(to):
    for what, (file, old, new, _) in PLANTS.items():
        text = (to / file).read_text()
        assert text.count(old) == 1, f"{what}: {file} has changed"
        (to / file).write_text(text.replace(old, new))
    combine = to / "kernels/cuda/moe/moe_combine.cuh"
    combine.write_text(combine.read_text().replace("struct MoeCombineParams {", LOAD_APART + "struct MoeCombineParams {"))


def build(tree):
    nvcc = subprocess.run([ROOT / "scripts/cuda_toolchain.sh"], capture_output=True, text=True, check=True).stdout.strip()
    path = str(pathlib.Path(nvcc).parent) + os.pathsep + os.environ["PATH"]
    return subprocess.run(["scripts/build_cuda.sh"], cwd=tree, capture_output=True, text=True,
                          env=dict(os.environ, PATH=path, BATON_CUDA_ARCHS="90a", BATON_REQUIRE_CUDA="1"))


def said(output, message):
    """The line of the output that is the message, {n} being any number."""
    pieces = message.split("{n}")
    for line in output.splitlines():
        at = 0
        for piece in pieces:
            at = line.find(piece, at)
            if at < 0:
                break
            at += len(piece)
        else:
            return line
    return None


def main():
    if not list((ROOT / "build/cuda").glob("*.90a.o")):
        sys.exit("plant_ptxas_bugs: run make cuda first")
    bad = 0
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="planted.") as folder:
        tree = pathlib.Path(folder)
        copy_tree(tree)
        right = build(tree)
        print(f"{'nothing planted':32} {'passes' if right.returncode == 0 else 'REFUSED'}: {right.stdout.splitlines()[-1]}")
        bad += right.returncode != 0
        plant(tree)
        planted = build(tree)
        bad += planted.returncode == 0
        for what, (_, _, _, message) in PLANTS.items():
            line = said(planted.stdout, message)
            print(f"{what:32} {'NOT FOUND' if line is None else line}")
            bad += line is None
        if bad:
            print(right.stderr, planted.stdout, planted.stderr)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
