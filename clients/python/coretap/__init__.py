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
from .catalogue import *  # noqa: F401,F403  (a class for each topic: MempoolRemoved, ...)
from .catalogue import CATALOGUE
from .events import (Alive, Event, Gap, Item, Lost, Malformed, NewRun, Notice, OldRun, Stale, Status,
                     Stopping, to_json)
from .history import Confirmed, Offer, Replacement, ReplacementHistory
from .mempool import Bucket, Difference, Mempool, Resyncing, Synced, Transaction
from .rpc import RPC, RPCError
from .subscriber import DEFAULT_ADDRESS, Subscriber, run, subscribe
from .wire import WireError

__version__ = "0.1.0"
