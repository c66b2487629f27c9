"""Subscribing with asyncio."""
import asyncio
from typing import Any, Optional, Union

from . import events as ev
from .position import Position
from .subscriber import Since, Subscriber


class AsyncSubscriber:
    """An asynchronous iterator over events and notices.

    Cancelling a call never costs an event. The only thing that is awaited is that a descriptor
    becomes readable; taking a message and handing out its events happens without an await between.
    """

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._taken = 0

    def __aiter__(self) -> "AsyncSubscriber":
        return self

    async def __anext__(self) -> ev.Item:
        self._taken += 1
        if self._taken % 64 == 0:
            await asyncio.sleep(0)  # others want the loop too
        while True:
            item = self._subscriber.next(0)
            if item is not None:
                return item
            await self._readable()

    async def next(self, timeout: Optional[float] = None) -> Optional[ev.Item]:
        """The next event or notice; None when nothing came within timeout seconds."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            item = self._subscriber.next(0)
            if item is not None:
                return item
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return None
            await self._readable(left)

    async def _readable(self, timeout: Optional[float] = None) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        wait = self._subscriber.wait_seconds()
        timer = loop.call_later(wait if timeout is None else min(wait, timeout), _wake, ready)
        descriptors = self._subscriber.filenos()
        try:
            for descriptor in descriptors:
                loop.add_reader(descriptor, _wake, ready)
            await ready
        finally:
            timer.cancel()
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    def close(self) -> None:
        self._subscriber.close()

    async def __aenter__(self) -> "AsyncSubscriber":
        return self

    async def __aexit__(self, kind: Any, *error: Any) -> None:
        self._subscriber.__exit__(kind, *error)


def _wake(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def asubscribe(*topics: str, address: Optional[str] = None, position: Union[None, str, Position] = None,
               since: Since = None, memory: int = 256 << 20,
               replay: bool = True, curve_server: Optional[str] = None,
               curve_secret: Optional[str] = None) -> AsyncSubscriber:
    """subscribe() for asyncio: `async for event in coretap.asubscribe("mempool."):`."""
    return AsyncSubscriber(Subscriber(*topics, address=address, position=position, since=since,
                                      memory=memory, replay=replay, curve_server=curve_server,
                                      curve_secret=curve_secret))
