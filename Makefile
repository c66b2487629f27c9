# coretap: no configure step. `make deps` installs what is missing, `make` builds into build/.
VERSION = 0.1.0

CC ?= gcc
CLANG ?= clang
BPFTOOL ?= $(firstword $(wildcard /usr/sbin/bpftool) bpftool)
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
LIBRARY_SOURCES = $(filter-out clients/c/command%.c,$(wildcard clients/c/*.c))
LIBRARY = $(call objects,$(LIBRARY_SOURCES) protocol/catalogue.c protocol/decode.c)
COMMAND = $(call objects,$(wildcard clients/c/command*.c) bridge/probes.c bridge/operands.c bridge/log.c)

all: $(addprefix $(BUILD)/,coretapd coretap libcoretap.a libcoretap.so coretap.pc fake_node)

.PHONY: all deps check test test-node demo bench install uninstall clean format docs

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
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lbpf -lelf -lzmq -lmsgpackc -lpthread

$(BUILD)/libcoretap.a: $(LIBRARY)
	rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libcoretap.so: $(LIBRARY)
	$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libcoretap.so.1 $^ -o $@ -lzmq -lmsgpackc

$(BUILD)/coretap: $(COMMAND) $(BUILD)/libcoretap.a
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lelf -lzmq -lmsgpackc

$(BUILD)/coretap.pc: clients/c/coretap.pc.in Makefile | $(BUILD)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' $< > $@

# The simulated node is compiled plainly: its code is what is traced.
FAKE_NODE = $(wildcard tests/fake_node/*.c)
$(BUILD)/fake_node: $(FAKE_NODE) $(wildcard tests/fake_node/*.h) | $(BUILD)
	$(CC) -std=gnu11 -D_GNU_SOURCE $(WARNINGS) -O2 -g -DFAKE_NODE_ABI=29 $(FAKE_NODE) -o $@ -lpthread -lm

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
