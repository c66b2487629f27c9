"""What operators declare: tracepoints that coretap does not know and functions, on a program that is
no Bitcoin Core at all, on the simulated node, and where they do not fit."""
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, ROOT, Bridge, FakeNode, Subscriber, TestCase, bpf_alive, compile_text,
                     free_port, main, need_root, semaphores, tool, wait_connected, wait_until)
from replay import CompleteSubscriber

import msgpack
import zmq

READY = os.path.join(ROOT, "bridge", "tracepoints")
CLIENTS = os.path.join(ROOT, "clients", "python")

KETTLE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>

unsigned short kettle_boiled_semaphore __attribute__((section(".probes")));

__attribute__((noinline)) int64_t brew(int32_t cups, uint8_t strong, uint64_t a3, int16_t a4,
				       uint64_t a5, int64_t us)
{
	if (us)
		usleep(us);
	__asm__ volatile("" ::: "memory");
	return -(int64_t)cups + (int64_t)(strong + a3 + a4 + a5) * 0;
}

__attribute__((noinline)) uint64_t climb(uint64_t depth)
{
	uint64_t below = depth ? climb(depth - 1) + 1 : 0;

	__asm__ volatile("" : "+r"(below));
	return below;
}

__attribute__((noinline)) uint8_t tick(uint64_t thread, uint64_t i)
{
	__asm__ volatile("" ::: "memory");
	return (thread + i) & 1;
}

static uint64_t rounds, depth;

static void *threads(void *arg)
{
	for (uint64_t i = 0; i < rounds; i++) {
		tick((uintptr_t)arg, i);
		if (depth)
			climb(depth);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
	depth = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
	if (!strcmp(argv[1], "boil")) {
		for (uint64_t i = 0; i < rounds; i++) {
			char name[64];

			sprintf(name, "cup %lu", (unsigned long)i);
			STAP_PROBE5(kettle, boiled, i << 60 | i, name, (int32_t)-i, (uint8_t)(i & 1),
				    (int64_t)(1000 * i));
			brew(-(int32_t)i, i & 1, i, -7, UINT64_MAX, depth);
		}
	} else if (!strcmp(argv[1], "climb")) {
		for (uint64_t i = 0; i < rounds; i++)
			climb(depth);
	} else if (!strcmp(argv[1], "steady")) {
		for (uint64_t i = 0; i < rounds; i++) {
			brew((int32_t)i, 0, 0, 0, 0, depth);
			STAP_PROBE5(kettle, boiled, i, "", 0, (uint8_t)0, 0L);
		}
	} else {
		pthread_t t[8];

		for (uintptr_t i = 0; i < 8; i++)
			pthread_create(&t[i], NULL, threads, (void *)i);
		for (int i = 0; i < 8; i++)
			pthread_join(t[i], NULL);
	}
	return 0;
}
"""

PARCEL = r"""
#include <stdlib.h>
#include <string.h>
#include <sys/sdt.h>

int main(int argc, char **argv)
{
	char *data = malloc(100000);

	memset(data, 'x', 100000);
	for (int i = 1; i < argc; i++)
		STAP_PROBE2(parcel, sent, atoi(argv[i]), data);
	return 0;
}
"""

STUCK = r"""
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sdt.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *page;

static void *fire(void *arg)
{
	STAP_PROBE1(stuck, text, page);
	return arg;
}

static void *tick(void *arg)
{
	for (;; usleep(1000))
		STAP_PROBE1(stuck, tick, 1);
	return arg;
}

int main(int argc, char **argv)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_zeropage zero;
	pthread_t thread, other;

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
		return 77;
	STAP_PROBE1(stuck, text, "x");
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	range.range = (struct uffdio_range){ (unsigned long)page, 4096 };
	if (ioctl(fd, UFFDIO_REGISTER, &range) || pthread_create(&thread, NULL, fire, NULL) ||
	    pthread_create(&other, NULL, tick, NULL))
		return 1;
	sleep(1);
	for (int i = argc > 1 ? atoi(argv[1]) : 0; i; i--)
		STAP_PROBE1(stuck, text, "x");
	puts("fired");
	fflush(stdout);
	getchar();
	zero = (struct uffdio_zeropage){ .range = range.range };
	return ioctl(fd, UFFDIO_ZEROPAGE, &zero) || pthread_join(thread, NULL);
}
"""

KETTLE_YAML = """
tracepoints:
  - tracepoint: kettle:boiled
    doc: The water boils
    fields:
      - {name: count, type: uint, doc: a number of 64 bits}
      - {name: who, type: text, max: 15}
      - {name: minus, type: int}
      - {name: odd, type: bool}
      - {name: took_ns, type: duration_us}
