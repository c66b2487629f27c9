"""python3 -m coretap: events as they happen, and what was replaced on the way into a block."""
import argparse
import signal
import sys
from typing import Any, Dict, List, Optional

from .catalogue import CATALOGUE
from .events import Event, Notice
from .history import Confirmed, ReplacementHistory
from .subscriber import DEFAULT_ADDRESS, subscribe


def topic(word: str) -> str:
    """mempool, mempool.*, * as the command line allows."""
    word = word[:-1] if word.endswith("*") else word
    return word if not word or "." in word else word + "."


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Options of whatever subscribes; the tools have them too."""
    parser.add_argument("--address", "-a", default=DEFAULT_ADDRESS,
                        help="tcp://HOST:PORT or ipc:///run/coretap/NAME (%(default)s)")
    parser.add_argument("--since", help="10m, 2h or oldest: begin in the past")
    parser.add_argument("--curve-server", metavar="FILE", help="coretapd's public key, and")
    parser.add_argument("--curve-secret", metavar="FILE",
                        help="one's own secret key, where coretapd demands keys")


def connection(options: argparse.Namespace) -> Dict[str, Any]:
    """What they say, for subscribe()."""
    return {name: getattr(options, name) for name in ("address", "since", "curve_server", "curve_secret")}


def tail(options: argparse.Namespace) -> int:
    left = options.count
    for name in map(topic, options.topics):
        if not name.startswith("bridge.") and not any(
                known == name or not name or name.endswith(".") and known.startswith(name)
                for known in CATALOGUE):
            print(f"coretap: {name}: no topic of Bitcoin Core's: nothing comes unless coretapd "
                  "declares it", file=sys.stderr)
    with subscribe(*map(topic, options.topics), position=options.position,
                   **connection(options)) as subscriber:
        while True:
            item = subscriber.next(0)
            if item is None:
                sys.stdout.flush()  # nothing more at hand: readers see the lines now
                item = subscriber.next()
            assert item is not None
            if isinstance(item, Notice):
                print(f"coretap: {item}", file=sys.stderr)
            if options.json:
                print(item.json())
            elif isinstance(item, Event):
                print(f"{item.time:.6f} {item!r}")
            if options.position:
                sys.stdout.flush()  # a line must be out before its event counts as taken
            if isinstance(item, Event) and left:
                left -= 1
                if not left:
                    return 0


def replacement_history(options: argparse.Namespace) -> int:
    history = ReplacementHistory()
    wanted = {bytes.fromhex(txid) for txid in options.txids}
    with subscribe("mempool.", **connection(options)) as stream:
        for item in stream:
            if isinstance(item, Notice):
                print(f"coretap: {item}", file=sys.stderr)
            confirmed = history.feed(item)
            if not confirmed or not (confirmed.txid in wanted if wanted else confirmed.steps):
                continue
            print(confirmed.json() if options.json else describe(confirmed), flush=True)
            wanted.discard(confirmed.txid)
            if options.txids and not wanted:
                return 0
    return 0


def describe(confirmed: Confirmed) -> str:
    def offer(vsize: Optional[int], fee: Optional[int]) -> str:
        return f"{fee} sat, {vsize} vbyte" + (f", {fee / vsize:.2f} sat/vbyte" if fee and vsize else "")
    lines = [f"{confirmed.txid.hex()} confirmed at height {confirmed.height}: "
             f"{confirmed.replacements} replacements, {confirmed.vsize_relayed} vbyte relayed for it"]
    for step in confirmed.steps:
        by = f"package of {len(step.txids)}" if step.package else "transaction"
        lines += [f"    {offer(v.vsize, v.fee)}: {v.txid.hex()}" for v in step.victims]
        lines.append(f"  replaced by a {by}: {offer(step.vsize, step.fee)}")
    lines.append(f"  confirmed: {offer(confirmed.vsize, confirmed.fee)}")
    return "\n".join(lines)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m coretap", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("tail", help="shows events as they happen")
    command.add_argument("topics", nargs="*", metavar="TOPIC",
                         help="mempool.removed, or mempool for all of a provider; none: everything")
    command.add_argument("--json", action="store_true", default=not sys.stdout.isatty(),
                         help="JSON lines; so it is anyway when standard output is no terminal")
    command.add_argument("--text", action="store_false", dest="json")
    command.add_argument("--count", "-n", type=int, default=0, help="end after that many events")
    add_connection(command)
    command.add_argument("--position", metavar="FILE", help="keep the place there and go on from it")
    command.set_defaults(function=tail)
    command = commands.add_parser("replacement_history", help="for confirmed transactions: how often "
                                  "they were replaced, what was offered, what was relayed")
    command.add_argument("txids", nargs="*", metavar="TXID",
                         help="wait for these; none: each confirmed transaction that replaced others")
    command.add_argument("--json", action="store_true", default=not sys.stdout.isatty())
    command.add_argument("--text", action="store_false", dest="json")
    add_connection(command)
    command.set_defaults(function=replacement_history)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        return int(options.function(options))
    except ValueError as error:
        print(f"coretap: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"coretap: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        sys.stderr.close()  # what is left of standard output fails once more at the end
        return 1


if __name__ == "__main__":
    sys.exit(main())
