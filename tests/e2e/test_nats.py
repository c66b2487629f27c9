"""From the node's firing to a replicated log, exactly once: coretap-nats with real nats-servers, whatever
is killed. The consumer is the plain NATS client of clients/nats/examples.

NATS_SECONDS (16) is how long the nodes fire while everything is killed in turn, NATS_OUTAGE (5) how long
all servers are away."""
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import msgpack
import zmq

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", name) for name in ("lib", "conformance")]
from harness import Bridge, FakeNode, TestCase, free_port, main, need_root, private_copy, tool, wait_until
from nats import EXAMPLES, Cluster, Connection, Forwarder, Pull, need_nats, read, setup, wait_forwarded
from publisher import RUN, Publisher

SECONDS = float(os.environ.get("NATS_SECONDS", 16))
OUTAGE = float(os.environ.get("NATS_OUTAGE", 5))
RATE = 20000


class Proxy:
    """In front of a bridge; its replay socket takes connections, and serves only those made after serve()."""

    def __init__(self, bridge):
        self.port, self.held, self.serving = free_port(), [], False
        for i in range(3):
            listener = socket.create_server(("127.0.0.1", self.port + i))
            threading.Thread(target=self.accept, args=(listener, bridge.port + i, i == 2), daemon=True).start()

    def accept(self, listener, port, replay):
        while True:
            client, _ = listener.accept()
            if replay and not self.serving:
                self.held.append(client)
                continue
            server = socket.create_connection(("127.0.0.1", port))
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    @staticmethod
    def pump(source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def serve(self):
        self.serving = True


class LateServer:
    """In front of a nats-server: what comes while holding is set stays here, until another connection sends mark
    (after that has passed so often), which then finds it there already."""

    def __init__(self, port, mark):
        self.port, self.mark, self.passing, self.holding, self.held = free_port(), mark, 0, False, []
        self.url = f"nats://127.0.0.1:{self.port}"
        listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.accept, args=(listener, port), daemon=True).start()

    def accept(self, listener, port):
        while True:
            client, _ = listener.accept()
            self.holding = False
            server = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=Proxy.pump, args=(server, client), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(client, server), daemon=True).start()

    def pass_on(self, client, server):
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self.holding:
                    self.held.append((server, data))
                    continue
                if self.mark in data and self.passing:
                    self.passing -= 1
                elif self.mark in data:
                    for late, kept in self.held:
                        late.sendall(kept)
                    time.sleep(0.5 if self.held else 0)
                    self.held.clear()
                server.sendall(data)


