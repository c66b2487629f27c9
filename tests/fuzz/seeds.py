#!/usr/bin/python3
"""Writes the inputs that fuzzing begins with, from golden frames and what else the project has, into
tests/fuzz/corpus/TARGET/seed-*, and words for the fuzzer into tests/fuzz/TARGET.dict."""
import glob
import json
import os
import re
import struct
import subprocess
import tempfile

import msgpack

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
TOPICS = [e["topic"] for e in json.load(open(os.path.join(ROOT, "protocol/events.json")))["events"]]
PLACES = TOPICS + ["bridge.status", "bridge.stopping"]
RUN = 1700000000000000


def seed(target, name, data):
    directory = os.path.join(HERE, "corpus", target)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, f"seed-{name}"), "wb") as file:
        file.write(data)


def words(target, texts):
    with open(os.path.join(HERE, f"{target}.dict"), "w") as file:
        for data in sorted({text if isinstance(text, bytes) else text.encode() for text in texts}):
            file.write('"' + "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\x{c:02x}"
                                     for c in data) + '"\n')


def golden():
    for path in sorted(glob.glob(os.path.join(ROOT, "protocol/golden/*.hex"))):
        yield os.path.basename(path)[:-4], bytes.fromhex("".join(open(path).read().split()))


def message(n, seq, events=1, run=RUN, lost=0, **fields):
    body = {"v": 1, "node": "host", "run": run, "pid": 42, "n": n, "seq": seq}
    if lost:
        body["lost"] = lost
    return msgpack.packb({**body, "events": [{"time_us": 5 + i, **fields} for i in range(events)]})


def status(n, run=RUN, **heads):
    return msgpack.packb({"v": 1, "node": "host", "run": run, "socket": "low", "time_us": 7, "n": n,
                          "heads": {k.replace("__", "."): v for k, v in heads.items()}})


def live(topic, body):
    return bytes([PLACES.index(topic)]) + struct.pack("<H", len(body)) + body


def answer(*frames):
    return b"".join(struct.pack("<H", len(frame) | (0x8000 if i + 1 < len(frames) else 0)) + frame
                    for i, frame in enumerate(frames))


def header(number, run=RUN, after=None, head=9, **more):
    return msgpack.packb({"v": 1, "id": number, "run": run, "next": after, "head": head, "gone": 0,
                          **more})


def subscriber():
    for topic, body in golden():
        for flags in (1, 2 | 4):
            seed("subscriber", f"golden-{topic}-{flags}", bytes([flags]) + live(topic, body))
    added, removed = "mempool.added", "mempool.removed"
    gap = live(added, message(1, 1, vsize=100)) + live(added, message(5, 5, 2))
    filled = answer(header(1, after=3), added.encode(), message(2, 2, 2)) + \
        answer(header(2), added.encode(), message(4, 4, lost=0))
    hello = answer(msgpack.packb({"v": 1, "id": 2, "runs": [
        {"run": RUN, "ended": True, "topics": {added: 3, removed: 2}},
        {"run": RUN + 1, "ended": True, "topics": {added: 1}},
        {"run": RUN + 2, "ended": False, "topics": {}}]}))
    later = live(added, message(1, 1)) + live(added, message(4, 3, run=RUN + 2, lost=2))
    for flags in (1, 2, 9, 10, 17, 18):
        seed("subscriber", f"gap-{flags}", bytes([flags]) + gap + filled)
        seed("subscriber", f"run-{flags}", bytes([flags]) + later + answer(header(1)) + hello +
             answer(header(3, RUN + 1), added.encode(), message(1, 1, run=RUN + 1)) +
             answer(header(4, RUN + 2, head=3)))
        seed("subscriber", f"status-{flags}", bytes([flags]) + live(added, message(1, 1)) +
             live("bridge.status", status(9, mempool__added=4, mempool__removed=3)) + filled +
             live("bridge.stopping", status(9, mempool__added=9)))
    seed("subscriber", "error", bytes([9]) + gap +
         answer(msgpack.packb({"v": 1, "id": 1, "error": "run is not held"})))
    keys = re.findall(r'"(\w+)"', open(os.path.join(ROOT, "protocol/decode.c")).read())
    words("subscriber", [bytes([0xa0 | len(k)]) + k.encode() for k in keys if len(k) < 32] + TOPICS +
          [b"\xa4next", b"\xa4head", b"\xa2id", b"\xa5error", b"\xa4runs", b"\xa6topics",
           struct.pack(">BQ", 0xcf, RUN), struct.pack(">BQ", 0xcf, RUN + 1), b"\xcf" + b"\xff" * 8])


