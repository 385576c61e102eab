"""A Perfetto trace decoded again, by a reader of its own and by Perfetto's schema, says what the run says."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from analysis import chrome_trace, links, perfetto
from sim.model import Layer
from sim.planners import data_parallel, one_f_one_b, pipedream
from sim.trace import Trace

LAYER = Layer("layer", 1e-3, 1e-3, 1e-3, 4e6, 4e6, 8e6)


@pytest.fixture(scope="module", params=["1f1b", "pipedream", "parameter server", "fair share"])
def trace(request: pytest.FixtureRequest, simulate: Callable[..., Trace], mesh: Callable[..., Any]) -> Trace:
    kind = "fair_share" if request.param == "fair share" else "in_order"
    if request.param == "parameter server":
        work: Any = data_parallel.plan(2, 2, sync="parameter_server")
        return simulate(work, mesh(2, kind, 1e-5, 8e9, host=True), (LAYER,), server=2)
    work = pipedream.plan(2, 1, 6) if request.param == "pipedream" else one_f_one_b.plan(3, 4, 2)
    return simulate(work, mesh(3, kind, 1e-5, 8e9), (LAYER,), update_s=5e-4)


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of one message: numbers, doubles as 8 bytes, the rest as bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            size = {1: 8, 2: varint}[tag & 7]
            length = size() if callable(size) else size
            yield tag >> 3, data[at : at + length]
            at += length


def message(data: bytes) -> dict[int, list[Any]]:
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for number, value in fields(data):
        found[number].append(value)
    return found


def packets(trace: Trace) -> list[dict[int, list[Any]]]:
    return [message(packet) for _, packet in fields(perfetto.export(trace))]


def slices(found: list[dict[int, list[Any]]]) -> dict[int, list[tuple[str, int, int, dict[int, list[Any]]]]]:
    """Name, begin and end of the slices of each track in order, with the fields of the begin."""
    by_track: defaultdict[int, list[Any]] = defaultdict(list)
    for packet in found:
        for event in map(message, packet[11]):
            if event[9] == [1]:
                by_track[event[11][0]].append((event[23][0].decode(), packet[8][0], None, event))
            elif event[9] == [2]:
                name, begin, end, opened = by_track[event[11][0]].pop()
                assert end is None
                by_track[event[11][0]].append((name, begin, packet[8][0], opened))
    return by_track


def test_every_op_of_every_lane_op_by_op(trace: Trace) -> None:
    found = packets(trace)
    assert all(packet[10] == [1] for packet in found)
    assert [packet[13] for packet in found][:2] == [[1], []]
    threads, processes = {}, {}
    for descriptor in (message(packet[60][0]) for packet in found if packet[60]):
        for thread in map(message, descriptor[4]):
            threads[descriptor[1][0]] = (thread[1][0] - 1, thread[5][0].decode())
        for process in map(message, descriptor[3]):
            processes[process[1][0]] = process[6][0].decode()
    assert [processes[number] for number in sorted(processes)] == [*trace.header["devices"], "links"]
    by_track = slices(found)
    assert sorted(threads.values()) == sorted(tuple(lane) for lane in trace.lanes)
    for track, lane in threads.items():
        ops = trace.order[trace.lanes.index(lane)].tolist()
        assert len(by_track.get(track, ())) == len(ops)
        for (name, begin_ns, end_ns, event), op in zip(by_track.get(track, ()), ops, strict=True):
            assert name == str(trace.id(op))
            assert (begin_ns, end_ns) == (round(trace.start_s[op] * 1e9), round(trace.end_s[op] * 1e9))
            said = {each[10][0].decode(): each[4][0] for each in map(message, event[4])}
            assert (said["stage"], said["micro_batch"]) == (trace.id(op).stage, trace.id(op).micro_batch)
            assert said.get("reads_version", -1) == max(trace.ops["reads"][op], -1)


def test_flows_join_what_the_chrome_trace_joins(trace: Trace) -> None:
    starts, ends = {}, {}
    for of_track in slices(packets(trace)).values():
        for name, begin_ns, _, event in of_track:
            starts |= dict.fromkeys(event[47], (name, begin_ns))
            ends |= dict.fromkeys(event[48], (name, begin_ns))
    events = chrome_trace.export(trace)["traceEvents"]
    assert len(starts) == len(ends) == sum(event["ph"] == "s" for event in events) > 0
    for flow, (source, left_ns) in starts.items():
        number = struct.unpack("<Q", flow)[0] - 1
        transfer, (target, arrived_ns) = trace.id(number), ends[flow]
        assert left_ns <= arrived_ns
        assert source == target == str(transfer) or {source[1], target[1]} <= set("FB")


def test_counters_end_where_the_run_does_and_links_carry_their_bytes(trace: Trace) -> None:
    found = packets(trace)
    counters = {}
    for descriptor in (message(packet[60][0]) for packet in found if packet[60]):
        for counter in map(message, descriptor[8]):
            counters[descriptor[1][0]] = (descriptor[5][0], descriptor[2][0].decode(), counter)
    samples: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for packet in found:
        for event in map(message, packet[11]):
            if event[9] == [4]:
                samples[event[11][0]].append((packet[8][0], struct.unpack("<d", event[44][0])[0]))
    assert samples.keys() == counters.keys()
    live = np.zeros(len(trace.header["devices"]))
    used = {link.name: link for link in links.compute(trace)}
    for track, (process, name, unit) in counters.items():
        if name.startswith("live"):
            assert unit[3] == [3]  # bytes
            live[process - 1] += samples[track][-1][1]
            continue
        assert unit[6] == [b"%"]
        bytes_per_s = next(link["bytes_per_s"] for link in trace.header["links"] if f"{link['name']} in use" == name)
        steps = zip(samples[track], samples[track][1:], strict=False)
        carried = sum(share / 100 * (later - at) * 1e-9 * bytes_per_s for (at, share), (later, _) in steps)
        assert carried == pytest.approx(used[name.removesuffix(" in use")].bytes, rel=1e-5)
        assert max(share for _, share in samples[track]) <= 100 + 1e-9
    for device in range(len(live)):
        assert live[device] == trace.memory["bytes"][trace.memory["device"] == device].sum()


def test_perfettos_own_schema_reads_the_same(trace: Trace) -> None:
    schema = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
        reason="perfetto is not installed: it is in the extra 'hta'",
    )
    data = perfetto.export(trace)
    read = schema.Trace.FromString(data)
    read.DiscardUnknownFields()
    assert len(read.SerializeToString()) == len(data)
    names = [packet.track_event.name for packet in read.packet if packet.track_event.type == 1]
    assert len(names) == len(trace.lanes_of.values)
    assert {str(trace.id(op)) for op in range(len(trace.ops))} >= set(names)
    begun: dict[int, Any] = {}
    for packet in read.packet:
        event = packet.track_event
        if event.type == schema.TrackEvent.TYPE_SLICE_BEGIN:
            begun[event.track_uuid] = (event.name, packet.timestamp)
        elif event.type == schema.TrackEvent.TYPE_SLICE_END:
            name, begin_ns = begun.pop(event.track_uuid)
            op = next(op for op in range(len(trace.ops)) if str(trace.id(op)) == name)
            assert (begin_ns, packet.timestamp) == (round(trace.start_s[op] * 1e9), round(trace.end_s[op] * 1e9))
    units = {
        packet.track_descriptor.counter.unit_name
        for packet in read.packet
        if packet.track_descriptor.HasField("counter")
    }
    assert units <= {"", "%"}
