#!/usr/bin/python3
"""Every event of a stream, once and in order, as JSON lines; what is missing is told.

    consume.py URL[,URL...] STREAM NAME [SUBJECT] [--idle SECONDS]

NAME is the consumer: the servers keep its place, the next start goes on there.
"""
import argparse
import json
import sys
import time

import msgpack

from jetstream import Connection, Pull

expected = {}  # (node, topic) -> run and number that come next


def take(message):
    """The events of a message. JetStream delivers again what was not acknowledged in time, so the
    rule of the wire contract decides: next = seq + lost + number of events."""
    _, node, topic = message.subject.split(".", 2)
    body = msgpack.unpackb(message.data)
    if "seq" not in body:  # bridge.status, bridge.gap.TOPIC and the like
        return
    run, seq, lost, events = body["run"], body["seq"], body.get("lost", 0), body["events"]
    known_run, known = expected.get((node, topic), (0, 0))
    if run < known_run or (run == known_run and seq < known):
        return  # a repetition
    if run == known_run and seq > known:
        print(f"{node} {topic}: {known} to {seq - 1} are not in the stream", file=sys.stderr)
    if lost:
        print(f"{node} {topic}: {seq} to {seq + lost - 1} were lost in the kernel", file=sys.stderr)
    for i, event in enumerate(events):
        print(json.dumps({"node": node, "topic": topic, "seq": seq + lost + i, **event}, default=bytes.hex))
    expected[node, topic] = (run, seq + lost + len(events))


def main():
    parser = argparse.ArgumentParser()
    for name in ("url", "stream", "name"):
        parser.add_argument(name)
    parser.add_argument("subject", nargs="?", default="coretap.>")
    parser.add_argument("--idle", type=float, help="end when nothing came for so long")
    arguments = parser.parse_args()
    heard = time.monotonic()
    while not arguments.idle or time.monotonic() - heard < arguments.idle:
        try:
            consumer = Pull(Connection(arguments.url), arguments.stream, arguments.name, arguments.subject)
            while not arguments.idle or time.monotonic() - heard < arguments.idle:
                for message in consumer.fetch(500, 1):
                    take(message)
                    message.ack()  # only now: what is printed is not lost when this is killed
                    heard = time.monotonic()
                sys.stdout.flush()
        except OSError as error:
            print(f"{error}; connecting again", file=sys.stderr)
            time.sleep(1)


if __name__ == "__main__":
    main()
