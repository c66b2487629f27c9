"""The client's end of the replay socket. Never blocks."""
import time
from typing import Any, Dict, Generator, List, Optional, Tuple

import msgpack
import zmq

from .keys import Keys
from .wire import MAX_LENGTH, VERSION, WireError, unpack_map

ATTEMPT = 2.0  # seconds until a request is sent again
PATIENCE = 10.0  # until the answer is given up: a coretapd that restarts is back by then
# Bytes of messages in one answer. Over a slow way it must be in time all the same: after an attempt
# less is asked for, and after each answer more again.
MOST, LEAST = 1 << 20, 16 << 10

Answer = Tuple[Dict[str, Any], List[bytes]]


class Replay:
    def __init__(self, context: "zmq.Context[Any]", endpoint: str,
                 keys: Optional[Keys] = None) -> None:
        self.context = context
        self.endpoint = endpoint
        self.keys = keys
        self.socket: Optional["zmq.Socket[Any]"] = None
        self.off = False  # said so by the last status
        self.error = ""  # of the last request
        self.malformed = False  # that error: the answer breaks the contract
        self.wake_at = 0.0  # while ask() waits: when to go on although nothing came
        self._id = 0
        self._max = MOST

    def _open(self) -> "zmq.Socket[Any]":
        if not self.socket:
            socket: "zmq.Socket[Any]" = self.context.socket(zmq.DEALER)
            for option, value in ((zmq.LINGER, 0), (zmq.IPV6, 1), (zmq.RCVHWM, 4),
                                  (zmq.MAXMSGSIZE, MAX_LENGTH), (zmq.RECONNECT_IVL, 50)):
                socket.setsockopt(option, value)
            if self.keys:
                self.keys.apply(socket, self.endpoint)
            socket.connect(self.endpoint)
            self.socket = socket
        return self.socket

    def close(self) -> None:
        if self.socket:
            self.socket.close()
            self.socket = None

    def ask(self, request: Dict[str, Any]) -> Generator[None, None, Optional[Answer]]:
        """Yields None while it waits. Returns the header and the frames after it, or None."""
        give_up = time.monotonic() + PATIENCE
        self.malformed = False
        while not self.off:
            self._id += 1
            bound = {"max": self._max} if self._max < MOST and request["op"] == "replay" else {}
            body = msgpack.packb({"v": VERSION, "id": self._id, **request, **bound})
            again = min(time.monotonic() + ATTEMPT, give_up)
            try:
                self._open().send(body, zmq.NOBLOCK)
            except zmq.Again:
                pass
            while True:
                try:
                    frames = self._open().recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    if time.monotonic() >= again:
                        break
                    self.wake_at = again
                    yield None
                    continue
                try:
                    header = unpack_map(frames[0])
                except WireError as error:
                    self.error, self.malformed = str(error), True
                    self.close()
                    return None
                if header.get("id") != self._id:
                    continue  # late, of a request that was given up
                self.error = str(header.get("error", ""))
                self._max = min(MOST, 2 * self._max)
                return None if "error" in header else (header, frames[1:])
            self._max = max(LEAST, self._max // 16)
            self.close()  # whoever has not answered by now shall not answer this one later
            if time.monotonic() >= give_up:
                self.error = "no answer"
                return None
        self.error = "replay is off"
        return None
