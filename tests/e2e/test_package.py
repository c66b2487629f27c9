"""The Debian packages: what is in them, and a small Debian with systemd on which they are installed,
run, upgraded and purged."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, PLAIN, ROOT, FakeNode, TestCase, bpf_alive, bpf_ids, free_port, main, wait_until)
from machine import PATH, Machine, base, need_tools
from replay import CompleteSubscriber
from test_resume import Account

CAP_SYS_ADMIN = 21
CAPABILITIES = {"cap_bpf": 39, "cap_perfmon": 38, "cap_sys_ptrace": 19, "cap_lease": 28}

debs = version = root = None


def build():
    """Makes the packages. Returns a machine's root and where the packages are."""
    lower = base()
    made = subprocess.run(["make", "-C", ROOT, f"BUILD={os.path.relpath(PLAIN, ROOT)}", "deb"],
                          capture_output=True, text=True,
                          env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")})
    if made.returncode:
        raise AssertionError(f"make deb: {made.stdout[-2000:]}{made.stderr[-2000:]}")
    return lower, os.path.join(PLAIN, "deb")


def setUpModule():
    global debs, version, root
    root, debs = build()
    with open(os.path.join(ROOT, "Makefile")) as f:
        version = re.search(r"^VERSION = (.*)$", f.read(), re.MULTILINE).group(1)


def packages():
    return sorted(p for p in glob.glob(f"{debs}/*_{version}_*.deb") if "dbgsym" not in p)


def inside(paths):
    return [f"/tmp/debs/{os.path.basename(p)}" for p in paths]


def upgraded(directory):
    """The package coretap as a later version."""
    later, tree = version + "+later", os.path.join(directory, "tree")
    package = next(p for p in packages() if os.path.basename(p).startswith("coretap_"))
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    control = os.path.join(tree, "DEBIAN/control")
    text = open(control).read().replace(f"Version: {version}\n", f"Version: {later}\n")
    with open(control, "w") as f:
        f.write(text)
    out = os.path.join(debs, "later")
    os.makedirs(out, exist_ok=True)
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, f"{out}/coretap.deb"], check=True,
                   stdout=subprocess.DEVNULL)
    return "/tmp/debs/later/coretap.deb", later


def unit_setting(name):
    with open(os.path.join(ROOT, "bridge/systemd/coretapd.service")) as f:
        return " ".join(re.findall(rf"^{name}=(.*)$", f.read(), re.MULTILINE))


class Contents(TestCase):
    def test_lintian(self):
        need_tools("lintian")
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning",
                               *glob.glob(f"{debs}/*.changes")], capture_output=True, text=True,
                              env={**os.environ, "PATH": PATH})
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_one_version(self):
        self.assertEqual([os.path.basename(p).split("_")[0] for p in packages()],
                         ["coretap-alerts", "coretap-nats", "coretap", "libcoretap-dev", "libcoretap1", "python3-coretap"])
        with Machine(root, debs) as machine:
            machine.run("dpkg", "-i", *inside(packages()))
            self.assertEqual(machine.run("coretapd", "--version").stdout, f"coretapd {version}\n")
            self.assertEqual(machine.run("coretap", "--version").stdout, f"coretap {version}\n")
            self.assertEqual(machine.run("coretap-nats", "--version").stdout, f"coretap-nats {version}\n")
            self.assertEqual(machine.run("python3", "-c", "import coretap; print(coretap.__version__)").stdout,
                             f"{version}\n")
            self.assertEqual(machine.run("coretap-alerts", "--version").stdout, f"coretap-alerts {version}\n")
            unit = "/lib/systemd/system/coretap-alerts.service"
            self.assertEqual(machine.run("systemd-analyze", "verify", "--man=no", unit).stderr, "")
            with open(glob.glob(machine.path("/usr/lib/*/pkgconfig/coretap.pc"))[0]) as pc:
                self.assertIn(f"Version: {version}\n", pc.read())

    def test_source_tarball(self):
        """It builds the same, without git."""
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(["tar", "-C", directory, "-xf", os.path.join(PLAIN, f"coretap-{version}.tar.gz")], check=True)
            tree = os.path.join(directory, f"coretap-{version}")
            listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True)
            found = {os.path.relpath(os.path.join(d, f), tree) for d, _, files in os.walk(tree) for f in files}
            if listed.returncode == 0:
                self.assertEqual(found, set(listed.stdout.split("\n")) - {""})
            made = subprocess.run(["make", "-C", tree, "build/coretap"], capture_output=True, text=True)
            self.assertEqual(made.returncode, 0, made.stderr)
            told = subprocess.run([f"{tree}/build/coretap", "--version"], capture_output=True, text=True).stdout
            self.assertEqual(told, f"coretap {version}\n")


