"""The container recipe, step by step without a container engine: the image's last stage is executed
in a root file system of its own; then what compose.yaml says is done with namespaces, a bounded set
of capabilities and bind mounts. The node runs in another root and in a pid namespace of its own."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import FAKE_NODE, ROOT, TestCase, bpf_alive, bpf_ids, free_port, main, wait_until
from machine import Machine
from test_package import build

RECIPE = os.path.join(ROOT, "bridge", "container")


def setUpModule():
    global root, debs
    root, debs = build()


def last_stage():
    """Instructions of the Dockerfile's last stage, as (word, argument)."""
    with open(os.path.join(RECIPE, "Dockerfile")) as f:
        text = re.sub(r"^#.*\n", "", f.read(), flags=re.MULTILINE).replace("\\\n", "")
    stage = re.split(r"^FROM .*\n", text, flags=re.MULTILINE)[-1]
    return [line.split(None, 1) for line in stage.splitlines() if line.strip()]


def service(name):
    """The lines of one service of compose.yaml."""
    with open(os.path.join(RECIPE, "compose.yaml")) as f:
        text = f.read()
    return re.search(rf"^  {name}:\n((?:    .*\n|\n)*)", text, re.MULTILINE).group(1)


def words(text, key):
    """A list in flow style."""
    return json.loads(re.search(rf"^ +{key}: (\[.*\])$", text, re.MULTILINE).group(1))


class Container(TestCase):
    def setUp(self):
        self.shared = tempfile.mkdtemp(prefix="coretap-volume-")
        os.chmod(self.shared, 0o755)
        self.addCleanup(shutil.rmtree, self.shared, ignore_errors=True)
        self.image = Machine(root, debs, shared=self.shared)
        self.addCleanup(self.image.close)
        self.node = Machine(root, debs)
        self.addCleanup(self.node.close)
        shutil.copy(FAKE_NODE, self.node.path("/usr/bin/bitcoind"))
        self.processes, self.nodes = [], []
        self.addCleanup(self.end)
        self.build()

    def end(self):
        for pid in self.nodes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def build(self):
        image = self.image
        self.settings = {}
        for word, argument in last_stage():
            if word == "COPY":
                source, target = argument.split()[-2:]
                image.run("mkdir", "-p", target)
                copies = glob.glob(os.path.join(debs, os.path.basename(source)))
                self.assertEqual(len(copies), 1, argument)
            elif word == "RUN":
                # The machine's /tmp/debs is what COPY would have filled, and stays.
                command = argument.replace("rm -rf /tmp/debs ", "rm -rf ")
                image.run("sh", "-c", command)
            else:
                self.settings[word] = argument
        self.assertFalse(os.path.exists(image.path("/tmp/debs/coretap_x.deb")))

    def start(self):
        """coretapd as the service `coretap` has it, in the host's pid namespace."""
        text = service("coretap")
        self.assertIn("pid: host", text)
        self.assertIn("cap_drop: [ALL]", text)
        names = re.findall(r"^      - ([A-Z_]+) #", text, re.MULTILINE)
        capabilities = ",".join(f"+{name.lower()}" for name in names)
        self.assertEqual(set(names), {"BPF", "PERFMON", "SYS_PTRACE", "LEASE"})
        command = [*json.loads(self.settings["ENTRYPOINT"]), *words(text, "command"), "--journal-low", "16M",
                   "--journal-high", "16M", "--port", str(free_port())]
        # Other nodes may run on this machine.
        command += ["--pid", str(self.nodes[-1])]
        log = open(os.path.join(self.shared, f"log{len(self.processes)}"), "w+")
        self.addCleanup(log.close)
        read_only = "mount -o remount,bind,ro / 2>/dev/null; mkdir -p /run/coretap; exec \"$@\""
        process = subprocess.Popen(
            [*self.image.prefix(), "sh", "-c", read_only, "sh", "setpriv", "--no-new-privs", "--bounding-set",
             "-all," + capabilities, "--inh-caps", "-all", *command], stderr=log)
        self.processes.append(process)

        def attached():
            said = os.pread(log.fileno(), 10000, 0).decode()
            if process.poll() is not None:
                raise AssertionError(f"coretapd ended: {said}")
            return "attached (" in said and said
        return process, wait_until(attached, 20, "attached")

    def run_node(self, *args):
        """In its own pid namespace, as another user, below its own root."""
        process = subprocess.Popen(
            [*self.node.prefix(), "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "setpriv", "--reuid", "1000",
             "--clear-groups", "/usr/bin/bitcoind", *map(str, args)], stdout=subprocess.PIPE, text=True)
        self.processes.append(process)

        def node():
            """Of all descendants the one that is the node, as the host counts."""
            pid = process.pid
            while pid and not os.readlink(f"/proc/{pid}/exe").endswith("/bitcoind"):
                with open(f"/proc/{pid}/task/{pid}/children") as f:
                    pid = int((f.read().split() or [0])[0])
            return pid
        self.nodes.append(wait_until(node, 10, "the node"))
        return process

    def subscriber(self, count):
        """The service `evictions`: nobody, no privileges, no network, only the volume."""
        text = service("evictions")
        return subprocess.Popen(
            [*self.image.prefix(), "unshare", "--net", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
             "--no-new-privs", "--bounding-set", "-all", "--inh-caps", "-all", *words(text, "entrypoint"), "--count",
             str(count)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_two_containers(self):
        node = self.run_node("blocks", 4, 300, "--rate", 2000, "--wait")
        bridge, _ = self.start()
        status = open(f"/proc/{bridge.pid}/status").read()
        self.assertEqual(int(re.search(r"^CapEff:\s*(\w+)", status, re.MULTILINE).group(1), 16),
                         sum(1 << n for n in (39, 38, 19, 28)))
        self.assertIn("NoNewPrivs:\t1", status)
        subscriber = self.subscriber(4)
        self.processes.append(subscriber)
        out, errors = subscriber.communicate(timeout=240)
        ledger = json.loads(node.communicate(timeout=120)[0].splitlines()[-1])
        lists = [event for event in map(json.loads, out.splitlines()) if "notice" not in event]
        self.assertEqual(len(lists), 4, errors)
        self.assertEqual(sum(len(event["txids"]) for event in lists), 1200)
        self.assertTrue(all(event["complete"] for event in lists))
        self.assertEqual(ledger["fired"]["validation:block_connected"], 4)

    def test_container_replaced(self):
        """A new container goes on where the old one stopped: pins and journal are in volumes."""
        node = self.run_node("run", "--rate", 500, "--block-interval", 1, "--seconds", 30)
        bridge, _ = self.start()
        ids = bpf_ids(bridge.pid)
        bridge.kill()
        bridge.wait()
        bridge, log = self.start()
        self.assertIn("going on where the last", log)
        os.kill(self.nodes[-1], signal.SIGTERM)
        node.communicate(timeout=80)
        bridge.terminate()
        self.assertEqual(bridge.wait(80), 0)
        self.image.run("/usr/sbin/coretapd", "--detach", "--name", "main")
        wait_until(lambda: not bpf_alive(ids), 10, "the kernel to forget")


if __name__ == "__main__":
    main()
