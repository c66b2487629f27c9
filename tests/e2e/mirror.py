"""Keeps the set of transactions in the mempool, from the low socket alone; prints it at the end."""
import sys

import msgpack
import zmq

pool, expected = set(), {}
socket = zmq.Context().socket(zmq.SUB)
for topic in (b"mempool.added", b"mempool.removed", b"node.exited", b"bridge."):
    socket.subscribe(topic)
socket.connect(sys.argv[1])
while (frames := socket.recv_multipart())[0] != b"bridge.stopping":
    topic, message = frames[0], msgpack.unpackb(frames[1])
    if topic == b"bridge.status":
        print("ready", flush=True)
        continue
    if message.get("lost") or message["seq"] > expected.get(topic, message["seq"]):
        sys.exit("incomplete: start again from getrawmempool")
    expected[topic] = message["seq"] + len(message["events"])
    for event in message["events"]:
        if topic == b"node.exited":
            pool.clear()
        else:
            (pool.add if topic == b"mempool.added" else pool.remove)(event["txid"])
print(*sorted(txid.hex() for txid in pool), sep="\n")
