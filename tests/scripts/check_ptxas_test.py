#!/usr/bin/env python3
"""The table of make cuda: a right build passes, and every number that changes for the worse is refused by name."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_ptxas.py"
KERNEL = "_ZN5baton4cuda10GemmKernelILi64EEEvNS0_6ParamsIiEE"
LOG = """ptxas info    : Compiling entry function '{kernel}' for 'sm_90a'
ptxas info    : Function properties for {kernel}
    0 bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers
"""
PTX = """.version 9.0
.visible .entry {kernel}(
\t.param .u32 a
)
{{
\t// begin inline asm
\t// px_shared {shared}
\t// end inline asm
{instructions}
}}
"""
INSTRUCTIONS = ["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f1};"] * 2 + [
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r2];", "cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;",
    "cp.async.bulk.tensor.2d.shared::cluster.global [%r1], [%rd1];", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];",
    "ld.global.nc.L1::no_allocate.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];", "griddepcontrol.wait;",
    "ld.global.u32 %r1, [%rd1];", "cp.async.commit_group;", "ld.global.u8 %r1, [%rd1];", "st.shared.u16 [%r1], %rs1;"
]


class Build:
    """A build folder with one kernel and its committed table."""

    def __init__(self, folder):
        self.folder, self.table = pathlib.Path(folder), pathlib.Path(folder) / "table.tsv"
        self.table.write_text("# a note\n")
        self.write()
        assert self.check("--update-table").returncode == 0

    def write(self, registers=96, spills=0, shared=4096, instructions=INSTRUCTIONS, kernel=KERNEL):
        stem = self.folder / "gemm.90a"
        stem.with_suffix(".90a.log").write_text(LOG.format(kernel=kernel, registers=registers, spills=spills))
        stem.with_suffix(".90a.ptx").write_text(PTX.format(kernel=kernel, shared=shared, instructions="\n".join(instructions)))

    def check(self, *more):
        return subprocess.run([sys.executable, SCRIPT, self.folder, self.table, *more], capture_output=True, text=True)


class CheckPtxas(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Build(folder.name)

    def refused(self, message):
        result = self.build.check()
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn(message, result.stdout)

    def test_a_build_that_is_what_was_committed_passes(self):
        self.assertEqual(self.build.check().returncode, 0)
        self.assertIn("GemmKernel<64>\t96\t0\t4096\t2\t1\t1\t0\t1\t2\t1\t1", self.build.table.read_text())
        self.assertIn("# a note", self.build.table.read_text())

    def test_fewer_registers_pass_more_do_not(self):
        self.build.write(registers=90)
        self.assertEqual(self.build.check().returncode, 0)
        self.build.write(registers=97)
        self.refused("GemmKernel<64> (sm_90a): 97 registers, the table says 96")

    def test_a_spill_is_refused_whatever_the_table_says(self):
        self.build.write(spills=8)
        self.refused("8 bytes of spills")
        self.assertEqual(self.build.check("--update-table").returncode, 1)

    def test_shared_memory_and_every_instruction_count(self):
        self.build.write(shared=4112)
        self.refused("shared 4112, the table says 4096")
        for i, (column, count) in {0: ("mma", 1), 2: ("ldmatrix", 0), 3: ("cp_async", 0), 4: ("tma", 0), 5: ("wide", 1),
                                   7: ("griddep", 0), 10: ("bytes", 0)}.items():
            self.build.write(instructions=INSTRUCTIONS[:i] + INSTRUCTIONS[i + 1:])
            self.refused(f"{column} {count}, the table says {count + 1}")

    def test_a_number_changed_in_the_table_is_seen(self):
        self.build.table.write_text(self.build.table.read_text().replace("\t96\t", "\t95\t"))
        self.refused("96 registers, the table says 95")

    def test_kernels_that_come_and_go(self):
        self.build.write(kernel=KERNEL.replace("Li64E", "Li32E"))
        self.refused("GemmKernel<32> (sm_90a): not in the table")
        self.refused("GemmKernel<64> (sm_90a): in the table, not built")

    def test_serialized_wgmma_is_refused_whatever_the_table_says(self):
        log = self.build.folder / "gemm.90a.log"
        log.write_text("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
                       "non wgmma instructions defining accumulator registers\n" + log.read_text())
        self.refused("gemm.90a: (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized")
        self.assertEqual(self.build.check("--update-table").returncode, 1)

    def test_sums_of_64_bits_in_shared_memory_are_refused_those_in_global_memory_are_not(self):
        self.build.write(instructions=[*INSTRUCTIONS, "atom.global.add.u64 %rd1, [%rd2], %rd3;", "atom.shared.add.u32 %r1, [%r2], %r3;"])
        self.assertEqual(self.build.check().returncode, 0)
        self.build.write(instructions=[*INSTRUCTIONS, "atom.shared.add.u64 %rd1, [%r1], %rd3;"])
        self.refused("gemm.90a: GemmKernel<64>: atom.shared.add.u64")

    def test_no_report_is_no_pass(self):
        for file in self.build.folder.glob("*.log"):
            file.unlink()
        self.assertNotEqual(self.build.check().returncode, 0)


if __name__ == "__main__":
    unittest.main()
