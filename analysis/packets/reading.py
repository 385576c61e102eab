"""A capture read from end to end: steps of every worker, demands of every server, as JSON holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from analysis.packets import demands, endpoints, steps
from analysis.packets.capture import Damage, frames
from analysis.packets.decode import Decoder, Segments
from analysis.packets.endpoints import Address, Server
from analysis.packets.steps import Steps
from analysis.packets.streams import DOWN, NO_PAUSE, UP, Streams, idle_gap_ns, rows_alike
from sim.errors import Fault, ScenarioError

TIMES = ("download_s", "compute_s", "upload_s", "apply_s", "overlap_s", "step_s", "think_time_s")
"""Of a worker's step, the last with its interval."""
MOST_ENDS = 1 << 12
"""Ends of connections that are compared to name the busiest where no server's were found."""


@dataclass(frozen=True, eq=False)
class Reading:
    """``steps`` and ``dropped`` (warm-up) of the workers that have any, by address; ``servers`` as they were named."""

    result: Mapping[str, Any]
    steps: Mapping[str, Steps]
    dropped: Mapping[str, int]
    servers: tuple[str, ...]


def read(
    file: BinaryIO,
    servers: Sequence[Server],
    model_bytes: int | None = None,
    each_connection: bool = False,
    compute_s: float | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> Reading:
    """Read a capture.

    ``model_bytes``: what a step downloads and uploads over all servers, and ``compute_s``: what it computes, as far as
    known; the overlap then counts what transfers hide. ``each_connection``: every connection is a worker. ``progress``
    is told the bytes of each chunk.

    Raises
    ------
    ScenarioError : no capture; nothing in it can be read; nothing of a server is in it.
    """
    damage, streams, seen = Damage(), Streams(servers, each_connection), Counter[tuple[Address, int]]()
    decoder = Decoder(damage)
    for chunk in frames(file, damage):
        segments = decoder.segments(chunk)
        streams.add(segments)
        if not streams.segments and len(seen) < MOST_ENDS:
            _count_ends(segments, seen)
        progress(len(chunk.data))
    streams.close()
    _check_found(streams, servers, damage, seen)
    return _Report(servers, streams, damage, model_bytes, compute_s).reading()


def _count_ends(segments: Segments, seen: Counter[tuple[Address, int]]) -> None:
    """Payload by the end that sent it."""
    if not len(segments.time_ns):
        return
    for rows in rows_alike(*segments.source, segments.source_port):
        high, low = (int(word[rows[0]]) for word in segments.source)
        seen[(high, low), int(segments.source_port[rows[0]])] += int(segments.payload[rows].sum())


def _check_found(
    streams: Streams, servers: Sequence[Server], damage: Damage, seen: Counter[tuple[Address, int]]
) -> None:
    if streams.segments:
        numbers = {server for each in streams.by_worker.values() for server, _ in each}
        faults = [
            Fault(f"nothing to or from {server.name} is in the capture", "--server")
            for number, server in enumerate(servers)
            if number not in numbers
        ]
        if faults:
            raise ScenarioError.of(faults)
        return
    if not seen:
        found = "; ".join(_reasons(damage)) or "it is empty, or holds no TCP"
        raise ScenarioError(f"nothing could be read: {found}")
    names = [_end(address, port) for (address, port), size in seen.most_common(3) if size] or ["no end"]
    raise ScenarioError.of(
        [
            Fault(
                "nothing to or from a server is in the capture",
                "--server",
                suggestion=f"most is sent by {', '.join(names)}",
            )
        ]
    )


def _end(address: Address, port: int) -> str:
    name = endpoints.text(address)
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _reasons(damage: Damage) -> Iterator[str]:
    for reason, count in sorted(damage.reasons.items()):
        if count:
            yield f"{count:,} unreadable: {reason}"


class _Report:
    """From streams to figures."""

    def __init__(
        self,
        servers: Sequence[Server],
        streams: Streams,
        damage: Damage,
        model_bytes: int | None,
        compute_s: float | None,
    ) -> None:
        self._servers, self._streams, self._damage = servers, streams, damage
        self._model_bytes, self._compute_s = model_bytes, compute_s
        workers = sorted(streams.by_worker)
        flows = {
            worker: {key: stream.bursts for key, stream in sorted(streams.by_worker[worker].items())}
            for worker in workers
        }
        self._names = {worker: _end(*worker) if worker[1] else endpoints.text(worker[0]) for worker in workers}
        self._idle_ns = idle_gap_ns(way for each in flows.values() for way in steps.of_worker(each))
        found = {
            worker: steps.find(each, self._idle_ns, streams.first_ns or 0, model_bytes)
            for worker, each in flows.items()
        }
        self._steps = {worker: each for worker, each in found.items() if each is not None}
        self._dropped = {worker: demands.warm_up(each) for worker, each in self._steps.items()}
        self._demands = (
            demands.of_servers([*self._steps.values()], [*self._dropped.values()], range(len(servers)))
            if self._steps
            else {}
        )

    def reading(self) -> Reading:
        """The figures and what they come from."""
        streams = self._streams
        think_s = [each.think_s[self._dropped[worker] :] for worker, each in self._steps.items()]
        result = {
            "workers": [self._worker(worker) for worker in self._names],
            "servers": [self._server(number) for number in range(len(self._servers))],
            "think_time_s": _interval(demands.mean(np.concatenate(think_s))) if think_s else None,
            "steps_per_s": self._throughput(),
            "step_bytes": self._step_bytes(),
            "packets": streams.segments,
            "retransmitted_bytes": sum(
                stream.again_bytes for each in streams.by_worker.values() for stream in each.values()
            ),
            "missing_bytes": streams.missing_bytes,
            "unreadable_records": self._damage.records,
            "idle_gap_s": None if self._idle_ns == NO_PAUSE else self._idle_ns / 1e9,
            "notes": list(self._notes()),
        }
        by_name = {self._names[worker]: each for worker, each in self._steps.items()}
        dropped = {self._names[worker]: skip for worker, skip in self._dropped.items()}
        return Reading(result, by_name, dropped, tuple(server.name for server in self._servers))

    def _worker(self, worker: tuple[Address, int]) -> dict[str, Any]:
        streams, found = self._streams.by_worker[worker], self._steps.get(worker)
        times, skip = dict[str, Any](dict.fromkeys(TIMES)), self._dropped.get(worker, 0)
        if found is not None:
            columns = found.download_s, found.compute_s, found.upload_s, found.apply_s, found.overlap_s(self._compute_s)
            means = [_mean(column[skip:]) for column in columns]
            think = _interval(demands.mean(found.think_s[skip:]))
            times = dict(zip(TIMES, (*means, _mean(np.diff(found.begin_s[skip:])), think), strict=True))
        return {
            "address": self._names[worker],
            "steps": 0 if found is None else len(found),
            "warm_up_steps": skip,
            **times,
            "bytes_down": sum(stream.sent_bytes for (_, way), stream in streams.items() if way == DOWN),
            "bytes_up": sum(stream.sent_bytes for (_, way), stream in streams.items() if way == UP),
            "retransmitted_bytes": sum(stream.again_bytes for stream in streams.values()),
        }

    def _server(self, number: int) -> dict[str, Any]:
        streams = [
            (way, stream)
            for each in self._streams.by_worker.values()
            for (server, way), stream in each.items()
            if server == number
        ]
        applied = [
            (end_s - begin_s)[self._dropped[worker] :]
            for worker, each in self._steps.items()
            if number in each.applied
            for begin_s, end_s in [each.applied[number]]
        ]
        demand = self._demands.get(number)
        stations = ("downlink", "uplink", "apply")
        return {
            "address": self._servers[number].name,
            "steps": sum(len(each) for each in self._steps.values() if (number, UP) in each.spans),
            "apply_s": _mean(np.concatenate(applied)) if applied else None,
            "bytes_down": sum(stream.sent_bytes for way, stream in streams if way == DOWN),
            "bytes_up": sum(stream.sent_bytes for way, stream in streams if way == UP),
            "retransmitted_bytes": sum(stream.again_bytes for _, stream in streams),
            "demand_s": {name: None if demand is None else _interval(getattr(demand, name)) for name in stations},
        }

    def _throughput(self) -> float | None:
        lasted = [_mean(np.diff(each.begin_s[self._dropped[worker] :])) for worker, each in self._steps.items()]
        known = [mean for mean in lasted if mean]
        return sum(1 / mean for mean in known) if known else None

    def _step_bytes(self) -> dict[str, float] | None:
        """Mean payload of a step over all servers."""
        if not self._steps:
            return None
        columns = {"down": [each.down_bytes for each in self._steps.values()]}
        columns["up"] = [each.up_bytes for each in self._steps.values()]
        return {way: float(np.concatenate(each).mean()) for way, each in columns.items()}

    def _notes(self) -> Iterator[str]:
        streams, found = self._streams, [*self._steps.values()]
        yield from _reasons(self._damage)
        if streams.missing_bytes:
            yield f"{streams.missing_bytes:,} bytes were never captured: the capture dropped packets"
        if streams.left_out:
            yield f"{streams.left_out:,} packets belong to more workers than are followed"
        if not found:
            yield "no complete step: expected a download and an upload, one after the other"
            return
        if streams.full_ns is not None:
            seconds = (streams.full_ns - (streams.first_ns or 0)) / 1e9
            yield f"more steps than are kept apart: all but bytes is about the first {seconds:,.0f} s"
        forgotten_ns = max(stream.joined_ns for each in streams.by_worker.values() for stream in each.values())
        if forgotten_ns > self._idle_ns:
            yield f"silences of up to {forgotten_ns / 1e9:.3g} s were forgotten to save memory: times may be wrong"
        if self._model_bytes:
            for way, size in (self._step_bytes() or {}).items():
                if abs(size / self._model_bytes - 1) > 0.02:
                    yield f"a step moves {size:,.0f} bytes {way}, not {self._model_bytes:,}"
        overlap_s = sum(float(each.overlap_s(self._compute_s).sum()) for each in found)
        if overlap_s > 0.01 * sum(float(each.upload_s.sum()) for each in found):
            yield "phases overlap: the think time is what no transfer hides"
        if all(demand.apply is None for demand in self._demands.values()):
            yield "no responses to uploads were seen: the time to apply them is unknown"
        if any(each.early_answers > len(each) for each in found):
            yield "servers sent messages during uploads: if these are responses, much of the time to apply is not seen"
        for number, demand in self._demands.items():
            if demand.limited:
                ways = " and ".join(demand.limited)
                name = self._servers[number].name
                yield f"{name}: the workers' own links may be what limits its {ways}: demands are upper bounds there"


def _mean(values: steps.Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _interval(estimate: demands.Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else dict(estimate._asdict())