def replay():
    requests = [
        {"op": "hello"}, {"op": "catalogue"}, {"op": "none"},
        {"op": "replay", "socket": "low", "run": RUN, "after": 0},
        {"op": "replay", "socket": "high", "run": RUN + 5, "after": 3},
        {"op": "replay", "socket": "low", "since": 1000000, "topics": ["mempool."]},
        {"op": "replay", "socket": "low", "since": 1 << 62},
        {"op": "replay", "socket": "low", "run": RUN, "since": 1000010, "topics": ["net.", "", "x"]},
    ]
    for i, request in enumerate(requests):
        seed("replay", f"{request['op']}-{i}",
             bytes([i % 4]) + msgpack.packb({"v": 1, "id": {"any": [i]}, **request}))
    words("replay", [bytes([0xa0 | len(k)]) + k.encode() for k in
                     "v id op socket run after since topics hello catalogue replay low high".split()] +
          [struct.pack(">BQ", 0xcf, RUN), struct.pack(">BQ", 0xcf, RUN + 5), b"\xcf" + b"\xff" * 8])


def records():
    for i in range(40):
        content = bytes((7 * i + k) & 255 for k in range(300)) + b"block\0" * 40
        seed("records", f"{i:02}", bytes([i & 7]) + b"".join(
            bytes([15, (i + 16 * k) & 0x9f, i + k]) + struct.pack("<I", 1000 * k) + b"\0\0" +
            content[k:k + 120 + i] for k in range(3)))


def config():
    samples = ["binary: /usr/local/bin/bitcoind\nport: 28370\nonly: ['mempool.*', block.evictions]\n",
               "pid: 7\nring-low: 1M\nring-high: 64K\npayload: tx=full,block=0\nwithout: multi,tai\n",
               "message-types: tx,inv\npayload: 100\njournal: none\nkeep-attached: no\n",
               "low: ['tcp://127.0.0.1:1', 'ipc:///tmp/a']\nhigh: ipc:///tmp/b\nipc-mode: 0660\n",
               "curve-secret: a\ncurve-clients: b\nmetrics: 127.0.0.1:9332\nuser: root\nname: a-b_c\n",
               "# nothing\n", "- a\n- b\n", "exclude: net.*\nipc-group: root\nlog-level: debug\n",
               "journal-low: 384M\njournal-high: 1G\nsubscriber-memory: 1M\nallow-public: true\n"]
    for i, text in enumerate(samples):
        seed("config", f"{i}", text.encode())
    source = open(os.path.join(ROOT, "bridge/options.c")).read()
    words("config", [f"{name}: " for name in re.findall(r'^\t\{ "([a-z-]+)"', source, re.M)] +
          ["multi", "sleepable", "dynptr", "full", "none", "yes", "false", "error", "debug"])


def declarations():
    for path in glob.glob(os.path.join(ROOT, "bridge/tracepoints/*.yaml")):
        text = "\n".join(line for line in open(path).read().splitlines()
                         if line.strip() and not line.strip().startswith("#"))
        seed("declarations", os.path.basename(path)[:-5], text.encode())
    source = open(os.path.join(ROOT, "bridge/declarations.c")).read()
    words("declarations", re.findall(r'"([a-z_]+)"', source))


