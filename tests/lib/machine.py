"""A small Debian of its own for tests of packages: a root file system that debootstrap makes once and
keeps in the build directory, a throw-away layer over it for each test, and, where wanted, systemd as
process 1 of its own pid namespace. Nothing of the host is written: its own mounts, and /proc/sys and
/sys are read-only in there."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from harness import PLAIN, need_root, wait_until

TOOLS = ("debootstrap", "dpkg-deb", "dh", "fakeroot", "unshare", "nsenter", "chroot", "apt-get")
# What the packages need, so that installing them wants no network.
INCLUDED = ("systemd", "libbpf1", "libelf1", "liblmdb0", "libmsgpackc2", "libmicrohttpd12", "libncursesw6", "libyaml-0-2",
            "libzmq5", "libzmq3-dev", "python3-zmq", "python3-msgpack", "python3-yaml")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def need_tools(*tools):
    need_root()
    search = os.environ["PATH"] + ":" + PATH
    missing = [t for t in tools if not shutil.which(t, path=search)]
    if missing:
        raise unittest.SkipTest(f"not installed: {', '.join(missing)} ({PACKAGES})")


PACKAGES = "apt-get install debootstrap lintian, and what DEBIAN_PACKAGING in the Makefile lists"


def mirror():
    """Address and code name of this machine's own Debian archive."""
    out = subprocess.run(["apt-get", "indextargets", "--format", "$(LABEL) $(SITE) $(CODENAME)",
                          "Created-By: Packages", "Component: main"], capture_output=True, text=True)
    with open("/etc/os-release") as release:
        codename = dict(line.strip().split("=", 1) for line in release if "=" in line).get("VERSION_CODENAME")
    for line in out.stdout.splitlines():
        label, site, name = line.split()
        if label == "Debian" and name == codename:
            return site, name
    raise unittest.SkipTest("apt knows no Debian archive of this release")


def base(extra=()):
    """The root file system, made at most once for each list of packages."""
    need_tools(*TOOLS)
    site, codename = mirror()
    packages = " ".join((*INCLUDED, *extra))
    root = os.path.join(PLAIN, f"machine-{codename}")
    stamp = os.path.join(root, "made-for-tests")
    if os.path.exists(stamp):
        with open(stamp) as f:
            if f.read() == packages:
                return root
    shutil.rmtree(root, ignore_errors=True)

    def step(*command):
        made = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, "PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"})
        if made.returncode:
            raise unittest.SkipTest(f"{command[0]}: {' '.join((made.stdout + made.stderr)[-300:].split())}")
    step("debootstrap", "--variant=minbase", codename, root, site)
    shutil.copy("/etc/resolv.conf", f"{root}/etc/resolv.conf")
    step("chroot", root, "apt-get", "install", "-y", "--no-install-recommends", *packages.split())
    step("chroot", root, "apt-get", "clean")
    with open(stamp, "w") as f:
        f.write(packages)
    return root


# $1: the lower layer, $2: an empty directory. All mounts end with the namespace.
MOUNTS = r"""
set -e
lower=$1 place=$2; shift 2
mount --make-rprivate /
mount -t tmpfs tmpfs "$place"
mkdir "$place/upper" "$place/work" "$place/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$place/upper,workdir=$place/work" overlay "$place/root"
cd "$place/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys && mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t bpf -o mode=0700 bpf sys/fs/bpf
mount -t cgroup2 cgroup2 sys/fs/cgroup 2>/dev/null || true
mount -t tmpfs -o mode=755 tmpfs dev
for n in tty null zero full random urandom; do touch dev/$n; mount --bind /dev/$n dev/$n; done
ln -s /proc/self/fd dev/fd
mkdir dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir tmp/debs
mount --bind "$DEBS" tmp/debs
if [ -n "$SHARED" ]; then mkdir -p "$place/root$SHARED"; mount --bind "$SHARED" "$place/root$SHARED"; fi
exec "$@"
"""


class Machine:
    """systemd: as process 1, in a pid namespace of its own (where coretapd sees no process of the
    initial one, so that it attaches, but takes events of none). Without it: just a root file system
    and a way to run programs in it. debs: directory that is /tmp/debs inside. shared: directory that
    has the same path inside."""

    def __init__(self, root, debs, systemd=False, shared=""):
        self.place = tempfile.mkdtemp(prefix="coretap-machine-")
        self.systemd, self.group = systemd, None
        inner = ["env", "-i", "container=other", f"PATH={PATH}", "chroot", "."]
        inner += (["/lib/systemd/systemd", "--unit=basic.target", "--log-target=journal"] if systemd
                  else ["sleep", "infinity"])
        command = ["unshare", "--mount", "--uts", "--ipc"]
        if systemd:
            self.group = self.own_group()
            command += ["--pid", "--fork", "--cgroup"]
        command += ["sh", "-c", MOUNTS, "sh", root, self.place, *inner]
        self.log = open(os.path.join(tempfile.gettempdir(), f"coretap-machine-{os.getpid()}.log"), "w+")
        os.unlink(self.log.name)
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            env={**os.environ, "DEBS": debs, "SHARED": shared}, preexec_fn=self.enter_group)
        self.pid = None
        wait_until(self.up, 20, "a machine")

    @staticmethod
    def own_group():
        with open("/proc/mounts") as mounts:
            trees = [line.split()[1] for line in mounts if line.split()[2] == "cgroup2"]
        if not trees:
            raise unittest.SkipTest("no cgroup2 is mounted here")
        group = f"{trees[0]}/coretap-test-{os.getpid()}-{time.monotonic_ns()}"
        os.mkdir(group)
        return group

    def enter_group(self):
        if self.group:
            with open(f"{self.group}/cgroup.procs", "w") as f:
                f.write("0")

    def up(self):
        if self.process.poll() is not None:
            self.log.seek(0)
            raise AssertionError(f"machine: {self.log.read()[-500:]}")
        self.pid = self.process.pid
        if self.systemd:
            children = open(f"/proc/{self.pid}/task/{self.pid}/children").read().split()
            self.pid = int(children[0]) if children else None
            return self.pid and self.run("systemctl", "is-system-running", check=False).stdout.strip() in (
                "running", "degraded")
        try:
            return b"infinity" in open(f"/proc/{self.pid}/cmdline", "rb").read().split(b"\0")[-2] and \
                os.readlink(f"/proc/{self.pid}/exe").endswith("/sleep")
        except (OSError, IndexError):
            return False

    def prefix(self):
        """What comes before a command that is to run in here."""
        spaces = ["-p", "-C"] if self.systemd else []
        return ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", *spaces, "-r", "-w", "env", "-i", f"PATH={PATH}",
                "HOME=/root", "TERM=dumb", "SYSTEMD_PAGER=", "DEBIAN_FRONTEND=noninteractive"]

    def run(self, *command, check=True, **keywords):
        done = subprocess.run([*self.prefix(), *command], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              **keywords)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done

    def path(self, path):
        """A file in here as the host sees it."""
        return f"/proc/{self.pid}/root{path}"

    def close(self):
        if self.pid and self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait(20)
        self.log.close()
        if self.group:
            def removed():
                for directory, _, _ in os.walk(self.group, topdown=False):
                    try:
                        os.rmdir(directory)
                    except OSError:
                        pass
                return not os.path.exists(self.group)
            wait_until(removed, 10, f"{self.group} to be empty")
        os.rmdir(self.place)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


if __name__ == "__main__":
    print(base(), file=sys.stderr)
