"""What must survive: the place in the stream, what the rules remember, and alerts that still have to
be delivered, in one SQLite file, written together."""
import json
import sqlite3
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

_SCHEMA = """
CREATE TABLE kept (kind TEXT, rule TEXT, key TEXT, value TEXT, PRIMARY KEY (kind, rule, key)) WITHOUT ROWID;
CREATE TABLE outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, webhook TEXT, created REAL, body TEXT);
CREATE INDEX outbox_webhook ON outbox (webhook, number);
PRAGMA user_version = 1;
"""
Key = Tuple[str, str]  # rule and key


class Table(Dict[Key, Any]):
    """Values that JSON can hold, and which of them have changed since they were written."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: Set[Key] = set()

    def __setitem__(self, key: Key, value: Any) -> None:
        self.changed.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Key) -> None:
        self.changed.add(key)
        super().__delitem__(key)

    def pop(self, key: Key, default: Any = None) -> Any:
        if key not in self:
            return default
        value = self[key]
        del self[key]
        return value


class Waiting(NamedTuple):
    """An alert in the outbox."""
    number: int
    created: float  # Unix seconds
    body: str


class State:
    """Belongs to one process: a second one is refused. Its methods may be called by any thread;
    tables and alerts belong to the one that calls commit()."""

    def __init__(self, path: str) -> None:
        """Raises sqlite3.Error. ":memory:" keeps nothing."""
        self.path = path
        self.tables = {kind: Table() for kind in ("watched", "pending", "told", "dropped")}
        self.position = ""  # as it was stored last
        self.alerts: List[Tuple[str, str]] = []  # webhook and body, not stored yet
        self.came = threading.Condition()  # alerts were stored
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, timeout=1, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        # A journal that keeps its room: what was delivered can be struck off also when the disk is full.
        self._db.execute("PRAGMA journal_mode = PERSIST")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("BEGIN IMMEDIATE")  # takes the lock, which is never given back
        version, = self._db.execute("PRAGMA user_version").fetchone()
        self._db.execute("COMMIT")
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        elif version != 1:
            raise sqlite3.DatabaseError("written by another version of coretap-alerts")
        for kind, rule, key, value in self._db.execute("SELECT kind, rule, key, value FROM kept"):
            if kind == "position":
                self.position = value
            else:
                dict.__setitem__(self.tables[kind], (rule, key), json.loads(value))
        self.queued: Dict[str, int] = dict(self._db.execute(  # characters that wait, by webhook
            "SELECT webhook, SUM(LENGTH(body)) FROM outbox GROUP BY webhook"))

    def add(self, webhook: str, body: str) -> None:
        """An alert, to be stored with the next commit."""
        self.alerts.append((webhook, body))
        with self._lock:
            self.queued[webhook] = self.queued.get(webhook, 0) + len(body)

    def dirty(self) -> bool:
        return bool(self.alerts) or any(table.changed for table in self.tables.values())

    def commit(self, position: str) -> None:
        """All of it or nothing. Raises sqlite3.Error; then it may be called again."""
        rows = [(kind, *key, json.dumps(table[key]) if key in table else None)
                for kind, table in self.tables.items() for key in table.changed]
        now = time.time()

        def write(db: sqlite3.Connection) -> None:
            db.execute("REPLACE INTO kept VALUES ('position', '', '', ?)", (position,))
            db.executemany("DELETE FROM kept WHERE kind = ? AND rule = ? AND key = ?",
                           [row[:3] for row in rows if row[3] is None])
            db.executemany("REPLACE INTO kept VALUES (?, ?, ?, ?)", [row for row in rows if row[3] is not None])
            db.executemany("INSERT INTO outbox (webhook, created, body) VALUES (?, ?, ?)",
                           [(webhook, now, body) for webhook, body in self.alerts])
        self._transaction(write)
        self.position = position
        for table in self.tables.values():
            table.changed.clear()
        if self.alerts:
            self.alerts.clear()
            with self.came:
                self.came.notify_all()

    def waiting(self, webhook: str, after: int) -> Optional[Waiting]:
        """The oldest alert for a webhook behind a number."""
        with self._lock:
            row = self._db.execute("SELECT number, created, body FROM outbox WHERE webhook = ? AND number > ? "
                                   "ORDER BY number LIMIT 1", (webhook, after)).fetchone()
        return Waiting(*row) if row else None

    def delivered(self, webhook: str, until: int) -> None:
        """Forgets the alerts for a webhook up to a number. Raises sqlite3.Error."""
        gone = 0

        def write(db: sqlite3.Connection) -> None:
            nonlocal gone
            where = "FROM outbox WHERE webhook = ? AND number <= ?"
            gone, = db.execute(f"SELECT TOTAL(LENGTH(body)) {where}", (webhook, until)).fetchone()
            db.execute(f"DELETE {where}", (webhook, until))
        self._transaction(write)
        with self._lock:
            self.queued[webhook] = self.queued.get(webhook, 0) - int(gone)

    def counts(self) -> Dict[str, int]:
        """How many alerts wait, by webhook."""
        with self._lock:
            return dict(self._db.execute("SELECT webhook, COUNT(*) FROM outbox GROUP BY webhook"))

    def _transaction(self, write: Callable[[sqlite3.Connection], Any]) -> None:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                write(self._db)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        with self._lock:
            self._db.close()
