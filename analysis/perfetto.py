"""A run as a Perfetto trace in protobuf, the native format of ui.perfetto.dev (files named ``.pftrace``).

A process for each device and one for the links, a thread for each lane, a slice for each op on each lane it holds,
flows from the slice that made what a transfer carries to the slice that uses it, and counters with units: live bytes by
category, and of each link the share of its bandwidth in use.

Field numbers are those of ``protos/perfetto/trace`` of google/perfetto. The few messages are written by hand: the wire
format is a tag (``number << 3 | type``) before each value.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from analysis import utilization
from analysis.chrome_trace import carried, live_bytes
from sim.trace import Trace

_PACKET, _TIMESTAMP, _SEQUENCE, _EVENT, _FLAGS, _DESCRIPTOR = 1, 8, 10, 11, 13, 60
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _COUNTER = 1, 2, 3, 4, 5, 8
_PID, _TID, _THREAD_NAME, _PROCESS_NAME = 1, 2, 5, 6
_UNIT, _UNIT_NAME, _BYTES = 3, 6, 3
_ANNOTATION, _TYPE, _TRACK, _CATEGORY, _EVENT_NAME, _VALUE, _FLOW, _FLOW_ENDS = 4, 9, 11, 22, 23, 44, 47, 48
_ANNOTATION_INT, _ANNOTATION_NAME = 4, 10
_BEGIN, _END, _SAMPLE = 1, 2, 4


def export(trace: Trace) -> bytes:
    """The bytes of a ``.pftrace`` file; times in nanoseconds."""
    packets = [*_tracks(trace), *_slices(trace), *_memory(trace), *_links(trace)]
    cleared = _number(_FLAGS, 1)  # the first packet of a sequence says that nothing is interned before it
    sequence = _number(_SEQUENCE, 1)
    return b"".join(
        _nested(_PACKET, packet + sequence + (b"" if index else cleared)) for index, packet in enumerate(packets)
    )


def _tracks(trace: Trace) -> Iterator[bytes]:
    """Processes and threads; counters describe themselves."""
    for process, name in enumerate([*trace.header["devices"], "links"], 1):
        yield _descriptor(process, _nested(_PROCESS, _number(_PID, process) + _nested(_PROCESS_NAME, name)))
    for lane, (device, stream) in enumerate(trace.lanes):
        thread = _number(_PID, device + 1) + _number(_TID, lane + 1) + _nested(_THREAD_NAME, stream)
        yield _descriptor(_lane_track(trace, lane), _nested(_THREAD, thread))


def _lane_track(trace: Trace, lane: int) -> int:
    """Tracks are numbered: devices, links, lanes, and then the counters as they come."""
    return len(trace.header["devices"]) + 2 + lane


def _slices(trace: Trace) -> Iterator[bytes]:
    """Begin and end of each op on each of its lanes, in the order of the lane, so that equal times stay in order."""
    start_ns, end_ns = (np.rint(times_s * 1e9).astype(np.int64).tolist() for times_s in (trace.start_s, trace.end_s))
    flows: defaultdict[tuple[int, int], bytes] = defaultdict(bytes)
    sent = carried(trace)
    for number, producer, leaves, consumer, arrives in np.stack(sent, axis=1).tolist():
        flows[producer, leaves] += _fixed(_FLOW, number + 1)
        flows[consumer, arrives] += _fixed(_FLOW_ENDS, number + 1)
    senders = set(sent.leaves.tolist())  # first, so that of slices that start together the flow leaves the sender's
    for lane in sorted(range(len(trace.lanes)), key=lambda lane: lane not in senders):
        track = _number(_TRACK, _lane_track(trace, lane))
        for op in trace.order[lane].tolist():
            name = trace.id(op)
            arguments = {"stage": name.stage, "micro_batch": name.micro_batch, "replica": name.replica}
            reads = int(trace.ops["reads"][op])
            said = [*arguments.items()] + ([("reads_version", reads)] if reads >= 0 else [])
            begin = _number(_TYPE, _BEGIN) + track + _nested(_EVENT_NAME, str(name))
            begin += _nested(_CATEGORY, name.kind.name.lower()) + flows[op, lane]
            begin += b"".join(_nested(_ANNOTATION, _annotation(*each)) for each in said)
            yield _event(start_ns[op], begin)
            yield _event(end_ns[op], _number(_TYPE, _END) + track)


def _annotation(name: str, value: int) -> bytes:
    return _nested(_ANNOTATION_NAME, name) + _number(_ANNOTATION_INT, value)


def _memory(trace: Trace) -> Iterator[bytes]:
    first = _lane_track(trace, len(trace.lanes))
    for device in range(len(trace.header["devices"])):
        tracks: dict[str, int] = {}
        for time_s, live in live_bytes(trace, device):
            for name, size_bytes in live.items():
                if name not in tracks:
                    tracks[name] = first + len(tracks)
                    yield _counter(tracks[name], device + 1, f"live {name}", _number(_UNIT, _BYTES))
                yield _sample(tracks[name], time_s, size_bytes)
        first += len(tracks)


def _links(trace: Trace) -> Iterator[bytes]:
    """Of each link the share of its bandwidth in use: the mean over each time without a pause.

    Rates within such a time may change and are not recorded; bytes and times are.
    """
    process = len(trace.header["devices"]) + 1
    for link in utilization.limited(trace):
        figures, flows = trace.header["links"][link], trace.flows[trace.flows["link"] == link]
        starts_s, ends_s, carried_bytes = utilization.together(flows[flows["end_s"] > flows["start_s"]])
        if not len(starts_s):
            continue
        percent = 100 * carried_bytes / ((ends_s - starts_s) * figures["bytes_per_s"])
        track = (1 << 32) + link
        yield _counter(track, process, f"{figures['name']} in use", _nested(_UNIT_NAME, "%"))
        for start_s, end_s, share in zip(starts_s.tolist(), ends_s.tolist(), percent.tolist(), strict=True):
            yield _sample(track, start_s, share)
            yield _sample(track, end_s, 0.0)


def _counter(track: int, process: int, name: str, unit: bytes) -> bytes:
    return _descriptor(track, _number(_PARENT, process) + _nested(_NAME, name) + _nested(_COUNTER, unit))


def _sample(track: int, time_s: float, value: float) -> bytes:
    body = _number(_TYPE, _SAMPLE) + _number(_TRACK, track) + _varint(_VALUE << 3 | 1) + struct.pack("<d", value)
    return _event(round(time_s * 1e9), body)


def _descriptor(track: int, body: bytes) -> bytes:
    return _nested(_DESCRIPTOR, _number(_UUID, track) + body)


def _event(time_ns: int, body: bytes) -> bytes:
    return _number(_TIMESTAMP, time_ns) + _nested(_EVENT, body)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<Q", value)


def _nested(field: int, content: str | bytes) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have the eighth set."""
    coded = bytearray()
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)
