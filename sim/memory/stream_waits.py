"""Freed memory that other streams still use: it comes back when their work is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator


class StreamWaits:
    """Addresses that wait for streams, each stream's in the order of recording (the events of ``cuda_events``)."""

    def __init__(self) -> None:
        self.done: dict[int, int] = {}  # how many of a stream's events are over
        self._events: dict[int, deque[int]] = {}
        self._left: dict[int, int] = {}  # events that an address waits for

    def __bool__(self) -> bool:
        return bool(self._left)

    def wait(self, address: int, streams: Collection[int]) -> None:
        """Wait for the work that each of the streams has been given so far."""
        for stream in sorted(streams):
            self._events.setdefault(stream, deque()).append(address)
        self._left[address] = len(streams)

    def finish(self, stream: int) -> None:
        """All work given to a stream so far is over."""
        if events := self._events.get(stream):
            self.done[stream] = len(events)

    def finish_all(self) -> None:
        """Everything is over."""
        self.done = {stream: len(events) for stream, events in self._events.items()}

    def completed(self) -> Iterator[int]:
        """Take out the addresses that wait for nothing any more."""
        done, self.done = self.done, {}
        for stream, count in sorted(done.items()):
            events = self._events[stream]
            for _ in range(count):
                address = events.popleft()
                self._left[address] -= 1
                if not self._left[address]:
                    del self._left[address]
                    yield address
            if not events:
                del self._events[stream]
