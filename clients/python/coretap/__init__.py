"""Subscribe to coretapd, the tap on the tracepoints of a Bitcoin Core node.

    import coretap

    for event in coretap.subscribe("mempool."):
        if isinstance(event, coretap.Notice):
            print("notice:", event)
        elif event.topic == "mempool.removed":
            print(event.txid.hex(), event.reason)
"""
from . import p2p
from .aio import AsyncSubscriber, asubscribe
from .catalogue import *  # noqa: F401,F403
from .catalogue import CATALOGUE
from .events import (Alive, Event, Gap, Item, Lost, Malformed, NewRun, NoReplay, Notice, OldRun, Stale,
                     Status, Stopping, to_json)
from .history import Confirmed, Offer, Replacement, ReplacementHistory
from .mempool import Bucket, Difference, Mempool, Resyncing, Synced, Transaction
from .position import Position
from .recording import recorded
from .rpc import RPC, RPCError
from .subscriber import DEFAULT_ADDRESS, Subscriber, run, subscribe
from .wire import WireError

__version__ = "0.1.0"

__all__ = [
    "Alive", "AsyncSubscriber", "Bucket", "CATALOGUE", "Confirmed", "DEFAULT_ADDRESS", "Difference",
    "Event", "Gap", "Item", "Lost", "Malformed", "Mempool", "NewRun", "NoReplay", "Notice", "Offer", "OldRun",
    "Position", "RPC", "RPCError", "Replacement", "ReplacementHistory", "Resyncing", "Stale", "Status",
    "Stopping", "Subscriber", "Synced", "Transaction", "WireError", "asubscribe", "p2p", "recorded", "run",
    "subscribe", "to_json",
]
# A class for each topic of the catalogue: MempoolRemoved, BlockEvictions, ...
__all__ += [cls.__name__ for cls, _ in CATALOGUE.values()]
