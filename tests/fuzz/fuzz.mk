# Fuzzing; included by the main Makefile. `make fuzz` builds the targets, `make fuzz FUZZ_SECONDS=60`
# runs each for a minute, TARGET=records only that one. What is found, and the inputs that reach new
# code, are in build/fuzz. `make fuzz-corpus` makes the smallest set of inputs with the same coverage
# of what is there and in tests/fuzz/corpus, and puts it there.
FUZZ_BUILD = $(BUILD)/fuzz
FUZZ_TARGETS = $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
# Functions of targets.py and targets.mjs. Their fuzzers are built for fuzzing alone; test_clients.py
# runs what was found without them.
FUZZ_PYTHON = $(addprefix python_,subscriber recording position rules)
FUZZ_JS = $(if $(shell command -v node),$(addprefix js_,subscriber position))
FUZZ_CHOSEN = $(or $(TARGET),$(FUZZ_TARGETS) $(FUZZ_PYTHON) $(FUZZ_JS))
FUZZ_PROGRAMS = $(FUZZ_TARGETS:%=$(FUZZ_BUILD)/tests/fuzz/fuzz_%)
FUZZ_TESTS = $(FUZZ_TARGETS:%=$(SANITIZED)/tests/fuzz/fuzz_%) tests/fuzz/test_clients.py
FUZZ_SECONDS ?= 0

$(BUILD)/everything.a: $(BRIDGE) $(PROTOCOL) $(LIBRARY) $(COMMAND)
	rm -f $@ && $(AR) rcs $@ $(sort $^)

# With FUZZER clang's runtime has the main(), without it main.c.
$(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(if $(FUZZER),,$(BUILD)/tests/fuzz/main.o) $(BUILD)/everything.a
	$(CC) $(ALL_LDFLAGS) $(if $(FUZZER),-fsanitize=fuzzer) $^ -o $@ $(UNIT_LIBS)

$(BUILD)/tests/fuzz/python.o: ALL_CFLAGS += $(shell pkg-config --cflags python3-embed)
$(BUILD)/tests/fuzz/fuzz_python_%: $(BUILD)/tests/fuzz/python.o $(PROTOCOL)
	$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer $^ -o $@ -lmsgpackc $(shell pkg-config --libs python3-embed)

$(BUILD)/tests/fuzz/fuzz_js_%: $(BUILD)/tests/fuzz/js.o $(PROTOCOL)
	$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer $^ -o $@ -lmsgpackc

.SECONDARY: $(BUILD)/tests/fuzz/python.o $(BUILD)/tests/fuzz/js.o $(BUILD)/tests/fuzz/main.o $(FUZZ_TARGETS:%=$(BUILD)/tests/fuzz/fuzz_%.o)
.PHONY: fuzz fuzz-programs fuzz-build fuzz-corpus deps-fuzz

fuzz-programs: $(addprefix $(BUILD)/tests/fuzz/fuzz_,$(FUZZ_TARGETS) $(if $(FUZZER),$(FUZZ_PYTHON) $(FUZZ_JS)))

fuzz-build: deps-fuzz
	+$(MAKE) --no-print-directory BUILD=$(FUZZ_BUILD) CC=$(CLANG) FUZZER=1 \
		SANITIZE=address,undefined,fuzzer-no-link CFLAGS="-O1 -g" fuzz-programs

fuzz: fuzz-build
	@[ "$(FUZZ_SECONDS)" != 0 ] || exit 0; for t in $(FUZZ_CHOSEN); do \
		mkdir -p $(FUZZ_BUILD)/found $(FUZZ_BUILD)/corpus/$$t tests/fuzz/corpus/$$t; \
		like=$${t#*_}; dict=tests/fuzz/$$t.dict; [ -f $$dict ] || dict=tests/fuzz/$$like.dict; \
		echo "== $$t"; \
		nice -n 19 $(FUZZ_BUILD)/tests/fuzz/fuzz_$$t -max_total_time=$(FUZZ_SECONDS) \
			-timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
			-artifact_prefix=$(FUZZ_BUILD)/found/$$t- \
			$$([ ! -f $$dict ] || echo -dict=$$dict) \
			$(FUZZ_ARGS) $(FUZZ_BUILD)/corpus/$$t tests/fuzz/corpus/$$t \
			$$([ $$like = $$t ] || ls -d tests/fuzz/corpus/$$like 2>/dev/null) </dev/null || exit 1; \
	done

# Inputs with names of their own (findings, seeds) stay; those that are named by their sum are made
# anew.
fuzz-corpus: fuzz-build
	tests/fuzz/minimise $(FUZZ_BUILD) $(FUZZ_CHOSEN)

deps-fuzz:
	@+$(MAKE) --no-print-directory deps DEBIAN="clang libclang-rt-14-dev libmsgpack-dev libpython3-dev python3-zmq python3-msgpack python3-yaml"
	@+$(MAKE) --no-print-directory deps-js
