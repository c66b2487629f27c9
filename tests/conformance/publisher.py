"""A scripted publisher: what coretapd's sockets could do to a client, told by a list of steps.

A step is a map; its first key names what it does:

    send TOPIC    publish a message and keep it for replay: seq, n, events (a number of made-up ones,
                  or a list), and lost, run, node, pid where they matter
    drop TOPIC    keep it for replay only: the client has to ask
    vanish TOPIC  publish it, but do not keep it
    status SOCKET, stopping SOCKET   n, heads, and run, node, replay, time_us where they matter
    raw SOCKET    frames: a list of hex texts, published as they are; repeat: how often
    forget N      replay no longer has positions below N
    replay MODE   on; off (answers with an error); hostile (with one for terminals); silent;
                  garbage; foreign (messages of another run); endless (next without an end); bomb
    restart       close all sockets and bind them again, wait for the client to come back
    asked N       wait until N requests came to replay
    printed N     wait until the client has printed N lines, as whoever started it tells
    wait SECONDS

At the end bridge.stopping is published on each socket that the client uses; a client that has told
it has told everything.
"""
import os
import sys
import threading
import time

import msgpack
import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import wait_until

RUN = 1700000000000000
HIGH = ("net.inbound_message", "net.outbound_message", "utxocache.add", "utxocache.spent",
        "utxocache.uncache")
PAGE = 3  # messages in an answer


def made_up(topic, n):
    """Fields that follow from the position."""
    event = {"time_us": 1700000001000000 + n % 1000, "txid": n.to_bytes(32, "big")}
    if topic == "mempool.added":
        event.update(vsize=100 + n % 1000, fee=1000 + n % 1000)
    elif topic == "mempool.removed":
        event.update(reason="expiry", vsize=100 + n % 1000, fee=1000 + n % 1000,
                     entry_time=1699999999)
    elif topic == "mempool.rejected":
        event.update(reason="dust")
    elif topic.startswith("utxocache."):
        event.update(vout=n % 1000, height=800000, value=546, coinbase=False)
    else:
        raise ValueError(f"{topic}: list its events")
    return event


def decode_bytes(value):
    """JSON has no bytes: {"hex": ...} stands for them."""
    if isinstance(value, dict):
        if list(value) == ["hex"]:
            return bytes.fromhex(value["hex"])
        return {k: decode_bytes(v) for k, v in value.items()}
    return [decode_bytes(v) for v in value] if isinstance(value, list) else value


