"""The JavaScript client itself: its own tests, its package, and what it shares with the Python client.

That it prints the same lines as the others is in test_conformance.py."""
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "lib"), HERE]
from harness import ROOT, Bridge, TestCase, free_port, main, need_node, wait_until
from publisher import Publisher

CLIENT = os.path.join(ROOT, "clients", "js")
TAIL = {"javascript": ["node", os.path.join(CLIENT, "tail.js")],
        "python": ["/usr/bin/python3", "-m", "coretap", "tail"]}
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "clients", "python")}


def own(case, package, name):
    """One file of a package's own tests: passed, failed, or skipped as a whole."""
    done = subprocess.run(["node", "--test", "--test-reporter=tap", f"test/{name}.test.js"],
                          cwd=package, capture_output=True, text=True, timeout=600)
    case.assertEqual(done.returncode, 0, done.stdout[-8000:] + done.stderr[-2000:])
    lines = [line.strip() for line in done.stdout.splitlines()]
    skipped = [line for line in lines if line.startswith("ok ") and " # SKIP" in line]
    passed = [line for line in lines if line.startswith("ok ") and " # SKIP" not in line]
    if not passed:
        case.skipTest(skipped[0].split(" # SKIP ")[-1] if skipped else "no tests")
    case.assertEqual(skipped, [])
    return done.stdout


