#!/usr/bin/python3
"""SECURITY.md names tests that there are."""
import glob
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def main():
    with open(os.path.join(ROOT, "SECURITY.md")) as f:
        text = f.read()
    named = re.findall(r"`(test_\w+)\.(\w+)\.(test_\w+)`", text)
    files = re.findall(r"`((?:unit|fuzz|conformance)/\w+\.\w+)`", text)
    wrong = [path for path in files if not os.path.exists(os.path.join(ROOT, "tests", path))]
    for module, group, test in named:
        sources = [open(path).read() for path in glob.glob(f"{ROOT}/tests/*/{module}.py")]
        body = rf"^class {group}\(.*?^    def {test}\("
        # In that class, not in a later one.
        if not any(re.search(body, s, re.M | re.S) and
                   "\nclass " not in re.search(body, s, re.M | re.S).group(0) for s in sources):
            wrong.append(f"{module}.{group}.{test}")
    print(f"{'FAIL' if wrong or len(named) < 40 else 'PASS'} test_security_md: {len(named)} tests, {len(files)} files"
          + (f"; not there: {', '.join(wrong)}" if wrong else ""))
    return bool(wrong) or len(named) < 40


if __name__ == "__main__":
    sys.exit(main())