class Publisher:
    def __init__(self, port):
        self.port = port
        self.context = zmq.Context()
        self.journal = []  # (socket, run, first position, events, topic, body)
        self.heads = {}  # run: {topic: last number}
        self.subscribed = {"low": set(), "high": set()}
        self.mode = "on"
        self.current = {"node": "conform", "run": RUN, "pid": 4242}
        self.requests, self.printed = [], None
        self.ending = False
        self.bind()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def bind(self):
        self.sockets = {}
        for i, (name, kind) in enumerate((("low", zmq.XPUB), ("high", zmq.XPUB),
                                          ("replay", zmq.ROUTER))):
            socket = self.context.socket(kind)
            socket.setsockopt(zmq.LINGER, 1000)
            socket.setsockopt(zmq.SNDHWM, 0)
            wait_until(lambda: self.try_bind(socket, self.port + i), 5, f"port {self.port + i}")
            self.sockets[name] = socket
        self.subscribed = {"low": set(), "high": set()}

    @staticmethod
    def try_bind(socket, port):
        try:
            socket.bind(f"tcp://127.0.0.1:{port}")
            return True
        except zmq.ZMQError:
            return False

    # ---- publishing ----

    def used(self):
        """The sockets that the client has connected to."""
        for name in ("low", "high"):
            while self.sockets[name].poll(0):
                frame = self.sockets[name].recv()
                change = set.add if frame[:1] == b"\1" else set.discard
                change(self.subscribed[name], frame[1:])
        return [name for name in ("low", "high") if b"bridge.stopping" in self.subscribed[name]]

    def wait_client(self, expected, seconds=10):
        wait_until(lambda: self.used() == expected, seconds, f"a subscriber on {expected}")

    def message(self, step, topic):
        node, run, pid = ({**self.current, **step}[k] for k in ("node", "run", "pid"))
        events = step.get("events", 1)
        if isinstance(events, int):
            events = [made_up(topic, step["n"] + i) for i in range(events)]
        body = {"v": 1, "node": node, "run": run, "pid": pid, "n": step["n"], "seq": step["seq"]}
        if step.get("lost"):
            body["lost"] = step["lost"]
        body["events"] = decode_bytes(events)
        head = step["seq"] + step.get("lost", 0) + len(events) - 1
        heads = self.heads.setdefault(run, {})
        heads[topic] = max(heads.get(topic, 0), head)
        return "high" if topic in HIGH else "low", run, step["n"], len(events), msgpack.packb(body)

    def step(self, step):
        op, what = next(iter(step.items()))
        if op in ("send", "drop", "vanish"):
            socket, run, n, events, body = self.message(step, what)
            if op != "vanish":
                self.journal.append((socket, run, n, events, what.encode(), body))
            if op != "drop":
                self.sockets[socket].send_multipart([what.encode(), body])
        elif op in ("status", "stopping"):
            self.status(what, f"bridge.{op}", step)
        elif op == "raw":
            for _ in range(step.get("repeat", 1)):
                self.sockets[what].send_multipart([bytes.fromhex(f) for f in step["frames"]])
        elif op == "forget":
            self.journal = [m for m in self.journal if m[2] >= what]
        elif op == "replay":
            self.mode = what
        elif op == "asked":
            wait_until(lambda: len(self.requests) >= what, 10, f"{what} requests")
        elif op == "printed":
            wait_until(lambda: self.printed() >= what, 10, f"{what} lines")
        elif op == "wait":
            time.sleep(what)
        elif op == "restart":
            used = self.used()
            self.ending = True
            self.thread.join()
            for socket in self.sockets.values():
                socket.close()
            self.ending = False
            self.bind()
            self.thread = threading.Thread(target=self.serve, daemon=True)
            self.thread.start()
            self.wait_client(used)
        elif op == "run":
            self.current["run"] = what
        else:
            raise ValueError(f"{op}: no such step")

    def status(self, socket, topic, step):
        node, run = ({**self.current, **step}[k] for k in ("node", "run"))
        self.sockets[socket].send_multipart([topic.encode(), msgpack.packb({
            "v": 1, "node": node, "run": run, "socket": socket, "time_us": step.get("time_us", 1700000002000000),
            "n": step.get("n", 0), "heads": step.get("heads", {}), "held": 1, "counters": {},
            "replay": step.get("replay", "ok"), "pid": None, "ignored": []})])

    def play(self, steps, expected):
        self.wait_client(expected)
        for step in steps:
            self.step(step)

    def end(self, used):
        for name in used:
            positions = [n + count - 1 for s, run, n, count, *_ in self.journal
                         if s == name and run == self.current["run"]]
            self.status(name, "bridge.stopping", {"n": max(positions, default=0)})

    # ---- replay ----

    def serve(self):
        router = self.sockets["replay"]
        while not self.ending:
            if not router.poll(20):
                continue
            *envelope, body = router.recv_multipart()
            request = msgpack.unpackb(body)
            self.requests.append(request)
            answer = self.answer(request)
            if answer:
                router.send_multipart([*envelope, *answer])

    def answer(self, request):
        begin = {"v": 1, "id": request["id"]}
        if self.mode == "silent":
            return None
        if self.mode == "off":
            return [msgpack.packb({**begin, "error": "replay is off"})]
        if self.mode == "hostile":
            return [msgpack.packb({**begin, "error": "\x1b[2J\x1b]0;gone\x07\u202e\n"})]
        if self.mode == "garbage":
            return [b"\xc1\x00", b"\xff"]
        if self.mode == "bomb":
            return [b"\xdd\xff\xff\xff\xff"]
        if request["op"] == "hello":
            return [msgpack.packb({**begin, "run": self.current["run"], "runs": [
                {"run": run, "ended": run != self.current["run"], "topics": self.heads[run]}
                for run in sorted({m[1] for m in self.journal})]})]
        if "run" not in request:
            return [msgpack.packb({**begin, "error": "run is not held"})]
        run, after, socket = request["run"], request["after"], request["socket"]
        held = sorted((m for m in self.journal if m[0] == socket and m[1] == run),
                      key=lambda m: (m[2], m[3]))
        if not held:
            return [msgpack.packb({**begin, "error": "run is not held"})]
        prefixes = tuple(t.encode() for t in request.get("topics") or [""])
        wanted = [m for m in held if m[2] + m[3] > after + 1 or not m[3] and m[2] == after + 1]
        page = wanted[:PAGE]
        while len(page) > 1 and sum(len(m[5]) for m in page) > request.get("max", 1 << 20):
            page.pop()
        position = max((m[2] + m[3] - 1 for m in page), default=after)
        header = {**begin, "run": run, "next": position if len(wanted) > len(page) else None,
                  "head": max(m[2] + m[3] - 1 for m in held),
                  "gone": max(0, held[0][2] - after - 1)}
        if self.mode == "endless":
            return [msgpack.packb({**header, "next": after})]
        frames = [f for m in page if m[4].startswith(prefixes) for f in m[4:]]
        if self.mode == "foreign":
            frames = [f if i % 2 == 0 else msgpack.packb({**msgpack.unpackb(f), "run": run - 1})
                      for i, f in enumerate(frames)]
        return [msgpack.packb(header), *frames]

    def close(self):
        self.ending = True
        self.thread.join()
        self.context.destroy(linger=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
