#!/usr/bin/env python3
"""-DBATON_CUDA=ON puts the plugin beside the program, fails when it cannot be built, and does nothing when it is off: a
small project with cmake/cuda.cmake, and a build script that only pretends."""
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
include({ROOT}/cmake/cuda.cmake)
add_executable(baton main.cc)
set_target_properties(baton PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${{CMAKE_BINARY_DIR}}/bin)
baton_cuda_plugin(baton)
"""
BUILDS = "#!/bin/bash\n[ $BATON_REQUIRE_CUDA = 1 ] && mkdir -p build/cuda && echo plugin >build/cuda/libbaton_cuda.so\n"


class CudaOption(unittest.TestCase):
    def built(self, option, script):
        """The exit status of a build, and the files beside the program."""
        with tempfile.TemporaryDirectory() as directory:
            root = pathlib.Path(directory)
            (root / "CMakeLists.txt").write_text(PROJECT)
            (root / "main.cc").write_text("int main() {}\n")
            (root / "scripts").mkdir()
            (root / "scripts/build_cuda.sh").write_text(script)
            (root / "scripts/build_cuda.sh").chmod(0o755)
            subprocess.run(["cmake", "-S", root, "-B", root / "b", f"-DBATON_CUDA={option}"], check=True, capture_output=True)
            status = subprocess.run(["cmake", "--build", root / "b"], capture_output=True, check=False).returncode
            return status, sorted(p.name for p in (root / "b/bin").glob("*"))

    def test_the_plugin_lies_beside_the_program(self):
        self.assertEqual(self.built("ON", BUILDS), (0, ["baton", "libbaton_cuda.so"]))

    def test_off_builds_no_plugin(self):
        self.assertEqual(self.built("OFF", BUILDS), (0, ["baton"]))

    def test_without_a_compiler_the_build_fails(self):
        status, files = self.built("ON", "#!/bin/bash\nexit 1\n")
        self.assertNotEqual(status, 0)
        self.assertNotIn("libbaton_cuda.so", files)


if __name__ == "__main__":
    unittest.main()
