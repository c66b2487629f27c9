# The programs of `make bench`; included by the main Makefile.
BENCH = $(addprefix $(BUILD)/bench/,baseline receiver client bare $(WITH_NATS:coretap-nats=nats))

$(BUILD)/bench/baseline.bpf.o: tests/bench/baseline.bpf.c tests/bench/baseline.h
	@mkdir -p $(@D)
	$(CLANG) -O2 -g -target bpf -D__TARGET_ARCH_$(patsubst aarch64,arm64,$(patsubst x86_64,x86,$(MACHINE))) \
		$(if $(MULTIARCH),-I/usr/include/$(MULTIARCH)) -Wall -c $< -o $@

$(BUILD)/bench/baseline.skel.h: $(BUILD)/bench/baseline.bpf.o
	$(BPFTOOL) gen skeleton $< name baseline > $@.tmp && mv $@.tmp $@

$(BUILD)/tests/bench/baseline.o: $(BUILD)/bench/baseline.skel.h
$(BUILD)/tests/bench/baseline.o: ALL_CFLAGS += -I$(BUILD)/bench

$(BUILD)/bench/baseline: $(call objects,tests/bench/baseline.c bridge/probes.c bridge/operands.c bridge/log.c)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lbpf -lelf

$(BUILD)/bench/receiver: $(call objects,tests/bench/receiver.c tests/bench/envelope.c)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lzmq

$(BUILD)/bench/client: $(call objects,tests/bench/client.c) $(BUILD)/libcoretap.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lzmq $(MSGPACK)

$(BUILD)/bench/nats: $(call objects,tests/bench/nats.c)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lnats

$(BUILD)/bench/bare: $(call objects,tests/bench/bare.c)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $^ -o $@ -lzmq $(MSGPACK)

# BENCH_ARGS: --quick, --only SECTION
bench: all $(BENCH)
	/usr/bin/python3 tests/bench/bench.py $(BENCH_ARGS)

bench-node: all
	/usr/bin/python3 tests/bench/bench_node.py $(BENCH_ARGS)
