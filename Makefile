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
SANITIZERS = $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
ALL_CFLAGS = -std=gnu11 -D_GNU_SOURCE -DCORETAP_VERSION='"$(VERSION)"' $(WARNINGS) -I$(BUILD) \
	     -fPIC -fvisibility=hidden -MMD -MP $(SANITIZERS) $(CFLAGS)
ALL_LDFLAGS = $(SANITIZERS) $(LDFLAGS)

MACHINE := $(shell uname -m)
MULTIARCH := $(shell $(CC) -print-multiarch 2>/dev/null)

# Debian 12 calls it libmsgpackc, later ones libmsgpack-c.
MSGPACK := $(shell pkg-config --libs msgpack-c 2>/dev/null || pkg-config --libs msgpack 2>/dev/null || echo -lmsgpackc)

objects = $(patsubst %.c,$(BUILD)/%.o,$(1))
PROTOCOL = $(call objects,$(wildcard protocol/*.c))
BRIDGE = $(call objects,$(filter-out bridge/main.c,$(wildcard bridge/*.c)))
LIBRARY_SOURCES = $(wildcard clients/c/*.c)
LIBRARY = $(call objects,$(LIBRARY_SOURCES) protocol/catalogue.c protocol/decode.c protocol/json.c)
NATS = $(call objects,$(wildcard clients/nats/*.c) $(addprefix clients/c/command/,follow.c keygen.c output.c program.c times.c) bridge/key.c)
COMMAND = $(call objects,$(wildcard clients/c/command/*.c) bridge/probes.c bridge/operands.c bridge/log.c protocol/encode.c bridge/key.c)

# Where there is no libnats, what needs it is left out.
WITH_NATS := $(shell echo '\#include <nats/nats.h>' | $(CC) $(CFLAGS) -E - >/dev/null 2>&1 && echo coretap-nats)

all: $(addprefix $(BUILD)/,coretapd coretap $(WITH_NATS) libcoretap.a libcoretap.flags libcoretap.so coretap.pc fake_node \
		fake_node-v23 fake_node-v25 fake_node-v26)

.PHONY: lint valgrind bench-node all unit sanitized tsan coverage deps deps-tests deps-deb deps-js check test test-node demo explorer bench install uninstall dist deb clean format docs

FORCE:

# ---- the kernel side ----

$(BUILD)/coretap.bpf.o: bpf/coretap.bpf.c bpf/record.h | $(BUILD)
	$(CLANG) -O2 -g -target bpf -DTARGET_$(MACHINE) $(if $(MULTIARCH),-I/usr/include/$(MULTIARCH)) \
		-Wall -Wextra $(if $(CI),-Werror) -c $< -o $@

$(BUILD)/coretap.skel.h: $(BUILD)/coretap.bpf.o
	{ echo '/* NOLINTBEGIN */' && $(BPFTOOL) gen skeleton $< name coretap_bpf && echo '/* NOLINTEND */'; } > $@.tmp
	mv $@.tmp $@

# ---- the rest ----

$(BUILD):
	mkdir -p $@

$(BUILD)/bridge/tracer.o: $(BUILD)/coretap.skel.h

$(BUILD)/%.o: %.c | $(BUILD)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

$(BUILD)/coretapd: $(BUILD)/bridge/main.o $(BRIDGE) $(PROTOCOL)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lbpf -lelf -lzmq $(MSGPACK) -llmdb -lyaml -lmicrohttpd -lpthread

# One object in which only what coretap.h declares is visible: names inside may be anyone's.
$(BUILD)/libcoretap.a: $(LIBRARY)
	$(LD) -r $^ -o $(BUILD)/libcoretap.o && $(OBJCOPY) --localize-hidden $(BUILD)/libcoretap.o
	rm -f $@ && $(AR) rcs $@ $(BUILD)/libcoretap.o

$(BUILD)/libcoretap.so: $(LIBRARY)
	$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libcoretap.so.1 $^ -o $@ -lzmq

$(BUILD)/coretap: $(COMMAND) $(LIBRARY)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lelf -lzmq -lncursesw

$(BUILD)/coretap-nats: $(NATS) $(LIBRARY)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lnats -lzmq $(MSGPACK) -lpthread

# What a program of others must be linked with beside a sanitized or counted library: for the tests.
$(BUILD)/libcoretap.flags: FORCE | $(BUILD)
	@echo '$(strip $(ALL_LDFLAGS))' > $@

# Made anew each time: PREFIX may be another one.
$(BUILD)/coretap.pc: clients/c/coretap.pc.in FORCE | $(BUILD)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' $< > $@

# The simulated node is compiled plainly: its code is what is traced.
FAKE_NODE = $(wildcard tests/fake_node/*.c)
$(BUILD)/fake_node: $(FAKE_NODE) $(wildcard tests/fake_node/*.h) | $(BUILD)
	$(CC) -std=gnu11 $(WARNINGS) -O2 -g -DFAKE_NODE_ABI=29 $(FAKE_NODE) -o $@ -lpthread -lm

# ---- tests ----

# Sanitized twins of everything, for the tests that are not about rates.
SANITIZED = $(BUILD)/sanitized
UNIT = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/test_*.c))

$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(BRIDGE) $(PROTOCOL) $(LIBRARY)
	$(CC) $(ALL_LDFLAGS) $(sort $^) -o $@ $(UNIT_LIBS)

# What the C decoder says, for tests/conformance/test_hostile.py.
$(BUILD)/tests/conformance/verdict: $(BUILD)/tests/conformance/verdict.o $(PROTOCOL)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ $(MSGPACK)

UNIT_LIBS = -lbpf -lelf -lzmq $(MSGPACK) -llmdb -lyaml -lmicrohttpd -lpthread

unit: $(UNIT)

# What the tests start; the simulated node, which is traced, is always the plain one.
PROGRAMS = coretapd coretap $(WITH_NATS) libcoretap.a libcoretap.flags tests/conformance/verdict

sanitized:
	+$(MAKE) --no-print-directory BUILD=$(SANITIZED) SANITIZE=address,undefined CFLAGS="-O1 -g" \
		$(addprefix $(SANITIZED)/,$(PROGRAMS)) unit fuzz-programs

TEST_ENV = BUILD=$(BUILD) SANITIZED=$(SANITIZED)
UNIT_TESTS = $(patsubst %.c,$(SANITIZED)/%,$(wildcard tests/unit/test_*.c)) $(wildcard tests/unit/*.sh tests/unit/*.py)

check: all sanitized
	$(TEST_ENV) tests/run $(UNIT_TESTS) $(FUZZ_TESTS)

test: deps-tests deps-js
	+$(MAKE) --no-print-directory all sanitized
	$(TEST_ENV) tests/run $(UNIT_TESTS) $(FUZZ_TESTS) $(wildcard tests/e2e/test_*.py) \
		$(wildcard tests/conformance/test_*.py) $(wildcard tests/node/test_*.py)

# With clang's analyzer, which the tests leave out: some minutes.
lint: deps-js $(BUILD)/coretap.skel.h
	LINT=full BUILD=$(BUILD) tests/unit/test_lint.sh

valgrind: all unit
	$(TEST_ENV) tests/valgrind

test-node: all sanitized
	$(TEST_ENV) tests/run $(wildcard tests/node/test_*.py)

# What runs programs of this tree: packages and the container are built anew, and the other tests of
# conformance are about Python and JavaScript alone. On a slow machine a file of them takes long.
C_TESTS = $(filter-out %/test_package.py %/test_container.py,$(wildcard tests/e2e/test_*.py)) \
	$(patsubst %,tests/conformance/test_%.py,conformance hostile python javascript)
LONG = TEST_SECONDS=3600

# With ThreadSanitizer, for the threads of libzmq and libnats beside ours. What measures runs the plain
# programs, and is left out.
TSAN = $(BUILD)/tsan
TSAN_TESTS ?= $(filter-out $(patsubst %,tests/e2e/test_%.py,burst idle readme soak),$(C_TESTS))

tsan: all
	+$(MAKE) --no-print-directory BUILD=$(TSAN) SANITIZE=thread CFLAGS="-O1 -g" $(addprefix $(TSAN)/,$(PROGRAMS))
	$(LONG) BUILD=$(BUILD) SANITIZED=$(TSAN) tests/run $(TSAN_TESTS)

# Which lines and branches the tests reach. A tree of its own: counts are kept beside the objects. While
# tests run they are elsewhere, in files that all may write: some programs give up their user.
COVERAGE = $(BUILD)/coverage
COVERAGE_TESTS ?= $(filter-out tests/e2e/test_burst.py,$(C_TESTS)) # without optimisation nothing keeps that pace
GCOVR = gcovr --root . --object-directory $(COVERAGE) $(addprefix --filter ,bridge/ protocol/ clients/c/ clients/nats/) \
	--exclude-unreachable-branches --exclude-throw-branches --sort-percentage

coverage: all
	@command -v gcovr >/dev/null || { echo "wants gcovr: apt-get install gcovr" >&2; exit 1; }
	+$(MAKE) --no-print-directory BUILD=$(COVERAGE) CFLAGS="-O0 -g --coverage -fprofile-update=atomic" LDFLAGS=--coverage \
		all unit $(COVERAGE)/tests/conformance/verdict
	find $(COVERAGE) -name '*.gcda' -delete
	-export GCOV_PREFIX=$$(mktemp -d) && chmod 755 $$GCOV_PREFIX && \
	for program in $(filter coretap%,$(PROGRAMS)); do $(COVERAGE)/$$program --version; done && \
	find $$GCOV_PREFIX -name '*.gcda' -exec chmod a+w {} + ; \
	$(LONG) BUILD=$(COVERAGE) SANITIZED=$(COVERAGE) tests/run $(patsubst %.c,$(COVERAGE)/%,$(wildcard tests/unit/test_*.c)) \
		$(COVERAGE_TESTS); \
	cp -r $$GCOV_PREFIX$(CURDIR)/$(COVERAGE) $(BUILD) && rm -rf $$GCOV_PREFIX
	$(GCOVR) --txt $(COVERAGE)/report.txt --html-details $(COVERAGE)/report.html --print-summary

# ---- for people ----

demo: deps deps-js
	+$(MAKE) --no-print-directory all
	$(TEST_ENV) tests/demo

# A recording, served without root or a node: a simulated one unless RECORDING=FILE.
explorer: deps deps-js
	+$(MAKE) --no-print-directory $(BUILD)/coretap
	BUILD=$(BUILD) clients/explorer/play $(RECORDING)

docs: $(BUILD)/coretap
	$(BUILD)/coretap topics --json > protocol/events.json
	$(BUILD)/coretap topics --markdown > protocol/EVENTS.md
	/usr/bin/python3 clients/python/generate.py
	node clients/js/generate.js

format:
	clang-format -i $(shell git ls-files '*.c' '*.h')

DEBIAN = gcc make clang llvm bpftool libbpf-dev libelf-dev libzmq3-dev libmsgpack-dev liblmdb-dev libyaml-dev libmicrohttpd-dev \
	 linux-libc-dev libc6-dev systemtap-sdt-dev binutils pkg-config python3 python3-zmq python3-msgpack python3-bitcoinlib python3-yaml \
	 libncurses-dev mandoc libnats-dev
# What tests alone need: linters, a server, the browser in which the explorer's page is looked at.
DEBIAN_TESTS = clang-format clang-tidy cppcheck shellcheck flake8 nats-server openssl chromium
# What `make deb` wants beyond them.
DEBIAN_PACKAGING = build-essential debhelper dh-python dpkg-dev fakeroot pybuild-plugin-pyproject python3-all python3-setuptools

# What is missing is installed on Debian and its kin; elsewhere it is named.
deps: PACKAGES = $(DEBIAN)
deps-tests: PACKAGES = $(DEBIAN) $(DEBIAN_TESTS)
deps-deb: PACKAGES = $(DEBIAN) $(DEBIAN_PACKAGING)
deps deps-tests deps-deb:
	@if command -v dpkg-query >/dev/null; then \
		missing=; \
		for p in $(PACKAGES); do \
			dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q ' installed$$' || missing="$$missing $$p"; \
		done; \
		[ -z "$$missing" ] || { \
			[ "$$(id -u)" = 0 ] || { echo "missing:$$missing: run 'sudo make $@'" >&2; exit 1; }; \
			apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; }; \
	else \
		echo "Install what is missing of these, then go on:"; \
		echo "  Fedora: gcc make clang llvm bpftool libbpf-devel elfutils-libelf-devel zeromq-devel msgpack-c-devel lmdb-devel libyaml-devel libmicrohttpd-devel systemtap-sdt-devel python3-zmq python3-msgpack python3-pyyaml"; \
		echo "  Arch:   gcc make clang llvm bpf libbpf libelf zeromq msgpack-c lmdb libyaml libmicrohttpd systemtap python-pyzmq python-msgpack python-yaml"; \
	fi

# Debian 12's Node is older than the JavaScript client and the explorer want; where there is one that
# serves, their tests run, elsewhere they are skipped.
JS_PLACES = clients/js clients/explorer clients/nats/examples
test lint: JS_PLACES += tests/lint
deps-js:
	@node -e 'process.exit(+process.versions.node.split(".")[0] >= 20 ? 0 : 1)' 2>/dev/null || \
		{ echo "No Node 20 or later here: nothing of JavaScript will run, its tests will be skipped."; exit 0; }; \
	for place in $(JS_PLACES); do \
		[ $$place/node_modules/.package-lock.json -nt $$place/package-lock.json ] || \
			npm ci --ignore-scripts --no-audit --no-fund --prefix $$place || \
			echo "npm ci failed: what wants $$place will be skipped."; \
	done

INSTALL = install
SBINDIR = $(PREFIX)/sbin
BINDIR = $(PREFIX)/bin
LIBDIR = $(PREFIX)/lib
INCLUDEDIR = $(PREFIX)/include
MANDIR = $(PREFIX)/share/man
DOCDIR = $(PREFIX)/share/doc/coretap
SYSCONFDIR = $(if $(filter /usr /usr/local,$(PREFIX)),,$(PREFIX))/etc
UNITDIR = $(PREFIX)/lib/systemd/system
GENERATORDIR = $(UNITDIR)-generators
SYSUSERSDIR = $(PREFIX)/lib/sysusers.d
TMPFILESDIR = $(PREFIX)/lib/tmpfiles.d
BASHDIR = $(PREFIX)/share/bash-completion/completions
ZSHDIR = $(PREFIX)/share/zsh/site-functions
FISHDIR = $(PREFIX)/share/fish/vendor_completions.d

# What goes where, as MODE:FILE:PLACE; uninstall takes the same list.
INSTALLED = \
	755:$(BUILD)/coretapd:$(SBINDIR)/coretapd \
	755:$(BUILD)/coretap:$(BINDIR)/coretap \
	644:$(BUILD)/libcoretap.a:$(LIBDIR)/libcoretap.a \
	755:$(BUILD)/libcoretap.so:$(LIBDIR)/libcoretap.so.1 \
	644:$(BUILD)/coretap.pc:$(LIBDIR)/pkgconfig/coretap.pc \
	644:clients/c/coretap.h:$(INCLUDEDIR)/coretap.h \
	$(foreach page,$(wildcard bridge/man/*.[1-8] clients/c/man/*.[1-8] $(WITH_NATS:%=clients/nats/man/%.1)),\
		644:$(page):$(MANDIR)/man$(patsubst .%,%,$(suffix $(page)))/$(notdir $(page))) \
	644:protocol/README.md:$(DOCDIR)/README.md \
	644:protocol/EVENTS.md:$(DOCDIR)/EVENTS.md \
	644:protocol/events.json:$(DOCDIR)/events.json \
	$(foreach file,$(wildcard bridge/tracepoints/*.yaml),\
		644:$(file):$(PREFIX)/share/coretap/tracepoints/$(notdir $(file))) \
	$(foreach program,$(WITH_NATS),\
		755:$(BUILD)/$(program):$(BINDIR)/$(program) \
		644:clients/c/completions/coretap.bash:$(BASHDIR)/$(program) \
		644:clients/c/completions/coretap.fish:$(FISHDIR)/$(program).fish) \
	$(foreach file,alerts.yml dashboard.json,\
		644:bridge/monitoring/$(file):$(PREFIX)/share/coretap/monitoring/$(file)) \
	644:$(BUILD)/coretapd.service:$(UNITDIR)/coretapd.service \
	755:bridge/systemd/coretapd-generator:$(GENERATORDIR)/coretapd-generator \
	644:bridge/systemd/coretap.sysusers:$(SYSUSERSDIR)/coretap.conf \
	644:bridge/systemd/coretap.tmpfiles:$(TMPFILESDIR)/coretap.conf \
	644:bridge/completions/coretapd.bash:$(BASHDIR)/coretapd \
	644:clients/c/completions/coretap.bash:$(BASHDIR)/coretap \
	644:bridge/completions/_coretapd:$(ZSHDIR)/_coretapd \
	644:clients/c/completions/_coretap:$(ZSHDIR)/_coretap \
	644:bridge/completions/coretapd.fish:$(FISHDIR)/coretapd.fish \
	644:clients/c/completions/coretap.fish:$(FISHDIR)/coretap.fish

$(BUILD)/coretapd.service: bridge/systemd/coretapd.service FORCE | $(BUILD)
	sed -e 's|/usr/sbin/coretapd|$(SBINDIR)/coretapd|' -e 's|/etc/coretap/|$(SYSCONFDIR)/coretap/|' $< > $@

# Programs find the library only where the cache knows it; a package does this itself.
LDCONFIG = $(if $(DESTDIR),,@[ "$$(id -u)" != 0 ] || PATH="$$PATH:/sbin:/usr/sbin" ldconfig)

# The operator's own once it is there.
CONFIG = $(DESTDIR)$(SYSCONFDIR)/coretap/coretap.conf

install: all $(BUILD)/coretapd.service
	@set -e; for i in $(INSTALLED); do \
		mode=$${i%%:*} place=$${i##*:} file=$${i#*:}; file=$${file%:*}; \
		echo "$(INSTALL) $$file $(DESTDIR)$$place"; \
		$(INSTALL) -D -m "$$mode" "$$file" "$(DESTDIR)$$place"; \
	done
	ln -sf libcoretap.so.1 "$(DESTDIR)$(LIBDIR)/libcoretap.so"
	[ -e "$(CONFIG)" ] || $(INSTALL) -D -m 644 bridge/systemd/coretap.conf "$(CONFIG)"
	$(LDCONFIG)

uninstall:
	@for i in $(INSTALLED); do rm -fv "$(DESTDIR)$${i##*:}"; done
	! cmp -s bridge/systemd/coretap.conf "$(CONFIG)" || rm -f "$(CONFIG)"
	rm -f "$(DESTDIR)$(LIBDIR)/libcoretap.so"
	@for directory in "$(DESTDIR)$(DOCDIR)" "$(DESTDIR)$(PREFIX)/share/coretap"/* "$(DESTDIR)$(PREFIX)/share/coretap" \
			"$(DESTDIR)$(SYSCONFDIR)/coretap"; do \
		[ ! -d "$$directory" ] || rmdir -v --ignore-fail-on-non-empty "$$directory"; \
	done
	$(LDCONFIG)

# ---- to hand out ----

DIST = coretap-$(VERSION)

# What git knows, as it stands in the work tree: a tarball is never made of something else.
dist: | $(BUILD)
	rm -rf $(BUILD)/$(DIST) && mkdir $(BUILD)/$(DIST)
	{ [ -e .git ] && git -c safe.directory='*' ls-files 2>/dev/null || \
		find . -type f ! -path './$(BUILD)/*' ! -path './.git' ! -path './.git/*' ! -path '*/node_modules/*' ! -path '*/__pycache__/*'; } | \
		tar -cf - -T - | tar -xf - -C $(BUILD)/$(DIST)
	tar -C $(BUILD) --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
		--mtime=@$${SOURCE_DATE_EPOCH:-$$([ -e .git ] && git -c safe.directory='*' log -1 --format=%ct 2>/dev/null || stat -c %Y Makefile)} \
		-cf - $(DIST) | gzip -9n > $(BUILD)/$(DIST).tar.gz
	rm -rf $(BUILD)/$(DIST)

# Debian packages, in build/deb.
deb: deps-deb dist
	rm -rf $(BUILD)/deb && mkdir $(BUILD)/deb
	tar -C $(BUILD)/deb -xf $(BUILD)/$(DIST).tar.gz
	cp -r bridge/debian $(BUILD)/deb/$(DIST)/debian
	bridge/debian/changelog.sh $(VERSION) > $(BUILD)/deb/$(DIST)/debian/changelog
	cd $(BUILD)/deb/$(DIST) && env -u MAKEFLAGS -u MAKELEVEL PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		dpkg-buildpackage -us -uc -b
	rm -rf $(BUILD)/deb/$(DIST)

include tests/bench/bench.mk
include tests/fuzz/fuzz.mk

# Older Cores: other probes and widths. fake_node --abi v23 runs the one beside it.
$(BUILD)/fake_node-v%: $(FAKE_NODE) $(wildcard tests/fake_node/*.h) | $(BUILD)
	$(CC) -std=gnu11 $(WARNINGS) -O2 -g -DFAKE_NODE_ABI=$* $(FAKE_NODE) -o $@ -lpthread -lm

clean:
	rm -rf $(BUILD)

-include $(shell find $(addprefix $(BUILD)/,bench bridge clients protocol tests) -name '*.d' 2>/dev/null)
