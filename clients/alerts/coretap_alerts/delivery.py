"""Takes alerts to a webhook: one after the other, each until it is taken. A thread for each webhook,
so that one that hangs holds up no other."""
import http.client
import random
import socket
import sqlite3
import ssl
import threading
import time
from contextlib import suppress
from typing import Callable, Optional

from . import __version__
from .rules import Webhook
from .state import State, Waiting

# By these a receiver says that it does not want this alert, whenever it comes.
REFUSED = (400, 413, 422)
REFUSALS = 3  # attempts after which it is believed


class Failure(Exception):
    """An attempt failed. status: what HTTP says, 0 when it did not come to that."""

    def __init__(self, text: str, status: int = 0, retry_after: float = 0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after


def post(webhook: Webhook, body: str) -> None:
    """One attempt. Raises Failure. It takes no longer than the timeout, also when the other side
    answers a byte at a time."""
    try:
        scheme, host, port, path = webhook.target()
        headers = {name: webhook.expand(value) for name, value in webhook.headers.items()}
    except ValueError as error:
        raise Failure(str(error)) from None
    headers = {"User-Agent": f"coretap-alerts/{__version__}", "Content-Type": "application/json",
               "Connection": "close", **headers}
    connection = http.client.HTTPConnection(host, port)
    connection.default_port = 443 if scheme == "https" else 80
    timer: Optional[threading.Timer] = None
    late = threading.Event()
    end = time.monotonic() + webhook.timeout
    try:
        connection.sock = plain = _connect(host, port, end)
        if scheme == "https":
            connection.sock = ssl.create_default_context().wrap_socket(
                plain, server_hostname=host, do_handshake_on_connect=False)
        timer = threading.Timer(end - time.monotonic(), _cut, (connection.sock, late))
        timer.daemon = True
        timer.start()
        if isinstance(connection.sock, ssl.SSLSocket):
            connection.sock.do_handshake()
        connection.request("POST", path, body.encode(), headers)
        response = connection.getresponse()
        if late.is_set():  # headers that an end cut short look complete
            raise TimeoutError
        if not 200 <= response.status < 300:
            after = response.headers.get("Retry-After", "")
            raise Failure(f"HTTP {response.status}", response.status,
                          int(after) if after.isascii() and after.isdecimal() and len(after) < 7 else 0)
    except (OSError, http.client.HTTPException, ValueError) as error:
        name = "no answer in time" if late.is_set() or isinstance(error, TimeoutError) else \
            getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Failure(" ".join(name.split())[:200]) from None
    finally:
        if timer:
            timer.cancel()
        connection.close()


def _connect(host: str, port: int, end: float) -> socket.socket:
    """To the first of its addresses that takes it. A silent one leaves time to those behind it, and to the answer."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    shares = range(len(addresses) + (len(addresses) > 1), 0, -1)
    failure = OSError(f"{host}: no address")
    for share, (family, kind, protocol, _, address) in zip(shares, addresses):
        try:
            plain = socket.socket(family, kind, protocol)
        except OSError as error:  # a kernel without IPv6
            failure = error
            continue
        try:
            plain.settimeout(max(0.001, (end - time.monotonic()) / share))
            plain.connect(address)
            plain.settimeout(max(0.001, end - time.monotonic()))
            return plain
        except OSError as error:
            plain.close()
            failure = error
    raise failure


def _cut(connection: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        # That of a TLS socket would first make a plain one of it, which somebody is just writing to.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class Deliverer(threading.Thread):
    def __init__(self, webhook: Webhook, state: State, log: Callable[[str], None]) -> None:
        super().__init__(name=webhook.name, daemon=True)
        self.webhook = webhook
        self.state = state
        self.log = log
        self.ending = threading.Event()
        self._after = 0  # number of the last alert that is done
        self._forgotten = 0  # and of the last one whose end is written
        self._unwritten = ""  # why the two differ
        self._failing: float = 0  # since when no attempt was taken, monotonic

    def run(self) -> None:
        while not self.ending.is_set():
            with self.state.came:
                alert = self.state.waiting(self.webhook.name, self._after)
                if not alert:
                    self.state.came.wait(0.5)
            if alert:
                self._deliver(alert)
            else:
                self._forget()

    def _deliver(self, alert: Waiting) -> None:
        attempts, began, wait = 0, time.monotonic(), self.webhook.retry
        while not self.ending.is_set():
            attempts += 1
            try:
                post(self.webhook, alert.body)
            except Failure as failure:
                self._failing = self._failing or time.monotonic()
                if self._is_hopeless(failure, attempts, alert):
                    self.log(f"webhook {self.webhook.name}: {failure}; given up after {attempts} attempts: "
                             f"{alert.body}")
                    break
                pause = wait * random.uniform(0.5, 1)
                pause = min(max(pause, failure.retry_after), self.webhook.retry_most)
                if attempts & (attempts - 1) == 0:  # 1, 2, 4, 8, ...
                    self.log(f"webhook {self.webhook.name}: {failure}; attempt {attempts}, the next in {pause:.1f} s")
                self.ending.wait(pause)
                wait = min(wait * 2, self.webhook.retry_most)
                continue
            self._failing = 0
            if attempts > 1:
                self.log(f"webhook {self.webhook.name}: takes alerts again, after {attempts} attempts "
                         f"in {time.monotonic() - began:.0f} s")
            break
        else:
            return
        self._after = alert.number
        self._forget()

    def _is_hopeless(self, failure: Failure, attempts: int, alert: Waiting) -> bool:
        if failure.status in REFUSED and attempts >= REFUSALS:
            return True
        # Age alone does not tell: after days without power the network may come up later than we do.
        return time.monotonic() - self._failing > self.webhook.give_up < time.time() - alert.created

    def _forget(self) -> None:
        """What was taken need not be sent again. When that cannot be written, the next ones are sent
        all the same, and it is tried again."""
        if self._after == self._forgotten:
            return
        try:
            self.state.delivered(self.webhook.name, self._after)
            self._forgotten, self._unwritten = self._after, ""
        except sqlite3.Error as error:
            if str(error) != self._unwritten:
                self._unwritten = str(error)
                self.log(f"{self.state.path}: {error}; webhook {self.webhook.name} may get alerts twice after a "
                         "restart")
