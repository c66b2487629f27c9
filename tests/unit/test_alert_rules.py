"""coretap-alerts without sockets: rules and their errors, conditions, watched transactions, memory."""
import contextlib
import io
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ALERTS = os.path.join(ROOT, "clients", "alerts")
sys.path[:0] = [os.path.join(HERE, "..", "lib"), ALERTS, os.path.join(ROOT, "clients", "python")]
import coretap
import msgpack
from coretap import CATALOGUE
from coretap.recording import RECORDING_HEADING
from coretap_alerts.__main__ import Service, rehearse
from coretap_alerts.alerter import Alerter
from coretap_alerts.document import RuleError
from coretap_alerts.pattern import Pattern
from coretap_alerts.rules import load
from coretap_alerts.state import State
from harness import TestCase, main

A, B, C, D = ("%02x" % n * 32 for n in (0xa0, 0xb0, 0xc0, 0xd0))
HOOK = "webhooks: {ops: {url: 'http://h/'}}\n"


class Case(TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="coretap-alerts-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.n = 0

    def write(self, text, name="rules.yaml"):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def alerter(self, *rules, state=None, **top):
        path = self.write(json.dumps({"webhooks": {"ops": {"url": "http://h/", **top}}, "rules": rules}))
        self.state = state or State(":memory:")
        alerter = Alerter(load(path), self.state)
        self.assertEqual(alerter.reload(), [])
        return alerter

    def event(self, topic, time_us=None, **fields):
        self.n += 1
        hashes = {name for name, kind in CATALOGUE.get(topic, (0, {}))[1].items() if kind == "hash"}
        fields = {k: bytes.fromhex(v) if k in hashes and v else v for k, v in fields.items()}
        make = CATALOGUE[topic][0] if topic in CATALOGUE else coretap.Event
        return make(topic, "main", 7, self.n, self.n, 1, self.n if time_us is None else time_us, fields)

    def told(self, alerter, *items):
        """The alerts that these items make, of one webhook."""
        for item in items:
            alerter.feed(item)
        alerts = [json.loads(body) for _, body in self.state.alerts]
        self.state.alerts.clear()
        return alerts


class Rules(Case):
    BAD = (
        ("rules: [", "1: expected the node content, but found '<stream end>'"),
        ("- 1", "1: wants fields, as NAME: VALUE"),
        ("{}", "1: rules is missing"),
        ("rules: [{name: a, topic: '*'}]", "1: webhooks is missing"),
        (HOOK + "rules: []", "2: rules: no rules"),
        (HOOK + "rule: []", "2: rule: no such field; there are address, curve_server, curve_secret, state, rpc, webhooks, rules"),
        (HOOK + "address: here\nrules: {name: a, topic: node.exited}", "2: address: here: not an address"),
        (HOOK + "rules:\n  - topic: mempool.added", "3: rules[0]: name is missing"),
        (HOOK + "rules:\n  - name: a b", "3: rules[0].name: not a name of letters, digits, _ . -"),
        (HOOK + "rules:\n  - name: a", "3: rules[0]: wants one of topic (events), watch"),
        (HOOK + "rules:\n  - {name: a, topic: node.exited}\n  - {name: a, topic: node.exited}",
         "4: rules[1]: there is another rule a"),
        (HOOK + "rules:\n  - name: a\n    topic: mempool.add",
         "4: rules[0].topic: not in the catalogue; if coretapd --tracepoints declares it, say declared: true"),
        (HOOK + "rules:\n  - name: a\n    topic: [mempool.added, mem*pool]", "4: rules[0].topic[1]: not a topic"),
        (HOOK + "rules:\n  - name: a\n    name: b", "4: rules[0].name: stands twice"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added,\n     where: {reason: x}}",
         "4: rules[0].where.reason: there is no reason; there are txid, vsize, fee"),
        (HOOK + "rules:\n  - name: a\n    topic: mempool.added\n    where:\n      vsize: 1\n      fee: {above: 1.5}",
         "7: rules[0].where.fee.above: not a whole number"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, where: {fee: {over: 1}}}",
         "3: rules[0].where.fee.over: no such field; there are not, prefix, regex, contains, above, below"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, where: {fee: {prefix: a}}}",
         "3: rules[0].where.fee.prefix: a field of kind int has no prefix"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, where: {txid: 00}}",
         "3: rules[0].where.txid: not a hash, which is 64 hex digits"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.removed, where: {reason: {regex: '(a'}}}",
         "3: rules[0].where.reason.regex: a ( without its )"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.removed, where: {reason: {regex: '(?=a)'}}}",
         "3: rules[0].where.reason.regex: (? is not supported"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.removed, where: {reason: {regex: '(a{100}){100}'}}}",
         "3: rules[0].where.reason.regex: too large: more than 200 states"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, every: 10}", "3: rules[0].every: not a duration"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, every: 0s}", "3: rules[0].every: must be more"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, once: true, every: 1s}",
         "3: rules[0].once: either once or every"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, key: fee}", "3: rules[0].key: makes sense only with"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, once: true, key: [fee, fees]}",
         "3: rules[0].key[1]: there is no fees"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, webhooks: [ops,\n     dev]}",
         "4: rules[0].webhooks[1]: there is no dev; there are ops"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, follow: true}", "3: rules[0].follow: makes no sense"),
        (HOOK + "rules:\n  - {name: a, watch: {}}", "3: rules[0].watch: wants txids, or a file of them"),
        (HOOK + f"rules:\n  - {{name: a, watch: {{txids: [{A},\n     12]}}}}",
         "4: rules[0].watch.txids[1]: not a txid, which is 64 hex digits"),
        (HOOK + "rules:\n  - {name: a, watch: {file: none}}", "3: rules[0].watch.file: {}/none: No such file"),
        (HOOK + "rules:\n  - {name: a, watch: {file: list}}", "3: rules[0].watch.file: {}/list:2: not a txid"),
        (HOOK + f"rules:\n  - {{name: a, watch: {{txids: {A}}}, on: [gone]}}", "3: rules[0].on[0]: there is no gone"),
        (HOOK + "rules:\n  - {name: a, notice: stale}", "3: rules[0].notice: there is no stale; there are lost, gap"),
        ("webhooks: {a: {}}\nrules: []", "1: webhooks.a: url is missing"),
        ("webhooks: {a: {url: 'ftp://h/'}}\nrules: []", "1: webhooks.a.url: not an address"),
        ("webhooks: {a: {url: 'http://u:p@h/'}}\nrules: []", "1: webhooks.a.url: not an address"),
        ("webhooks: {a: {url: 'http://h:99999/'}}\nrules: []", "1: webhooks.a.url: Port out of range"),
        ("webhooks:\n  a:\n    url: http://h/\n    headers:\n      X: ${env:CORETAP_NO_SUCH}\nrules: []",
         "5: webhooks.a.headers.X: CORETAP_NO_SUCH is not in the environment"),
        ("webhooks:\n  a:\n    url: http://h/\n    headers:\n      X: ${file:none}\nrules: []",
         "5: webhooks.a.headers.X: none: No such file or directory"),
        ("webhooks:\n  a:\n    url: http://h/\n    headers:\n      X: \"a\\nb: c\"\nrules: []",
         "5: webhooks.a.headers.X: holds what no header may"),
        ("webhooks:\n  a:\n    url: http://h/\n    headers: {Content-Length: 5}\nrules: []",
         "4: webhooks.a.headers.Content-Length: not the name of a header that may be set"),
        (HOOK + "rules:\n  - {name: a, topic: mempool.added, where: {fee: []}}", "3: rules[0].where.fee: names none"),
        ("webhooks:\n  a:\n    url: http://h/\n    timeout: 0s\nrules: []", "4: webhooks.a.timeout: must be more"),
        (HOOK + "rpc: {url: 'https://h'}\nrules: {name: a, topic: node.exited}", "2: rpc: https://h: not an address"),
        (HOOK + "rules: {name: a, topic: node.exited}\ncurve_server: none\ncurve_secret: none",
         "3: curve_server: {0}/none: No such file"),
        (HOOK + "rules: {name: a, topic: node.exited}\ncurve_secret: none",
         "3: curve_secret: curve_server and curve_secret belong together"),
    )

    def test_bad_rules_name_file_line_and_field(self):
        self.write(f"{A}\nabc\n", "list")
        for text, complaint in self.BAD:
            path = self.write(text)
            with self.subTest(text):
                with self.assertRaises(RuleError) as caught:
                    load(path)
                told = str(caught.exception)
                self.assertTrue(told.startswith(f"{path}:{complaint.format(self.directory)}"),
                                f"{told} instead of {complaint}")
        with self.assertRaises(RuleError) as caught:
            load("/no/such")
        self.assertEqual(str(caught.exception), "/no/such: No such file or directory")

    def test_example_and_check(self):
        path = shutil.copy(os.path.join(ALERTS, "example.yaml"), self.directory)
        command = [os.path.join(ALERTS, "coretap-alerts"), path, "--check"]
        result = subprocess.run(command, capture_output=True, text=True)
        line = 1 + next(i for i, text in enumerate(open(path)) if "ops.token" in text)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", (
            f"coretap-alerts: {path}:{line}: webhooks.ops.headers.Authorization: ops.token: No such file or "
            "directory\n")))
        self.write("secret\n", "ops.token")
        self.write(f"{A}\n", "payments.txt")
        result = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (0, f"{path}: 6 rules, 2 webhooks\n"), result.stderr)
        alerter = Alerter(load(path), State(":memory:"))
        self.assertEqual(alerter.rules.topics(), ["block.evictions", "mempool.", "mempool.added", "mempool.removed",
                                                  "net.inbound_message", "node."])

    WHERE = (
        ({"fee": 5}, {"fee": 5}, True),
        ({"fee": [4, 5]}, {"fee": 5}, True),
        ({"fee": [4, 6]}, {"fee": 5}, False),
        ({"fee": {"not": 5}}, {"fee": 5}, False),
        ({"fee": {"not": [1, 2]}}, {"fee": 5}, True),
        ({"fee": {"above": 5}}, {"fee": 5}, False),
        ({"fee": {"at_least": 5, "below": 6}}, {"fee": 5}, True),
        ({"fee": {"at_most": -5}}, {"fee": -6}, True),
        ({"fee": {"below": 0}}, {"fee": None}, False),
        ({"fee": {"not": 0}}, {"fee": None}, False),
        ({"fee": {"not": 0}}, {}, False),
        ({"fee": None}, {"fee": None}, True),
        ({"fee": None}, {"fee": 0}, False),
        ({"fee": None}, {}, False),
        ({"reason": "yes"}, {"reason": "yes"}, True),
        ({"reason": "10"}, {"reason": "10"}, True),
        ({"reason": ""}, {"reason": ""}, True),
        ({"reason": {"prefix": "size"}}, {"reason": "sizelimit"}, True),
        ({"reason": {"prefix": "limit"}}, {"reason": "sizelimit"}, False),
        ({"reason": {"regex": "l.m"}}, {"reason": "sizelimit"}, True),
        ({"reason": {"regex": "^limit"}}, {"reason": "sizelimit"}, False),
        ({"txid": A.upper()}, {"txid": A}, True),
        ({"txid": {"prefix": "a0A"}}, {"txid": A}, True),
        ({"txid": {"not": A}}, {"txid": B}, True),
        ({"fee": 5, "vsize": 6}, {"fee": 5, "vsize": 7}, False),
        ({"node": "main"}, {}, True),
        ({"node": {"not": "main"}}, {}, False),
    )

    def test_conditions(self):
        for where, fields, matches in self.WHERE:
            with self.subTest(f"{where} {fields}"):
                alerter = self.alerter({"name": "r", "topic": "mempool.removed", "where": where})
                self.assertEqual(len(self.told(alerter, self.event("mempool.removed", **fields))), int(matches))
        alerter = self.alerter({"name": "r", "topic": "block.evictions",
                                "where": {"txids": {"contains": [A, B]}, "complete": True}})
        for txids, complete, matches in (([B, C], True, 1), ([C], True, 0), ([], True, 0), ([B], False, 0)):
            event = self.event("block.evictions", txids=[bytes.fromhex(t) for t in txids], complete=complete)
            self.assertEqual(len(self.told(alerter, event)), matches, txids)
        alerter = self.alerter({"name": "r", "topic": "my.probe", "declared": True,
                                "where": {"a": {"above": 1}, "b": "00ff", "c": True}})
        self.assertEqual(len(self.told(alerter, self.event("my.probe", a=2, b=b"\0\xff", c=True),
                                       self.event("my.probe", a="2", b=b"\0\xff", c=True),
                                       self.event("my.probe", a=2, b=b"\0\xff", c=1))), 1)

    def test_regular_expressions(self):
        """They are what Python's are, in linear time."""
        chance = random.Random(1)

        def expression(depth):
            kind = chance.randrange(9) if depth else 0
            if kind < 3:
                return chance.choice(("a", "b", "c", ".", "[ab]", "[^a]", r"\d", r"\W", "1", r"\.", "[]a]"))
            inner = expression(depth - 1)
            return {3: inner + expression(depth - 1), 4: expression(depth - 1) + inner,
                    5: f"({inner}|{expression(depth - 1)})", 7: "^" + inner, 8: inner + "$",
                    6: f"({inner}){chance.choice(('*', '+', '?', '{2}', '{1,2}', '{1,}', '{0}'))}"}[kind]
        tried = 0
        for _ in range(4000):
            source = expression(4)
            text = "".join(chance.choice("abc1.-\n") for _ in range(chance.randrange(8)))
            expected = re.search(source.replace("$", r"\Z"), text, re.DOTALL) is not None
            try:
                self.assertEqual(Pattern(source).search(text), expected, (source, text))
                tried += 1
            except ValueError as error:
                self.assertIn("too large", str(error))
        self.assertGreater(tried, 3500)
        self.assertTrue(Pattern("(?i)^SATOSHI").search("/Satoshi:25/"[1:]))
        for source in ("(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(.*)*x", "(a?){60}a{60}b", "((((a*)*)*)*)*b"):
            self.assertFalse(Pattern(source).search("a" * 511 + "!"), source)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for source in ("(", "a)", "a**", "a+?", r"\1", r"\b", "[", "[z-a]", "a{3,1}", "*", "(" * 290, "\\",
                           "[[:alpha:]]", "a" * 301):
                with self.assertRaises(ValueError, msg=source):
                    Pattern(source)


