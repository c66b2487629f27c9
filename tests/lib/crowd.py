"""What one does not wish for, on every port of a coretapd: subscribers that join, leave and stall, and
strangers that lie. Runs until SIGTERM; at the end nothing of it is connected any more.

    crowd.py PORT METRICS SEED"""
import collections
import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time

import msgpack
import zmq

PORT, METRICS, SEED = (int(a) for a in sys.argv[1:4])
TOPICS = ("", "mempool.", "mempool.added", "utxocache.", "bridge.", "nothing.", "node.")
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)

ending = threading.Event()
did = collections.Counter()


def subscriber(chance, context):
    """Joins, reads for a while or not at all, and leaves; some without a word."""
    s = context.socket(zmq.SUB)
    s.setsockopt(zmq.LINGER, 0)
    stalls = chance.random() < 0.4
    s.setsockopt(zmq.RCVHWM, 1 if stalls else 1000)
    if stalls:
        s.setsockopt(zmq.RCVBUF, 4096)
    if chance.random() < 0.1:  # with keys that nobody asked for
        s.curve_publickey, s.curve_secretkey = zmq.curve_keypair()
        s.curve_serverkey = zmq.curve_keypair()[0]
    for topic in chance.sample(TOPICS, 2):
        s.subscribe(topic.encode())
    s.connect(f"tcp://127.0.0.1:{PORT + chance.randrange(2)}")
    end = time.monotonic() + chance.uniform(0.05, 4)
    while time.monotonic() < end and not ending.is_set():
        if stalls or not s.poll(50):
            ending.wait(0.05)
        else:
            s.recv_multipart()
            ending.wait(0.002)  # the machine has others to serve
    s.close()
    did["stalled" if stalls else "joined"] += 1


def asker(chance, context):
    """Requests for replay, good and bad, answers to which are not always read."""
    s = context.socket(zmq.DEALER)
    s.setsockopt(zmq.LINGER, 0)
    s.connect(f"tcp://127.0.0.1:{PORT + 2}")
    for _ in range(chance.randrange(1, 6)):
        request = chance.choice((
            {"v": 1, "id": 1, "op": "hello"}, {"v": 1, "id": 2, "op": "catalogue"},
            {"v": 1, "id": 3, "op": "replay", "socket": chance.choice(("low", "high", "x")),
             "since": chance.choice((0, int(time.time() * 1e6) - 2000000)), "topics": chance.sample(TOPICS, 2)},
            {"v": 1, "op": "replay", "socket": "low", "run": 2 ** 63, "after": 2 ** 64 - 1},
            {"v": 2}, [1, 2, 3]))
        s.send_multipart([b"", msgpack.packb(request)])
        if chance.random() < 0.5:
            s.poll(200) and s.recv_multipart()
    if chance.random() < 0.3:
        s.send_multipart([os.urandom(chance.randrange(60)) for _ in range(chance.randrange(1, 9))])
    s.close()
    did["asked"] += 1


def liar(chance, _context):
    """Bytes that are not what the port expects, or none at all."""
    port = chance.choice((PORT, PORT + 1, PORT + 2, METRICS))
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as s:
            s.settimeout(0.2)
            kind = chance.randrange(7)
            if kind == 0:
                s.sendall(os.urandom(chance.randrange(1, 4000)))
            elif kind == 1:
                s.sendall(GREETING[:chance.randrange(len(GREETING))])
            elif kind == 2:  # a frame of 2^60 bytes, after a good greeting
                s.sendall(GREETING + b"\x06" + struct.pack(">Q", 2 ** 60) + os.urandom(100))
            elif kind == 3:
                s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * chance.randrange(2000))
            elif kind == 4:  # half open: says nothing
                ending.wait(chance.uniform(0, 3))
            elif kind == 5:
                s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if chance.random() < 0.5:  # ends with a reset
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            try:
                s.recv(1000)
            except OSError:
                pass
    except OSError:
        did["refused"] += 1  # coretapd is being killed and started
        return
    did["lied"] += 1


def work(number):
    chance = random.Random(f"{SEED} {number}")
    context = zmq.Context()
    while not ending.is_set():
        chance.choice((subscriber, asker, liar, liar))(chance, context)
    context.destroy(0)


def main():
    told = []  # the event's lock may be held by what the signal interrupts
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    while not told:
        time.sleep(0.2)
    ending.set()
    for thread in threads:
        thread.join()
    print(json.dumps(did))


if __name__ == "__main__":
    main()
