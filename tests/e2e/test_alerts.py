"""coretap-alerts: which alerts arrive, in which order, whatever happens to it and to the receiver.

Most tests play a script (tests/conformance/publisher.py) and need no privileges; one has a node."""
import contextlib
import http.server
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "lib"), os.path.join(HERE, "..", "conformance"),
                *(os.path.join(HERE, "..", "..", "clients", name) for name in ("alerts", "python"))]
from harness import (PATIENCE, ROOT, Bridge, FakeNode, TestCase, free_port, main, need_root, tool, wait_until)
from publisher import RUN, Publisher
from coretap_alerts.delivery import Failure, post
from coretap_alerts.rules import Webhook

COMMAND = os.path.join(ROOT, "clients", "alerts", "coretap-alerts")
ADDED, REMOVED, REPLACED, REJECTED = (f"mempool.{n}" for n in ("added", "removed", "replaced", "rejected"))
TOPICS = (ADDED, REMOVED, REPLACED, REJECTED, "block.evictions")
PAYMENT, FIRST, SECOND = ("%02x" % n * 32 for n in (0xa0, 0xb1, 0xb2))


class Receiver:
    """A webhook. .script is what it does to the next requests, then "ok": a status, "reset" (closes
    with RST), "close" (without an answer), "hang", "trickle" (a byte at a time, for ever)."""

    def __init__(self, *script, port=0, before_answer=None):
        self.script, self.asked, self.taken, self.headers = list(script), [], [], []
        self.released = threading.Event()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                alert = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                action = receiver.script.pop(0) if receiver.script else "ok"
                receiver.asked.append((action, alert["id"]))
                receiver.headers.append(dict(self.headers))
                if before_answer:
                    before_answer()
                if action == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif action == "hang":
                    receiver.released.wait(600)
                elif action == "trickle":
                    self.connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                    while not receiver.released.wait(0.05):
                        self.connection.sendall(b"x")
                elif action != "close":
                    if action == "ok":
                        receiver.taken.append(alert)
                    self.send_response(200 if action == "ok" else action)
                    self.end_headers()
                self.close_connection = True

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_):
                pass
        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def ids(self):
        return [alert["id"] for alert in self.taken]

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


class Alerter:
    def __init__(self, directory, *options):
        self.errors = open(os.path.join(directory, "log"), "ab+")
        self.process = subprocess.Popen([COMMAND, os.path.join(directory, "rules.yaml"), *options],
                                        stderr=self.errors, cwd=directory)

    def log(self):
        # pread: the child shares the file's offset.
        return os.pread(self.errors.fileno(), 1 << 24, 0).decode()

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(20 * PATIENCE)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.errors.close()