functions:
  - function: brew
    topic: kettle.brew
    doc: Making tea
    arguments:
      - {name: cups, index: 1, type: int, size: 4}
      - {name: strong, index: 2, type: bool}
      - {name: third, index: 3, type: uint}
      - {name: fourth, index: 4, type: int, size: 2}
      - {name: fifth, index: 5, type: uint}
      - {name: us, index: 6, type: int, unit: us}
    returns: {name: made, type: int}
  - function: climb
    socket: high
    arguments: [{name: depth, index: 1, type: uint}]
    returns: {type: uint}
  - function: tick
    topic: kettle.tick
    arguments:
      - {name: thread, index: 1, type: uint}
      - {name: i, index: 2, type: uint}
    returns: {name: odd, type: bool}
"""

CXX = r"""
#include <stdexcept>
struct Pot {
	int level = 0;
	__attribute__((noinline)) int fill(int cups) noexcept { level += cups; return level; }
	__attribute__((noinline)) int empty(int cups);
	__attribute__((noinline)) int empty(long cups);
};
namespace tea { __attribute__((noinline)) int pour(const Pot &pot, unsigned cups) noexcept
{ __asm__ volatile("" ::: "memory"); return pot.level - (int)cups; } }
int Pot::empty(int cups) { __asm__ volatile("" ::: "memory"); return cups; }
int Pot::empty(long cups) { __asm__ volatile("" ::: "memory"); return (int)cups + 1; }
int main()
{
	Pot pot;
	int sum = 0;
	for (int i = 0; i < 5; i++)
		sum += pot.fill(i) + tea::pour(pot, 3) + pot.empty(1) + pot.empty(2L);
	return sum == 42;
}
"""


def declare(directory, text, name="declared.yaml"):
    path = os.path.join(directory, name)
    with open(path, "w") as file:
        file.write(text)
    return path


def coretap(*args):
    return subprocess.run([tool("coretap"), *args], check=True, capture_output=True, text=True,
                          timeout=80).stdout


def refused(*args):
    """Exit code and error lines of a coretapd that is not to start."""
    result = subprocess.run([tool("coretapd"), "--check", *args], capture_output=True, text=True,
                            timeout=240)
    return result.returncode, [line for line in result.stderr.splitlines() if "error" in line]


class Custom(TestCase):
    @classmethod
    def setUpClass(cls):
        need_root()
        cls.directory = tempfile.mkdtemp(prefix="coretap-custom-")
        cls.kettle = compile_text(cls.directory, KETTLE, "kettle")
        cls.yaml = declare(cls.directory, KETTLE_YAML, "kettle.yaml")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.directory)

    def bridge(self, *args, **kwargs):
        return Bridge("--tracepoints", self.yaml, *args, binary=self.kettle, **kwargs)

    def run_kettle(self, *args):
        subprocess.run([self.kettle, *map(str, args)], check=True, timeout=480)

    def ask(self, bridge, op):
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.connect(f"tcp://127.0.0.1:{bridge.port + 2}")
            socket.send(msgpack.packb({"v": 1, "id": 1, "op": op}))
            self.assertTrue(socket.poll(5000), "an answer")
            return msgpack.unpackb(socket.recv_multipart()[0])

    def check_boil(self, sub, rounds, us=2000):
        boiled, brewed = sub.of("kettle.boiled"), sub.of("kettle.brew")
        self.assertEqual([dict(e, time_us=0) for e in boiled],
                         [{"time_us": 0, "count": (i << 60 | i) & (1 << 64) - 1, "who": f"cup {i}",
                           "minus": -i, "odd": bool(i & 1), "took_ns": 1000000 * i}
                          for i in range(rounds)])
        self.assertEqual([dict(e, time_us=0, duration_ns=0) for e in brewed],
                         [{"time_us": 0, "duration_ns": 0, "cups": -i, "strong": bool(i & 1),
                           "third": i, "fourth": -7, "fifth": (1 << 64) - 1, "us": us, "made": i}
                          for i in range(rounds)])
        for event in brewed:
            self.assertEqual(list(event)[:2], ["time_us", "duration_ns"])
            self.assertGreaterEqual(event["duration_ns"], 1000 * us)
        median = sorted(e["duration_ns"] for e in brewed)[rounds // 2]
        self.assertLess(median, 1000 * us + 1_000_000_000)  # the machine may be busy

    # ---- a program that is no Bitcoin Core ----

    def test_any_program(self):
        """Tracepoint and functions, to every kind of reader."""
        port = free_port()
        out = tempfile.TemporaryFile()
        reader = subprocess.Popen([tool("coretap"), "tail", "--json", "--address",
                                   f"tcp://127.0.0.1:{port}", "-n", "40", "kettle.boiled",
                                   "kettle.brew"], stdout=out)
        python = subprocess.Popen([sys.executable, "-m", "coretap", "tail", "--address",
                                   f"tcp://127.0.0.1:{port}", "kettle."], stdout=subprocess.PIPE,
                                  env={**os.environ, "PYTHONPATH": CLIENTS}, text=True)
        try:
            with self.bridge(port=port) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                for other in (reader, python):
                    wait_connected(other, port)
                self.run_kettle("boil", 20, 2000)
                sub.wait_ledger({"kettle.boiled": 20, "kettle.brew": 20})
                self.check_boil(sub, 20)
                self.check_stream(sub)
                self.assertEqual(reader.wait(80), 0)
                status = wait_until(lambda: (s := sub.status("low")) and
                                    s["heads"].get("kettle.brew") == 20 and s, 5, "status")
                for topic in ("kettle.boiled", "kettle.brew"):
                    self.assertEqual(status["counters"][topic],
                                     {"fired": 20, "submitted": 20, "lost": 0, "faults": 0,
                                      "truncated": 0})
                self.assertIn("function.climb", sub.status("high")["heads"])
                self.check_answers(bridge)
            size = os.fstat(out.fileno()).st_size
            lines = [json.loads(line) for line in os.pread(out.fileno(), size, 0).splitlines()]
            lines = [line for line in lines if line.get("notice") not in ("stale", "alive")]
            self.assertEqual(collections.Counter(line["topic"] for line in lines),
                             {"kettle.boiled": 20, "kettle.brew": 20})
            self.assertEqual([line["count"] for line in lines if line["topic"] == "kettle.boiled"],
                             [(i << 60 | i) & (1 << 64) - 1 for i in range(20)])
        finally:
            reader.kill()
            python.terminate()
            printed, _ = python.communicate(timeout=80)
            out.close()
        topics = collections.Counter(topic for line in printed.splitlines()
                                     for topic in ("kettle.boiled", "kettle.brew") if topic in line)
        self.assertEqual(topics, {"kettle.boiled": 20, "kettle.brew": 20}, printed)

    def check_answers(self, bridge):
        listed = json.loads(coretap("topics", "--json", "--address", f"tcp://127.0.0.1:{bridge.port}"))
        self.assertEqual(listed["events"][-2:], self.ask(bridge, "catalogue")["events"][-2:])
        self.assertEqual([e["topic"] for e in listed["events"]],
                         [e["topic"] for e in self.ask(bridge, "catalogue")["events"]])
        self.assertRegex(coretap("topics", "kettle", "--address", f"tcp://127.0.0.1:{bridge.port}"),
                         r"(?m)^kettle\.brew +\S+ .*\n( .*\n)* +cups +int ")
        probes = self.ask(bridge, "hello")["probes"]
        self.assertEqual(probes["kettle.brew"], {
            "state": "ok", "sites": ["-8@duration -4@arg1 1@arg2 8@arg3 -2@arg4 8@arg5 -8@arg6 "
                                     "-8@return"]})
        self.assertEqual(probes["kettle.boiled"]["state"], "ok")
        self.assertEqual(len(probes["kettle.boiled"]["sites"]), 2)
        self.assertEqual(probes["mempool.added"], {"state": "missing", "sites": []})
        events = {e["topic"]: e for e in self.ask(bridge, "catalogue")["events"]}
        boiled, brew = events["kettle.boiled"], events["kettle.brew"]
        self.assertEqual((boiled["provider"], boiled["name"], boiled["doc"], boiled["derived"]),
                         ("kettle", "boiled", "The water boils", False))
        self.assertEqual([(f["name"], f["type"], f["unit"]) for f in boiled["fields"]],
                         [("count", "uint", ""), ("who", "text", ""), ("minus", "int", ""),
                          ("odd", "bool", ""), ("took_ns", "int", "ns")])
        self.assertEqual([f["name"] for f in brew["fields"]],
                         ["duration_ns", "cups", "strong", "third", "fourth", "fifth", "us", "made"])
        self.assertIn("mempool.removed", events)

    def test_every_way_to_attach(self):
        for without in ("multi", "sleepable", "multi,sleepable,tai,dynptr"):
            with self.subTest(without), self.bridge("--without", without) as bridge, \
                    Subscriber(bridge) as sub:
                sub.wait_status()
                self.run_kettle("boil", 10, 1000)
                self.run_kettle("threads", 50, 5)
                sub.wait_ledger({"kettle.boiled": 10, "kettle.brew": 10, "kettle.tick": 400,
                                 "function.climb": 2400})
                self.check_boil(sub, 10, 1000)
                self.check_account(sub, {"kettle.boiled": 10, "kettle.brew": 10,
                                         "kettle.tick": 400, "function.climb": 2400})
                self.assertEqual(sub.lost, {})

    def test_chosen_by_globs(self):
        """What is not chosen is not attached, and without functions none of their programs is there."""
        with self.bridge("--only", "kettle.boiled") as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertNotIn("functions", bridge.log())
            alone = len([kind for kind, _ in bridge.bpf_ids() if kind == "prog"])
            self.run_kettle("boil", 5)
            sub.wait_ledger({"kettle.boiled": 5})
            self.check_account(sub, {"kettle.boiled": 5})
        with self.bridge("--exclude", "kettle.b*") as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertIn("functions", bridge.log())
            programs = len([kind for kind, _ in bridge.bpf_ids() if kind == "prog"])
            self.assertEqual(programs, alone + 2)
            self.run_kettle("threads", 5)
            self.run_kettle("boil", 5)
            sub.wait_ledger({"kettle.tick": 40})
            self.check_account(sub, {"kettle.tick": 40})
        code, errors = refused("--binary", self.kettle, "--tracepoints", self.yaml, "--only",
                               "kettle.x*")
        self.assertEqual((code, len(errors)), (2, 1))
        self.assertIn("matches no topic", errors[0])

    def test_semaphore_and_detach(self):
        with self.bridge() as bridge:
            ids = bridge.bpf_ids()
            with subprocess.Popen([self.kettle, "steady", "20", "100000"]) as process:
                wait_until(lambda: semaphores(process.pid, self.kettle) == {"kettle.boiled": 2}, 5, "both sites")
                self.assertEqual(bridge.stop(), 0)
                wait_until(lambda: not any(semaphores(process.pid, self.kettle).values()), 10)
                wait_until(lambda: not bpf_alive(ids), 10, "nothing left in the kernel")
                # The call that was under way returns where it came from.
                self.assertEqual(process.wait(80), 0)

    # ---- functions ----

    def test_recursion(self):
        """Each level with its own argument, result and duration; an outer call lasts longer."""
        with self.bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.run_kettle("climb", 100, 30)
            sub.wait_ledger({"function.climb": 3100})
            events = sub.of("function.climb")
            self.assertEqual([(e["depth"], e["result"]) for e in events],
                             [(d, d) for d in range(31)] * 100)
            for call in range(100):
                times = [e["duration_ns"] for e in events[31 * call:31 * call + 31]]
                self.assertEqual(times, sorted(times))
                self.assertGreater(times[0], 0)
                self.assertLess(times[-1], 1_000_000_000)

    def test_as_many_values_as_there_can_be(self):
        path = declare(self.directory, "functions:\n  - function: brew\n    topic: kettle.brew\n    arguments:\n"
                       + "".join(f"      - {{name: a{i}, index: {i % 2 + 1}, type: uint, size: {1 << i % 4}}}\n"
                                 for i in range(10)) + "    returns: {type: int}\n")
        with Bridge("--tracepoints", path, binary=self.kettle) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.run_kettle("boil", 500)
            sub.wait_ledger({"kettle.brew": 500})
            for i, event in enumerate(sub.of("kettle.brew")):
                self.assertEqual([event[f"a{k}"] for k in range(10)],
                                 [(i & 1) if k % 2 else -i & 255 if k % 4 == 0 else -i & 0xffffffff for k in range(10)])
                self.assertEqual(event["result"], i)

    def test_threads(self):
        """Eight threads at once, none credited with another one's call."""
        with self.bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.run_kettle("threads", 5000, 10)
            sub.wait_ledger({"kettle.tick": 40000, "function.climb": 440000}, 60)
            self.check_account(sub, {"kettle.tick": 40000, "function.climb": 440000})
            self.assertEqual(sub.lost, {})
            by_thread = collections.defaultdict(list)
            for e in sub.of("kettle.tick"):
                by_thread[e["thread"]].append(e["i"])
                self.assertEqual(e["odd"], bool((e["thread"] + e["i"]) & 1))
            self.assertEqual(by_thread, {t: list(range(5000)) for t in range(8)})
            self.assertTrue(all(e["depth"] == e["result"] for e in sub.of("function.climb")))

    def test_more_calls_than_can_be_kept(self):
        """The kernel follows 64 nested calls of a thread; those that could not be kept are told as
        lost, and the memory of what never returned is free again when the process is gone."""
        with self.bridge("--ring-high", "4M") as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            for round_ in range(1, 3):
                self.run_kettle("climb", 1, 17000)
                sub.wait_count("function.climb", round_ * (64 + 17001 - 16384))
                self.assertEqual(sub.lost["function.climb"], round_ * (17001 - 16384))
                wait_until(lambda: len(sub.of("node.exited")) == round_, 10, "node.exited")
            self.check_stream(sub)

    def test_entered_before_the_gate_opened(self):
        """A call that began earlier has no duration: it is not published, and nothing is lost."""
        with subprocess.Popen([self.kettle, "steady", "1000", "2000000"]) as process:
            time.sleep(0.3)
            with self.bridge() as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                sub.wait_count("kettle.boiled", 1)
                sub.wait_count("kettle.brew", 2)
                process.kill()
                boiled, cups = (sub.of("kettle.boiled")[0]["count"], [e["cups"] for e in sub.of("kettle.brew")])
                self.assertEqual(cups, list(range(boiled + 1, boiled + 1 + len(cups))))
                wait_until(lambda: sub.status("low")["heads"]["kettle.brew"] == len(cups), 5)
                self.assertEqual(sub.status("low")["counters"]["kettle.brew"]["fired"], len(cups))
                self.check_stream(sub)

    def test_cxx(self):
        binary = compile_text(self.directory, CXX, "pot", compiler="g++")
        path = declare(self.directory, """
functions:
  - function: Pot::fill
    topic: pot.fill
    throws: false
    arguments: [{name: cups, index: 2, type: int, size: 4}]
    returns: {name: level, type: int, size: 4}
  - function: pour
    topic: pot.pour
    throws: false
    arguments: [{name: cups, index: 2, type: uint, size: 4}]
    returns: {name: rest, type: int, size: 4}
  - function: _ZN3Pot5emptyEl
    topic: pot.empty
    throws: false
    arguments: [{name: cups, index: 2, type: int}]
    returns: {name: cups_and_one, type: int, size: 4}
""")
        with Bridge("--tracepoints", path, binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            subprocess.run([binary])
            sub.wait_ledger({"pot.fill": 5, "pot.pour": 5, "pot.empty": 5})
            self.assertEqual([(e["cups"], e["level"]) for e in sub.of("pot.fill")],
                             [(0, 0), (1, 1), (2, 3), (3, 6), (4, 10)])
            self.assertEqual([(e["cups"], e["rest"]) for e in sub.of("pot.pour")],
                             [(3, level - 3) for level in (0, 1, 3, 6, 10)])
            self.assertEqual([(e["cups"], e["cups_and_one"]) for e in sub.of("pot.empty")],
                             [(2, 3)] * 5)
        self.refuse(binary, "functions:\n- {function: empty, topic: pot.empty, throws: false}",
                    2, f'function "empty": {binary}: has 2 functions "empty": _ZN3Pot5emptyE')
        self.refuse(binary, "functions:\n\n- function: Pot::fill\n  topic: pot.fill\n", 3,
                    'function "Pot::fill": is C++ (_ZN3Pot4fillEi): an exception that passes')

    def test_stripped(self):
        """The symbols of a stripped binary come from its separate file, and from no other one."""
        stripped = os.path.join(self.directory, "bare")
        subprocess.run(["objcopy", "--only-keep-debug", self.kettle, stripped + ".debug"], check=True)
        subprocess.run(["strip", "-o", stripped, self.kettle], check=True)
        text = "functions:\n- function: brew\n  topic: kettle.brew\n"
        self.refuse(stripped, text, 2, f'function "brew": {stripped}: stripped: has no symbols')
        path = declare(self.directory, text + "  debug: bare.debug\n")
        with Bridge("--tracepoints", path, binary=stripped) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            subprocess.run([stripped, "boil", "7", "500"], check=True)
            sub.wait_ledger({"kettle.brew": 7})
            self.check_account(sub, {"kettle.brew": 7})
        other = compile_text(self.directory, KETTLE, "other", "-DX", "-O1")
        self.refuse(stripped, text + f"  debug: {other}\n", 2,
                    f'function "brew": {other}: belongs to another binary (build id ')
        self.refuse(stripped, text + "  debug: nowhere\n", 2,
                    f'function "brew": {self.directory}/nowhere: No such file or directory')

    def test_functions_that_are_not_there(self):
        """A warning, like for a tracepoint: another version of the binary may have it."""
        path = declare(self.directory, KETTLE_YAML + "  - {function: pour, topic: kettle.pour}\n")
        with Bridge("--tracepoints", path, binary=self.kettle) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertIn('has no function "pour"', bridge.log())
            self.run_kettle("boil", 3)
            sub.wait_ledger({"kettle.brew": 3})
            self.assertEqual(self.ask(bridge, "hello")["probes"]["kettle.pour"],
                             {"state": "missing", "sites": []})

    # ---- what does not fit ----

    def refuse(self, binary, text, line, words):
        path = declare(self.directory, text)
        code, errors = refused("--binary", binary, "--tracepoints", path)
        self.assertEqual(code, 2, errors)
        self.assertEqual(len(errors), 1, errors)
        self.assertIn(f"{path}:{line}: {words}" if line else words, errors[0])
        return errors

    def test_refused_files(self):
        head = "tracepoints:\n- tracepoint: kettle:boiled\n  fields:\n"
        six = "".join(f"  - {{name: f{i}, type: uint}}\n" for i in range(4)) + "  - type: skip\n"
        self.refuse(self.kettle, head + six + "  - {name: f5, type: uint}\n", 9,
                    'field "f5": is argument 6, but kettle:boiled has 5 in ' + self.kettle)
        self.refuse(self.kettle, head + "  - {type: skip}\n  - {type: skip}\n"
                    "  - {name: text, type: text}\n", 6,
                    'field "text": wants a pointer, but argument 3 of kettle:boiled has 4 bytes in')
        self.refuse(self.kettle, head + "  - {name: x, type: intt}\n", 4, 'field "x": type: "intt"')
        self.refuse(self.kettle, "tracepoints:\n  - tracepoint: mempool:added\n", 2,
                    'tracepoint "mempool:added": topic: "mempool.added" exists already')
        code, errors = refused("--binary", self.kettle, "--tracepoints", "/nowhere.yaml")
        self.assertEqual((code, errors), (2, ["coretapd: error: /nowhere.yaml: No such file or "
                                              "directory"]))

    def test_missing_tracepoint(self):
        """Told, skipped, and there as soon as a binary has it."""
        path = declare(self.directory, KETTLE_YAML.replace("functions:", """
  - tracepoint: kettle:exploded
    fields: [{name: x, type: int}]
functions:"""))
        with Bridge("--tracepoints", path, binary=self.kettle) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertRegex(bridge.log(), r"missing in this binary: .*\bkettle\.exploded\b")
            self.run_kettle("boil", 3)
            sub.wait_ledger({"kettle.boiled": 3, "kettle.brew": 3})
            self.assertEqual(self.ask(bridge, "hello")["probes"]["kettle.exploded"]["state"],
                             "missing")

    def test_binary_that_comes_later(self):
        """One that a declaration does not fit is traced as far as it does."""
        target = os.path.join(self.directory, "replaced")
        shutil.copy(self.kettle, target)
        less = compile_text(self.directory, KETTLE.replace(", (uint8_t)(i & 1),", ",").replace(
            ", (uint8_t)0, 0L", ", 0L").replace("STAP_PROBE5", "STAP_PROBE4"), "less")
        with Bridge("--tracepoints", self.yaml, binary=target) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            subprocess.run([target, "boil", "2", "0"], check=True)
            sub.wait_ledger({"kettle.boiled": 2, "kettle.brew": 2})
            shutil.copy(less, target + ".new")
            os.rename(target + ".new", target)
            wait_until(lambda: "has 4 in" in bridge.log(), 10, "the error")
            wait_until(lambda: bridge.log().count(": attached") >= 2, 10, "attached again")
            subprocess.run([target, "boil", "2", "0"], check=True)
            sub.wait_ledger({"kettle.brew": 4})
            self.check_account(sub, {"kettle.boiled": 2, "kettle.brew": 4})

    # ---- the simulated node ----

    def compare(self, node, sub, skip=()):
        """What the node says it fired against what came, field by field."""
        expected = collections.defaultdict(list)
        for line in map(json.loads, node.lines()[:-1]):
            expected[line["probe"].replace(":", ".")].append(line["expect"])
        for topic, events in expected.items():
            got = [{k: v.hex() if isinstance(v, bytes) else v for k, v in e.items()
                    if k != "time_us"} for e in sub.of(topic)]
            self.assertEqual(got, events, topic)
            self.assertEqual([list(e) for e in got], [list(e) for e in events], topic)
        return expected

    def test_ready_files(self):
        files = sorted(name for name in os.listdir(READY) if name.endswith(".yaml"))
        self.assertEqual(files, ["addrman.yaml", "block-relay.yaml", "example.yaml"])
        args = [word for name in files for word in ("--tracepoints", os.path.join(READY, name))]
        with Bridge(*args) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("custom", 50, "--wait") as node:
                fired = node.finish()
                self.assertEqual(len(fired), 7)
                sub.wait_ledger(fired)
                self.check_account(sub, fired)
                self.assertEqual(set(self.compare(node, sub)), set(fired))
            self.assertEqual({e.topic for e in sub.events if e.topic in fired}, set(fired))
            states = {t: p["state"] for t, p in self.ask(bridge, "hello")["probes"].items()}
            self.assertEqual({states[t] for t in fired}, {"ok"})
        # A stock node lacks them; the rest of it is traced.
        with Bridge(*args) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 1000, "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)

    def test_declared_do_not_end_lists(self):
        """An event of a declared mempool or validation tracepoint says nothing about a block."""
        path = declare(self.directory, "tracepoints:\n- tracepoint: mempool:added\n"
                       "  topic: mempool.also_added\n  fields: [{name: txid, type: hash}]\n")
        with Bridge("--tracepoints", path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("blocks", 3, 50, "--wait") as node:
                fired = node.finish()
            fired["mempool.also_added"] = fired["mempool.added"]
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.assertEqual([e["txid"] for e in sub.of("mempool.also_added")],
                             [e["txid"] for e in sub.of("mempool.added")])
            wait_until(lambda: sum(e["final"] for e in sub.of("block.evictions")) == 3, 10)
            self.assertTrue(all(e["complete"] for e in sub.of("block.evictions") if e["final"]))

    def test_operands(self):
        """Every form of operand that compilers emit, with its width and sign."""
        if os.uname().machine != "x86_64":
            self.skipTest("the forms are written for x86-64")
        notes = subprocess.run(["readelf", "-n", FAKE_NODE], capture_output=True, text=True).stdout
        text, name = "tracepoints:\n", None
        for line in notes.splitlines():
            word, _, rest = line.strip().partition(": ")
            if word == "Provider":
                provider = rest
            elif word == "Name":
                name = rest
            elif word == "Arguments" and provider == "operands":
                text += f"  - tracepoint: operands:{name}\n    fields:\n"
                for i, operand in enumerate(rest.split(), 1):
                    kind = "int" if operand.startswith("-") else "uint"
                    text += f"      - {{name: arg{i}, type: {kind}}}\n"
        with Bridge("--tracepoints", declare(self.directory, text)) as bridge, \
                Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("operands", "--wait") as node:
                fired = node.finish()
                sub.wait_ledger(fired)
                self.assertEqual(len(self.compare(node, sub)), 9)
            self.check_account(sub, fired)
            self.assertIn('operands.unsupported: argument 1 ("8@%xmm0") is in a form', bridge.log())
            probes = self.ask(bridge, "hello")["probes"]
            self.assertEqual({t: p["state"] for t, p in probes.items() if t.startswith("operands.")},
                             {t: "degraded" if t == "operands.unsupported" else "ok" for t in fired})

    def test_payload(self):
        """A declared payload is copied as far as its max, whatever --payload and --message-types say."""
        path = declare(self.directory, """
tracepoints:
  - tracepoint: net:inbound_message
    topic: raw.message
    fields:
      - {name: peer_id, type: int}
      - {type: skip}
      - {type: skip}
      - {name: msg_type, type: text, max: 15}
      - {name: size, type: uint}
      - {name: data, type: payload, max: 1000}
""")
        for size, args in ((900, ()), (5000, ("--message-types", "inv"))):
            with self.subTest(size), Bridge("--tracepoints", path, *args) as bridge, \
                    Subscriber(bridge) as sub:
                sub.wait_status()
                with FakeNode("burst", 200, "--probe", "message", "--size", size, "--wait") as node:
                    node.finish()
                sub.wait_count("raw.message", 200)
                if not args:
                    sub.wait_count("net.inbound_message", 200)
                events = sub.of("raw.message")
                self.assertEqual(len(events), 200)
                self.assertEqual(len(sub.of("net.inbound_message")), 0 if args else 200)
                for i, event in enumerate(events):
                    head = i.to_bytes(8, "little") + bytes(4)
                    data = head + bytes((7 * k + node.pid) % 256 for k in range(12, size))
                    self.assertEqual(event["data"], data[:1000])
                    self.assertEqual(event.get("truncated"), True if size > 1000 else None)
                    self.assertEqual((event["size"], event["msg_type"]), (size, "tx"))

    def test_payload_of_no_size(self):
        """A size below 0 is none: what stands where the payload would be is no business of anyone."""
        parcel = compile_text(self.directory, PARCEL, "parcel")
        for kind, size in (("uint", None), ("int", -1)):
            path = declare(self.directory, f"""
tracepoints:
  - tracepoint: parcel:sent
    fields:
      - {{name: size, type: {kind}}}
      - {{name: data, type: payload, max: 1000}}
""")
            for args in ((), ("--without", "dynptr")):
                with self.subTest((kind, args)), Bridge("--tracepoints", path, *args, binary=parcel) as bridge, \
                        Subscriber(bridge) as sub:
                    sub.wait_status()
                    subprocess.run([parcel, "3", "-1", "0", "2000"], check=True, timeout=20)
                    sub.wait_count("parcel.sent", 4)
                    self.assertEqual([(e["size"], e["data"]) for e in sub.of("parcel.sent")],
                                     [(3, b"xxx"), (size, None), (0, b""), (2000, b"x" * 1000)])
                    wait_until(lambda: sub.status("low")["counters"]["parcel.sent"]["faults"] == 1, 3, "told")

    def test_a_page_that_does_not_come(self):
        """A thread of the node waits for its memory within the program, and the ring fills up behind its
        record: coretapd goes on, whatever comes in the other ring, tells the loss once it can, and the event when
        the page has come. The program has kept its stack, though others ran it meanwhile."""
        stuck = compile_text(self.directory, STUCK, "stuck")
        path = declare(self.directory, """
tracepoints:
  - tracepoint: stuck:text
    fields:
      - {name: text, type: text}
  - tracepoint: stuck:tick
    socket: high
    fields:
      - {name: number, type: int}
""")
        with Bridge("--tracepoints", path, "--ring-low", "1M", binary=stuck) as bridge, Subscriber(bridge) as sub, \
                subprocess.Popen([stuck, "100000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
            if node.stdout.readline() != b"fired\n":
                self.skipTest("no userfaultfd here")
            told = len(sub.statuses)
            wait_until(lambda: len(sub.statuses) >= told + 6, 20, "statuses")
            node.communicate(b"\n", timeout=80)
            self.assertEqual(node.returncode, 0)
            wait_until(lambda: sub.of("node.exited"), 10, "node.exited")
            self.assertEqual(sub.count["stuck.text"] + sub.lost["stuck.text"], 100_002)
            self.assertGreater(sub.lost["stuck.text"], 0)
            self.assertEqual(collections.Counter(e["text"] for e in sub.of("stuck.text"))[""], 1)
            self.check_stream(sub)

    # ---- resuming ----

    def test_resume(self):
        """Killed with calls in flight; the successor goes on, and each call comes once."""
        name, port = f"custom{os.getpid()}", free_port()
        args = ("--keep-attached", "--tracepoints", self.yaml)
        counts, runs = collections.Counter(), set()
        seen = collections.defaultdict(list)

        def take(_socket, topic, message):
            runs.add(message["run"])
            counts[topic] += len(message["events"]) + message.get("lost", 0)
            seen[topic] += message["events"]

        bridge = Bridge(*args, binary=self.kettle, name=name, port=port, keep=True)
        subscriber = None
        try:
            subscriber = CompleteSubscriber(port, deliver=take)
            wait_until(subscriber.joined, 10, "first status")
            with subprocess.Popen([self.kettle, "steady", "3000", "300"]) as process:
                while process.poll() is None:
                    time.sleep(0.4)
                    bridge.kill()
                    time.sleep(0.2)
                    bridge = Bridge(*args, binary=self.kettle, name=name, port=port, keep=True)
                    self.assertIn("going on where the last coretapd stopped", bridge.log())
            wait_until(lambda: counts["kettle.brew"] >= 3000 and counts["kettle.boiled"] >= 3000,
                       20, "all")
            self.assertEqual(len(runs), 1)
            self.assertEqual([e["cups"] for e in seen["kettle.brew"]], list(range(3000)))
            self.assertEqual([e["count"] for e in seen["kettle.boiled"]], list(range(3000)))
            self.assertTrue(all(e["duration_ns"] >= 300000 for e in seen["kettle.brew"]))
            self.changed_file(bridge, name, port)
        finally:
            if subscriber:
                subscriber.close()
            bridge.kill()
            subprocess.run([tool("coretapd"), "--name", name, "--detach"], stderr=subprocess.DEVNULL)
            shutil.rmtree(f"/run/coretap/{name}", ignore_errors=True)
        self.assertFalse(os.path.exists(f"/sys/fs/bpf/coretap/{name}"))

    def changed_file(self, bridge, name, port):
        """A file that says something else of the same topics begins a new run; another wording does
        not."""
        for before, after, resumed in (("The water boils", "Boiling", True),
                                       ("index: 5", "index: 6", False),
                                       ("max: 15", "max: 31", False)):
            for text, goes_on in ((KETTLE_YAML.replace(before, after), resumed),
                                  (KETTLE_YAML, resumed)):
                bridge.kill()
                path = declare(self.directory, text)
                bridge.__init__("--keep-attached", "--tracepoints", path, binary=self.kettle,
                                name=name, port=port, keep=True)
                self.assertEqual("going on where the last" in bridge.log(), goes_on,
                                 (before, after))


if __name__ == "__main__":
    main()