class JavaScript(TestCase):
    def setUp(self):
        need_node()

    def own(self, name):
        own(self, CLIENT, name)

    def test_frames(self):
        self.own("wire")

    def test_subscriber(self):
        self.own("subscriber")

    def test_mempool(self):
        self.own("mempool")

    def test_readme(self):
        self.own("readme")

    def test_simulated_node(self):
        self.own("node")

    def test_package_is_whole(self):
        """What npm packs runs from elsewhere, and asks for nothing but its dependencies."""
        with tempfile.TemporaryDirectory() as directory:
            packed = subprocess.run(["npm", "pack", "--json", "--pack-destination", directory],
                                    cwd=CLIENT, capture_output=True, text=True)
            self.assertEqual(packed.returncode, 0, packed.stderr)
            archive = os.path.join(directory, json.loads(packed.stdout)[0]["filename"])
            subprocess.run(["tar", "-xzf", archive, "-C", directory], check=True)
            os.mkdir(os.path.join(directory, "node_modules"))
            os.rename(os.path.join(directory, "package"),
                      os.path.join(directory, "node_modules", "coretap"))
            with open(os.path.join(CLIENT, "package.json")) as file:
                for name in json.load(file)["dependencies"]:
                    os.symlink(os.path.join(CLIENT, "node_modules", name),
                               os.path.join(directory, "node_modules", name))
            done = subprocess.run(["node", "--input-type=module", "-e",
                                   'import * as c from "coretap"; console.log(typeof c.subscribe)'],
                                  cwd=directory, capture_output=True, text=True)
            self.assertEqual(done.stdout, "function\n", done.stderr)
            self.assertEqual(sorted(os.listdir(os.path.join(directory, "node_modules", "coretap"))),
                             ["README.md", "catalogue.d.ts", "catalogue.js", "index.d.ts",
                              "index.js", "package.json", "src", "tail.js"])

    def test_types(self):
        """The README's example and what a program in TypeScript relies on compile, strictly."""
        lint = os.path.join(ROOT, "tests", "lint", "node_modules")
        compiler = os.path.join(lint, "typescript", "bin", "tsc")
        if not os.path.exists(compiler):
            self.skipTest("no TypeScript: run make deps-js with Node 20 or later")
        with open(os.path.join(CLIENT, "README.md")) as file:
            example = re.search(r"```js\n([^`]*position.*?)```", file.read(), re.DOTALL)[1]
        with tempfile.TemporaryDirectory() as directory:
            os.makedirs(os.path.join(directory, "node_modules"))
            os.symlink(CLIENT, os.path.join(directory, "node_modules", "coretap"))
            for name, text in (("package.json", '{"type": "module"}'), ("readme.ts", example)):
                with open(os.path.join(directory, name), "w") as file:
                    file.write(text)
            shutil.copy(os.path.join(HERE, "types.ts"), directory)
            done = subprocess.run(
                ["node", compiler, "--strict", "--noEmit", "--target", "es2022", "--module", "nodenext",
                 "--lib", "es2022,esnext.disposable", "--preserveSymlinks", "--types", "node",
                 "--typeRoots", os.path.join(lint, "@types"), "readme.ts", "types.ts"],
                cwd=directory, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_lock_names_no_registry(self):
        with open(os.path.join(CLIENT, "package-lock.json")) as file:
            packages = json.load(file)["packages"]
        self.assertEqual([name for name, p in packages.items() if "resolved" in p], [])

    def test_exit_codes(self):
        for arguments, code in ((["--help"], 0), (["--nonsense"], 2), (["mem pool"], 2),
                                (["--address", "nowhere"], 2), (["--count", "0"], 2),
                                (["--since", "soon"], 2), (["--position", __file__], 2)):
            done = subprocess.run([*TAIL["javascript"], *arguments], capture_output=True, text=True,
                                  timeout=80)
            self.assertEqual(done.returncode, code, (arguments, done.stderr))
            self.assertEqual(done.stderr.count("\n"), 1 if code else 0, done.stderr)

    def test_what_cannot_be_written(self):
        """Output or position: one line says so, and no event counts as taken."""
        with Publisher(free_port()) as publisher, tempfile.TemporaryDirectory() as directory:
            output, sent = os.path.join(directory, "lines"), 0

            def status():
                publisher.status("low", "bridge.status", {"n": sent, "heads": {"mempool.added": sent}})
            for client, (out, position, error) in itertools.product(TAIL, (
                    ("/dev/full", "p", "^coretap: standard output: .*\n$"), (output, "p", "^$"),
                    (output, "none/p", "^coretap: .*none/p.*\n$"))):
                with open(out, "w") as file, subprocess.Popen(
                        [*TAIL[client], "mempool.added", "--json", "--count", "3", "--address",
                         f"tcp://127.0.0.1:{publisher.port}", "--position", os.path.join(directory, f"{position}-{client}")],
                        stdout=file, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as tail:
                    # JavaScript's writes its position before it waits: it may be gone before it is seen.
                    wait_until(lambda: publisher.used() == ["low"] or tail.poll() is not None, 10, "a subscriber")
                    status()
                    if out != output:
                        for _ in range(3):
                            sent += 1
                            publisher.step({"send": "mempool.added", "seq": sent, "n": sent, "events": 1})
                    said = tail.communicate(timeout=40)[1]
                self.assertRegex(said, error)
                self.assertEqual(tail.returncode, 0 if error == "^$" else 1)
                if error == "^$":
                    with open(output) as lines:
                        self.assertEqual([json.loads(line)["seq"] for line in lines], [sent - 2, sent - 1, sent])
                wait_until(lambda: publisher.used() == [], 10, "the end of the subscriptions")

    def test_a_position_of_the_other_client(self):
        """Both go on where the other one was, killed or not, without repeating or missing an event."""
        with Publisher(free_port()) as publisher, tempfile.TemporaryDirectory() as directory:
            position, seen, sent = os.path.join(directory, "position"), [], 0
            for turn in range(6):
                client = ("javascript", "python")[turn % 2]
                with open(os.path.join(directory, "lines"), "w+") as lines, subprocess.Popen(
                        [*TAIL[client], "mempool", "--json", "--address",
                         f"tcp://127.0.0.1:{publisher.port}", "--position", position],
                        stdout=lines, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as tail:
                    publisher.wait_client(["low"])
                    for _ in range(5):
                        publisher.step({"send": "mempool.added", "seq": sent + 1, "n": sent + 1,
                                        "events": 2})
                        sent += 2

                    def numbers():
                        lines.seek(0)
                        return [json.loads(line).get("seq") for line in lines.read().splitlines()]

                    def noted():
                        """Written when the next event is asked for, after the line."""
                        try:
                            with open(position) as file:
                                node = json.load(file)["sockets"]["low"]["conform"]
                            return node["topics"]["mempool.added"][0] == sent + 1
                        except (OSError, ValueError, KeyError):
                            return False
                    wait_until(lambda: numbers()[-1:] == [sent] and noted(), 10, f"number {sent} of {client}")
                    tail.send_signal((signal.SIGTERM, signal.SIGKILL)[turn // 2 % 2])
                    tail.wait(40)
                    seen += numbers()
                # The client's own subscriptions are gone with it, and this came meanwhile.
                wait_until(lambda: publisher.used() == [], 10, "the end of the subscriptions")
                publisher.step({"drop": "mempool.added", "seq": sent + 1, "n": sent + 1, "events": 1})
                sent += 1
            self.assertEqual(seen, list(range(1, sent)))


class RealNode(TestCase):
    """The mirror through a random walk of a real node, which BITCOIND names."""

    def setUp(self):
        need_node()

    def test_walk(self):
        sys.path.insert(0, os.path.join(ROOT, "tests", "node"))
        from regtest import Node, satoshi
        from tap import marker
        from test_walk import ACTIONS, CHECKPOINTS, Walker
        with Node("-maxmempool=5") as node:
            walker = Walker(node, seed=int(os.environ.get("SEED", "53")))
            for _ in range(30):
                walker.step()
            cookie = os.path.join(node.chain_directory, ".cookie")
            with Bridge("--pid", node.pid, binary=None) as bridge, subprocess.Popen(
                    ["node", os.path.join(CLIENT, "test", "mempool-child.js"),
                     f"tcp://127.0.0.1:{bridge.port}", f"http://127.0.0.1:{node.rpc_port}", cookie],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as mirror:
                def ask(line):
                    mirror.stdin.write(f"{line}\n")
                    mirror.stdin.flush()
                    return json.loads(mirror.stdout.readline())
                self.assertEqual(mirror.stdout.readline(), "ready\n")
                for action in range(1, ACTIONS + 1):
                    walker.step(action)
                    if action % (ACTIONS // CHECKPOINTS):
                        continue
                    mark = marker()
                    node.rpc.testmempoolaccept([mark.hex])
                    expected = {txid: (entry["vsize"], satoshi(entry["fees"]["base"]))
                                for txid, entry in node.rpc.getrawmempool(True).items()}
                    self.assertEqual({t: (v, f) for t, v, f in ask(mark.txid)}, expected)
                told = ask("")
                self.assertEqual((told["missing"], told["surplus"], told["syncs"]), ([], [], 1))
                self.assertGreater(told["left"], 200)
                mirror.stdin.close()
                self.assertEqual(mirror.wait(40), 0)


if __name__ == "__main__":
    main()
