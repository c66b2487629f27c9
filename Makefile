# coretap: no configure step. `make deps` installs what is missing, `make` builds into build/.
VERSION = 0.1.0

CC ?= gcc
CLANG ?= clang
BPFTOOL ?= $(firstword $(wildcard /usr/sbin/bpftool) bpftool)
OBJCOPY ?= objcopy
PREFIX ?= /usr/local
BUILD ?= build
CFLAGS ?= -O2 -g
WARNINGS = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes $(if $(CI),-Werror)
SANITIZERS = $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
ALL_CFLAGS = -std=gnu11 -D_GNU_SOURCE -DCORETAP_VERSION='"$(VERSION)"' $(WARNINGS) -I$(BUILD) \
	     -fPIC -fvisibility=hidden -MMD -MP $(SANITIZERS) $(CFLAGS)
ALL_LDFLAGS = $(SANITIZERS) $(LDFLAGS)

MACHINE := $(shell uname -m)
MULTIARCH := $(shell $(CC) -print-multiarch 2>/dev/null)

objects = $(patsubst %.c,$(BUILD)/%.o,$(1))
PROTOCOL = $(call objects,$(wildcard protocol/*.c))
BRIDGE = $(call objects,$(filter-out bridge/main.c,$(wildcard bridge/*.c)))
LIBRARY_SOURCES = $(wildcard clients/c/*.c)
LIBRARY = $(call objects,$(LIBRARY_SOURCES) protocol/catalogue.c protocol/decode.c protocol/json.c)
COMMAND = $(call objects,$(wildcard clients/c/command/*.c) bridge/probes.c bridge/operands.c bridge/log.c protocol/encode.c)

all: $(addprefix $(BUILD)/,coretapd coretap libcoretap.a libcoretap.so coretap.pc fake_node \
		fake_node-v23 fake_node-v25 fake_node-v26)

.PHONY: bench-node all unit sanitized deps deps-js check test test-node demo bench install uninstall clean format docs

# ---- the kernel side ----

$(BUILD)/coretap.bpf.o: bpf/coretap.bpf.c bpf/record.h | $(BUILD)
	$(CLANG) -O2 -g -target bpf -DTARGET_$(MACHINE) $(if $(MULTIARCH),-I/usr/include/$(MULTIARCH)) \
		-Wall -Wextra $(if $(CI),-Werror) -c $< -o $@

$(BUILD)/coretap.skel.h: $(BUILD)/coretap.bpf.o
	$(BPFTOOL) gen skeleton $< name coretap_bpf > $@.tmp && mv $@.tmp $@

# ---- the rest ----

$(BUILD):
	mkdir -p $@

$(BUILD)/bridge/tracer.o: $(BUILD)/coretap.skel.h

$(BUILD)/%.o: %.c | $(BUILD)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

$(BUILD)/coretapd: $(BUILD)/bridge/main.o $(BRIDGE) $(PROTOCOL)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lbpf -lelf -lzmq -lmsgpackc -llmdb -lyaml -lmicrohttpd -lpthread

# One object in which only what coretap.h declares is visible: names inside may be anyone's.
$(BUILD)/libcoretap.a: $(LIBRARY)
	$(LD) -r $^ -o $(BUILD)/libcoretap.o && $(OBJCOPY) --localize-hidden $(BUILD)/libcoretap.o
	rm -f $@ && $(AR) rcs $@ $(BUILD)/libcoretap.o

$(BUILD)/libcoretap.so: $(LIBRARY)
	$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libcoretap.so.1 $^ -o $@ -lzmq

$(BUILD)/coretap: $(COMMAND) $(LIBRARY)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lelf -lzmq

$(BUILD)/coretap.pc: clients/c/coretap.pc.in Makefile | $(BUILD)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' $< > $@

# The simulated node is compiled plainly: its code is what is traced.
FAKE_NODE = $(wildcard tests/fake_node/*.c)
$(BUILD)/fake_node: $(FAKE_NODE) $(wildcard tests/fake_node/*.h) | $(BUILD)
	$(CC) -std=gnu11 $(WARNINGS) -O2 -g -DFAKE_NODE_ABI=29 $(FAKE_NODE) -o $@ -lpthread -lm

# ---- tests ----

# Sanitized twins of everything, for the tests that are not about rates.
SANITIZED = $(BUILD)/sanitized
UNIT = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/test_*.c))

$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(BRIDGE) $(PROTOCOL) $(LIBRARY)
	$(CC) $(ALL_LDFLAGS) $(sort $^) -o $@ -lbpf -lelf -lzmq -lmsgpackc -llmdb -lyaml -lmicrohttpd -lpthread

unit: $(UNIT)

sanitized:
	+$(MAKE) --no-print-directory BUILD=$(SANITIZED) SANITIZE=address,undefined CFLAGS="-O1 -g" \
		$(SANITIZED)/coretapd $(SANITIZED)/coretap unit

TEST_ENV = BUILD=$(BUILD) SANITIZED=$(SANITIZED)
UNIT_TESTS = $(patsubst %.c,$(SANITIZED)/%,$(wildcard tests/unit/test_*.c)) $(wildcard tests/unit/*.sh tests/unit/*.py)

check: all sanitized
	$(TEST_ENV) tests/run $(UNIT_TESTS)

test: deps deps-js
	+$(MAKE) --no-print-directory all sanitized
	$(TEST_ENV) tests/run $(UNIT_TESTS) $(wildcard tests/e2e/test_*.py) \
		$(wildcard tests/conformance/test_*.py) $(wildcard tests/node/test_*.py)

test-node: all sanitized
	$(TEST_ENV) tests/run $(wildcard tests/node/test_*.py)

# ---- for people ----

demo: deps
	+$(MAKE) --no-print-directory all
	$(TEST_ENV) tests/demo

docs: $(BUILD)/coretap
	$(BUILD)/coretap topics --json > protocol/events.json
	$(BUILD)/coretap topics --markdown > protocol/EVENTS.md
	/usr/bin/python3 clients/python/generate.py
	node clients/js/generate.js

format:
	clang-format -i $(shell git ls-files '*.c' '*.h')

DEBIAN = gcc make clang llvm bpftool libbpf-dev libelf-dev libzmq3-dev libmsgpack-dev liblmdb-dev libyaml-dev libmicrohttpd-dev \
	 linux-libc-dev libc6-dev systemtap-sdt-dev binutils pkg-config python3 python3-zmq python3-msgpack python3-bitcoinlib

# What is missing is installed on Debian and its kin; elsewhere it is named.
deps:
	@if command -v dpkg-query >/dev/null; then \
		missing=; \
		for p in $(DEBIAN); do \
			dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q ' installed$$' || missing="$$missing $$p"; \
		done; \
		[ -z "$$missing" ] || { \
			[ "$$(id -u)" = 0 ] || { echo "missing:$$missing: run 'sudo make deps'" >&2; exit 1; }; \
			apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; }; \
	else \
		echo "Install what is missing of these, then go on:"; \
		echo "  Fedora: gcc make clang llvm bpftool libbpf-devel elfutils-libelf-devel zeromq-devel msgpack-c-devel lmdb-devel libyaml-devel libmicrohttpd-devel systemtap-sdt-devel python3-zmq python3-msgpack"; \
		echo "  Arch:   gcc make clang llvm bpf libbpf libelf zeromq msgpack-c lmdb libyaml libmicrohttpd systemtap python-pyzmq python-msgpack"; \
	fi

# Debian 12's Node is older than the JavaScript client wants; where there is one that serves, its
# tests run, elsewhere they are skipped.
deps-js:
	@node -e 'process.exit(+process.versions.node.split(".")[0] >= 20 ? 0 : 1)' 2>/dev/null || \
		{ echo "No Node 20 or later here: the JavaScript client's tests will be skipped."; exit 0; }; \
	[ clients/js/node_modules/.package-lock.json -nt clients/js/package-lock.json ] || \
		npm ci --ignore-scripts --no-audit --no-fund --prefix clients/js || \
		echo "npm ci failed: the JavaScript client's tests will be skipped."

INSTALL = install
DESTBIN = $(DESTDIR)$(PREFIX)/bin
DESTLIB = $(DESTDIR)$(PREFIX)/lib
DESTINCLUDE = $(DESTDIR)$(PREFIX)/include
DESTSHARE = $(DESTDIR)$(PREFIX)/share/coretap

install: all
	$(INSTALL) -d $(DESTBIN) $(DESTDIR)$(PREFIX)/sbin $(DESTLIB)/pkgconfig $(DESTINCLUDE) $(DESTSHARE)/tracepoints
	$(INSTALL) -m 755 $(BUILD)/coretapd $(DESTDIR)$(PREFIX)/sbin/
	$(INSTALL) -m 755 $(BUILD)/coretap $(DESTBIN)/
	$(INSTALL) -m 644 $(BUILD)/libcoretap.a $(DESTLIB)/
	$(INSTALL) -m 755 $(BUILD)/libcoretap.so $(DESTLIB)/libcoretap.so.1
	ln -sf libcoretap.so.1 $(DESTLIB)/libcoretap.so
	$(INSTALL) -m 644 $(BUILD)/coretap.pc $(DESTLIB)/pkgconfig/
	$(INSTALL) -m 644 clients/c/coretap.h $(DESTINCLUDE)/
	$(INSTALL) -m 644 protocol/README.md protocol/EVENTS.md protocol/events.json $(DESTSHARE)/
	$(INSTALL) -m 644 $(wildcard bridge/tracepoints/*.yaml) $(DESTSHARE)/tracepoints/

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/sbin/coretapd $(DESTBIN)/coretap $(DESTLIB)/libcoretap.a \
		$(DESTLIB)/libcoretap.so.1 $(DESTLIB)/libcoretap.so $(DESTLIB)/pkgconfig/coretap.pc \
		$(DESTINCLUDE)/coretap.h
	rm -rf $(DESTSHARE)

include tests/bench/bench.mk

# Older Cores: other probes and widths. fake_node --abi v23 runs the one beside it.
$(BUILD)/fake_node-v%: $(FAKE_NODE) $(wildcard tests/fake_node/*.h) | $(BUILD)
	$(CC) -std=gnu11 $(WARNINGS) -O2 -g -DFAKE_NODE_ABI=$* $(FAKE_NODE) -o $@ -lpthread -lm

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
