"""What the fuzzers of the Python and JavaScript clients have found and collected, run once each."""
import glob
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import ROOT, TestCase, main, tool

HERE = os.path.dirname(os.path.abspath(__file__))


def corpus(target):
    """Of python_recording also that of recording."""
    return [path for name in (target, target.partition("_")[2])
            for path in sorted(glob.glob(os.path.join(HERE, "corpus", name, "*")))]


class Clients(TestCase):
    def run_targets(self, language, names, *command):
        for name in names:
            files = corpus(f"{language}_{name}")
            self.assertTrue(files, name)
            decoder = subprocess.Popen([tool("tests/conformance/verdict")], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)
            with decoder, decoder.stdin, decoder.stdout:
                done = subprocess.run([*command, name, *files], stdin=decoder.stdout, stdout=decoder.stdin,
                                      stderr=subprocess.PIPE, text=True, timeout=600, cwd=ROOT)
            # The last file that was printed is the one.
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr[-3000:]}")

    def test_python(self):
        self.run_targets("python", ("subscriber", "recording", "position", "rules"), sys.executable,
                         os.path.join(HERE, "targets.py"))

    def test_javascript(self):
        if not shutil.which("node") or not os.path.exists(os.path.join(ROOT, "clients/js/node_modules/zeromq")):
            self.skipTest("wants Node 20 and the client's dependencies: make deps-js")
        self.run_targets("js", ("subscriber", "position"), "node", os.path.join(HERE, "targets.mjs"))


if __name__ == "__main__":
    main()