def recording():
    def record(topic, body, socket=0):
        return struct.pack("<IQBB", 10 + len(topic) + len(body), 5000000, socket, len(topic)) + \
            topic.encode() + body
    heading = b"coretap recording 1\n"
    frames = [(topic, body) for topic, body in golden() if not topic.startswith("bridge.")]
    for topic, body in frames:
        seed("recording", topic, heading + record(topic, body, topic.startswith("net.")))
    added, connected = "mempool.added", "validation.block_connected"
    seed("recording", "stream", heading + record(added, message(100, 50, 2)) +
         record(added, message(110, 60)) + record(added, message(110, 60)) +
         record(connected, message(111, 3)) + record("block.evictions", message(112, 3, n_block=111)) +
         record(added, message(1, 1, 3, run=RUN + 1)) + record(added, message(4, 9, lost=3)))
    words("recording", [bytes([0xa0 | len(k)]) + k.encode() for k in
                        "n_block seq lost n events run".split()] + TOPICS + [heading])


def texts():
    key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
    for i, text in enumerate([f"{key} alice\n# none\n\n{key}\n", key, key[:39] + "\n", " " + key]):
        seed("keys", f"{i}", text.encode())
    for i, text in enumerate([f"low host {RUN} 17\nmempool.added 5\nmempool.removed 9\nhigh host 1 0\n",
                              "low a 1 1\n", "", "high b 18446744073709551615 18446744073709551615\nx 1\n"]):
        seed("position", f"{i}", b"coretap position 1\n" + text.encode())
    words("position", ["coretap position 1\n", "low ", "high ", " host ", "18446744073709551615"])
    operands = ["8@%rdi -4@%esi 1@%dl 8@$5", "-8@-8(%rbp) 8@(%rax,%rbx,8) 4@16(%rsp)",
                "8@symbol(%rip) 8@symbol+8(%rip) -4@$-1 1@%ah", "8@x0 -4@w1 8@[sp, 16] 8@[x1] 4@-5",
                "8@[x1, x2] 8@[x1, w2, sxtw #3] 8@0x10", "4@%r8d 2@%r9w 1@%r10b 8f@%xmm0",
                "8@$0xffffffffffffffff 8@table+16", " ".join(["8@%rax"] * 12)]
    for i, text in enumerate(operands):
        seed("operands", f"{i}", text.encode())
    words("operands", re.findall(r'"([a-z0-9]{2,5})"', open(os.path.join(ROOT, "bridge/operands.c")).read()) +
          ["8@", "-4@", "(%rip)", "(%rax,%rcx,8)", "sxtw #3", "[sp, ", "lsl #2"])


def places():
    """Positions of the Python and JavaScript clients."""
    node = {"run": 1790000000000000, "n": 328400, "whole": False, "topics": {"mempool.removed": [328380, 5]}}
    samples = [{"version": 1, "sockets": {}},
               {"version": 1, "sockets": {"low": {"golden-regtest": node}, "high": {}}},
               {"version": 1, "sockets": {"low": {"golden-regtest": {**node, "run": 5, "n": -1, "whole": True},
                                                  "a": {**node, "topics": {}}}}}]
    for target in ("python_position", "js_position"):
        for i, sample in enumerate(samples):
            seed(target, f"{i}", json.dumps(sample).encode() + b"    ")
        words(target, [f'"{word}": ' for word in (*node, "version", "sockets", "low", "high", "golden-regtest",
                                                  "mempool.removed")] +
              ["{", "}, ", "[", "], ", "true", "null", "18446744073709551616", "9007199254740993", "-1", "1e3"])


