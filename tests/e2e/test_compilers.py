"""The verifier accepts the BPF program as any LLVM compiles it that is installed here: what one version
shows to the verifier another one optimises away. The default one is what all other tests run."""
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import BPFTOOL, ROOT, TestCase, main, need_root

COMPILERS = sorted({name for place in os.environ["PATH"].split(":") if os.path.isdir(place)
                    for name in os.listdir(place) if re.fullmatch(r"clang-\d+", name)}, key=lambda n: int(n[6:]))


class Compilers(TestCase):
    def setUp(self):
        need_root()
        directory = tempfile.TemporaryDirectory(prefix="coretap-test-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def check(self, value):
        """value: of all constants that coretapd sets before it loads the program."""
        default = os.path.realpath(shutil.which("clang") or "")
        others = [c for c in COMPILERS if os.path.realpath(shutil.which(c)) != default]
        if not others:
            raise unittest.SkipTest("wants another clang than the default one: apt-get install clang-16 clang-19")
        tree = os.path.join(self.directory, "bpf")
        shutil.copytree(os.path.join(ROOT, "bpf"), tree)
        source, built = os.path.join(tree, "coretap.bpf.c"), os.path.join(self.directory, "coretap.bpf.o")
        with open(source) as f:
            text, constants = re.subn(r"^(const volatile bool have_\w+) = false;", rf"\1 = {value};", f.read(),
                                      flags=re.MULTILINE)
        self.assertGreater(constants, 3)
        with open(source, "w") as f:
            f.write(text)
        pins = f"/sys/fs/bpf/coretap-test-{os.getpid()}"
        multiarch = subprocess.run(["gcc", "-print-multiarch"], capture_output=True, text=True).stdout.strip()
        for compiler in others:
            with self.subTest(compiler=compiler):
                subprocess.run([compiler, "-O2", "-g", "-target", "bpf", f"-DTARGET_{platform.machine()}",
                                f"-I/usr/include/{multiarch}", "-Wall", "-Wextra", "-Werror", "-c", source,
                                "-o", built], check=True)
                try:
                    done = subprocess.run([BPFTOOL, "prog", "loadall", built, pins], capture_output=True, text=True)
                finally:
                    shutil.rmtree(pins, ignore_errors=True)
                self.assertEqual(done.returncode, 0, done.stderr[-2000:])

    def test_least(self):
        self.check("false")

    def test_most(self):
        self.check("true")


if __name__ == "__main__":
    main()
