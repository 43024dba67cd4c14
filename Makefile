# Two commands: `make demo` (sets everything up, streams a real generation) and `make test` (passes all tests).
MODEL ?= $(shell scripts/fetch_model.sh --path)
PRESET ?= release
ARGS ?=

.PHONY: help setup build binary tools demo serve deb image image-cuda test cuda asan tsan asan-kernels tsan-kernels fuzz lint format clean

help:
	@echo 'make demo                     install what is missing, build, run a real model, stream two answers'
	@echo 'make test                     build and run every test'
	@echo 'make serve MODEL=<dir|.gguf>  leave a cluster running (default: the demo model); ARGS="--port 8000"'
	@echo 'make deb                      the Debian package, with systemd units'
	@echo 'make image | image-cuda       the container image, for docker load; image-cuda also for GPUs'
	@echo 'make build | binary | tools | asan | tsan | fuzz | cuda | lint | format | clean'

setup:
	@scripts/bootstrap.sh

build: setup
	@scripts/build.sh $(PRESET)

# What serves, without tests, tools and GPU kernels: a third of the work of `make build`.
binary: setup
	@scripts/build.sh $(PRESET) baton

# What `baton bench`, `baton plan` and `baton sim` are (build/baton starts it).
tools: setup
	@scripts/build.sh $(PRESET) baton baton-tools

demo: binary
	@scripts/demo.sh

serve: binary
	@scripts/fetch_model.sh --if-default "$(MODEL)"
	@exec build/baton serve "$(MODEL)" $(ARGS)

test: build
	@scripts/test.sh

asan tsan: setup
	@scripts/sanitize.sh $@

# The Debian package (docs/bare-metal.md).
deb: tools
	@cpack --config build/release/CPackConfig.cmake -B build/package >build/package.log || { tail -20 build/package.log >&2; exit 1; }
	@ls build/package/*.deb

# The container image of the CPU build, without root or a container engine.
image: deb
	@python3 deploy/container/build_image.py build/package/*.deb build/image/baton.tar

# The same with the plugin for GPUs; the driver is the host's.
image-cuda: deb
	@BATON_REQUIRE_CUDA=1 scripts/build_cuda.sh
	@python3 deploy/container/build_image.py build/package/*.deb build/image/baton-cuda.tar --cuda build/cuda/libbaton_cuda.so

# The kernels on the emulator under a sanitizer, all of them: some minutes, by hand. The gate's lists have a part of them.
asan-kernels tsan-kernels: setup
	@scripts/sanitize.sh $(@:-kernels=) $$(sed 's/#.*//' cmake/sanitize-kernels.txt)

fuzz: setup
	@scripts/fuzz.sh

cuda: setup
	@scripts/build_cuda.sh

lint: setup
	@scripts/lint.sh

format:
	@clang-format-19 -i $$(git ls-files '*.h' '*.cc')

clean:
	rm -rf build
