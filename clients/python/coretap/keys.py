"""Keys of encrypted connections, as `coretap keygen` writes them."""
from typing import Any, Optional

import zmq
from zmq.utils import z85

_LENGTH = 40  # of a key as text


def read_key(path: str, wanted: str) -> bytes:
    """The first key in a file: the "public" or the "secret" one. Lines begin with a key, or are comments, which may
    say that it is the other one; a key may begin with # too."""
    other = "public" if wanted == "secret" else "secret"
    try:
        with open(path, "rb") as file:
            lines = [line for line in file if line.strip()]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    for line in lines:
        if line.startswith(f"# {other} key of coretap".encode()):
            raise ValueError(f"{path}: holds a {other} key, a {wanted} one is wanted")
        word = line.split(None, 1)[0]
        if len(word) == _LENGTH:
            return word
    raise ValueError(f"{path}: has no key of 40 characters; `coretap keygen` makes one")


class Keys:
    """coretapd's public key and one's own pair."""

    def __init__(self, server: str, secret: str) -> None:
        self.server, self._secret = read_key(server, "public"), read_key(secret, "secret")
        try:
            self._public = zmq.curve_public(self._secret)
            if len(z85.decode(self.server)) != 32:
                raise ValueError
        except (ValueError, KeyError, zmq.ZMQError):
            raise ValueError(f"{server}, {secret}: hold something that is no key") from None

    def apply(self, socket: "zmq.Socket[Any]", endpoint: str) -> None:
        """Before it connects. ipc is guarded by the mode of its file instead."""
        if endpoint.startswith("tcp:"):
            socket.curve_serverkey = self.server
            socket.curve_publickey = self._public
            socket.curve_secretkey = self._secret


def keys_of(server: Optional[str], secret: Optional[str]) -> Optional[Keys]:
    if server is None and secret is None:
        return None
    if not server or not secret:
        raise ValueError("curve_server and curve_secret belong together: coretapd's public key, and "
                         "a secret one of your own")
    return Keys(server, secret)
