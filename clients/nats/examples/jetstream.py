"""The little of NATS that a consumer needs, on a plain socket: Debian has no NATS client for Python.
With nats-py (PyPI) consume.py is shorter still; the subjects, headers and bodies are the same.

    connection = Connection("nats://127.0.0.1:4222,nats://127.0.0.1:4223")
    consumer = Pull(connection, "coretap", "my-name", "coretap.*.mempool.removed")
    for message in consumer.fetch(100, seconds=5):
        ...
        message.ack()
"""
import json
import os
import random
import socket
import time
import urllib.parse


class Message:
    def __init__(self, connection, subject, reply, headers, status, data):
        self.connection, self.subject, self.reply = connection, subject, reply
        self.headers, self.status, self.data = headers, status, data

    def ack(self):
        self.connection.publish(self.reply, b"+ACK")


class Connection:
    """To the first of several servers that answers. Whatever breaks it is an OSError; then make a
    new one: JetStream delivers again what was not acknowledged."""

    def __init__(self, urls, timeout=5):
        error = OSError("no url")
        servers = urls.split(",")
        for url in random.sample(servers, len(servers)):
            try:
                return self._open(urllib.parse.urlparse(url), timeout)
            except OSError as e:
                error = e
        raise error

    def _open(self, url, timeout):
        self.socket = socket.create_connection((url.hostname, url.port or 4222), timeout)
        self.buffer, self.sids = b"", 0
        if not self._line().startswith(b"INFO "):
            raise ConnectionError("not a NATS server")
        options = {"verbose": False, "headers": True, "no_responders": True, "lang": "python", "version": "1"}
        if url.username:
            options |= {"user": url.username, "pass": url.password}
        self._send(b"CONNECT %s\r\nPING\r\n" % json.dumps(options).encode())
        while (line := self._line()) != b"PONG":
            if line.startswith(b"-ERR"):
                raise ConnectionError(line.decode())
        self.inbox = "_INBOX." + os.urandom(8).hex()
        self.subscribe(self.inbox + ".*")
        self.requests = 0

    def _send(self, data):
        self.socket.sendall(data)

    def _more(self):
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server has closed the connection")
        self.buffer += data

    def _line(self):
        while b"\r\n" not in self.buffer:
            self._more()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def _bytes(self, n):
        while len(self.buffer) < n:
            self._more()
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def subscribe(self, subject):
        self.sids += 1
        self._send(f"SUB {subject} {self.sids}\r\n".encode())

    def publish(self, subject, data=b"", reply="", headers=None):
        if headers:
            block = "NATS/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
            line = f"HPUB {subject} {reply} {len(block)} {len(block) + len(data)}\r\n{block}"
        else:
            line = f"PUB {subject} {reply} {len(data)}\r\n"
        self._send(line.encode() + data + b"\r\n")

    def next(self, timeout):
        """The next message of any subscription; None when none came in time."""
        self.socket.settimeout(timeout)
        while True:
            try:
                words = self._line().decode().split(" ")
            except socket.timeout:
                return None
            if words[0] == "PING":
                self._send(b"PONG\r\n")
            elif words[0] == "-ERR":
                raise ConnectionError(" ".join(words[1:]))
            elif words[0] in ("MSG", "HMSG"):
                break
        self.socket.settimeout(5)
        data, headers, status = self._bytes(int(words[-1]) + 2)[:-2], {}, ""
        if words[0] == "HMSG":
            block, data = data[:int(words[-2])], data[int(words[-2]):]
            first, *lines = block.decode().rstrip("\r\n").split("\r\n")
            status = first[9:12]
            headers = dict(line.split(": ", 1) if ": " in line else (line.rstrip(":"), "") for line in lines)
        reply = words[3] if len(words) - (words[0] == "HMSG") == 5 else ""
        return Message(self, words[1], reply, headers, status, data)

    def request(self, subject, body=None, timeout=30):
        """A question of JetStream's API that may be asked twice, and its answer. While the servers
        elect a leader nobody answers, or with 503, so it is asked again. What else comes meanwhile is
        dropped: it was not acknowledged, and comes again."""
        self.requests += 1
        reply = f"{self.inbox}.{self.requests}"
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self.publish(subject, json.dumps(body).encode() if body else b"", reply)
            again = min(time.monotonic() + 2, deadline)
            while (left := again - time.monotonic()) > 0:
                message = self.next(left)
                if not message or message.subject != reply:
                    continue
                if message.status:
                    raise OSError(f"{subject}: {message.status}")
                answer = json.loads(message.data)
                if answer.get("error", {}).get("code") == 503:
                    continue
                if "error" in answer:
                    raise OSError(f"{subject}: {answer['error']['description']}")
                return answer
        raise TimeoutError(subject)

    def close(self):
        self.socket.close()


class Pull:
    """A durable consumer: the servers keep its place."""

    def __init__(self, connection, stream, name, subject=None):
        self.connection, self.stream, self.name = connection, stream, name
        config = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all",
                  "max_ack_pending": 10000}
        if subject:
            config["filter_subject"] = subject
        connection.request(f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}",
                           {"stream_name": stream, "config": config})

    def fetch(self, batch, seconds):
        """Up to batch messages; fewer when no more come in time."""
        self.connection.requests += 1
        reply = f"{self.connection.inbox}.{self.connection.requests}"
        self.connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.name}",
                                json.dumps({"batch": batch, "expires": int(seconds * 1e9)}).encode(), reply)
        for _ in range(batch):
            message = self.connection.next(seconds + 1)
            if not message or message.subject == reply:
                return  # 404, 408: no more for now
            if not message.subject.startswith(self.connection.inbox):  # else a late answer
                yield message
