#!/usr/bin/python3
"""Logs coins that are added to, spent in and uncached from the UTXO cache."""
from common import follow, hexed, parser, subscribe

WORDS = {"utxocache.add": "Added", "utxocache.spent": "Spent", "utxocache.uncache": "Uncache"}


def handle(event):
    outpoint = f"{hexed(event.get('txid'))}:{event.get('vout')}"
    print(f"{WORDS[event.topic]:<7} {outpoint:<71} {event.get('value')!s:>16} "
          f"{event.get('height')!s:>7} {'Yes' if event.get('coinbase') else 'No'}")


def main():
    options = parser(__doc__).parse_args()
    print(f"{'OP':<7} {'Outpoint':<71} {'Value':>16} {'Height':>7} Coinbase")
    with subscribe(options, *WORDS) as stream:
        follow(stream, handle)


if __name__ == "__main__":
    main()
