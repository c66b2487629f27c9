"""Every call that can fail fails, one in each run: allocations, LMDB, ZeroMQ, the kernel's BPF, files,
the loop's descriptors. Whatever it is, coretapd says so and ends with an error, or it goes on and the
account is exact: fired = received + lost. Nothing is silent, hangs, crashes, leaks or stays attached.

A sample by default, that of SEED; INJECT=all makes every call fail, INJECT=CLASS all of
one class, INJECT=SCENARIO:CLASS:N a single one. PRINT=1 tells every run."""
import concurrent.futures
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import msgpack
import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, PATIENCE, ROOT, SANITIZED, TestCase, bpf_alive, bpf_ids, callers, compile_inject, free_port,
                     inject_env, main, need_root, tool, wait_until)

CHOSEN = os.environ.get("INJECT", "")
SAMPLE_SECONDS = 20
SEED = int(os.environ.get("SEED", "1"))
WORKERS = 4
EXIT_CODES = range(1, 7)

# Calls whose failure needs no word, and why. By function, and function of ours that calls it.
ABSORBED = {
    # asked again by the next turn, in a second at most
    ("epoll_wait", "events_wait"), ("epoll_ctl", "events_wait"), ("nanosleep", "nap"), ("nanosleep", "binary_guard"),
    ("nanosleep", "bridge_drain"), ("read", "signals_read"), ("read", "names_check"),
    ("read", "binary_changed"), ("poll", "node_alive"), ("zmq_getsockopt", "publisher_attend"),
    ("MHD_run", "metrics_serve"), ("MHD_get_timeout", "metrics_serve"), ("stat", "path_check"),
    ("stat", "names_check"),
    # interrupted, and made again at once
    ("zmq_send_const", "publisher_send"), ("zmq_msg_send", "publisher_send"),
    ("zmq_msg_send", "part_send"), ("zmq_msg_recv", "request_receive"), ("zmq_ctx_term", "publisher_close"),
    # one answer fails or is shorter: the client is told where to go on, or asks again
    ("realloc", "part_add"), ("zmq_msg_init_size", "part_add"),
    ("open_memstream", "exposition_make"), ("MHD_create_response_from_buffer", "answer_metrics"),
    ("MHD_create_response_from_buffer", "answer"), ("MHD_add_response_header", "answer_metrics"),
    ("MHD_add_response_header", "answer"), ("MHD_queue_response", "answer_metrics"),
    ("MHD_queue_response", "answer"),
    # one gauge is wrong on one page
    ("mdb_cursor_get", "exposition_make"), ("mdb_cursor_open", "exposition_make"),
    ("mdb_stat", "exposition_make"), ("mdb_txn_begin", "exposition_make"), ("fopen", "write_process"),
    # pruned with the next messages
    ("mdb_stat", "live_bytes"),
    # a process that cannot be looked at now is the node as soon as it fires, or at the next look
    *((call, scan) for call in ("stat", "readlink", "open", "read", "readdir", "opendir", "fopen")
      for scan in ("processes_scan", "process_read")),
    # the node's end is then noticed by asking once a second
    ("syscall_434", "node_follow"), ("syscall_434", "node_set"), ("syscall_434", "node_take_over"),
    # does without, and no worse than a little slower; a port that is still taken is told
    ("prctl", "loop_open"), ("prctl", "privilege_drop"), ("prctl", "bounding_limit"),
    # what is kept is decided without it, and told when it lacks
    ("syscall_126", "privilege_reaches"), ("stat", "privilege_reaches"), ("setsockopt", "listener_open"),
    # what a client has read is noticed later: it may have to ask again
    ("zmq_getsockopt", "reads_notice"),
    # whether there are pins is asked in another way then, and if so, or if one is to be made, it is told
    ("open", "pins_hold"),
    # a hint less
    ("stat", "process_namespace_is_own"), ("stat", "file_size"),
    # stderr is gone: there is nobody left to tell
    ("write", "line_put"),
    # what an old journal takes counts as used by others: less room, and a smaller one is told
    ("stat", "room"),
    # the quarter of /run is not known then; what does not fit is told
    ("statvfs", "room"),
    # the lease of a replaced file goes with its descriptor, when the next one is attached at the latest
    ("fcntl", "binary_release"),
    # the first three descriptors are there, as most often
    ("open", "descriptors_prepare"),
    # not empty, as most often
    ("rmdir", "tracer_resume"),
    # not there, as most often; what really cannot be made, opened or bound is told by the next call
    ("mkdir", "journal_begin"),
    # an identity that is not known matches none: a successor begins a new run, and says so
    ("bpf_obj_get_info_by_fd", "map_id"),
    # a feature of the kernel that cannot be seen is not used; what stands in for it is told
    ("libbpf_probe_bpf_helper", "tracer_open"),
    # libbpf looks for features, or loads what is only for debuggers
    ("bpf_0", "libbpf"), ("bpf_5", "libbpf"), ("bpf_15", "libbpf"), ("bpf_18", "libbpf"), ("bpf_35", "libbpf"),
    # sections that are neither notes nor what notes refer to
    ("elf_getdata", "read_sections"), ("elf_nextscn", "read_sections"), ("elf_strptr", "read_sections"),
    ("elf64_getshdr", "read_sections"), ("elf_getdata", "read_symbols"), ("elf_nextscn", "read_symbols"),
    ("elf_getscn", "read_symbols"), ("elf64_getshdr", "read_symbols"),
}