class Nats(TestCase):
    def setUp(self):
        need_root()
        need_nats()

    def enter(self, context):
        entered = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return entered

    def check_whole(self, cluster, ledgers):
        """Each firing of each node is in the stream, once, in order, and nothing else."""
        account = read(cluster)
        self.assertEqual(account.wrong[:5], [])
        for node, fired in ledgers.items():
            self.assertEqual(account.of(node), fired, node)
        self.assertEqual(account.lost, {})
        self.assertEqual(account.told, [])
        return account

    def one(self, *args, extra="", setup_args=(), bridge_args=(), forward=True):
        """A server with a stream, a bridge, and a forwarder between them."""
        cluster = self.enter(Cluster(extra=extra))
        self.said = setup(cluster, *setup_args)
        bridge = self.enter(Bridge(*bridge_args))
        return cluster, bridge, self.enter(Forwarder(cluster, bridge, args=args)) if forward else None

    def burst(self, count, *args):
        return self.enter(FakeNode("burst", count, "--wait", "--start-delay", 300, *args))

    def test_first_steps(self):
        """As the README has it: set-up, forwarder, and what each consumer reads; the bodies are
        those of the bridge, byte for byte."""
        cluster, bridge, forwarder = self.one()
        self.assertIn("made stream coretap: coretap.>; 1 replica, on disk, kept for 168 h", self.said.stdout)
        self.assertRegex(self.said.stderr, "max_payload is 1048576: .* set `max_payload: 5MB`")
        direct, context = {}, zmq.Context()
        self.addCleanup(context.destroy, 0)
        sockets = []
        for i in range(2):
            sockets.append(context.socket(zmq.SUB))
            sockets[i].setsockopt(zmq.RCVHWM, 0)
            sockets[i].subscribe(b"")
            sockets[i].connect(f"tcp://127.0.0.1:{bridge.port + i}")
        wait_until(lambda: all(s.poll(0) for s in sockets), 10, "status")
        node = self.enter(FakeNode("walk", 3000, "--coins", "--wait", "--start-delay", 300))
        fired = node.finish()
        wait_forwarded(cluster, bridge.name, fired)
        self.assertEqual(forwarder.stop(), 0)
        account = self.check_whole(cluster, {bridge.name: fired})
        self.assertGreaterEqual(len(account.statuses), 2)
        for s in sockets:
            while s.poll(0):
                topic, body = s.recv_multipart()[:2]
                direct.setdefault(topic.decode(), []).append(body)
        connection, bodies = cluster.connect(), {}
        from jetstream import Pull
        for message in Pull(connection, "coretap", "bodies").fetch(account.sequence, 5):
            topic = message.subject.split(".", 2)[2]
            bodies.setdefault(topic, []).append(message.data)
            message.ack()
        connection.close()
        for topic in fired:
            self.assertTrue(bodies[topic] == direct[topic], topic)

        total = sum(account.count.values())
        for command in (["/usr/bin/python3", os.path.join(EXAMPLES, "consume.py")],
                        ["node", os.path.join(EXAMPLES, "consume.js")],
                        [tool("coretap"), "tail", "--since", "oldest", "--json", "--count", str(total), "--nats"]):
            arguments = [] if "--nats" in command else ["coretap", "reader-" + command[0][-4:], "--idle", "2"]
            with self.subTest(command[1]):
                if command[0] == "node" and not (
                        shutil.which("node") and os.path.exists(os.path.join(EXAMPLES, "node_modules"))):
                    self.skipTest("no Node with the example's packages (make deps-js)")
                result = subprocess.run([*command, cluster.url, *arguments], capture_output=True, text=True, timeout=240)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                next_number = {}
                for event in map(json.loads, result.stdout.splitlines()):
                    topic = event["topic"]
                    next_number[topic] = next_number.get(topic, 0) + 1
                    self.assertEqual(event["seq"], next_number[topic], topic)
                self.assertEqual(next_number, {t: n for (_, t), n in account.count.items()})
                self.assertEqual(event["node"], bridge.name)

    def test_no_server(self):
        """While no server can be reached the journal holds: nothing is lost, nothing comes twice."""
        cluster, bridge, forwarder = self.one(bridge_args=("--journal-low", "192M", "--journal-high", "16M"))
        node = self.burst(10**9, "--rate", RATE // 4)
        wait_until(lambda: any(count for count, _ in cluster.stream().values()), what="the first messages")
        cluster.kill(0)
        time.sleep(OUTAGE)
        cluster.start(0)
        time.sleep(1)
        fired = node.stop()
        wait_forwarded(cluster, bridge.name, fired)
        self.assertEqual(forwarder.stop(), 0)
        self.check_whole(cluster, {bridge.name: fired})
        self.assertRegex(forwarder.log(), r"nothing was published for \d+\.\d s")

    def test_no_server_for_too_long(self):
        """Beyond what the journal holds: foretold, and then the exact range, also in the stream."""
        cluster, bridge, forwarder = self.one("--memory", "1M", bridge_args=(
            "--journal-low", "16M", "--journal-high", "16M", "--subscriber-memory", "1M"))
        with self.burst(60000) as node:
            fired = node.finish()["mempool.removed"]
        wait_forwarded(cluster, bridge.name, {"mempool.removed": fired})
        cluster.kill(0)
        node = self.burst(10**9, "--rate", 12000)
        forwarder.wait_log("the journal begins to lose them in about", 60)
        forwarder.wait_log("the journal is overrun", 60)
        fired += node.stop()["mempool.removed"]
        with self.burst(400000) as node:  # more than the queues on the way hold
            fired += node.finish()["mempool.removed"]
        cluster.start(0)
        wait_forwarded(cluster, bridge.name, {"mempool.removed": fired})
        self.assertEqual(forwarder.stop(), 0)
        account = read(cluster)
        told = [(t["topic"], t["socket"], t["reason"]) for t in account.told if "first" in t]
        self.assertIn(("mempool.removed", "low", "not in the journal"), told)
        gap = sum(t["last"] - t["first"] + 1 for t in account.told if t["topic"] == "mempool.removed")
        self.assertGreater(gap, 1000)
        self.assertEqual(account.count[bridge.name, "mempool.removed"] + gap, fired)
        self.assertIn(f"coretap.{bridge.name}.bridge.gap.mempool.removed", account.subjects)
        gaps = [(w[2], w[4] - 1) for w in account.wrong if str(w[0]).endswith("mempool.removed")]
        self.assertEqual(gaps, [(t["first"], t["last"]) for t in account.told if t["topic"] == "mempool.removed"])

    def test_replay_is_silent(self):
        """Who does not answer may still have it: nothing is told as missing meanwhile."""
        cluster, bridge, _ = self.one(forward=False)
        with self.burst(5000) as node:
            fired = node.finish()
        proxy = Proxy(bridge)
        forwarder = self.enter(Forwarder(cluster, proxy))
        forwarder.wait_log("replay does not answer; asking again")
        proxy.serve()
        wait_forwarded(cluster, bridge.name, fired)
        self.assertEqual(forwarder.stop(), 0)
        self.check_whole(cluster, {bridge.name: fired})

    def test_two_forwarders(self):
        """One writes, the other stands by, and takes over when that one dies."""
        cluster, bridge, first = self.one("--takeover", "6s")
        node = self.burst(10**9, "--rate", 2000)
        time.sleep(0.5)
        second = self.enter(Forwarder(cluster, bridge, args=("--takeover", "6s")))
        standing = "another forwarder writes to it; standing by"
        wait_until(lambda: standing in first.log() or standing in second.log(), 30, standing)
        writer, other = (second, first) if standing in first.log() else (first, second)
        time.sleep(7)
        self.assertNotIn("taking over", other.log())
        writer.kill()
        other.wait_log("is silent, taking over", 30)
        fired = node.stop()
        wait_forwarded(cluster, bridge.name, fired)
        self.assertEqual(other.stop(), 0)
        self.check_whole(cluster, {bridge.name: fired})

    def test_purged_beside_another(self):
        """That the last message is gone does not say that nobody writes."""
        cluster, bridge, first = self.one()
        wait_until(lambda: any(count for count, _ in cluster.stream().values()), what="the first statuses")
        second = self.enter(Forwarder(cluster, bridge, args=("--takeover", "1m")))
        second.wait_log("standing by")
        first.process.send_signal(signal.SIGSTOP)
        connection = cluster.connect()
        self.assertGreater(connection.request("$JS.API.STREAM.PURGE.coretap")["purged"], 0)
        time.sleep(3)
        first.process.send_signal(signal.SIGCONT)
        wait_until(lambda: any(count for count, _ in cluster.stream().values()), 30, "statuses again")
        connection.close()
        self.assertNotIn("publishing after", second.log())
        self.assertEqual((first.stop(), second.stop()), (0, 0))

    def test_clock_set_back(self):
        """Statuses are passed on whatever time the node's machine has."""
        cluster = self.enter(Cluster())
        setup(cluster)
        publisher = self.enter(Publisher(free_port()))
        self.enter(Forwarder(cluster, publisher))

        def stored():
            return sum(count for count, _ in cluster.stream().values())

        def passed(hour):
            seconds[0] += 1
            for name in ("low", "high"):
                publisher.step({"status": name, "time_us": RUN + (hour * 3600 + seconds[0]) * 10**6})
            return stored() > before + 4
        seconds = [0]
        for hour in (2, 1):
            before = stored()
            wait_until(lambda: passed(hour), 20, f"statuses of hour {hour}")

    def test_late_copies(self):
        """A third node is heard while the server is stalled: what was under way arrives among what another
        connection sends since. Each message stands there once, in order."""
        cluster = self.enter(Cluster())
        setup(cluster)
        late = LateServer(cluster.clients[0], b"coretap.bob.mempool.rejected")
        alice, bob, carol = nodes = [self.enter(Publisher(free_port())) for _ in range(3)]
        for node, name in zip(nodes, ("alice", "bob", "carol")):
            node.current["node"] = name
        clock = [RUN]

        def beat(node, n=0):
            clock[0] += 1000
            node.used()
            node.status("low", "bridge.status", {"n": n, "time_us": clock[0], "heads": {"mempool.rejected": n} if n else {}})

        def stored():
            beat(alice)
            beat(bob)
            return sum(last for _, last in cluster.stream().values()) >= 2
        forwarder = self.enter(Forwarder(cluster, *nodes, args=("--status", "1h", "--topic", "mempool"), url=late.url))
        wait_until(stored, 10, "statuses of two nodes")
        late.holding, late.passing = True, 1
        for i in (1, 2):
            alice.step({"send": "mempool.rejected", "seq": i, "n": i})
        wait_until(lambda: b"rejected.2/" in b"".join(data for _, data in late.held), 5, "two messages on their way")
        beat(carol)
        wait_until(lambda: not late.holding, 10, "another connection")
        time.sleep(2)
        for i in (1, 2, 3):
            bob.step({"send": "mempool.rejected", "seq": i, "n": i})
            wait_until(lambda: late.passing == 0, 10, "the first one of bob's")
            time.sleep(0.5 if i == 1 else 0)

        for _ in range(40):
            time.sleep(0.1)
            beat(alice, 2)
            beat(bob, 3)
        account = read(cluster)
        self.assertEqual([account.of(name) for name in ("alice", "bob")], [{"mempool.rejected": n} for n in (2, 3)])
        self.assertEqual((forwarder.stop(), late.held, account.wrong), (0, [], []))

    def test_another_node_at_the_address(self):
        """What is still under way of the one before says nothing of where this one stands, whose run is older."""
        cluster = self.enter(Cluster())
        setup(cluster)
        node = self.enter(Publisher(free_port()))
        forwarder = self.enter(Forwarder(cluster, node, args=("--status", "1h", "--topic", "mempool")))

        def beat(n=0):
            node.used()
            node.status("low", "bridge.status", {"n": n, "heads": {"mempool.rejected": n} if n else {}})
            return sum(last for _, last in cluster.stream().values())
        node.current.update(node="first", run=RUN + 5)
        wait_until(beat, 10, "a status")
        cluster.processes[0].send_signal(signal.SIGSTOP)
        for i in (1, 2):
            node.step({"send": "mempool.rejected", "seq": i, "n": i})
        time.sleep(0.5)
        cluster.kill(0)
        node.current.update(node="second", run=RUN)
        node.status("low", "bridge.status", {"n": 0, "heads": {}})
        time.sleep(0.5)
        cluster.start(0)
        cluster.wait_ready()
        forwarder.wait_log("publishing after sequence 1")
        time.sleep(3)
        node.step({"send": "mempool.rejected", "seq": 1, "n": 1})
        for _ in range(20):
            time.sleep(0.1)
            beat(1)
        account = read(cluster)
        self.assertEqual([account.of(name) for name in ("first", "second")],
                         [{"mempool.rejected": n} for n in (2, 1)], forwarder.log())
        self.assertEqual((forwarder.stop(), account.wrong), (0, []))

    def test_tail_of_strange_messages(self):
        """One without headers is told, and the rest goes on; who reads slowly loses none."""
        cluster, count, header = self.enter(Cluster()), 100000, b"NATS/1.0\r\nCoretap: low 00000001\r\n\r\n"
        setup(cluster)
        with socket.create_connection(("127.0.0.1", cluster.clients[0])) as server:
            server.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nPUB coretap.n.hello 2\r\nhi\r\n')
            for i in range(1, count + 1):
                body = msgpack.packb({"v": 1, "node": "n", "run": RUN, "pid": 1, "n": i, "seq": i,
                                      "events": [{"time_us": i}]})
                server.sendall(b"HPUB coretap.n.mempool.rejected %d %d\r\n%s%s\r\n"
                               % (len(header), len(header) + len(body), header, body))
            wait_until(lambda: sum(n for n, _ in cluster.stream().values()) == count + 1, 60, "the messages")
        tail = subprocess.Popen([tool("coretap-nats"), "tail", "--since", "oldest", "--json", "--count", str(count),
                                 "--server", cluster.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(5)
        out, errors = tail.communicate(timeout=240)
        self.assertEqual((tail.returncode, errors.count("\n")), (0, 1), errors)
        self.assertIn("a malformed message of hello", errors)
        events = [e for e in map(json.loads, out.splitlines()) if "notice" not in e]
        self.assertEqual([e["seq"] for e in events], list(range(1, count + 1)))

    def test_full_stream(self):
        """A stream that takes nothing more when it is full: the journal holds until there is room."""
        cluster, bridge, forwarder = self.one(
            setup_args=("--max-bytes", "200K", "--discard", "new"),
            bridge_args=("--journal-low", "64M", "--journal-high", "16M"))
        with self.burst(20000) as node:
            fired = node.finish()
        forwarder.wait_log("maximum bytes exceeded")
        time.sleep(4)  # attempts that come to nothing are not told each
        said = setup(cluster, "--max-bytes", "1G", "--discard", "new").stdout
        self.assertIn("changed stream coretap: ", said)
        wait_forwarded(cluster, bridge.name, fired)
        self.assertEqual(forwarder.stop(), 0)
        self.check_whole(cluster, {bridge.name: fired})
        self.assertEqual(forwarder.log().count("maximum bytes exceeded"), 1)
        self.assertEqual(forwarder.log().count("publishing after sequence"), 2)

    def test_stream_emptied_and_deleted(self):
        """What an operator removes from the stream does not come again; a stream made anew gets what
        the journal has."""
        cluster, bridge, forwarder = self.one()
        with self.burst(5000) as node:
            fired = node.finish()["mempool.removed"]
        wait_forwarded(cluster, bridge.name, {"mempool.removed": fired})
        connection = cluster.connect()
        before = connection.request("$JS.API.STREAM.PURGE.coretap")["purged"]
        self.assertGreater(before, 10)
        with forwarder:
            cluster.kill(0)
            cluster.start(0)
            with self.burst(1000) as node:
                fired += node.finish()["mempool.removed"]
            wait_forwarded(cluster, bridge.name, {"mempool.removed": fired})
            connection = cluster.connect()
            account = read(cluster)
            self.assertEqual(account.count[bridge.name, "mempool.removed"], 1000)
            connection.request("$JS.API.STREAM.DELETE.coretap")
            forwarder.wait_log("there is no stream coretap; `coretap-nats setup --stream coretap` makes it")
            setup(cluster)
            wait_forwarded(cluster, bridge.name, {"mempool.removed": fired})
            self.assertEqual(forwarder.stop(), 0)
            self.assertIn("publishing again what the journals hold", forwarder.log())
        connection.close()
        account = read(cluster, name="again")
        self.assertEqual(account.wrong, [])
        self.assertEqual(account.count[bridge.name, "mempool.removed"], fired)

    def test_too_large_for_the_server(self):
        """A payload that does not fit is told as a gap, and the rest goes on."""
        cluster, bridge, forwarder = self.one(extra="max_payload: 200K", bridge_args=("--payload", "full"))
        with self.burst(3, "--probe", "message", "--size", 300000) as node:
            node.finish()
        with self.burst(3, "--probe", "message", "--size", 100) as node:
            node.finish()
        wait_forwarded(cluster, bridge.name, {"net.inbound_message": 6})
        forwarder.kill()
        forwarder = self.enter(Forwarder(cluster, bridge))
        with self.burst(2, "--probe", "message", "--size", 300000) as node:
            node.finish()
        with self.burst(1, "--probe", "message", "--size", 100) as node:
            node.finish()
        wait_forwarded(cluster, bridge.name, {"net.inbound_message": 9})
        self.assertEqual(forwarder.stop(), 0)
        self.assertIn("larger than the server or the stream takes", forwarder.log())
        account = read(cluster)
        self.assertEqual([(t["topic"], t["first"], t["last"], t["reason"]) for t in account.told],
                         [("net.inbound_message", i, i, "too large") for i in (1, 2, 3, 7, 8)])
        self.assertEqual(account.count[bridge.name, "net.inbound_message"], 4)
        told = subprocess.run([tool("coretap"), "tail", "net.*", "--since", "oldest", "--text", "--count", "4", "--nats",
                               cluster.url], capture_output=True, text=True, timeout=240)
        self.assertEqual((told.returncode, told.stdout.count("net.inbound_message")), (0, 4), told.stderr)
        self.assertIn("net.inbound_message: 2 not in the stream, numbers 7 to 8", told.stderr)

    def test_credentials(self):
        """A password, and TLS: wrong ones end it with one line."""
        directory = self.enter(Cluster()).directory
        key, cert = os.path.join(directory, "key"), os.path.join(directory, "cert")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                        "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                        "-keyout", key, "-out", cert], check=True, capture_output=True)
        cluster = self.enter(Cluster(extra=f"authorization {{ user: u, password: secret }}\n"
                                           f"tls {{ cert_file: '{cert}', key_file: '{key}' }}"))
        port = cluster.clients[0]

        def attempt(*args):
            result = subprocess.run([tool("coretap-nats"), "setup", *args], capture_output=True, text=True, timeout=120)
            self.assertNotIn("secret", result.stderr)
            return result.returncode, result.stderr

        good = f"tls://u:secret@localhost:{port}"
        wait_until(lambda: attempt("--server", good, "--tls-ca", cert)[0] == 0, 30, "set up")
        for why, *args in (("Authorization Violation|Authentication", f"tls://u:secreT@localhost:{port}", "--tls-ca", cert),
                           ("verify failed|certificate", good),
                           ("verify failed|mismatch", f"tls://u:secret@127.0.0.1:{port}", "--tls-ca", cert,
                            "--tls-name", "elsewhere"),
                           ("Error loading", good, "--tls-ca", cert + "x"),
                           ("certificate", f"nats://u:secret@localhost:{port}")):
            code, said = attempt("--server", *args)
            self.assertEqual(code, 1, args)
            self.assertRegex(said, why)
            self.assertEqual(said.count("\n"), 1, said)
        with self.enter(Bridge()) as bridge:
            forwarder = self.enter(Forwarder(cluster, bridge, url=f"nats://x:y@localhost:{port}", args=("--tls-ca", cert)))
            self.assertEqual(forwarder.process.wait(80), 1)
            self.assertNotIn("x:y", forwarder.log())
            with Forwarder(cluster, bridge, url=good, args=("--tls-ca", cert)) as forwarder:
                forwarder.wait_log("publishing after sequence 0")
                self.assertEqual(forwarder.stop(), 0)

    def test_keys(self):
        """A bridge that wants keys."""
        directory = self.enter(Cluster()).directory
        server, alice = (os.path.join(directory, name) for name in ("server", "alice"))
        for name in (server, alice):
            subprocess.run([tool("coretap"), "keygen", name], check=True, stdout=subprocess.DEVNULL)
        keys = ("--curve-server", server + ".pub", "--curve-secret", alice + ".key")
        cluster, bridge, forwarder = self.one(*keys, bridge_args=(
            "--curve-secret", server + ".key", "--curve-clients", alice + ".pub"))
        forwarder.wait_log("publishing after sequence 0")
        fired = self.burst(1000).finish()
        wait_forwarded(cluster, bridge.name, fired)
        self.assertEqual(forwarder.stop(), 0)
        self.check_whole(cluster, {bridge.name: fired})

    def test_refused(self):
        """What cannot be meant ends it with one line that names it, before any server is asked."""
        directory = self.enter(tempfile.TemporaryDirectory())
        key = os.path.join(directory, "key")
        subprocess.run([tool("coretap"), "keygen", key], check=True, stdout=subprocess.DEVNULL)
        for words, why in (("forward x", "x: not an option"), ("forward --memory x", "--memory x: not a number"),
                           ("forward --memory 0", "--memory 0: not a number"), ("forward --window 2M", "--window 2M"),
                           ("forward --takeover x", "--takeover"), ("forward --status x", "--status"),
                           ("forward --report x", "--report"), ("forward --address nowhere", "nowhere"),
                           (f"forward --curve-server {key}.pub", "belong together"),
                           ("forward --curve-secret /nowhere", "/nowhere: No such file"),
                           ("setup x", "x: not an option"), ("setup --replicas 6", "--replicas 6: from 1 to 5"),
                           ("setup --discard all", "--discard"), ("setup --storage tape", "--storage"),
                           ("setup --max-bytes x", "--max-bytes"), ("setup --max-message 3G", "--max-message"),
                           ("setup --max-message 4K", "--max-message 4K: not a size of at least 32768"),
                           ("setup --max-age x", "--max-age"), ("setup --duplicate-window x", "--duplicate-window"),
                           ("setup --node a.b", "a.b"), ("setup --node a --from b", "exclude each other"),
                           *((f"{command} --stream bad{c}name", f"--stream bad{c}name: not the name of a stream")
                             for command in ("setup", "forward", "tail") for c in ".*>/\\"),
                           ("setup --from a.b", "--from a.b: not the name"),
                           ("tail a/b", "a/b: not a topic"), ("tail --count 0", "not a number above 0"),
                           ("nothing", "no command nothing")):
            with self.subTest(words):
                done = subprocess.run([tool("coretap-nats"), *words.split()], capture_output=True, text=True, timeout=240)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(why, done.stderr.splitlines()[0])
        for name in ("bad name", ""):
            done = subprocess.run([tool("coretap-nats"), "setup", "--stream", name], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"--stream {name}: not the name of a stream", done.stderr)

    def test_setup_changes_what_is_named(self):
        """Of a stream that exists nothing else changes."""
        cluster = self.enter(Cluster())
        said = setup(cluster, "--node", "a", "--max-bytes", "20M", "--max-age", "5m", "--storage", "memory",
                     "--max-message", "1M").stdout
        self.assertIn("made stream coretap: coretap.a.>; 1 replica, in memory, kept for 300 s, "
                      "at most 20,971,520 bytes, when full the oldest go, repeats known for 120 s", said)
        connection = cluster.connect()
        self.addCleanup(connection.close)

        def config():
            return connection.request("$JS.API.STREAM.INFO.coretap")["config"]
        expected = config()
        self.assertEqual((expected["max_msg_size"], expected["storage"]), (1 << 20, "memory"))
        for words, changes in ((("--max-bytes", "1M", "--discard", "new"), {"max_bytes": 1 << 20, "discard": "new"}),
                               ((), {}),
                               (("--max-age", "5s"), {"max_age": 5 * 10**9, "duplicate_window": 5 * 10**9}),
                               (("--node", "b", "--max-bytes", "unlimited"),
                                {"max_bytes": -1, "subjects": ["coretap.b.>"]}),
                               (("--max-message", "unlimited", "--max-age", "unlimited", "--duplicate-window", "1m"),
                                {"max_msg_size": -1, "max_age": 0, "duplicate_window": 60 * 10**9})):
            with self.subTest(words):
                self.assertIn("changed stream coretap: ", setup(cluster, *words).stdout)
                expected.update(changes)
                self.assertEqual(config(), expected)

    def test_unknown_topic(self):
        """A slip is told, as by `coretap tail`: nothing would ever come."""
        cluster = self.enter(Cluster())
        setup(cluster)
        for command in (("coretap", "tail", "--nats", cluster.url), ("coretap-nats", "tail", "--server", cluster.url),
                        ("coretap-nats", "forward", "--server", cluster.url, "--topic")):
            with self.subTest(command):
                process = subprocess.Popen([tool(command[0]), *command[1:], "mempol"], stderr=subprocess.PIPE,
                                           stdout=subprocess.DEVNULL, text=True)
                self.assertIn("mempol", line := process.stderr.readline())
                self.assertIn(": no topic of Bitcoin Core's", line)
                process.terminate()
                process.wait(120)  # perhaps before it minds the signal
                process.stderr.close()

    def test_tail_ends_in_the_middle(self):
        """While more comes than is wanted: libnats hung, or crashed, where a subscription is destroyed meanwhile."""
        cluster = self.enter(Cluster())
        setup(cluster)
        with Bridge() as bridge, FakeNode("burst", 20000, "--wait") as node:
            with Forwarder(cluster, bridge):
                wait_forwarded(cluster, bridge.name, node.finish(), 60)
        for count in range(1, 21):
            done = subprocess.run([tool("coretap-nats"), "tail", "--server", cluster.url, "--since", "oldest",
                                   "--json", "--count", str(count), "mempool.removed"], capture_output=True, text=True, timeout=240)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual([json.loads(line)["seq"] for line in done.stdout.splitlines()], list(range(1, count + 1)))

    def test_question_without_a_leader(self):
        """JetStream answers nothing while it has none: the example's client asks again."""
        cluster = self.enter(Cluster(3))
        setup(cluster, "--replicas", "3")
        connection = Connection(f"nats://127.0.0.1:{cluster.clients[0]}")
        self.addCleanup(connection.close)
        for i in (1, 2):
            cluster.kill(i)
        back = [threading.Timer(7, cluster.start, (i,)) for i in (1, 2)]
        for timer in back:
            timer.start()
        Pull(connection, "coretap", "witness")
        for timer in back:
            timer.join()
        self.assertEqual(connection.request("$JS.API.CONSUMER.INFO.coretap.witness")["name"], "witness")

    def test_everything_is_killed(self):
        """Three servers, three replicas, two nodes; kill -9 of each server, of the forwarder, and of
        a bridge, over and over."""
        args = ("--keep-attached", "--journal-low", "256M", "--journal-high", "16M")
        binaries = [private_copy(), private_copy()]
        cluster = self.enter(Cluster(3))
        setup(cluster, "--replicas", "3", "--max-age", "1h")
        bridges = [Bridge(*args, binary=b, name=f"nats{os.getpid()}-{i}", keep=True)
                   for i, b in enumerate(binaries)]
        for bridge, binary in zip(bridges, binaries):
            self.addCleanup(shutil.rmtree, f"/run/coretap/{bridge.name}", ignore_errors=True)
            self.addCleanup(subprocess.run, [tool("coretapd"), "--detach", "--name", bridge.name,
                                             "--binary", binary], stderr=subprocess.DEVNULL)
        nodes = [self.enter(FakeNode("burst", 10**9, "--rate", RATE, "--wait", "--start-delay", 300,
                                     binary=b)) for b in binaries]
        forwarder = Forwarder(cluster, *bridges)
        chance, end, kills = random.Random(1), time.monotonic() + SECONDS, 0
        while time.monotonic() < end or kills < 6:
            victim = kills % 6
            time.sleep(chance.uniform(0.5, 2))
            if victim in (0, 2, 4):
                cluster.kill(victim // 2)
                time.sleep(chance.uniform(0.2, 1.5))
                cluster.start(victim // 2)
                time.sleep(1.5)  # one at a time: a majority must be there again
            elif victim == 3:
                bridges[0].kill()
                time.sleep(chance.uniform(0, 0.5))
                bridges[0] = Bridge(*args, binary=binaries[0], name=bridges[0].name, port=bridges[0].port,
                                    keep=True)
            else:
                forwarder.kill()
                time.sleep(chance.uniform(0, 0.5))
                forwarder = Forwarder(cluster, *bridges)
            kills += 1
        self.enter(forwarder)
        ledgers = {b.name: n.stop() for b, n in zip(bridges, nodes)}
        begin = time.monotonic()
        for node, fired in ledgers.items():
            wait_forwarded(cluster, node, fired, 240)
        caught_up = time.monotonic() - begin
        self.assertEqual(forwarder.stop(), 0)
        account = self.check_whole(cluster, ledgers)
        wait_until(lambda: len(set(cluster.stream().values())) == 1 and len(cluster.stream()) == 3, 60,
                   "all replicas alike")
        for bridge in bridges:
            self.enter(bridge)
            bridge.keep = False
        total = sum(sum(f.values()) for f in ledgers.values())
        print(f"# {kills} kills, {total} firings in {account.sequence} messages, caught up after "
              f"{caught_up:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