class Memory(Case):
    def test_once_and_every(self):
        def events(*pairs):
            return [self.event("mempool.rejected", time_us=t * 1_000_000, reason=r, txid=A) for t, r in pairs]
        alerter = self.alerter({"name": "r", "topic": "mempool.rejected", "every": "10s", "key": "reason"})
        alerts = self.told(alerter, *events((100, "a"), (101, "a"), (101, "b"), (109, "a"), (110, "a"), (50, "a"),
                                            (51, "a")))
        self.assertEqual([(a["time_us"] // 1000000, a["event"]["reason"], a.get("suppressed")) for a in alerts],
                         [(100, "a", None), (101, "b", None), (110, "a", 2), (50, "a", None)])
        alerter = self.alerter({"name": "r", "topic": "mempool.rejected", "once": True, "key": ["reason", "txid"]})
        alerts = self.told(alerter, *events((1, "a"), (2, "a"), (3, None), (4, None), (10**6, "a")))
        self.assertEqual([a["event"]["reason"] for a in alerts], ["a", None])

    def test_a_full_queue_is_told(self):
        alerter = self.alerter({"name": "r", "topic": "mempool.rejected", "fields": "txid"}, queue_mib=1)
        big = "x" * 600_000
        rejected = [self.event("mempool.rejected", txid=A, reason=big) for _ in range(5)]
        alerter.rules.rules[0].fields = None
        self.assertEqual(len(self.told(alerter, *rejected[:4])), 1)
        self.state.queued["ops"] = 0  # it was delivered
        alerter.rules.rules[0].fields = ("txid",)
        alert, = self.told(alerter, rejected[4])
        self.assertEqual((alert["dropped"], alert["event"]["n"], "reason" in alert["event"]), (3, 5, False))

    def test_a_damaged_recording_is_told(self):
        rules = load(self.write(HOOK + "rules: {name: r, topic: mempool.rejected}"))
        body = msgpack.packb({"v": 1, "node": "main", "run": 7, "pid": 1, "n": 1, "seq": 1, "events": [
            {"time_us": 1, "txid": bytes(32), "reason": "dust"}]})
        whole = struct.pack("<IQBB", 26 + len(body), 1, 0, 16) + b"mempool.rejected" + body
        for rest, told in ((b"", False), (whole[:-1], True), (b"\0" * 4 + whole, True), (b"\0\0", True)):
            with open(os.path.join(self.directory, "recording"), "wb") as file:
                file.write(RECORDING_HEADING + whole + rest)
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
                self.assertEqual(rehearse(rules, file.name), 0)
            self.assertEqual((out.getvalue().count("\n"), "middle of a record" in err.getvalue()), (1, told), rest)

    def test_dry_run_is_not_bounded_by_the_queue(self):
        rules = load(self.write(json.dumps({"webhooks": {"ops": {"url": "http://h/", "queue_mib": 1}},
                                            "rules": [{"name": "r", "topic": "mempool.rejected"}]})))
        with open(os.path.join(self.directory, "recording"), "wb") as file:
            file.write(RECORDING_HEADING)
            for n in range(1, 5):
                body = msgpack.packb({"v": 1, "node": "main", "run": 7, "pid": 1, "n": n, "seq": n, "events": [
                    {"time_us": n, "txid": bytes(32), "reason": "x" * 600_000}]})
                file.write(struct.pack("<IQBB", 26 + len(body), n, 0, 16) + b"mempool.rejected" + body)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(rehearse(rules, file.name), 0)
        self.assertEqual(out.getvalue().count("\n"), 4)

    def test_since_until_there_is_a_place(self):
        """The state that is written at the first start, before anything came, is none."""
        rules = load(self.write(HOOK + "rules: {name: a, topic: node.exited}"))
        placed = {"version": 1, "sockets": {"low": {"main": {"run": 7, "n": 1, "whole": False, "topics": {}}}}}
        for position, since in (("", 0), (coretap.Position().dump(), 0), (json.dumps(placed), None)):
            state = State(":memory:")
            state.position = position
            service = Service(rules, state, "tcp://127.0.0.1:1", "oldest")
            self.assertEqual({link.stream.since_us for link in service.stream._links}, {since})
            service.stream.close()
            state.close()

    def test_state_file(self):
        path = os.path.join(self.directory, "state.db")
        state = State(path)
        alerter = self.alerter({"name": "r", "watch": {"txids": [A]}, "follow": True}, state=state)
        alerter.feed(self.event("mempool.replaced", txid=A, replacement_txid=B))
        state.commit("there")
        self.assertEqual(state.waiting("ops", 0).number, 1)
        state.close()
        state = State(path)
        self.assertEqual((state.position, dict(state.tables["watched"]), state.counts()),
                         ("there", {("r", A): ["replaced", []], ("r", B): ["waiting", [A]]}, {"ops": 1}))
        self.assertEqual(state.queued["ops"], len(state.waiting("ops", 0).body))
        state.delivered("ops", 1)
        self.assertEqual((state.waiting("ops", 0), state.queued["ops"]), (None, 0))
        # Another rule file: what belonged to rules that are gone is forgotten.
        self.alerter({"name": "q", "watch": {"txids": [A]}}, state=state)
        self.assertEqual(dict(state.tables["watched"]), {("q", A): ["waiting", []]})
        state.close()
        for content, complaint in ((b"x" * 5000, "file is not a database"), (None, "unable to open database file")):
            if content:
                with open(path, "wb") as file:
                    file.write(content)
            else:
                os.unlink(path)
                os.mkdir(path)
            rules = self.write(HOOK + "rules: {name: a, topic: node.exited}")
            result = subprocess.run([os.path.join(ALERTS, "coretap-alerts"), rules, "--state", path],
                                    capture_output=True, text=True, timeout=20)
            self.assertEqual((result.returncode, result.stderr), (1, f"coretap-alerts: {path}: {complaint}\n"))

    def test_position_of_an_application(self):
        with self.assertRaises(ValueError):
            coretap.Position("{}")
        self.assertEqual(coretap.Position(coretap.Position().dump()).nodes("low"), {})


class Watch(Case):
    def removed(self, txid, reason, **fields):
        return self.event("mempool.removed", txid=txid, reason=reason, **fields)

    def replaced(self, txid, **by):
        return self.event("mempool.replaced", txid=txid, **by)

    def fates(self, alerts):
        return [(a["what"], a.get("txid", a.get("txids"))) for a in alerts]

    def test_fates(self):
        alerter = self.alerter({"name": "w", "watch": {"txids": [A, B]}}, {"name": "v", "watch": {"txids": C},
                               "on": ["added", "rejected"]})
        alerts = self.told(alerter, self.event("mempool.added", txid=A), self.event("mempool.added", txid=C),
                           self.event("mempool.rejected", txid=C, reason="x"), self.removed(C, "block"),
                           self.removed(A, "conflict", height=None), self.event("mempool.added", txid=A),
                           self.removed(A, "sizelimit"), self.removed(A, None), self.removed(D, "block"),
                           self.removed(B, "replaced"))  # whose replaced event this node or bridge does not tell
        self.assertEqual(self.fates(alerts), [("added", C), ("rejected", C), ("conflict", A), ("evicted", A),
                                              ("unknown", A), ("replaced", B)])

    def test_without_follow(self):
        alerter = self.alerter({"name": "w", "watch": {"txids": A}})
        alerts = self.told(alerter, self.replaced(A, replacement_txid=B), self.removed(A, "replaced"),
                           self.removed(B, "block"))
        self.assertEqual(self.fates(alerts), [("replaced", A)])

    def test_two_replaced_by_one(self):
        alerter = self.alerter({"name": "w", "watch": {"txids": [A, B]}, "follow": True})
        alerts = self.told(alerter, self.replaced(A, replacement_txid=C), self.replaced(B, replacement_txid=C),
                           self.removed(A, "replaced"), self.removed(B, "replaced"),
                           self.event("mempool.added", txid=C), self.removed(C, "block"))
        self.assertEqual(self.fates(alerts), [("replaced", A), ("replaced", B), ("confirmed", C)])
        self.assertEqual(alerts[2]["in_place_of"], [A, B])

    def test_replaced_to_and_fro(self):
        alerter = self.alerter({"name": "w", "watch": {"txids": A}, "follow": True})
        alerts = self.told(alerter, self.replaced(A, replacement_txid=B), self.replaced(B, replacement_txid=A),
                           self.removed(B, "replaced"), self.event("mempool.added", txid=A), self.removed(A, "block"))
        self.assertEqual(self.fates(alerts), [("replaced", A), ("replaced", B), ("confirmed", A)])
        self.assertNotIn("in_place_of", alerts[2])
        # Without follow, what came in its place is forgotten.
        alerter = self.alerter({"name": "w", "watch": {"txids": A}}, state=self.state)
        self.assertEqual(list(self.state.tables["watched"]), [("w", A)])

    def test_unknown_alert_is_bounded(self):
        alerter = self.alerter({"name": "w", "watch": {"txids": ["%064x" % n for n in range(1001)]}})
        alert, = self.told(alerter, self.event("node.exited"))
        self.assertEqual((alert["count"], len(alert["txids"]), alert["text"]),
                         (1001, 1000, "w: 1001 transactions unknown"))

    def test_replaced_by_a_package(self):
        """Its hash is no txid: what is added next, up to its size, is followed."""
        alerter = self.alerter({"name": "w", "watch": {"txids": [A, B]}, "follow": True})
        package = {"replacement_package": "ee" * 32, "replacement_vsize": 300}
        parent, child, stranger = C, D, "99" * 32
        alerts = self.told(alerter, self.replaced(A, **package), self.replaced("77" * 32, **package),
                           self.replaced(B, **package), self.removed(A, "replaced"), self.removed(B, "replaced"),
                           self.event("mempool.added", txid=parent, vsize=100),
                           self.event("mempool.added", txid=child, vsize=200),
                           self.event("mempool.added", txid=stranger, vsize=200),
                           self.removed(parent, "block"), self.removed(child, "expiry"),
                           self.removed(stranger, "block"))
        self.assertEqual(self.fates(alerts), [("replaced", A), ("replaced", B), ("confirmed", parent),
                                              ("evicted", child)])
        self.assertEqual({tuple(a["in_place_of"]) for a in alerts[2:]}, {(A, B)})

    def test_unknown_once_until_it_is_seen_again(self):
        alerter = self.alerter({"name": "w", "watch": {"txids": [A, B, C]}})
        lost = coretap.Lost("low", "mempool.removed", "main", run=7, first=3, last=4)
        rejected = coretap.Lost("low", "mempool.rejected", "main", run=7, first=3, last=4)
        alerts = self.told(alerter, self.removed(C, "block"), rejected, lost, lost)
        self.assertEqual(self.fates(alerts), [("confirmed", C), ("unknown", [A, B])])
        self.assertEqual((alerts[1]["id"], alerts[1]["notice"]["first"], alerts[1]["notice"]["last"]),
                         ("7/low/lost:mempool.removed:3/w", 3, 4))
        alerts = self.told(alerter, self.event("mempool.added", txid=A), self.event("node.exited"),
                           self.event("mempool.added", txid=A), self.removed(None, "block"),
                           self.event("mempool.added", txid=A), self.removed(A, "block"))
        self.assertEqual(self.fates(alerts), [("unknown", [A]), ("unknown", [A]), ("confirmed", A)])

    def test_unseen_without_rpc(self):
        """Only those that were never seen may have been mined so."""
        alerter = self.alerter({"name": "w", "watch": {"txids": [A, B]}})
        block = {"hash": "cc" * 32, "height": 9, "unseen": 1, "complete": True, "final": True, "txids": []}
        alerts = self.told(alerter, self.event("mempool.added", txid=A), self.event("block.evictions", **block),
                           self.event("block.evictions", **block))
        self.assertEqual(self.fates(alerts), [("unknown", [B])])
        self.assertEqual(sorted(alerts[0]["event"])[:3], ["hash", "height", "n"])

    def test_what_is_delisted_is_forgotten_with_what_came_in_its_place(self):
        path = self.write(f"{A}\n{B}\n", "list")
        alerter = self.alerter({"name": "w", "watch": {"file": "list"}, "follow": True})
        self.told(alerter, self.replaced(A, replacement_txid=C), self.replaced(B, replacement_txid=C))
        self.write(f"{B}\n{D}\n", "list")
        os.utime(path, (1, 1))
        for _ in range(2):  # seen twice alike, it has come to rest
            self.assertEqual(alerter.reload(), [])
        self.assertEqual({txid: value for (_, txid), value in self.state.tables["watched"].items()},
                         {B: ["replaced", []], C: ["waiting", [B]], D: ["waiting", []]})
        os.unlink(path)
        self.assertEqual([alerter.reload() for _ in range(3)], [[], [f"{path}: No such file or directory"], []])
        self.assertEqual(self.fates(self.told(alerter, self.removed(C, "block"))), [("confirmed", C)])


if __name__ == "__main__":
    main()
