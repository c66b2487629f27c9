"""--metrics: exact, parsed by Prometheus itself whatever peers send, and never in the way."""
import collections
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, ROOT, Bridge, FakeNode, Subscriber, TestCase, free_port, main, need_root, tool,
                     wait_until)

MONITORING = os.path.join(ROOT, "bridge", "monitoring")
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')


def get(port, path="/metrics", method="GET", seconds=40):
    """Status and text of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def parse(text):
    """{name or name{labels}: value}, strictly: what does not fit the format is an error."""
    samples, typed = {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in typed, f"{name} twice"
            typed.add(name)
            continue
        match = SAMPLE.fullmatch(line)
        assert match, f"no sample: {line!r}"
        family = re.sub("_(bucket|sum|count)$", "", match.group(1))
        assert match.group(1) in typed or family in typed, f"{match.group(1)} without type"
        key = match.group(1) + (match.group(2) or "")
        assert key not in samples, f"{key} twice"
        samples[key] = float(match.group(4))
    return samples


class Case(TestCase):
    def setUp(self):
        need_root()
        directory = tempfile.TemporaryDirectory(prefix="coretap metrics ")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.binary = shutil.copy(FAKE_NODE, os.path.join(self.directory, "node"))
        self.http = free_port()

    def bridge(self, *args, **keywords):
        return Bridge("--metrics", f"127.0.0.1:{self.http}", *args,
                      binary=keywords.pop("binary", self.binary), **keywords)

    def scrape(self):
        status, text = get(self.http)
        self.assertEqual(status, 200)
        return parse(text)

    def wait_sample(self, key, value, seconds=10):
        wait_until(lambda: self.scrape().get(key) == value, seconds, f"{key} = {value}")

    def check_promtool(self, text):
        if not shutil.which("promtool"):
            self.skipTest("no promtool (Debian: prometheus)")
        done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


class Metrics(Case):
    def test_agrees_with_what_a_subscriber_saw(self):
        with self.bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("run", "--seconds", 6, "--block-interval", 1, "--coins", "--wait",
                          binary=self.binary) as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            wait_until(lambda: sub.count.get("node.exited"), 10, "node.exited")
            m = self.scrape()
            self.check_stream(sub)
        self.assertGreater(len(fired), 10)
        for topic, n in fired.items():
            for kind in ("fired", "submitted"):
                self.assertEqual(m[f'coretap_probe_{kind}_total{{topic="{topic}"}}'], n, topic)
            self.assertEqual(m[f'coretap_probe_lost_total{{topic="{topic}"}}'], 0)
        of = collections.defaultdict(list)
        for event in sub.events:
            of[event.topic].append(event)
        sums = lambda events, field: sum(e[field] for e in events)
        added = of["mempool.added"]
        self.assertEqual(m["coretap_mempool_added_total"], len(added))
        self.assertEqual(m["coretap_mempool_added_vbytes_total"], sums(added, "vsize"))
        self.assertEqual(m["coretap_mempool_added_fees_satoshi_total"], sums(added, "fee"))
        for reason in ("expiry", "sizelimit", "reorg", "block", "conflict", "replaced", "other"):
            these = [e for e in of["mempool.removed"] if e["reason"] == reason]
            label = f'{{reason="{reason}"}}'
            self.assertEqual(m["coretap_mempool_removed_total" + label], len(these), reason)
            self.assertEqual(m["coretap_mempool_removed_vbytes_total" + label], sums(these, "vsize"))
            self.assertEqual(m["coretap_mempool_removed_fees_satoshi_total" + label], sums(these, "fee"))
        self.assertEqual(m["coretap_mempool_replaced_total"], len(of["mempool.replaced"]))
        self.assertEqual(m['coretap_mempool_replacements_total{by="package"}'],
                         sum("replacement_package" in e for e in of["mempool.replaced"]))
        rejected = {k: v for k, v in m.items() if k.startswith("coretap_mempool_rejected_total")}
        self.assertEqual(sum(rejected.values()), len(of["mempool.rejected"]))
        self.assertEqual(rejected['coretap_mempool_rejected_total{class="other"}'], 0, of["mempool.rejected"])
        for direction in ("inbound", "outbound"):
            events = of[f"net.{direction}_message"]
            for kind in {e["msg_type"] for e in events}:
                these = [e for e in events if e["msg_type"] == kind]
                label = f'{{direction="{direction}",type="{kind}"}}'
                self.assertEqual(m["coretap_messages_total" + label], len(these))
                self.assertEqual(m["coretap_message_bytes_total" + label], sums(these, "size"))
        for name, topics in (("opened", ("net.inbound_connection", "net.outbound_connection")),
                             ("closed", ("net.closed_connection",))):
            count = collections.Counter((e["connection_type"], e["network"]) for t in topics for e in of[t])
            self.assertTrue(count)
            for (kind, network), n in count.items():
                self.assertEqual(m[f'coretap_connections_{name}_total{{type="{kind}",network="{network}"}}'], n)
        self.assertEqual(m["coretap_peers_misbehaving_total"], len(of["net.misbehaving_connection"]))
        blocks = of["validation.block_connected"]
        self.assertEqual(m["coretap_block_connect_seconds_count"], len(blocks))
        self.assertAlmostEqual(m["coretap_block_connect_seconds_sum"], sums(blocks, "duration_ns") / 1e9, 6)
        self.assertEqual(m["coretap_block_height"], blocks[-1]["height"])
        self.assertEqual(m["coretap_block_inputs_total"], sums(blocks, "n_inputs"))
        self.assertEqual(m["coretap_block_sigops_total"], sums(blocks, "sigops"))
        self.assertEqual(m["coretap_block_transactions_total"], sums(blocks, "n_tx"))
        self.assertAlmostEqual(m["coretap_block_timestamp_seconds"], blocks[-1]["time_us"] / 1e6, 3)
        lists = [e for e in of["block.evictions"] if e["final"]]
        self.assertEqual(m["coretap_block_unseen_total"], sums(lists, "unseen"))
        self.assertEqual(m['coretap_block_lists_total{complete="true"}'], sums(lists, "complete"))
        for topic, change in (("add", "add"), ("spent", "spend"), ("uncache", "uncache")):
            self.assertEqual(m[f'coretap_utxocache_changes_total{{change="{change}"}}'],
                             len(of[f"utxocache.{topic}"]))
        flush = of["utxocache.flush"]
        self.assertEqual(m["coretap_utxocache_flush_seconds_count"], len(flush))
        # The node's last flush came before its end, which empties the cache.
        self.assertEqual(m["coretap_utxocache_coins"], flush[-1]["coins"])
        self.assertEqual(m["coretap_utxocache_memory_bytes"], flush[-1]["memory"])
        self.assertEqual(m["coretap_latency_seconds_count"], sum(fired.values()))
        self.assertLess(m["coretap_latency_seconds_sum"] / sum(fired.values()), 1)
        self.assertEqual(m["coretap_node_starts_total"], 1)
        self.assertEqual(m["coretap_node_exits_total"], 1)

    def test_peers_cannot_break_or_grow_it(self):
        """50,000 messages whose types are random printable text."""
        with self.bridge() as bridge, Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            before = self.scrape()
            series = []
            with FakeNode("burst", 50000, "--probe", "message", "--message-type", "random", "--rate", 20000,
                          "--wait", "--hold", binary=self.binary) as node:
                while sub.count.get("net.inbound_message", 0) < 50000:
                    series.append(set(self.scrape()))
                    time.sleep(0.1)
                self.assertEqual(set(sub.count), {"net.inbound_message", "node.started"})
                status, text = get(self.http)
                node.stop()
            after = parse(text)
        self.assertGreater(len(series), 5)
        self.assertEqual(after['coretap_probe_lost_total{topic="net.inbound_message"}'], 0)
        # What becomes known with the first event and the first node is the only difference.
        known = {"coretap_last_event_timestamp_seconds", "coretap_node_start_time_seconds",
                 'coretap_connections{direction="inbound"}', 'coretap_connections{direction="outbound"}'}
        for samples in [*series, set(after)]:
            self.assertLessEqual(samples - set(before), known)
            self.assertLessEqual(set(before), samples)
        total = {k: v for k, v in after.items() if k.startswith('coretap_messages_total{direction="inbound"')}
        self.assertEqual(sum(total.values()), 50000)
        self.assertGreater(total['coretap_messages_total{direction="inbound",type="other"}'], 49900)
        self.check_promtool(text)

    def test_a_stranger_makes_no_counter_go_back(self):
        """Another process of the same executable has fired, and is not read yet: Prometheus would take a counter that
        goes back for one that began anew, and see a rate of all that was ever fired."""
        with self.bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 1000, "--wait", "--hold", binary=self.binary):
                sub.wait_count("mempool.removed", 1000)
                with FakeNode("burst", 1, "--wait", "--hold", binary=self.binary):
                    wait_until(lambda: sub.status("low")["ignored"], 5, "the other one is ignored")
                    bridge.send(signal.SIGSTOP)
                    with FakeNode("burst", 50000, "--wait", binary=self.binary) as stranger:
                        stranger.finish()
                    with socket.create_connection(("127.0.0.1", self.http)) as s:
                        s.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                        bridge.send(signal.SIGCONT)
                        page = b"".join(iter(lambda: s.recv(65536), b"")).decode()
                    before = parse(page.split("\r\n\r\n", 1)[1])
                    time.sleep(1)
                    after = self.scrape()
        for key in before:
            if "_total" in key:
                self.assertGreaterEqual(after[key], before[key], key)

    def test_promtool_finds_nothing(self):
        with self.bridge():
            self.check_promtool(get(self.http)[1])

    def test_health(self):
        with self.bridge():
            status, text = get(self.http, "/healthz")
            self.assertEqual(status, 503)
            self.assertIn("no process", text)
            self.assertEqual(self.scrape()["coretap_node_up"], 0)
            with FakeNode("burst", 1, "--hold", binary=self.binary) as node:
                wait_until(lambda: get(self.http, "/healthz") == (200, "ok\n"), 10, "healthy")
                self.wait_sample("coretap_node_up", 1)
                node.kill()
            wait_until(lambda: get(self.http, "/healthz")[0] == 503, 10, "unhealthy")
            with open(self.binary, "ab") as f:  # written in place: let go
                f.write(b"\0")
                wait_until(lambda: "not attached" in get(self.http, "/healthz")[1], 10, "not attached")
                self.wait_sample("coretap_attached", 0)
            self.wait_sample("coretap_attached", 1)

    def test_strange_requests(self):
        with self.bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertEqual(get(self.http, "/")[0], 404)
            self.assertEqual(get(self.http, "/metrics/../x")[0], 404)
            self.assertEqual(get(self.http, "/metrics", "POST")[0], 405)
            self.assertEqual(get(self.http, "/healthz", "DELETE")[0], 405)
            self.assertEqual(get(self.http, "/metrics", "HEAD"), (200, ""))
            for junk in (b"\0" * 100, b"GET /metrics\r\n\r\n", b"\x16\x03\x01" + os.urandom(200),
                         b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n",
                         b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
                         b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 1000):
                with socket.create_connection(("127.0.0.1", self.http)) as s:
                    s.settimeout(8)
                    try:
                        s.sendall(junk)
                        s.shutdown(socket.SHUT_WR)
                        while s.recv(65536):
                            pass
                    except OSError:
                        pass
                self.assertEqual(get(self.http)[0], 200)
            for _ in range(1000):  # a port scan
                socket.create_connection(("127.0.0.1", self.http)).close()
            self.assertEqual(get(self.http)[0], 200)
            # All places taken by clients that say nothing, or never read: each is dropped in time.
            idle = [socket.create_connection(("127.0.0.1", self.http)) for _ in range(40)]
            for s in idle[:20]:
                s.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
            with FakeNode("burst", 10000, "--wait", binary=self.binary) as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.assertEqual(get(self.http, seconds=80)[0], 200)
            for s in idle:
                s.close()

    def test_drops_at_a_time(self):
        """Who takes all places, with a byte a second, has them for a while only."""
        with self.bridge():
            slow = [socket.create_connection(("127.0.0.1", self.http)) for _ in range(32)]
            for s in slow:
                s.sendall(b"GET /metrics HTTP/1.1\r\nX: ")

            def dropped():
                for s in list(slow):
                    try:
                        s.send(b"x")
                    except OSError:
                        slow.remove(s)
                time.sleep(1)
                return not slow
            wait_until(dropped, 20, "all of them dropped")
            self.assertEqual(get(self.http)[0], 200)

    def test_scrapes_cost_little(self):
        """A flood of scrapes makes ten pages a second, and no event waits for it. A busy machine may stop coretapd
        meanwhile, but not each time."""
        shares = []
        while len(shares) < 3 and not (shares and shares[-1] > 0.99):
            shares.append(self.in_time())
        self.assertGreater(shares[-1], 0.99, shares)

    def in_time(self):
        # Delays are measured: the plain one.
        with self.bridge(sanitized=False) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            ending = threading.Event()

            def hammer():
                while not ending.is_set():
                    try:
                        get(self.http)
                    except OSError:
                        pass
            threads = [threading.Thread(target=hammer) for _ in range(4)]
            for t in threads:
                t.start()
            with FakeNode("burst", 20000, "--rate", 10000, "--wait", binary=self.binary) as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            ending.set()
            for t in threads:
                t.join()
            self.check_account(sub, fired)
            m = self.scrape()
        below = m['coretap_latency_seconds_bucket{le="0.262144"}']
        return below / m["coretap_latency_seconds_count"]

    def test_nothing_without_the_option(self):
        with Bridge(binary=self.binary) as bridge:
            listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True).stdout
            mine = [line for line in listening.splitlines() if f"pid={bridge.pid}," in line]
            self.assertEqual(len(mine), 3, mine)

    def test_addresses(self):
        def run(*args):
            done = subprocess.run([tool("coretapd"), "--binary", self.binary, "--journal", "none", "--port",
                                   str(free_port()), "--name", f"t{os.getpid()}", *args],
                                  stderr=subprocess.PIPE, text=True, timeout=80)
            shutil.rmtree(f"/run/coretap/t{os.getpid()}", ignore_errors=True)
            return done.returncode, done.stderr
        for bad in ("9332", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:x", "host:1", ":1",
                    "::1:80", "[::1:80", "[x]:80", "127.0.0.1:80 "):
            code, text = run("--metrics", bad)
            self.assertEqual(code, 2, text)
            self.assertEqual(len(text.splitlines()), 1, text)
        for public in ("0.0.0.0:9332", "*:9332", "[::]:9332", "10.1.2.3:9332"):
            code, text = run("--metrics", public)
            self.assertEqual(code, 2, text)
            self.assertIn("--allow-public", text)
        with socket.socket() as s:
            s.bind(("127.0.0.1", self.http))
            s.listen()
            code, text = run("--metrics", f"127.0.0.1:{self.http}")
            self.assertEqual(code, 5, text)
        with Bridge("--metrics", f"[::1]:{self.http}", binary=self.binary):
            with urllib.request.urlopen(f"http://[::1]:{self.http}/metrics", timeout=80) as answer:
                parse(answer.read().decode())


class Monitoring(Case):
    """The rules and the dashboard, and the real programs."""

    def need(self, *programs):
        for program in programs:
            if not shutil.which(program):
                self.skipTest(f"no {program}")

    def test_rules(self):
        self.need("promtool")
        for command in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
            done = subprocess.run(["promtool", *command], cwd=MONITORING, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_everything_that_is_asked_for_exists(self):
        with self.bridge():
            _, text = get(self.http)
        families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
        for name in ("alerts.yml", "dashboard.json"):
            with open(os.path.join(MONITORING, name)) as f:
                asked = set(re.findall(r"\b(?:coretap|process)_[a-z_]+", f.read()))
            self.assertGreater(len(asked), 10)
            self.assertEqual({re.sub("_(bucket|sum|count)$", "", a) for a in asked} - families, set())
        with open(os.path.join(MONITORING, "dashboard.json")) as f:
            panels = json.load(f)["panels"]
        places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
        self.assertEqual(len(places), len(set(places)))

    def test_dashboard(self):
        """As Grafana reads it; what is in its queries Prometheus has to understand."""
        with open(os.path.join(MONITORING, "dashboard.json")) as f:
            dashboard = json.load(f)
        self.assertGreaterEqual(dashboard["schemaVersion"], 36)  # data sources by type and uid
        self.assertTrue(dashboard["uid"] and dashboard["title"])
        variables = {v["name"]: v for v in dashboard["templating"]["list"]}
        self.assertEqual((variables["datasource"]["type"], variables["datasource"]["query"]), ("datasource", "prometheus"))
        panels = dashboard["panels"]
        self.assertEqual(len({p["id"] for p in panels}), len(panels))
        for panel in panels:
            place = panel["gridPos"]
            self.assertTrue(panel["title"] and place["w"] > 0 and place["h"] > 0, panel["title"])
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            self.assertEqual(panel["type"] == "row", not panel.get("targets"), panel["title"])
            if panel["type"] != "row":
                self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": "${datasource}"}, panel["title"])
                self.assertEqual(len({t["refId"] for t in panel["targets"]}), len(panel["targets"]), panel["title"])
        used = set(re.findall(r"\$\{?([a-z_]+)", json.dumps(panels))) - {"__rate_interval"}
        self.assertLessEqual(used, set(variables))

    def test_prometheus_and_alertmanager(self):
        """Scraped, evaluated, delivered: the rules as they are, only waiting shorter."""
        self.need("prometheus", "prometheus-alertmanager", "promtool")
        received, web, alertmanager, prometheus = [], free_port(), free_port(), free_port()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.extend(json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", web), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)

        def write(name, text):
            with open(os.path.join(self.directory, name), "w") as f:
                f.write(text)
            return os.path.join(self.directory, name)
        with open(os.path.join(MONITORING, "alerts.yml")) as f:
            write("alerts.yml", re.sub(r"for: \w+", "for: 1s", f.read()))
        config = write("prometheus.yml", f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alertmanager}"]}}]}}]}}
scrape_configs:
  - {{job_name: coretap, static_configs: [{{targets: ["127.0.0.1:{self.http}"]}}]}}
""")
        routes = write("alertmanager.yml", f"""
route: {{receiver: test, group_by: ["..."], group_wait: 0s, group_interval: 1s}}
receivers: [{{name: test, webhook_configs: [{{url: "http://127.0.0.1:{web}/", send_resolved: true}}]}}]
""")

        def start(*command):
            log = open(os.path.join(self.directory, command[0] + ".log"), "wb")
            process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)
            self.addCleanup(process.wait)
            self.addCleanup(process.terminate)
            self.addCleanup(log.close)

        def alerts(name, status="firing"):
            return [a for a in list(received) if a["labels"]["alertname"] == name and a["status"] == status]

        def query(expression):
            url = f"http://127.0.0.1:{prometheus}/api/v1/query?query=" + urllib.request.quote(expression)
            try:
                with urllib.request.urlopen(url, timeout=80) as answer:
                    return [float(r["value"][1]) for r in json.load(answer)["data"]["result"]]
            except OSError:
                return []
        start("prometheus-alertmanager", f"--config.file={routes}", "--cluster.listen-address=",
              f"--web.listen-address=127.0.0.1:{alertmanager}", f"--storage.path={self.directory}/am")
        start("prometheus", f"--config.file={config}", f"--web.listen-address=127.0.0.1:{prometheus}",
              f"--storage.tsdb.path={self.directory}/tsdb")
        with self.bridge():
            with FakeNode("burst", 1, "--wait", "--hold", binary=self.binary):
                wait_until(lambda: query('up{job="coretap"}') == [1], 40, "scraped")
                wait_until(lambda: query("coretap_node_up") == [1], 20, "node up")
                self.assertEqual(alerts("BitcoinMempoolEvictionWave"), [])
            # The same binary's next process: a wave of evictions, then its end.
            with FakeNode("burst", 3000, "--reason", "sizelimit", "--wait", "--linger", 3000,
                          binary=self.binary) as node:
                wait_until(lambda: alerts("BitcoinMempoolEvictionWave"), 40, "the wave is told")
                node.kill()
            wait_until(lambda: alerts("CoretapNodeGone"), 40, "the node's end is told")
            # Every query of the dashboard, as Grafana would send it: no error, and data behind most.
            with open(os.path.join(MONITORING, "dashboard.json")) as f:
                queries = [(p["title"], t["expr"]) for p in json.load(f)["panels"] for t in p.get("targets", ())]
            empty = []
            for title, expression in queries:
                expression = expression.replace("$__rate_interval", "1m").replace("$instance", f"127.0.0.1:{self.http}")
                status, text = get(prometheus, "/api/v1/query?query=" + urllib.request.quote(expression))
                self.assertEqual((status, json.loads(text)["status"]), (200, "success"), (title, text))
                if not json.loads(text)["data"]["result"]:
                    empty.append(title)
            # No block was connected, no cache flushed, and no peer came by.
            self.assertLessEqual(set(empty), {"Height", "Since the last block", "Coins before the last flush",
                                              "Memory before the last flush", "Opened, by network"})
        wait_until(lambda: alerts("CoretapDown"), 40, "coretapd's end is told")
        wave = alerts("BitcoinMempoolEvictionWave")[0]
        self.assertEqual(wave["labels"]["instance"], f"127.0.0.1:{self.http}")
        self.assertIn("mempool", wave["annotations"]["summary"])


if __name__ == "__main__":
    main()