class Service(TestCase):
    """With systemd as process 1. It attaches to a program file; processes it cannot see from there."""

    def setUp(self):
        self.machine = Machine(root, debs, systemd=True)
        self.addCleanup(self.machine.close)
        self.before = self.files()

    def files(self):
        """All that an installation could leave, without what dpkg and systemd keep for themselves."""
        own = ("/var/lib/dpkg", "/var/log", "/var/cache", "/proc", "/sys", "/dev", "/tmp", "/run/systemd", "/run/log",
               "/var/lib/systemd", "/etc/ld.so.cache", "/etc/.pwd.lock")
        backups = ("/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-")
        out = self.machine.run("find", "/", "-xdev").stdout
        out += self.machine.run("find", "/run", "/sys/fs/bpf", check=False).stdout
        return {p for p in out.splitlines() if not p.startswith(own) and p not in backups
                and "__pycache__" not in p}

    def install(self, *options):
        machine = self.machine
        machine.run("dpkg", "-i", *inside(packages()))
        shutil.copy(FAKE_NODE, machine.path("/usr/bin/bitcoind"))
        with open(machine.path("/etc/coretap/coretap.conf"), "a") as f:
            f.write(f"binary: /usr/bin/bitcoind\nname: main\nport: {free_port()}\njournal-low: 4M\n"
                    "journal-high: 4M\n")
        with open(os.path.join(PLAIN, "coretapd"), "rb") as f:
            if b"NOTIFY_SOCKET" not in f.read():
                machine.run("mkdir", "-p", "/run/systemd/system/coretapd.service.d")
                with open(machine.path("/run/systemd/system/coretapd.service.d/simple.conf"), "w") as drop_in:
                    drop_in.write("[Service]\nType=simple\n")
        machine.run("systemctl", "daemon-reload")
        if machine.run("systemctl", "restart", "coretapd", check=False).returncode:
            raise AssertionError(f"coretapd did not start: {self.journal()}")
        self.wait_attached(1)

    def journal(self):
        return self.machine.run("journalctl", "-u", "coretapd", "-o", "cat", "--no-pager").stdout

    def wait_attached(self, times):
        wait_until(lambda: self.journal().count("attached (") >= times, 20, f"attached {times} times: {self.journal()}")

    def pid(self):
        """Of the service, as the host counts."""
        main_pid = self.machine.run("systemctl", "show", "-P", "MainPID", "coretapd").stdout.strip()
        with open(f"{self.machine.group}/system.slice/coretapd.service/cgroup.procs") as f:
            for pid in f.read().split():
                status = open(f"/proc/{pid}/status").read()
                if re.search(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE).group(1) == main_pid:
                    return int(pid)
        raise AssertionError(self.journal())

    def test_least_privilege(self):
        """/proc of the running service, and what it can and cannot do from there."""
        self.install()
        status = dict(line.split(":\t", 1) for line in open(f"/proc/{self.pid()}/status").read().splitlines()
                      if ":\t" in line)
        uid = int(self.machine.run("id", "-u", "coretap").stdout)
        self.assertGreater(uid, 0)
        self.assertEqual(status["Uid"].split(), [str(uid)] * 4)
        argued = unit_setting("AmbientCapabilities").lower().split()
        self.assertEqual(set(argued), set(CAPABILITIES))
        mask = sum(1 << CAPABILITIES[name] for name in argued)
        self.assertEqual(int(status["CapBnd"], 16), mask)
        for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            # It may have given up what it does not need any more.
            self.assertEqual(int(status[kind], 16) & ~mask, 0, kind)
        self.assertEqual(status["NoNewPrivs"], "1")
        self.assertEqual(status["Seccomp"], "2")
        mounts = {line.split()[4]: line.split()[5].split(",")[0]
                  for line in open(f"/proc/{self.pid()}/mountinfo")}
        self.assertEqual(mounts["/"], "ro")
        self.assertEqual(mounts["/run/coretap"], "rw")
        self.assertEqual(mounts["/sys/fs/bpf/coretap"], "rw")
        self.assertEqual(mounts["/sys/fs/bpf"], "ro")
        unit = "/lib/systemd/system/coretapd.service"
        self.assertEqual(self.machine.run("systemd-analyze", "verify", "--man=no", unit).stderr, "")
        # Of 10.0; tracing costs most of what remains.
        self.machine.run("systemd-analyze", "security", "--offline=yes", "--threshold=30", unit)

    def test_before_linux_6_6(self):
        """Attaching takes CAP_SYS_ADMIN there: the service is given it, and gives it up."""
        self.install()
        machine, own = self.machine, "/usr/local/bin/uname"
        with open(machine.path("/etc/coretap/coretap.conf"), "a") as f:
            f.write("without: multi\n")
        for release, has in (("6.6.0", False), ("6.1.0-13-amd64", True), ("5.15.180", True), ("7.0-rc1", False)):
            with self.subTest(release):
                with open(machine.path(own), "w") as f:
                    f.write(f"#!/bin/sh\necho {release}\n")
                machine.run("chmod", "755", own)
                machine.run("systemctl", "daemon-reload")
                machine.run("systemctl", "stop", "coretapd")
                machine.run("coretapd", "--detach", "--name", "main", check=False)
                attached = self.journal().count("attached (")
                done = machine.run("systemctl", "start", "coretapd", check=False)
                self.assertEqual(done.returncode == 0, has, self.journal())
                if has:
                    self.wait_attached(attached + 1)
                    with open(f"/proc/{self.pid()}/status") as f:
                        status = dict(line.split(":\t", 1) for line in f if ":\t" in line)
                    sets = {name: int(status[name], 16) >> CAP_SYS_ADMIN & 1 for name in ("CapBnd", "CapPrm", "CapAmb")}
                    self.assertEqual(sets, {"CapBnd": 1, "CapPrm": 0, "CapAmb": 0})
                else:
                    self.assertIn("takes CAP_SYS_ADMIN", self.journal())

    def test_configuration_and_keys(self):
        """What the package ships, keys that the service reads again, and what root left behind."""
        self.install()
        machine = self.machine
        self.assertIn("/etc/coretap/coretap.conf", machine.run("dpkg-query", "-W", "-f", "${Conffiles}", "coretap").stdout)
        for name in ("alerts.yml", "dashboard.json"):
            with open(machine.path(f"/usr/share/coretap/monitoring/{name}"), "rb") as installed, \
                    open(os.path.join(ROOT, "bridge/monitoring", name), "rb") as ours:
                self.assertEqual(installed.read(), ours.read())
        with open(os.path.join(ROOT, "bridge/systemd/coretap.conf")) as ours:
            # Every option that the file offers is one.
            with open(machine.path("/tmp/all.conf"), "w") as f:
                f.write(re.sub(r"^#(?=[a-z-]+:|  -)", "", re.sub("#datadir.*", "", ours.read()), flags=re.MULTILINE))
        for name in ("server", "alice", "eve"):
            machine.run("coretap", "keygen", f"/etc/coretap/{name}")
        machine.run("cp", "/etc/coretap/alice.pub", "/etc/coretap/clients")
        machine.run("chown", "root:coretap", "/etc/coretap/server.key", "/etc/coretap/clients")
        machine.run("chmod", "640", "/etc/coretap/server.key", "/etc/coretap/clients")
        machine.run("coretapd", "--check", "--config", "/tmp/all.conf")
        with open(machine.path("/etc/coretap/coretap.conf"), "a") as f:
            f.write("curve-secret: /etc/coretap/server.key\ncurve-clients: /etc/coretap/clients\n"
                    "ipc-mode: 0660\nipc-group: bitcoin\n")
        # A group of the operator's, that the service is in.
        machine.run("groupadd", "bitcoin")
        machine.run("usermod", "-aG", "bitcoin", "coretap")
        # Run by hand under the same name.
        machine.run("systemctl", "stop", "coretapd")
        machine.run("chown", "-R", "root:root", "/run/coretap/main", "/sys/fs/bpf/coretap/main")
        machine.run("systemctl", "start", "coretapd")
        self.wait_attached(2)
        self.assertIn("going on where the last", self.journal().split("attached (")[-1])
        self.assertEqual(machine.run("stat", "-c", "%a %U %G", "/run/coretap/main/low.sock").stdout,
                         "660 coretap bitcoin\n")
        machine.run("sh", "-c", "cat /etc/coretap/eve.pub >> /etc/coretap/clients")
        machine.run("systemctl", "reload", "coretapd")
        wait_until(lambda: "2 keys" in self.journal(), 10, "keys read again")

    def test_make_install(self):
        """Without packages: what the README says, below /usr/local."""
        machine = self.machine

        def make(target):
            done = subprocess.run(["make", "-C", ROOT, f"BUILD={os.path.relpath(PLAIN, ROOT)}", target,
                                   f"DESTDIR={machine.path('')}"], capture_output=True, text=True,
                                  env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")})
            self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        make("install")
        unit = "/usr/local/lib/systemd/system/coretapd.service"
        shutil.copy(FAKE_NODE, machine.path("/usr/local/bin/bitcoind"))
        config = machine.path("/etc/coretap/coretap.conf")
        with open(config, "a") as f:
            f.write(f"binary: /usr/local/bin/bitcoind\nname: main\nport: {free_port()}\njournal-low: 4M\n"
                    "journal-high: 4M\n")
        machine.run("systemd-sysusers")
        machine.run("systemctl", "daemon-reload")
        self.assertEqual(machine.run("systemd-analyze", "verify", "--man=no", unit).stderr, "")
        machine.run("systemctl", "start", "coretapd")
        self.wait_attached(1)
        self.assertTrue(os.readlink(f"/proc/{self.pid()}/exe").endswith("/usr/local/sbin/coretapd"))
        machine.run("systemctl", "stop", "coretapd")
        machine.run("/usr/local/sbin/coretapd", "--detach", "--name", "main")
        with open(config) as f:
            before = f.read()
        make("install")  # an upgrade leaves the configuration alone
        with open(config) as f:
            self.assertEqual(f.read(), before)
        make("uninstall")
        left = {p for p in self.files() - self.before if os.path.isfile(machine.path(p)) and not p.startswith("/run/")}
        self.assertEqual(left - {"/usr/local/bin/bitcoind"}, {"/etc/coretap/coretap.conf"})
        self.assertFalse(os.path.exists(machine.path("/usr/local/share/coretap")))

    def test_restart_goes_on(self):
        self.install()
        ids = bpf_ids(self.pid())
        for times, command in enumerate((("systemctl", "restart", "coretapd"),
                                         ("systemctl", "kill", "-s", "KILL", "coretapd")), 2):
            self.machine.run(*command)
            self.wait_attached(times)
            self.assertIn("going on where the last", self.journal().split("attached (")[-1])
        self.assertEqual({i for i in bpf_ids(self.pid()) if i[0] != "map"}, {i for i in ids if i[0] != "map"})
        # A later package is installed by dpkg; the service goes on with its own scripts.
        with tempfile.TemporaryDirectory() as directory:
            package, later = upgraded(directory)
            self.machine.run("dpkg", "-i", package)
        self.assertEqual(self.machine.run("dpkg-query", "-W", "-f", "${Version}", "coretap").stdout, later)
        self.wait_attached(4)
        self.assertIn("going on where the last", self.journal().split("attached (")[-1])

    def test_root_detaches_another(self):
        """While the service waits for its node, and has nothing pinned yet."""
        self.install()
        machine = self.machine
        machine.run("systemctl", "stop", "coretapd")
        machine.run("coretapd", "--detach", "--name", "main")
        machine.run("mkdir", "/srv/data")
        with open(machine.path("/etc/coretap/coretap.conf"), "a") as f:
            f.write("datadir: /srv/data\n")
        machine.run("systemctl", "start", "coretapd")
        wait_until(lambda: "waiting for the node" in self.journal(), 10, "waiting")
        machine.run("coretapd", "--detach", "--name", "other")
        machine.run("sh", "-c", "bitcoind burst 1 --hold >/dev/null 2>&1 & echo $! > /srv/data/bitcoind.pid")
        wait_until(lambda: ": attached\n" in self.journal(), 10, "attached")
        self.assertNotIn("cannot pin", self.journal())

    def test_purge_leaves_nothing(self):
        self.install()
        ids = bpf_ids(self.pid())
        self.assertTrue(bpf_alive(ids))
        os.unlink(self.machine.path("/usr/bin/bitcoind"))
        names = [os.path.basename(p).split("_")[0] for p in packages()]
        self.machine.run("dpkg", "--purge", *names)
        self.assertEqual(self.files() - self.before, set())
        self.assertNotIn("coretap", self.machine.run("cat", "/etc/passwd", "/etc/group", "/etc/shadow").stdout)
        self.assertEqual(self.machine.run("ls", "/sys/fs/bpf").stdout.split(), ["maps.debug", "progs.debug"])
        self.assertEqual(self.machine.run("systemctl", "is-active", "coretapd", check=False).stdout.strip(), "inactive")
        wait_until(lambda: not bpf_alive(ids), 10, "the kernel to forget probes and maps")

    def test_remove_detaches(self):
        """Removed, not purged: settings stay, probes do not."""
        self.install()
        ids = bpf_ids(self.pid())
        self.machine.run("dpkg", "--remove", "coretap")
        self.assertTrue(os.path.exists(self.machine.path("/etc/coretap/coretap.conf")))
        wait_until(lambda: not bpf_alive(ids), 10, "the kernel to forget probes and maps")


class UnderLoad(TestCase):
    """In the initial pid namespace, where events flow; what systemd would do is done by hand: the
    unit's user, capabilities, restart and options."""

    def start(self, machine):
        capabilities = ",".join("+" + c[4:] for c in unit_setting("AmbientCapabilities").lower().split())
        log = open(os.path.join(self.shared, f"log{len(self.services)}"), "w+")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [*machine.prefix(), "setpriv", "--reuid", "coretap", "--regid", "coretap", "--clear-groups", "--no-new-privs",
             "--inh-caps", "-all," + capabilities, "--ambient-caps", "-all," + capabilities, "--bounding-set",
             "-all," + capabilities, "/usr/sbin/coretapd", "--keep-attached", "--binary", f"{self.shared}/node",
             "--name", "load", "--port", str(self.port), "--journal-low", "128M", "--journal-high", "16M"],
            stderr=log)
        self.services.append((process, log))

        def attached():
            text = os.pread(log.fileno(), 10000, 0).decode()
            if process.poll() is not None:
                raise AssertionError(f"coretapd ended: {text}")
            return "attached (" in text and text
        return process, wait_until(attached, 20, "attached")

    def test_upgrade_loses_nothing(self):
        self.shared = tempfile.mkdtemp(prefix="coretap-shared-")
        os.chmod(self.shared, 0o755)
        self.addCleanup(shutil.rmtree, self.shared)
        self.services, self.port = [], free_port()
        shutil.copy(FAKE_NODE, f"{self.shared}/node")
        with Machine(root, debs, shared=self.shared) as machine:
            machine.run("dpkg", "-i", *inside(packages()))
            machine.run("install", "-d", "-o", "coretap", "-m", "755", "/run/coretap")
            machine.run("chmod", "o+x", "/sys/fs/bpf")
            machine.run("install", "-d", "-o", "coretap", "-m", "700", "/sys/fs/bpf/coretap")
            process, _ = self.start(machine)
            account = Account()
            sub = CompleteSubscriber(self.port, deliver=account)
            self.addCleanup(sub.close)
            wait_until(sub.joined, 10, "first status")
            package, _later = upgraded(self.shared)
            # As another user, whose executable it is not.
            with FakeNode("burst", 300000, "--rate", 40000, binary=f"{self.shared}/node",
                          prefix=("setpriv", "--reuid", "12345", "--clear-groups")) as node:
                wait_until(lambda: account.count["mempool.removed"] > 20000, 20, "events")
                old = os.stat(machine.path("/usr/sbin/coretapd")).st_ino
                machine.run("dpkg", "-i", package)
                self.assertNotEqual(os.stat(machine.path("/usr/sbin/coretapd")).st_ino, old)
                process.terminate()
                self.assertEqual(process.wait(80), 0)
                process, log = self.start(machine)
                self.assertIn("going on where the last", log)
                fired = node.finish()
            wait_until(lambda: sum(account.count[t] + account.lost[t] for t in fired) >= sum(fired.values()), 30,
                       "all events")
            self.assertEqual(account.wrong[:5], [])
            self.assertEqual((sub.gone, sub.skipped, sub.errors), ([], [], []))
            self.assertEqual({t: account.count[t] for t in fired}, fired)
            self.assertEqual(sum(account.lost.values()), 0)
            self.assertEqual(len(account.runs), 1)
            process.terminate()
            process.wait(80)


if __name__ == "__main__":
    main()
