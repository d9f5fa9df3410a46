# Every target sets up what it needs. Only git, make and python3 are taken for granted (Debian 12).
#
#   make demo [ARGS='--json --seconds 8']   run the agent on a self-made testbed
#   make test                               install everything and run all tests
#   make bpf [IF=eth1]                      build the programs and load them through the verifier; attach with IF=
#   make unload IF=eth1                     detach them again
#   make rig CMD='uname -a' [RIG='--numa --kernel 6.1']    run a command in a guest with emulated NICs (docs/rig.md)
#   make test-rig [ARGS=--all]              run the tests that need a driver with IRQs, a PHC, hardware stamps
#   make kernels                            see what each kernel has and lacks, and write docs/kernels.md
#   make bench-clock                        figures of the clock, on synthetic clocks and recordings
#   make train [ARGS=--all-ways]            train the clock's LSTM anew: ten minutes, and PyTorch is fetched
#   make ablation                           what it earns, and what each part of its training does, to docs/results/
#   make bench-ingest                       figures of batch windows, on video frames into a detector
#   make bench-control                      figures of the control, against static settings, as loads move
#   make bench | make lint | make format | make clean

# BCC's Python package is visible to the system's interpreter only.
PYTHON  := /usr/bin/python3
VENV    := .venv
BIN     := $(VENV)/bin
CLANG   ?= clang
STRIP   ?= llvm-strip
BPF_DIR := build/bpf
ARCH    := $(shell uname -m | sed 's/x86_64/x86/;s/aarch64/arm64/')

