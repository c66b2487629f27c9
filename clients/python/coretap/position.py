"""Where a subscriber stands: one cursor for each socket, kept by the application or in a file."""
import json
import os
from typing import Any, Dict

from .stream import Filter, Node, Topic

_PAGE = 4096
_LARGEST = 1 << 24  # of a file that is read; far more than any position has
_ALL = ("",)  # what was asked for, where a position of an earlier version does not say it


class Position:
    """For an application that keeps its place together with what it did, in one transaction: give it
    to subscribe(), and store dump() after commit(). text: what was stored; none joins at the present.
    """

    def __init__(self, text: str = "") -> None:
        self._sockets: Dict[str, Dict[str, Any]] = {}
        if not text:
            return
        try:
            saved = json.loads(text)
            self._sockets = dict(saved["sockets"])
            if saved["version"] != 1 or not all(_valid(nodes) for nodes in self._sockets.values()):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("not a position") from None

    def dump(self) -> str:
        return json.dumps({"version": 1, "sockets": self._sockets})

    def nodes(self, socket: str) -> Dict[str, Node]:
        """The cursors with which a stream goes on."""
        nodes = {}
        for label, saved in self._sockets.get(socket, {}).items():
            node = nodes[label] = Node(label)
            node.run, node.n = saved["run"], saved["n"]
            node.settled = node.n
            node.whole = Filter(saved.get("asked", _ALL)) if saved["whole"] else None
            node.topics = {name: Topic(*numbers) for name, numbers in saved["topics"].items()}
            node.resumed = True
        return nodes

    def save(self, socket: str, nodes: Dict[str, Node]) -> None:
        self._sockets[socket] = {
            label: {"run": node.run, "n": node.n, "whole": node.whole is not None,
                    **({"asked": node.whole.names} if node.whole else {}),
                    "topics": {name: (t.next, t.at) for name, t in node.topics.items()}}
            for label, node in nodes.items()}

    def close(self) -> None:
        pass


class PositionFile(Position):
    """A file that says at any moment what the application has taken, also after kill -9.

    It is rewritten in place by one write within one page, which a kill cannot divide; when it grows
    beyond that, by a new file that is renamed over it.
    """

    def __init__(self, path: "os.PathLike[str] | str") -> None:
        self.path = os.fspath(path)
        if not self.path:
            raise ValueError("position: an empty path")
        self._fd = -1
        self._written = b""
        # A device or a pipe may have no end, or never open.
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise ValueError(f"{self.path}: not a regular file, as a position is")
        try:
            with open(self.path, "rb") as file:
                super().__init__(file.read(_LARGEST).decode() or "none")
        except FileNotFoundError:
            super().__init__()
        except ValueError:
            raise ValueError(f"{self.path}: not a position; remove it to join at the present") \
                from None

    def save(self, socket: str, nodes: Dict[str, Node]) -> None:
        super().save(socket, nodes)
        data = self.dump().encode()
        if data == self._written:
            return
        try:
            # A page leaves the end of a longer one as it was.
            if self._fd < 0 or max(len(data), len(self._written)) > _PAGE:
                self._replace(data)
            else:
                os.pwrite(self._fd, data.ljust(_PAGE), 0)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None
        self._written = data

    def _replace(self, data: bytes) -> None:
        self.close()
        new = f"{self.path}.new"
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            data = data.ljust(_PAGE)
            while data:
                data = data[os.write(fd, data):]
            os.replace(new, self.path)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _valid(nodes: Any) -> bool:
    return all(_is_number(saved["run"]) and _is_number(saved["n"], least=-1) and
               type(saved["whole"]) is bool and Filter(saved.get("asked", _ALL)) and
               all(len(pair) == 2 and _is_number(pair[0]) and _is_number(pair[1])
                   for pair in saved["topics"].values()) for saved in nodes.values())


def _is_number(value: Any, least: int = 0) -> bool:
    """Requests have no room for others."""
    return type(value) is int and least <= value < 1 << 64