def rules():
    hook = "webhooks: {ops: {url: 'http://h/'}}\nrules:\n"
    example = open(os.path.join(ROOT, "clients/alerts/example.yaml")).read()
    samples = [re.sub(r"\$\{file:.*?\}|      file: payments.txt.*\n", "", example)] + [hook + text for text in (
        "- {name: a, topic: '*', once: true, key: node}\n- {name: b, notice: [gap, lost], topic: net.*, every: 500ms}\n",
        "- {name: a, topic: mempool.*, where: {fee: {above: 1_000, not: [5, 7]}, txid: {prefix: '0'}, reason: null}}\n",
        "- name: a\n  topic: block.evictions\n  where: {vsizes: {contains: 250}, txids: {contains: " + "ab" * 32 +
        "}, final: true, reorg: {at_most: 0, below: 9}}\n  fields: [hash, height]\n",
        "- {name: a, topic: net.*, where: {msg_type: {regex: '(?i)^(a|[b-d]+){2,5}\\d*.?$', not: ''}, node: main}}\n",
        "- {name: a, topic: mine.own, declared: true, where: {x: {contains: 7, regex: '[^a-z]'}, y: 31, z: ~}}\n",
        "- {name: a, watch: {txids: [" + "cd" * 32 + "]}, follow: true, on: [added, confirmed, unknown]}\n",
        "- &r {name: a, topic: [mempool.removed], fields: &f [txid]}\n- {<<: *r, name: \"b\\x41\", topic: '*', fields: *f}\n")]
    samples += ["address: ipc:///a\nstate: s\ncurve_server: a\ncurve_secret: b\nrpc: {url: h, user: '${env:HOME}'}\n" + hook,
                "webhooks:\n  a: {url: 'https://h:1/p?q', headers: {A: b}, timeout: 1m, retry: 1ms, give_up: 1d, "
                "queue_mib: 5}\nrules: [{name: a, notice: new_run, webhooks: a}]\n"]
    samples = {**dict(enumerate(samples)), "watch": hook +  # what targets.py hands events to
               "- {name: a, watch: {txids: ['" + "00" * 32 + "']}, follow: true, on: [added, rejected, replaced, unknown]}\n"
               "- {name: b, topic: '*', every: 1s, key: [node, txid, msg_type], where: {txid: {prefix: '0'}}}\n"
               "- {name: c, topic: mine.own, declared: true, where: {x: {above: 0, not: 7}}, once: true, key: x}\n"
               "- {name: d, topic: net.*, where: {msg_type: {regex: '^(a|b)+.?'}}}\n"
               "- {name: e, notice: [gap, lost, new_run]}\n"}
    for i, text in samples.items():
        seed("python_rules", f"{i}", "".join(line.split("  #")[0].rstrip() + "\n" for line in text.splitlines()
                                             if line.strip() and line.strip()[0] != "#").encode())
    source = open(os.path.join(ROOT, "clients/alerts/coretap_alerts/rules.py")).read()
    words("python_rules", [f"{name}: " for name in re.findall(r'"([a-z_]{2,12})"', source)] +
          ["!!int ", "!!str ", "!!binary ", "\\U00110000", "\\x00", "*r", "&r ", "<<: ", "| \n", "? ", "%YAML 1.1\n", "---\n",
           "(?i)", "[^a]", "{2,}", "${env:PATH}", "1_000", "10m", "mempool.", "net.", "'*'"])


def probes():
    source = """#include <sys/sdt.h>
        static long table[4];
        void f(long a) { DTRACE_PROBE3(net, inbound_message, a, table[a & 3], 5); }
        void _start(void) { DTRACE_PROBE1(mempool, added, table); f(1); for (;;); }
    """
    with tempfile.TemporaryDirectory() as work:
        for name, flags in (("static", ["-static", "-Wl,-n"]), ("pie", ["-static-pie", "-Wl,-z,norelro"]),
                            ("stripped", ["-static", "-Wl,-n", "-s"])):
            path = os.path.join(work, name)
            subprocess.run(["gcc", "-Os", "-nostdlib", "-fno-asynchronous-unwind-tables", *flags,
                            "-Wl,--build-id=0x0123456789abcdef", "-x", "c", "-", "-o", path],
                           input=source.encode(), check=True)
            seed("probes", name, open(path, "rb").read())
    words("probes", ["stapsdt", ".note.stapsdt", ".stapsdt.base", ".probes", "mempool", "added", "net",
                     "inbound_message", "8@%rdi", ".symtab", ".dynsym", "\x7fELF".encode("latin-1")])


for make in (subscriber, replay, records, config, declarations, recording, texts, places, rules, probes):
    make()