BPF_OBJECTS := $(patsubst bpf/%.bpf.c,$(BPF_DIR)/%.bpf.o,$(wildcard bpf/*.bpf.c))
BPF_HEADERS := $(wildcard bpf/*.h)
TRAIN_VENV  := build/train-venv
CHRONYD     := build/chrony/usr/sbin/chronyd
TESTBED     := $(patsubst tools/testbed/%.c,build/testbed/%,$(wildcard tools/testbed/*.c))

RIG_CACHE   := build/rig
RIG_KERNELS := 6.1 6.12
TESTNIC     := $(RIG_KERNELS:%=$(RIG_CACHE)/testnic-%/testnic.ko)
RUN_RIG     := $(PYTHON) tests/rig/rig.py
.PRECIOUS: $(RIG_CACHE)/%/.unpacked

.PHONY: all demo test bpf unload rig test-rig kernels bench bench-clock bench-control bench-ingest train ablation lint format clean deps
all: $(VENV)/.installed $(BPF_OBJECTS)

build/.deps: tools/install-deps.sh
	sh tools/install-deps.sh
	@mkdir -p build && touch $@
deps: build/.deps

$(VENV)/.installed: build/.deps pyproject.toml setup.py agent/ffi/build_native.py $(wildcard agent/ffi/*.[ch]) bpf/records.h
	test -x $(BIN)/python || $(PYTHON) -m venv --system-site-packages $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev,examples]' --config-settings editable_mode=compat
	@touch $@

$(BPF_DIR)/%.bpf.o: bpf/%.bpf.c $(BPF_HEADERS) build/.deps
	@mkdir -p $(@D)
	$(CLANG) -O2 -g -target bpf -mcpu=v3 -D__TARGET_ARCH_$(ARCH) -I/usr/include/$(shell uname -m)-linux-gnu \
		-Wall -Werror -c $< -o $@
	$(STRIP) -g $@

build/testbed/%: tools/testbed/%.c tools/testbed/payload.h build/.deps
	@mkdir -p $(@D)
	$(CC) -O2 -g -Wall -Wextra -Werror -o $@ $< -lpthread -lm

$(CHRONYD): tools/unpack-chrony.sh
	sh tools/unpack-chrony.sh build/chrony
	@touch $@

$(RIG_CACHE)/%/.unpacked: tests/rig/unpack.sh
	sh tests/rig/unpack.sh $(RIG_CACHE) $*
	@touch $@

$(RIG_CACHE)/testnic-%/testnic.ko: tests/rig/testnic/testnic.c tests/rig/testnic/Kbuild $(RIG_CACHE)/kernel-%/.unpacked build/.deps
	@mkdir -p $(@D)
	cp tests/rig/testnic/testnic.c tests/rig/testnic/Kbuild $(@D)
	$(MAKE) -C $(RIG_CACHE)/kernel-$*/usr/src/linux-headers-*-amd64 M=$(abspath $(@D)) CONFIG_DEBUG_INFO_BTF_MODULES= modules

demo: all $(TESTBED)
	$(BIN)/agent demo $(ARGS)

test: all $(TESTBED) $(CHRONYD)
	$(BIN)/python -m pytest $(ARGS)

bpf: all
	$(BIN)/agent bpf verify
	$(if $(IF),$(BIN)/agent bpf attach -i $(IF) $(if $(NETNS),--netns $(NETNS)))

unload: all
	$(if $(IF),,$(error name the interface: make unload IF=eth1))
	$(BIN)/agent bpf detach -i $(IF) $(if $(NETNS),--netns $(NETNS))

rig: all $(RIG_CACHE)/host/.unpacked $(TESTNIC)
	$(if $(CMD),,$(error give a command: make rig CMD='uname -a'))
	$(RUN_RIG) $(RIG) -- sh -c '$(subst ','\'',$(CMD))'

test-rig: all $(TESTBED) $(RIG_CACHE)/host/.unpacked $(TESTNIC)
	@mkdir -p $(RIG_CACHE)/results
	RIG_RESULTS=$(abspath $(RIG_CACHE))/results $(RUN_RIG) --numa --limit 1800 --writable $(RIG_CACHE)/results $(RIG) -- \
		$(BIN)/python -m pytest -p no:cacheprovider --timeout 600 tests/rig --ignore tests/rig/test_kernel.py $(ARGS)

# All kernels are looked at, whatever one of them lacks; the page is written when each could be.
kernels: all $(TESTBED) $(RIG_CACHE)/host/.unpacked $(TESTNIC)
	@mkdir -p $(RIG_CACHE)/results && rm -f $(RIG_CACHE)/results/kernel-*.json
	failed=; export RIG_RESULTS=$(abspath $(RIG_CACHE))/results; \
	for kernel in $(RIG_KERNELS); do \
		$(RUN_RIG) --kernel $$kernel --limit 900 --writable $(RIG_CACHE)/results -- \
			$(BIN)/python -m pytest -p no:cacheprovider --timeout 600 tests/rig/test_kernel.py || failed=1; \
	done; \
	KERNEL_SURVEY=1 $(BIN)/python -m pytest tests/rig/test_kernel.py || failed=1; \
	$(BIN)/python -m tests.rig.kernelspage $(RIG_CACHE)/results docs/kernels.md && test -z "$$failed"

bench: all $(TESTBED)
	$(BIN)/python -m tools.bench $(ARGS)

bench-clock: all
	$(BIN)/python -m tools.bench.clock $(ARGS)

# PyTorch is large, and nothing but the training needs it.
$(TRAIN_VENV)/.installed: $(VENV)/.installed
	test -x $(TRAIN_VENV)/bin/python || $(PYTHON) -m venv --system-site-packages $(TRAIN_VENV)
	$(TRAIN_VENV)/bin/pip install --quiet --editable '.[train]' --config-settings editable_mode=compat
	@touch $@

train: $(TRAIN_VENV)/.installed
	nice -n 19 $(TRAIN_VENV)/bin/python -m tools.training $(ARGS)

ablation: all
	nice -n 19 $(BIN)/python -m tools.training.ablation --save $(ARGS)

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[dev,examples,bench]' --config-settings editable_mode=compat
	@touch $@

bench-ingest: all $(TESTBED) $(VENV)/.bench
	$(BIN)/python -m tools.bench.ingest $(ARGS)

bench-control: all $(TESTBED)
	$(BIN)/python -m tools.bench.control $(ARGS)

lint: all
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	clang-format --dry-run --Werror bpf/*.[ch] agent/ffi/*.[ch] tools/testbed/*.c tests/rig/testnic/*.c

format: all
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	clang-format -i bpf/*.[ch] agent/ffi/*.[ch] tools/testbed/*.c tests/rig/testnic/*.c

clean:
	rm -rf build $(VENV) agent/ffi/_native* *.egg-info
