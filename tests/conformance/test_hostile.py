"""Broken frames: each client takes or refuses the same ones, prints the same of what it takes, and
refuses with its own error and nothing else. The frames are golden ones, damaged in ways that do not
change from run to run, and what the fuzzer of the C client collected."""
import glob
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import ROOT, TestCase, main, tool

import msgpack

import verdict

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS = int(os.environ.get("ROUNDS", 120))  # of damage to each golden frame
ODD = [None, True, 0, -1, 1, 1 << 31, 1 << 32, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
       -(1 << 63), 0.5, float("nan"), "", "x" * 40, "\x1b\u202e\ud7ff", b"", bytes(32), bytes(31),
       msgpack.ExtType(5, b"ab"), [], {}, [[]], {"a": {"b": []}}]


def golden():
    for path in sorted(glob.glob(os.path.join(ROOT, "protocol/golden/*.hex"))):
        yield os.path.basename(path)[:-4], bytes.fromhex("".join(open(path).read().split()))


def places(value):
    """Every container, with the keys or indices of what it holds."""
    if isinstance(value, dict):
        yield value, list(value)
        for inner in value.values():
            yield from places(inner)
    elif isinstance(value, list):
        yield value, list(range(len(value)))
        for inner in value:
            yield from places(inner)


def damage_value(rng, frame):
    value = msgpack.unpackb(frame)
    container, keys = rng.choice([p for p in places(value) if p[1]])
    key = rng.choice(keys)
    action = rng.randrange(4)
    if action == 0:
        del container[key]
    elif action == 1 and isinstance(container, dict):
        container[rng.choice(["", "v", "n", "events", "time_us", "__proto__", "7"])] = container[key]
    else:
        container[key] = rng.choice(ODD)
    return msgpack.packb(value)


def damage_bytes(rng, frame):
    frame = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(frame))
        action = rng.randrange(5)
        if action == 0:
            frame[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            frame[at] = rng.choice([0, 0x80, 0x90, 0xa0, *range(0xc0, 0xe0), 0xff])
        elif action == 2:
            del frame[at:at + rng.randrange(1, 9)]
        elif action == 3:
            frame[at:at] = frame[at:at + rng.randrange(1, 60)]
        else:
            frame[at:at] = bytes([rng.choice([0x91, 0x81, 0xdd, 0xdf, 0xc6, 0xdb])]) * rng.randrange(1, 30)
        if not frame:
            break
    return bytes(frame)


def collected():
    """The live messages in the corpus of tests/fuzz/fuzz_subscriber.c."""
    topics = [e["topic"] for e in json.load(open(os.path.join(ROOT, "protocol/events.json")))["events"]]
    topics += ["bridge.status", "bridge.stopping", "mine.own", None, None]
    for path in sorted(glob.glob(os.path.join(ROOT, "tests/fuzz/corpus/subscriber/*"))):
        data = open(path, "rb").read()[1:]
        while len(data) >= 3:
            topic, length = topics[data[0] % len(topics)], struct.unpack_from("<H", data, 1)[0]
            if topic:
                yield topic, data[3:3 + length]
            data = data[3 + length:]


def frames():
    rng = random.Random(int(os.environ.get("SEED", 1)))
    for topic, frame in golden():
        yield topic, frame
        if topic == "bridge.status":
            yield topic, msgpack.packb({**msgpack.unpackb(frame), "held": -1})
        for _ in range(ROUNDS):
            yield topic, rng.choice([damage_value, damage_bytes])(rng, frame)
    yield from collected()


class Hostile(TestCase):
    @classmethod
    def setUpClass(cls):
        cls.frames = list(frames())
        cls.lines = "".join(f"{topic} {frame.hex()}\n" for topic, frame in cls.frames)
        cls.c = cls.ask([tool("tests/conformance/verdict")])

    @classmethod
    def ask(cls, command):
        done = subprocess.run(command, input=cls.lines, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise AssertionError(f"{command[0]}: {done.stderr[-3000:]}")
        return done.stdout.splitlines()

    def compare(self, told, may_differ):
        self.assertEqual(len(told), len(self.frames))
        different, taken = [], 0
        for (topic, frame), ours, theirs in zip(self.frames, self.c, told):
            taken += not ours.startswith("refused: ") and not theirs.startswith("refused: ")
            if verdict.agree(ours, theirs, frame, may_differ):
                continue
            different.append(f"{topic} {frame.hex()}\n  C:    {ours[:300]}\n  this: {theirs[:300]}")
        self.assertEqual(different, [], f"{len(different)} of {len(told)}:\n" + "\n".join(different[:10]))
        self.assertGreater(taken, 100)
        self.assertGreater(len(told) - taken, 1000)

    def test_python(self):
        self.compare([verdict.told(*frame) for frame in self.frames], verdict.may_differ)

    def test_javascript(self):
        if not shutil.which("node") or not os.path.exists(os.path.join(ROOT, "clients/js/node_modules/zeromq")):
            self.skipTest("wants Node 20 and the client's dependencies: make deps-js")
        # A subscriber without bigint refuses what a number cannot hold.
        self.compare(self.ask(["node", os.path.join(HERE, "verdict.mjs")]),
                     lambda c, js, frame: re.match(r"refused: .*(2\^53|too many values)", js))


if __name__ == "__main__":
    main()