class Case(TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="coretap-alerts-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.publisher = Publisher(free_port())
        self.addCleanup(self.publisher.close)
        self.n, self.seq = 0, dict.fromkeys(TOPICS, 0)

    def wait(self, condition, seconds, what):
        try:
            return wait_until(condition, seconds, what)
        except AssertionError as error:
            with open(f"{self.directory}/log") as log:
                raise AssertionError(f"{error}; the log ends: {log.read()[-2000:]}") from None

    def receiver(self, *script, **options):
        receiver = Receiver(*script, **options)
        self.addCleanup(receiver.close)
        return receiver

    def rules(self, rules, webhooks, port=None, **top):
        """YAML is a superset of JSON."""
        webhooks = {name: {"timeout": "20s", "retry": "20ms", "retry_most": "100ms",
                           **(w if isinstance(w, dict) else {"url": w.url})} for name, w in webhooks.items()}
        with open(os.path.join(self.directory, "rules.yaml"), "w") as file:
            json.dump({"address": f"tcp://127.0.0.1:{port or self.publisher.port}", "state": "state.db",
                       "webhooks": webhooks, "rules": rules, **top}, file, indent=1)

    def start(self, *options, wait=True):
        alerter = Alerter(self.directory, *options)
        self.addCleanup(alerter.close)
        if wait:
            self.wait_joined()
        return alerter

    def wait_joined(self):
        self.publisher.wait_client(["low"], 20)
        self.status()

    def status(self):
        self.publisher.status("low", "bridge.status", {"n": self.n, "heads": dict(self.seq)})

    def fire(self, topic, op="send", lost=0, **fields):
        """One event, hashes in hex."""
        self.n += 1
        number = self.seq[topic] + 1
        self.seq[topic] = number + lost
        event = {"time_us": 1700000000000000 + self.n, **{
            k: {"hex": v} if isinstance(v, str) and len(v) == 64 else v for k, v in fields.items()}}
        self.publisher.step({op: topic, "seq": number, "lost": lost, "n": self.n, "events": [event]})
        return self.n

    def replace(self, old, new):
        fee = {"vsize": 110, "fee": 500}
        n = self.fire(REPLACED, txid=old, entry_time=1, replacement_txid=new, replacement_vsize=110,
                      replacement_fee=900, **fee)
        self.fire(REMOVED, txid=old, reason="replaced", entry_time=1, **fee)
        self.fire(ADDED, txid=new, **fee)
        return n

    def confirm(self, txid, height=800000):
        return self.fire(REMOVED, txid=txid, reason="block", vsize=110, fee=900, entry_time=1, height=height)

    def wait_alerts(self, receiver, count, seconds=20):
        """Statuses go on meanwhile: they make a client ask for what it missed."""
        def arrived():
            self.publisher.used()
            self.status()
            time.sleep(0.03)
            return len(set(receiver.ids())) >= count
        self.wait(arrived, seconds, f"{count} alerts, not {receiver.ids()}")
        return receiver.taken

    WATCH = {"name": "payments", "watch": {"txids": [PAYMENT]}, "follow": True}


class Delivery(Case):
    def test_replaced_twice_then_confirmed(self):
        """Three alerts, also when it is killed between them and meanwhile the stream goes on."""
        receiver = self.receiver()
        self.rules([self.WATCH], {"ops": receiver})
        alerter = self.start()
        one = self.replace(PAYMENT, FIRST)
        self.wait_alerts(receiver, 1)
        alerter.stop(signal.SIGKILL)
        two = self.replace(FIRST, SECOND)
        alerter = self.start()
        self.wait_alerts(receiver, 2)
        alerter.stop(signal.SIGKILL)
        three = self.confirm(SECOND)
        alerter = self.start()
        self.wait_alerts(receiver, 3)
        self.fire(ADDED, txid="77" * 32, vsize=1, fee=1)
        self.assertEqual(alerter.stop(), 0)
        # A kill between the receiver's answer and our note of it makes a repeat, with the same id.
        alerts = list({a["id"]: a for a in receiver.taken}.values())
        self.assertEqual([a["id"] for a in alerts], [f"{RUN}/low/{n}/payments" for n in (one, two, three)])
        self.assertEqual([(a["what"], a["txid"], a.get("in_place_of"), a["event"].get("replacement_txid"))
                          for a in alerts],
                         [("replaced", PAYMENT, None, FIRST), ("replaced", FIRST, [PAYMENT], SECOND),
                          ("confirmed", SECOND, [PAYMENT], None)])
        self.assertEqual(alerts[2]["event"]["height"], 800000)
        self.assertEqual(alerts[2]["text"], f"payments: {SECOND} confirmed")

    def test_killed_at_every_step(self):
        """Around each commit, each attempt and each note of a delivery. A repeat is only what the
        receiver took while we died, and has the same id."""
        server = subprocess.Popen(["/usr/bin/python3", "-c", KILLER, os.path.dirname(COMMAND)], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(server.wait)
        self.addCleanup(server.stdin.close)

        def ask(*words):
            print(*words, file=server.stdin, flush=True)
            return int(server.stdout.readline())
        receiver = self.receiver()
        self.rules([self.WATCH], {"ops": receiver})
        alerter = self.start()

        def placed():
            with open(f"{self.directory}/state.db", "rb") as file:
                return b'"conform"' in file.read()
        self.wait(placed, 10, "a place in the stream")
        alerter.stop()
        numbers = [self.replace(PAYMENT, FIRST), self.replace(FIRST, SECOND), self.confirm(SECOND)]
        expected = [f"{RUN}/low/{n}/payments" for n in numbers]
        step, repeats = 0, 0
        while True:
            step += 1
            receiver.taken.clear()
            state = f"{self.directory}/{step}.db"
            shutil.copy(f"{self.directory}/state.db", state)
            pid = ask("start", step, f"{self.directory}/rules.yaml", state)
            quiet = []  # moments at which all was taken and it lived on

            def ended():
                self.publisher.used()
                self.status()
                time.sleep(0.02)
                if len(set(receiver.ids())) == 3:
                    quiet.append(time.monotonic())
                return not ask("alive", pid) or quiet and quiet[-1] - quiet[0] > 1
            self.wait(ended, 20, f"step {step}")
            if ask("alive", pid):
                ask("kill", pid)
                self.assertEqual(receiver.ids(), expected)
                break
            pid = ask("start", 0, f"{self.directory}/rules.yaml", state)
            self.wait_alerts(receiver, 3)
            ask("kill", pid)
            ids = receiver.ids()
            repeats += len(ids) - 3
            self.assertEqual([i for k, i in enumerate(ids) if k == 0 or ids[k - 1] != i], expected, f"step {step}")
        self.assertGreater(step, 12)
        self.assertGreater(repeats, 0)

    def test_receivers_that_fail_hang_and_recover(self):
        """Each gets all in order; none waits for another."""
        failing = self.receiver(500, 503, "reset", "close", "ok", 429, 404)
        hanging = self.receiver("hang", "trickle", "ok", "ok", "ok", 500)
        stuck = self.receiver("hang")
        well = self.receiver()
        port = free_port()  # none that the kernel gives to a connection meanwhile
        self.rules([{"name": "rejects", "topic": REJECTED}],
                   {"failing": failing, "well": well, "refusing": {"url": f"http://127.0.0.1:{port}/"},
                    "hanging": {"url": hanging.url, "timeout": "2s"}, "stuck": {"url": stuck.url, "timeout": "5m"}})
        alerter = self.start()
        ids = [f"{RUN}/low/{self.fire(REJECTED, txid='%064x' % i, reason='dust')}/rejects" for i in range(5)]
        self.wait_alerts(well, 5)
        self.wait_alerts(failing, 5)
        self.assertEqual([a for a, _ in stuck.asked], ["hang"])
        stuck.released.set()
        self.assertEqual(failing.asked, [(500, ids[0]), (503, ids[0]), ("reset", ids[0]), ("close", ids[0]),
                                         ("ok", ids[0]), (429, ids[1]), (404, ids[1]),
                                         *[("ok", i) for i in ids[1:]]])
        late = self.receiver(port=port)
        self.wait_alerts(late, 5)
        self.wait_alerts(hanging, 5)  # after two attempts that were cut short
        self.wait_alerts(stuck, 5)
        for receiver in (well, failing, late, hanging, stuck):
            self.assertEqual(receiver.ids(), ids)
        self.assertEqual(hanging.asked[:3], [("hang", ids[0]), ("trickle", ids[0]), ("ok", ids[0])])
        self.assertEqual(alerter.stop(), 0)
        log = alerter.log()
        self.assertIn("webhook hanging: no answer in time; attempt 1,", log)
        self.assertIn("webhook refusing: Connection refused; attempt 1,", log)
        self.assertIn("webhook failing: takes alerts again, after 5 attempts", log)

    def test_an_address_that_is_silent(self):
        """A host has several: what one of them swallows does not keep the others from being asked."""
        receiver = self.receiver()
        with socket.create_server(("127.0.0.2", receiver.port), backlog=0), contextlib.ExitStack() as full:
            for _ in range(3):  # more than wait to be accepted: the next one gets no answer
                client = full.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.2", receiver.port))
            hook = Webhook("two", f"http://two.example:{receiver.port}/", self.directory, timeout=6)
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, receiver.port)) for host in ("127.0.0.2", "127.0.0.1")]
            with unittest.mock.patch("socket.getaddrinfo", return_value=found):
                post(hook, '{"id": "1"}')
            self.assertEqual(receiver.ids(), ["1"])
            with unittest.mock.patch("socket.getaddrinfo", return_value=found[:1]), \
                    self.assertRaisesRegex(Failure, "^(no answer in time|timed out)$"):
                post(hook, '{"id": "2"}')

    def test_refused_and_too_old_alerts_do_not_hold_up_others(self):
        refusing = self.receiver(400, 400, 400)
        dead = self.receiver(*[500] * 1000)
        self.rules([{"name": "rejects", "topic": REJECTED}],
                   {"refusing": refusing, "dead": {"url": dead.url, "give_up": "100ms"}})
        alerter = self.start()
        ids = [f"{RUN}/low/{self.fire(REJECTED, txid='%064x' % i, reason='dust')}/rejects" for i in range(3)]
        self.wait_alerts(refusing, 2)
        self.assertEqual(refusing.ids(), ids[1:])
        self.assertIn(f'webhook refusing: HTTP 400; given up after 3 attempts: {{"id":"{ids[0]}"', alerter.log())
        self.wait(lambda: alerter.log().count("webhook dead: HTTP 500; given up") == 3, 10, "given up")

    def test_secrets_are_read_for_each_attempt(self):
        def write(token):
            with open(f"{self.directory}/token", "w") as file:
                file.write(f"{token}\n")
        write("old")
        receiver = self.receiver(401, before_answer=lambda: write("new"))
        self.rules([{"name": "r", "topic": REJECTED}], {"ops": {
            "url": receiver.url + "?k=${file:token}",
            "headers": {"Authorization": "Bearer ${file:token}", "X-Home": "${env:HOME}"}}})
        self.start()
        self.fire(REJECTED, txid=PAYMENT, reason="dust")
        self.wait_alerts(receiver, 1)
        self.assertEqual([(h["Authorization"], h["X-Home"], h["Content-Type"]) for h in receiver.headers],
                         [("Bearer old", os.environ["HOME"], "application/json"),
                          ("Bearer new", os.environ["HOME"], "application/json")])

    def test_disk_full(self):
        """One line, and no alert lost: what cannot be written is not taken."""
        need_root()
        disk = f"{self.directory}/disk"
        os.mkdir(disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "coretap-alerts", disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", disk])
        receiver = self.receiver()
        self.rules([{"name": "rejects", "topic": REJECTED}], {"ops": receiver}, state="disk/state.db")
        alerter = self.start()
        self.fire(REJECTED, txid=PAYMENT, reason="dust")
        self.wait_alerts(receiver, 1)
        with open(f"{disk}/filler", "wb", 0) as filler:
            try:
                while True:
                    filler.write(b"x" * 512)
            except OSError:
                pass
        for i in range(300):
            self.fire(REJECTED, txid="%064x" % i, reason="dust")
        self.wait(lambda: "full" in alerter.log(), 20, "a line")
        alerter.stop(signal.SIGKILL)
        alerter = self.start()
        self.wait(lambda: self.status() or alerter.log().count("full") == 2, 20, "a line again")
        os.unlink(f"{disk}/filler")
        self.wait_alerts(receiver, 301)
        # What was taken when it could not be struck off may come again.
        self.assertEqual(list(dict.fromkeys(receiver.ids())), [f"{RUN}/low/{n}/rejects" for n in range(1, 302)])
        alerter.stop()
        full = f"coretap-alerts: {disk}/state.db: database or disk is full; tried again until it can be written, " \
            "nothing is lost meanwhile"
        self.assertEqual([line for line in alerter.log().splitlines() if "webhook" not in line],
                         [full, full, f"coretap-alerts: {disk}/state.db: written again"])


class Rules(Case):
    def test_losses_and_new_runs(self):
        receiver = self.receiver()
        self.rules([{"name": "losses", "notice": ["lost", "gap", "new_run"]},
                    {"name": "other", "notice": "lost", "topic": "validation.block_connected"},
                    {"name": "rejects", "topic": REJECTED, "where": {"reason": "never"}},
                    self.WATCH], {"ops": receiver})
        alerter = self.start()
        self.fire(REJECTED, txid=PAYMENT, reason="dust")
        self.fire(REJECTED, txid=PAYMENT, reason="dust", lost=3)  # 2 to 4 are lost, 5 comes
        self.n += 1  # a removal that nobody has
        self.seq[REMOVED] += 1
        alerts = self.wait_alerts(receiver, 3)
        self.publisher.step({"run": RUN + 5})
        self.n, self.seq = 0, dict.fromkeys(TOPICS, 0)
        self.fire(ADDED, txid=PAYMENT, vsize=1, fee=1)
        self.wait_alerts(receiver, 4)
        self.assertEqual(
            [(a["id"], a["what"], a["notice"].get("first"), a["notice"].get("last")) for a in alerts],
            [(f"{RUN}/low/lost:{REJECTED}:2/losses", "lost", 2, 4),
             (f"{RUN}/low/gap:{REMOVED}:1/losses", "gap", 1, 1),
             (f"{RUN}/low/gap:{REMOVED}:1/payments", "unknown", 1, 1),
             (f"{RUN + 5}/low/new_run/losses", "new_run", None, None)])
        self.assertEqual((alerts[2]["txids"], alerts[2]["why"]), ([PAYMENT], "events are missing"))
        self.assertEqual(alerts[3]["notice"]["old_run"], RUN)
        self.assertEqual(alerter.stop(), 0)

    def test_restart_with_changed_rules(self):
        """Nothing that was passed comes again; what waits for a webhook that is gone is kept for it."""
        receiver, other = self.receiver(), self.receiver(*[500] * 1000)
        dust = {"name": "dust", "topic": REJECTED, "where": {"reason": "dust"}, "once": True, "key": "txid"}
        self.rules([dust], {"ops": receiver, "other": other})
        alerter = self.start()
        self.fire(REJECTED, txid=PAYMENT, reason="dust")
        self.fire(ADDED, txid=FIRST, vsize=1, fee=1)
        self.wait_alerts(receiver, 1)
        self.wait(lambda: other.asked, 10, "an attempt")
        alerter.stop()
        self.rules([dust, {"name": "added", "topic": "mempool.added"}], {"ops": receiver})
        self.fire(ADDED, txid=SECOND, vsize=1, fee=1)
        self.fire(REJECTED, txid=PAYMENT, reason="dust")
        self.fire(REJECTED, txid=SECOND, reason="dust")
        alerter = self.start()
        self.wait_alerts(receiver, 3)
        self.assertEqual([(a["rule"], a["event"]["txid"]) for a in receiver.taken],
                         [("dust", PAYMENT), ("added", SECOND), ("dust", SECOND)])
        self.assertIn("webhook other: alerts that wait: 1; the rules have it no more", alerter.log())
        alerter.stop()
        other.script.clear()
        self.rules([dust], {"other": other})
        alerter = self.start()
        self.wait_alerts(other, 1)
        self.assertEqual([(a["rule"], a["event"]["txid"]) for a in other.taken], [("dust", PAYMENT)])

    def test_hostile_strings(self):
        receiver = self.receiver()
        texts = ['"},{"id":"x', "\\u0000\\", "\0\x1b[2J\r\n", "\u202eevil", "<!channel> ${env:HOME}", "\U0001f4a3" * 200,
                 "a" * 500]
        self.rules([{"name": "rejects", "topic": REJECTED, "where": {"reason": {"regex": "^(a|aa|.)+$"}},
                     "every": "1s", "key": "reason"}], {"ops": receiver})
        alerter = self.start()
        for text in texts:
            self.fire(REJECTED, txid=PAYMENT, reason=text)
        self.wait_alerts(receiver, len(texts))
        self.assertEqual([a["event"]["reason"] for a in receiver.taken], texts)
        self.assertEqual({a["text"] for a in receiver.taken}, {f"rejects: {REJECTED} txid={PAYMENT}"})
        self.assertEqual(alerter.stop(), 0)

    def test_watch_file_is_read_again(self):
        receiver = self.receiver()
        path = f"{self.directory}/watch.txt"

        def write(text):
            with open(path, "w") as file:
                file.write(text)
        write(f"# ours\n{PAYMENT.upper()}  # first\n\n")
        self.rules([{"name": "w", "watch": {"file": "watch.txt"}, "on": ["evicted", "added"]}], {"ops": receiver})
        alerter = self.start()
        self.fire(ADDED, txid=FIRST, vsize=1, fee=1)
        self.fire(ADDED, txid=PAYMENT, vsize=1, fee=1)
        self.wait_alerts(receiver, 1)
        write(f"{FIRST}\nnonsense\n")
        self.wait(lambda: "watch.txt:2: not a txid, which is 64 hex digits; the list stays as it was"
                   in alerter.log(), 10, "a complaint")
        write(f"{FIRST}\n")

        def told():
            self.fire(REMOVED, txid=FIRST, reason="expiry", vsize=1, fee=1, entry_time=1)
            self.fire(ADDED, txid=PAYMENT, vsize=1, fee=1)
            time.sleep(0.1)
            return receiver.taken[-1]["txid"] == FIRST
        self.wait(told, 10, "the new list")
        self.assertEqual([(a["txid"], a["what"]) for a in receiver.taken[-1:]], [(FIRST, "evicted")])
        self.assertEqual(alerter.stop(), 0)

    def test_mined_without_having_been_in_the_pool(self):
        """RPC is asked about the block; without an answer it is unknown, once."""
        receiver, block = self.receiver(), "bb" * 32
        answers = [{"result": None, "error": {"code": -1, "message": "busy"}},
                   {"result": {"tx": [SECOND, PAYMENT]}, "error": None}]
        asked = []

        class Node(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                body = json.dumps(answers[min(len(asked), 2) - 1]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass
        node = http.server.HTTPServer(("127.0.0.1", 0), Node)
        threading.Thread(target=node.serve_forever, args=(0.02,), daemon=True).start()
        self.addCleanup(node.server_close)
        self.addCleanup(node.shutdown)
        self.rules([self.WATCH], {"ops": receiver},
                   rpc={"url": f"http://127.0.0.1:{node.server_port}", "user": "u", "password": "p"})
        alerter = self.start()
        evictions = {"hash": block, "height": 7, "n_tx": 3, "n_block": 1, "txids": [], "fees": [], "vsizes": [],
                     "entry_times": [], "reorg": 0, "repeat": False, "complete": True, "final": True}
        self.fire("block.evictions", **{**evictions, "unseen": 0})
        self.fire("block.evictions", **{**evictions, "unseen": 2, "final": False, "complete": False})
        one = self.fire("block.evictions", **{**evictions, "unseen": 2})
        two = self.fire("block.evictions", **{**evictions, "unseen": 2})
        self.fire("block.evictions", **{**evictions, "unseen": 2})  # nobody is left to ask for
        alerts = self.wait_alerts(receiver, 2)
        alerter.stop()
        self.assertEqual([(a["id"], a["what"], a["event"]["height"], a.get("unseen")) for a in alerts],
                         [(f"{RUN}/low/{one}/payments", "unknown", 7, None),
                          (f"{RUN}/low/{two}/payments/{PAYMENT}", "confirmed", 7, True)])
        self.assertIn("RPC: getblock: busy", alerts[0]["why"])
        self.assertEqual([(a["method"], a["params"]) for a in asked], [("getblock", [block, 1])] * 2)

    def test_second_one_on_the_same_state_is_refused(self):
        self.rules([self.WATCH], {"ops": self.receiver()})
        self.start()
        result = subprocess.run([COMMAND, f"{self.directory}/rules.yaml"], capture_output=True, text=True, timeout=80)
        self.assertEqual((result.returncode, result.stderr),
                         (1, f"coretap-alerts: {self.directory}/state.db: another process has it\n"))

    def test_dry_run_over_a_recording(self):
        receiver = self.receiver()
        self.rules([self.WATCH, {"name": "losses", "notice": "lost"}], {"ops": receiver})
        path = f"{self.directory}/recording"
        recorder = subprocess.Popen([tool("coretap"), "record", path, "--count", "8", "--address",
                                     f"tcp://127.0.0.1:{self.publisher.port}"], stderr=subprocess.DEVNULL)
        self.publisher.wait_client(["low", "high"])
        self.status()
        self.replace(PAYMENT, FIRST)
        self.fire(REJECTED, txid=PAYMENT, reason="dust", lost=4)
        self.replace(FIRST, SECOND)
        self.confirm(SECOND)
        self.assertEqual(recorder.wait(80), 0)
        with open(path, "ab") as file:
            file.write(b"\x40\0\0\0torn")  # a record that a kill cut off does not count
        result = subprocess.run([COMMAND, f"{self.directory}/rules.yaml", "--dry-run", path], capture_output=True,
                                text=True, timeout=80)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([(line["webhook"], line["alert"]["what"], line["alert"].get("txid")) for line in lines],
                         [("ops", "replaced", PAYMENT), ("ops", "lost", None), ("ops", "replaced", FIRST),
                          ("ops", "confirmed", SECOND)])
        self.assertEqual(receiver.asked, [])
        self.assertFalse(os.path.exists(f"{self.directory}/state.db"))
        result = subprocess.run([COMMAND, f"{self.directory}/rules.yaml", "--dry-run", COMMAND], capture_output=True,
                                text=True, timeout=80)
        self.assertEqual((result.returncode, result.stderr),
                         (2, f"coretap-alerts: {COMMAND}: not a recording of `coretap record`\n"))


class Node(Case):
    def test_with_a_node(self):
        """Every replacement that the node fires, and each transaction of its blocks on the list, from a
        bridge that demands keys."""
        receiver = self.receiver()
        for name in ("server", "mine"):
            subprocess.run([tool("coretap"), "keygen", f"{self.directory}/{name}"], check=True,
                           stdout=subprocess.DEVNULL)
        with tempfile.TemporaryDirectory() as d, \
                Bridge("--curve-secret", f"{self.directory}/server.key",
                       "--curve-clients", f"{self.directory}/mine.pub") as bridge:
            self.rules([{"name": "blocks", "topic": "block.evictions", "where": {"complete": True},
                         "fields": ["height", "txids"]},
                        {"name": "replaced", "topic": "mempool.replaced", "fields": "txid"}],
                       {"ops": receiver}, port=bridge.port, curve_server="server.pub",
                       curve_secret="mine.key")
            alerter = self.start("--since", "oldest", wait=False)
            self.wait(lambda: os.path.exists(f"{self.directory}/state.db"), 20, "a state")
            with FakeNode("blocks", 3, 20, "--replacements", 4, "--truth", f"{d}/truth", "--wait", "--start-delay",
                          300) as node:
                fired = node.finish()
            with open(f"{d}/truth") as file:
                truth = [json.loads(line) for line in file]
            self.wait(lambda: len(receiver.taken) >= 3 + fired[REPLACED], 20, "alerts")
            self.assertEqual(alerter.stop(), 0)
        self.assertEqual(len([a for a in receiver.taken if a["rule"] == "replaced"]), fired[REPLACED])
        self.assertEqual([(a["event"]["height"], a["event"]["txids"]) for a in receiver.taken if a["rule"] == "blocks"],
                         [(b["height"], b["txids"]) for b in truth])
        self.assertEqual(len(set(receiver.ids())), 3 + fired[REPLACED])


# Starts alerters that kill themselves at their Nth step, by fork: one second of imports for all. A
# step is before or after a commit, an attempt, or the note that an alert was taken.
KILLER = r'''
import os, signal, sys, threading
sys.path[:0] = [sys.argv[1], os.path.join(sys.argv[1], "..", "python")]
from coretap_alerts import __main__ as program, delivery, state
program.BATCH = 1
left = {}
lock = threading.Lock()

def tick():
    with lock:
        left["steps"] -= 1
        if left["steps"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def around(owner, name):
    real = getattr(owner, name)
    def wrapped(*arguments):
        tick()
        result = real(*arguments)
        tick()
        return result
    setattr(owner, name, wrapped)

open_state = state.State.__init__

def without_fsync(self, path):  # a kill is no power cut
    open_state(self, path)
    self._db.execute("PRAGMA synchronous = OFF")
state.State.__init__ = without_fsync
around(state.State, "commit")
around(state.State, "delivered")
around(delivery, "post")
ended = {}
for line in sys.stdin:
    word, *rest = line.split()
    if word == "start":
        pid = os.fork()
        if not pid:
            left["steps"] = int(rest[0])
            sys.stderr = open(os.devnull, "w")
            os._exit(program.main([rest[1], "--state", rest[2]]))
        print(pid, flush=True)
        continue
    pid = int(rest[0])
    if word == "kill":
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print(0, flush=True)
    elif word == "alive":
        if pid not in ended and os.waitpid(pid, os.WNOHANG)[0] == pid:
            ended[pid] = True
        print(int(pid not in ended), flush=True)
'''

if __name__ == "__main__":
    main()
