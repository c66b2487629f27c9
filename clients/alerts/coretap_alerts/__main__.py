"""coretap-alerts: reads the rules, follows coretapd, and keeps place and alerts in one file."""
import argparse
import signal
import sqlite3
import sys
import time
from typing import Any, Callable, List, Optional, Set

from coretap import Notice, Position, RPC, RPCError, recorded, subscribe

from . import __version__
from .alerter import Alerter
from .delivery import Deliverer
from .document import RuleError
from .rules import Rules, load
from .state import State

BATCH = 1000  # events in a transaction, at most
BATCH_SECONDS = 0.2
LOOK_SECONDS = 1.0  # between looks at watch files, and between positions that nothing depends on
DESCRIPTION = "Sends what coretapd tells of a node to webhooks, by rules. See coretap-alerts(1)."


def log(text: str) -> None:
    """A line, whatever strangers have put into it."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    # One write: threads say something too, and print() writes the end of a line by itself.
    sys.stderr.write(f"coretap-alerts: {plain}\n")
    sys.stderr.flush()


def block_by(rpc: RPC) -> Callable[[str], Set[str]]:
    def block(hash_hex: str) -> Set[str]:
        try:
            return set(rpc("getblock", hash_hex, 1)["tx"])
        except (KeyError, TypeError):
            raise RPCError("getblock: not an answer that was understood") from None
    return block


class Service:
    """The loop. What is told by commit() is done for good: a crash at any other place repeats it."""

    def __init__(self, rules: Rules, state: State, address: Optional[str], since: Optional[str]) -> None:
        self.state = state
        self.alerter = Alerter(rules, state, block_by(rules.rpc) if rules.rpc else None)
        self.position = Position(state.position)
        # With a place, what is new (a topic of the other socket, a label) begins at the present. A state is
        # written at the first start already, when no coretapd may be there.
        if any(node.run for socket in ("low", "high") for node in self.position.nodes(socket).values()):
            since = None
        self.stream = subscribe(*rules.topics(), address=address or rules.address, since=since,
                                position=self.position, curve_server=rules.curve_server,
                                curve_secret=rules.curve_secret)
        self.deliverers = [Deliverer(webhook, state, log) for webhook in rules.webhooks.values()]
        self.ending = False  # no Event: its lock may be held where the signal comes
        self._looked_at = 0.0
        for webhook, count in state.counts().items():
            known = webhook in rules.webhooks
            log(f"webhook {webhook}: alerts that wait: {count}" +
                ("" if known else "; the rules have it no more, they are kept until it is back"))

    def run(self) -> None:
        self._look()
        self._commit()
        for deliverer in self.deliverers:
            deliverer.start()
        handled, began = 0, time.monotonic()
        while not self.ending:
            if not all(deliverer.is_alive() for deliverer in self.deliverers):
                raise RuntimeError("a deliverer ended")
            item = self.stream.next(0)
            now = time.monotonic()
            if item is None or handled >= BATCH or now - began >= BATCH_SECONDS:
                self._feed(item)
                self._commit(now)
                handled = 0
                item = self.stream.next(0.25) if item is None else None
                began = time.monotonic()
            if item is not None:
                self._feed(item)
                handled += 1
        self._commit()
        for deliverer in self.deliverers:
            deliverer.ending.set()
        with self.state.came:
            self.state.came.notify_all()
        end = time.monotonic() + 2  # for an answer that is on its way
        for deliverer in self.deliverers:
            deliverer.join(max(0.0, end - time.monotonic()))

    def _feed(self, item: Any) -> None:
        if isinstance(item, Notice):
            log(str(item))
        if item is not None:
            self.alerter.feed(item)

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        for text in self.alerter.reload():
            log(f"{text}; the list stays as it was")

    def _commit(self, now: float = 0) -> None:
        """Nothing is taken while it cannot be written: what comes waits here, and then in replay."""
        looks = now - self._looked_at >= LOOK_SECONDS
        if looks:
            self._look()
        self.stream.commit()
        position = self.position.dump()
        if not self.state.dirty() and (now and not looks or position == self.state.position):
            return
        failure = ""
        while True:
            try:
                self.state.commit(position)
                break
            except sqlite3.Error as error:
                if str(error) != failure:
                    failure = str(error)
                    log(f"{self.state.path}: {failure}; tried again until it can be written, nothing is lost meanwhile")
                if self.ending:
                    return
                time.sleep(1)
        if failure:
            log(f"{self.state.path}: written again")


def rehearse(rules: Rules, path: str) -> int:
    """Prints the alerts that a recording would have made."""
    received = 0
    state = State(":memory:")
    alerter = Alerter(rules, state, clock=lambda: received / 1e6)
    for text in alerter.reload():
        log(text)
    for received, item in recorded(path, *rules.topics()):
        if isinstance(item, Notice):
            log(str(item))
        alerter.feed(item)
        for webhook, alert in state.alerts:
            print(f'{{"webhook":"{webhook}","alert":{alert}}}')
        state.alerts.clear()
        state.queued.clear()  # as if each had been taken
    return 0


def serve(rules: Rules, options: argparse.Namespace) -> int:
    path = options.state or rules.state
    if not path:
        raise RuleError("say where the state is kept: --state FILE, or state: in the rules")
    try:
        state = State(path)
    except (sqlite3.Error, ValueError, KeyError) as error:
        text = "another process has it" if "locked" in str(error) else str(error)
        log(f"{path}: {text}")
        return 1
    service = Service(rules, state, options.address, options.since)

    def end(*_: Any) -> None:
        service.ending = True
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    service.run()
    return 0


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="coretap-alerts", description=DESCRIPTION)
    parser.add_argument("rules", metavar="RULES", help="the rules file, YAML")
    parser.add_argument("--check", action="store_true", help="say what is wrong with the rules, and end")
    parser.add_argument("--dry-run", metavar="FILE",
                        help="print the alerts that a recording of `coretap record` would make, and end")
    parser.add_argument("--state", metavar="FILE",
                        help="where place and waiting alerts are kept (else state: of the rules)")
    parser.add_argument("--address", metavar="A",
                        help="tcp://HOST:PORT or ipc:///run/coretap/NAME (else address: of the rules)")
    parser.add_argument("--since", metavar="WHEN",
                        help="where to begin when the state has no place yet: 10m, 2h, oldest; else at the present")
    parser.add_argument("--version", action="version", version=f"coretap-alerts {__version__}")
    options = parser.parse_args(arguments)
    try:
        rules = load(options.rules)
        if options.check:
            print(f"{options.rules}: {len(rules.rules)} rules, {len(rules.webhooks)} webhooks")
            return 0
        return rehearse(rules, options.dry_run) if options.dry_run else serve(rules, options)
    except ValueError as error:
        log(str(error))
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        printing = options.check or options.dry_run
        log(f"{error.filename or ('standard output' if printing else options.rules)}: "
            f"{error.strerror or error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