class Silent(Exception):
    """It went on as if nothing had happened, and nobody has argued why that is right."""


class Run:
    """coretapd with one call that fails, a node that fires, and what a subscriber got."""
    context = None
    shim = None
    args = ("--metrics", "127.0.0.1:{metrics}")
    keep = False
    classes = ("alloc", "lmdb", "zmq", "bpf", "libbpf", "elf", "file", "loop", "http")

    def __init__(self, name, number):
        self.what, self.number = name, number
        self.directory = tempfile.mkdtemp(prefix="coretap-inject-")
        self.binary = shutil.copy(FAKE_NODE, os.path.join(self.directory, "node"))
        self.port = free_port()
        self.label = f"i{os.getpid()}-{self.port}"
        self.log_path = os.path.join(self.directory, "log")
        # Not beside the node: its directory is watched.
        self.inject_path = os.path.join(tempfile.mkdtemp(dir=self.directory), "inject")
        os.chmod(os.path.dirname(self.inject_path), 0o777)
        self.messages, self.statuses, self.stopping, self.garbage = {}, {}, 0, []
        self.fired, self.ids, self.from_replay = {}, set(), 0
        self.process = None

    # -- the parts of a run --

    def spawn(self, *args, injected=False):
        env = dict(os.environ)
        if injected:
            env |= inject_env(self.shim, INJECT=f"{self.what}:{self.number}", INJECT_LOG=self.inject_path)
        args = [a.format(metrics=self.port + 3, directory=self.directory) for a in args]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [tool("coretapd"), "--binary", self.binary, "--name", self.label, "--port", str(self.port),
                 "--journal-low", "2M", "--journal-high", "2M", "--ring-low", "1M", "--ring-high", "1M", *args],
                stderr=log, env=env)

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def wait(self, condition, seconds=20 * PATIENCE):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            self.receive(10)
        return False

    def ended(self):
        return self.process.poll() is not None

    def subscribe(self):
        self.poller = zmq.Poller()
        self.sockets = []
        for i, name in enumerate(("low", "high")):
            s = self.context.socket(zmq.SUB)
            s.setsockopt(zmq.LINGER, 0)
            s.setsockopt(zmq.RECONNECT_IVL, 10)
            s.subscribe(b"")
            s.connect(f"tcp://127.0.0.1:{self.port + i}")
            self.poller.register(s, zmq.POLLIN)
            self.sockets.append((s, name))

    def receive(self, ms):
        for s, _ in self.poller.poll(ms):
            name = next(n for t, n in self.sockets if t is s)
            parts = s.recv_multipart()
            try:
                topic, body = parts[0].decode("ascii"), msgpack.unpackb(parts[1])
                assert len(parts) == 2
            except Exception as error:
                self.garbage.append((name, parts, error))
                continue
            if topic == "bridge.status":
                self.statuses[name] = body
            elif topic == "bridge.stopping":
                self.stopping += 1
            else:
                self.take(topic, body)

    def take(self, topic, body):
        key = (body["run"], topic, body["seq"], body["n"])
        if self.messages.setdefault(key, body) != body:
            self.garbage.append((topic, body, "differs from what came before"))

    def fire(self, *mode):
        node = subprocess.run([self.binary, *mode], stdout=subprocess.PIPE, timeout=20)
        for name, count in json.loads(node.stdout.splitlines()[-1])["fired"].items():
            if count:
                topic = name.replace(":", ".")
                self.fired[topic] = self.fired.get(topic, 0) + count

    def missing(self):
        """What the account lacks, of the last run; {} = nothing."""
        run = max((k[0] for k in self.messages), default=0)
        got, lacking = {}, {}
        given_up = ": given up" in self.log()  # and said: who was not connected yet cannot have it
        for (its, topic, seq, _), body in sorted(self.messages.items(), key=lambda m: m[0]):
            if its == run:
                expected = got.get(topic, seq if given_up else 1)
                if seq != expected:
                    lacking[topic] = f"{expected} to {seq - 1}"
                got[topic] = seq + body.get("lost", 0) + len(body["events"])
        for topic, count in self.fired.items():
            if got.get(topic, 1) - 1 != count and not (given_up and topic not in got):
                lacking.setdefault(topic, f"has {got.get(topic, 1) - 1} of {count}")
        return lacking

    def ask(self, **request):
        """A question may go unanswered: a client asks again."""
        for wait_ms in (400, 5000, 10000):
            s = self.context.socket(zmq.REQ)
            s.setsockopt(zmq.LINGER, 0)
            s.connect(f"tcp://127.0.0.1:{self.port + 2}")
            s.send(msgpack.packb({"v": 1, "id": 1, **request}))
            got = s.poll(wait_ms) and s.recv_multipart()
            s.close()
            if got:
                return msgpack.unpackb(got[0]), got[1:]
            self.receive(0)
            if self.ended():
                break
        raise AssertionError(f"no answer to {request}")

    def fill(self):
        run = max((k[0] for k in self.messages), default=None) or self.statuses["low"]["run"]
        for name in ("low", "high"):
            header, parts = self.ask(op="replay", socket=name, run=run, after=0)
            if "error" in header:
                self.refused = header["error"]
                continue
            for topic, body in zip(parts[::2], parts[1::2]):
                before = len(self.messages)
                self.take(topic.decode(), msgpack.unpackb(body))
                self.from_replay += len(self.messages) - before

    def scrape(self):
        for path in ("/metrics", "/healthz"):
            for attempt in range(3):
                connection = http.client.HTTPConnection("127.0.0.1", self.port + 3, timeout=5)
                try:
                    connection.request("GET", path)
                    response = connection.getresponse()
                    if response.status in (200, 503) and response.read():
                        break
                except (OSError, http.client.HTTPException):
                    pass
                finally:
                    connection.close()
            else:
                raise AssertionError(f"{path} is not served")

    def attached(self):
        """Waits until it is attached and the first status came. False: it ended."""
        self.wait(lambda: self.ended() or "attached (" in self.log() and len(self.statuses) == 2)
        if not self.ended():
            if len(self.statuses) != 2:
                raise AssertionError("neither attached nor ended")
            try:
                self.ids |= bpf_ids(self.process.pid)
            except OSError:
                pass
        return not self.ended()

    def work(self):
        """Whatever a scenario does while coretapd runs. Ends early when it does."""
        self.fire("blocks", "1", "20", "--coins", "--wait")
        self.fetch()

    def fetch(self):
        self.wait(lambda: self.ended() or not self.missing(), 10)
        self.ask(op="hello")
        self.ask(op="catalogue")
        self.fill()
        if self.missing():
            raise AssertionError(f"missing: {self.missing()}")
        if self.args == Run.args:
            self.scrape()

    def before(self):
        pass

    def after(self):
        pass

    # -- what became of it --

    def go(self):
        """Returns what failed as "NAME OFFSET", None = no call was left; raises what is wrong."""
        try:
            self.before()
            open(self.log_path, "w").close()
            self.subscribe()
            self.spawn(*self.args, injected=True)
            try:
                if self.attached():
                    self.work()
                    self.process.send_signal(signal.SIGTERM)
            except Exception:
                if not self.ended():
                    raise
            self.wait(self.ended, 15 * PATIENCE)
            if not self.ended():
                raise AssertionError("hangs")
            self.wait(lambda: self.stopping == 2, 0.2)
            self.judge()
            self.after()
            return self.failed()
        except Exception as error:
            error.args = (f"{error}; failed: {self.failed()}; log:\n{self.log()}",)
            error.failed = self.failed()
            raise
        finally:
            self.close()

    def failed(self):
        try:
            with open(self.inject_path) as f:
                return next((l[7:].strip() for l in f if l.startswith("failed ")), None)
        except FileNotFoundError:
            return None

    def lines(self):
        return {re.sub(r"\d+|/[^ ]*/(?=node)|i\d+-\d+", "", l) for l in self.log().splitlines()}

    def judge(self):
        code, log = self.process.returncode, self.log()
        self.code = code
        if "Sanitizer" in log or "runtime error" in log:
            raise AssertionError("sanitizer")
        if code not in (0, *EXIT_CODES):
            raise AssertionError(f"exit code {code}")
        if self.garbage:
            raise AssertionError(f"garbage: {self.garbage}")
        errors = [l for l in log.splitlines() if l.startswith("coretapd: error: ")]
        if code and not errors:
            raise AssertionError(f"exit code {code} without a word")
        if code and len(errors) > 1:
            raise AssertionError(f"exit code {code}, said more than once")
        if not code and self.missing():
            raise AssertionError(f"missing: {self.missing()}")
        if not self.keep and os.path.exists(f"/sys/fs/bpf/coretap/{self.label}"):
            raise AssertionError("left attached")
        left = set(os.listdir(f"/run/coretap/{self.label}")) if os.path.exists(f"/run/coretap/{self.label}") else set()
        if not left <= {"lock", "journal"} and "out of memory" not in log and "be removed" not in log:
            raise AssertionError(f"left behind: {left}")
        self.silent = not code and not self.from_replay and not self.lines() - self.usual

    usual = frozenset()

    def close(self):
        if self.process and not self.ended():
            self.process.kill()
            self.process.wait()
        for s, _ in getattr(self, "sockets", ()):
            s.close()
        if os.path.exists(f"/sys/fs/bpf/coretap/{self.label}"):
            subprocess.run([tool("coretapd"), "--detach", "--name", self.label], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(f"/run/coretap/{self.label}", ignore_errors=True)


class Plain(Run):
    """Started with metrics; a block; stopped."""


class Kept(Run):
    """Takes over what an earlier one left attached, and is left attached itself."""
    args = ("--keep-attached",)
    keep = True
    classes = ("alloc", "lmdb", "bpf", "libbpf", "file", "loop")

    def before(self):
        self.subscribe()
        self.spawn(*self.args)
        if not self.attached():
            raise AssertionError("the first one")
        self.process.send_signal(signal.SIGTERM)
        self.wait(self.ended)
        self.run = self.statuses["low"]["run"]
        for s, _ in self.sockets:
            s.close()
        self.statuses, self.stopping, self.messages = {}, 0, {}
        self.fire("burst", "50", "--wait")
        self.left = dict(self.fired)

    def work(self):
        if self.statuses["low"]["run"] != self.run:
            self.fired = {}  # told: a new run began
        super().work()

    def after(self):
        if self.code:
            self.statuses = {}
            open(self.log_path, "w").close()
            self.spawn(*self.args)  # a successor always can
            if not self.attached():
                raise AssertionError("the next one cannot start")
            self.process.send_signal(signal.SIGTERM)
            self.wait(self.ended)
            if self.process.returncode:
                raise AssertionError("the next one failed")
        subprocess.run([tool("coretapd"), "--detach", "--name", self.label], stderr=subprocess.DEVNULL, check=True)
        if os.path.exists(f"/sys/fs/bpf/coretap/{self.label}"):
            raise AssertionError("cannot be detached")


class Replaced(Run):
    """The executable is replaced by rename, and the next node starts from the new one."""
    args = ("--keep-attached",)
    keep = True
    classes = ("alloc", "bpf", "libbpf", "elf", "file", "loop")

    def work(self):
        self.fire("burst", "20", "--wait")
        shutil.copy(FAKE_NODE, self.binary + ".new")
        os.rename(self.binary + ".new", self.binary)
        # Or it was not pinned, which was told; or the line itself was what failed.
        if not self.wait(lambda: self.ended() or self.log().count(": attached") > 1 or
                         "cannot pin" in self.log() or (self.failed() or "").startswith("write "), 15 * PATIENCE):
            raise AssertionError("the new executable was not attached")
        if not self.ended():
            self.ids |= bpf_ids(self.process.pid)
        self.fire("burst", "20", "--wait")
        self.wait(lambda: self.ended() or not self.missing(), 10 * PATIENCE)

    after = Kept.after


class Single(Run):
    """A perf event and a link for each site, as on kernels without uprobe_multi. Each takes long to be
    detached: a few sites are like all."""
    args = ("--without", "multi", "--only", "mempool.*")
    classes = ("bpf", "libbpf", "alloc")

    def work(self):
        self.fire("burst", "50", "--wait")
        self.fetch()


class Guarded(Run):
    """Another user in the end, keys, a configuration file, declared tracepoints."""
    args = ("--config", "{directory}/config", "--user", "nobody")
    classes = ("alloc", "zmq", "libbpf", "file", "loop", "user", "yaml")

    def before(self):
        os.chmod(self.directory, 0o755)
        for name in ("server", "alice"):
            subprocess.run([tool("coretap"), "keygen", f"{self.directory}/{name}"], check=True,
                           stdout=subprocess.DEVNULL)
        shutil.copy(f"{self.directory}/alice.pub", f"{self.directory}/clients")
        with open(f"{self.directory}/config", "w") as f:
            f.write(f"curve-secret: {self.directory}/server.key\ncurve-clients: {self.directory}/clients\n"
                    f"tracepoints: [{ROOT}/bridge/tracepoints/block-relay.yaml]\n")

    def subscribe(self):
        self.keys = []
        for path in ("alice.pub", "alice.key", "server.pub"):
            with open(os.path.join(self.directory, path)) as f:
                self.keys.append(next(l.split()[0] for l in f if len(l.split()[0]) == 40).encode())
        original = self.context
        run = self

        class Keyed:
            def socket(self, kind):
                s = original.socket(kind)
                s.curve_publickey, s.curve_secretkey, s.curve_serverkey = run.keys
                return s
        self.context = Keyed()
        super().subscribe()


SCENARIOS = {c.__name__.lower(): c for c in (Plain, Kept, Replaced, Single, Guarded)}


class Injection(TestCase):
    @classmethod
    def setUpClass(cls):
        need_root()
        cls.directory = tempfile.mkdtemp(prefix="coretap-inject-")
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        Run.shim = compile_inject(cls.directory)
        os.chmod(cls.directory, 0o755)
        Run.context = zmq.Context(io_threads=2)
        cls.addClassCleanup(Run.context.destroy, 0)

    def calls(self, scenario):
        """All calls of a run without a fault, as {(class, function and callers): [numbers]}."""
        run = scenario("all", 0)
        calls = {}
        real = run.judge

        def judge():
            real()
            scenario.usual = scenario.usual | run.lines()
            with open(run.inject_path) as f:
                for line in f:
                    _, name, number, where = line.split(" ", 3)
                    calls.setdefault((name, where), []).append(int(number))
        run.judge = judge
        run.go()
        return calls

    def break_all(self, scenario, names):
        """Every call of a place, by whatever way it was reached, is like the others of it: the first
        three fail, and the last one."""
        calls = self.calls(scenario)
        tasks = [(name, i) for (name, _), numbers in calls.items() if name in names
                 for i in sorted({*numbers[:3], numbers[-1]})]
        total = sum(len(numbers) for (name, _), numbers in calls.items() if name in names)
        if CHOSEN.count(":") == 2:
            tasks = [(CHOSEN.split(":")[1], int(CHOSEN.split(":")[2]))]
        random.Random(SEED).shuffle(tasks)
        deadline = time.monotonic() + (1e9 if CHOSEN else SAMPLE_SECONDS / len(SCENARIOS))
        outcomes, ids = [], set()

        def one(task):
            if time.monotonic() > deadline:
                return None
            run = scenario(*task)
            try:
                failed = run.go()
                ids.update(run.ids)
                return task, failed, run.silent, None, run.code
            except Exception as error:
                return task, error.failed, False, f"{type(error).__name__}: {error}", None

        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            outcomes = [o for o in pool.map(one, tasks) if o]
        chains = callers(os.path.join(SANITIZED, "coretapd"), sorted({offset for o in outcomes if o[1] for offset in o[1].split()[1:]}))
        problems, silent, ended, n = [], set(), 0, 0
        for task, failed, quiet, problem, code in outcomes:
            where = None
            if failed:
                n += 1
                failed = re.sub(r"syscall_(\d+)_\d+", r"syscall_\1", failed.replace("syscall_321_", "bpf_"))
                function, *offsets = failed.split()
                chain = [f for offset in offsets for f in chains[offset]] or ["libbpf"]
                where = f"{function} in {' < '.join(chain)}"
                if any("gcov" in f for f in chain):
                    continue  # in a coverage build: not ours
                ended += bool(code)
                if quiet and not any((function, c) in ABSORBED for c in chain):
                    silent.add(where)
            if problem:
                problems.append(f"{task} {where}: {problem}")
            if os.environ.get("PRINT"):
                print(scenario.__name__, task, where, "PROBLEM" if problem else "silent" if quiet else code,
                      flush=True)
        print(f"# {scenario.__name__.lower()}: {n} of {total} calls failed, of {len(tasks)} that differ; {ended} of "
              f"them ended coretapd with an error, {n - ended} did not", file=sys.stderr, flush=True)
        wait_until(lambda: not bpf_alive(ids), 20, "what coretapd held in the kernel is gone")
        self.assertEqual(problems, [], "\n" + "\n".join(problems))
        self.assertEqual(silent, set(), "\n" + "\n".join(sorted(silent)))
        self.assertGreater(n, 0)

    def run_scenario(self, name):
        classes = [c for c in SCENARIOS[name].classes if CHOSEN in ("", "all", c, name) or CHOSEN.split(":")[:2] == [name, c]]
        if not classes:
            self.skipTest("not chosen")
        self.break_all(SCENARIOS[name], classes)

    def test_plain(self):
        self.run_scenario("plain")

    def test_kept(self):
        self.run_scenario("kept")

    def test_replaced(self):
        self.run_scenario("replaced")

    def test_single(self):
        self.run_scenario("single")

    def test_guarded(self):
        self.run_scenario("guarded")


if __name__ == "__main__":
    main()
