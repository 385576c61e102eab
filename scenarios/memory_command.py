"""``twinrail memory``: PyTorch's memory snapshots, replayed and drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis import memory_plot, memory_timeline, pytorch_snapshot
from analysis.memory_timeline import Timeline
from scenarios.quantities import Capacity, format_bytes, printable, shown
from scenarios.strict import Section, check
from scenarios.text_file import saving
from sim.errors import BadTraceFile, Fault, ScenarioError
from sim.memory import snapshot as snapshots
from sim.memory.replay import replay
from sim.memory.settings import Settings, parse_settings
from sim.memory.snapshot import Snapshot
from sim.memory.what_if import compare, least_capacity, what_if
from sim.trace import Trace

IMAGES = (".png", ".svg", ".pdf")
KINDS = ("cached_allocations", "new_segments", "releases", "final_blocks")
TOTALS = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "inferred_blocks")
_STATISTICS = ("num_alloc_retries", "num_device_alloc", "num_device_free")
_ZIP = b"PK"


class Options(Section):
    """Sizes that can be given, each key an option of the command line."""

    capacity: Capacity | None = None
    recorded_on: Capacity | None = None


def replay_file(
    file: Path, given: Mapping[str, str | None], sets: Sequence[str], device: int | None, compared: bool
) -> dict[str, Any]:
    """What a replay of a snapshot found, as JSON holds it.

    ``given`` are the options as written. With ``sets`` (``key=value``) or a capacity, ``what_if`` tells what would have
    come of the same requests; with ``compared``, ``needed_bytes`` what each allocator would have needed.

    Raises
    ------
    ScenarioError : every fault of the options.
    BadTraceFile, UnsupportedPlan : the file cannot be read or played.
    """
    options, wrongs = check(Options, {key: value for key, value in given.items() if value is not None})
    names = (f"--{str(wrong.path[0]).replace('_', '-')}" for wrong in wrongs)
    faults = [
        Fault(wrong.message, name, suggestion=wrong.suggestion) for wrong, name in zip(wrongs, names, strict=True)
    ]
    try:
        _changed(Settings.DEFAULT, sets)
    except ScenarioError as error:
        faults += error.faults
    if options is None or faults:
        raise ScenarioError.of(faults)
    snapshot = snapshots.read(file)
    found = asdict(replay(snapshot, device, _whole(options.recorded_on)))
    result = {key: found[key] for key in (*KINDS, *TOTALS, "mismatches")}
    if sets or options.capacity is not None:
        settings = _changed(snapshot.settings, sets)
        result["what_if"] = _what_if(snapshot, settings, _whole(options.capacity), device)
    if compared:
        result["needed_bytes"] = compare(snapshot, device)
    return result


def _whole(size_bytes: float | None) -> int | None:
    return None if size_bytes is None else int(size_bytes)


def _changed(settings: Settings, sets: Sequence[str]) -> Settings:
    """Settings with some of them changed, each written ``key=value``."""
    changes = []
    for text in sets:
        key, equals, value = text.partition("=")
        same = value.capitalize()
        changes.append(f"{key}:{same if same in ('True', 'False') else value}" if equals else text)
    return parse_settings(",".join([text for text in (str(settings), *changes) if text]), "--set")


def _what_if(snapshot: Snapshot, settings: Settings, capacity: int | None, device: int | None) -> dict[str, Any]:
    found = what_if(snapshot, settings, capacity, device)
    result = {
        "settings": str(settings),
        "capacity_bytes": capacity,
        "layout": found.layout,
        "fits": found.fits,
        "failed_at": found.failed_at,
        "message": found.message,
        "peak_allocated_bytes": found.stats["allocated_bytes.all.peak"],
        "peak_reserved_bytes": found.stats["reserved_bytes.all.peak"],
        **{name: found.stats[name] for name in _STATISTICS},
    }
    return result if capacity is None else result | {"least_capacity_bytes": least_capacity(snapshot, settings, device)}


def agrees(result: Mapping[str, Any]) -> bool:
    """Whether everything that was checked matches."""
    return not result["mismatches"] and all(result[kind]["checked"] == result[kind]["matched"] for kind in KINDS)


def rows(result: Mapping[str, Any]) -> list[list[str]]:
    """The agreement as rows of a table: what, checked, matched."""
    return [[kind.replace("_", " "), f"{result[kind]['checked']:,}", f"{result[kind]['matched']:,}"] for kind in KINDS]


def summary(result: Mapping[str, Any]) -> str:
    """The figures as sentences."""
    return "\n".join(_sentences(result)) + "\n"


def _sentences(result: Mapping[str, Any]) -> Iterator[str]:
    sizes = {key: _size(result[key]) for key in TOTALS[:4]}
    yield f"at the end {sizes['allocated_bytes']} allocated, {sizes['reserved_bytes']} reserved"
    yield f"at most {sizes['peak_allocated_bytes']} allocated, {sizes['peak_reserved_bytes']} reserved"
    if result["inferred_blocks"]:
        yield f"{result['inferred_blocks']:,} blocks are older than the trace: their sizes were inferred"
    yield from (f"mismatch: {printable(text)}" for text in result["mismatches"])
    if (found := result.get("what_if")) is not None:
        yield from _answer(found)
    if (needed := result.get("needed_bytes")) is not None:
        yield "the same requests would have needed: " + ", ".join(f"{key} {_size(needed[key])}" for key in needed)


def _answer(found: Mapping[str, Any]) -> Iterator[str]:
    where = "" if found["capacity_bytes"] is None else f" on {_size(found['capacity_bytes'])}"
    verdict = "fits" if found["fits"] else "does not fit"
    yield f"with {found['settings'] or 'default settings'}{where}, older blocks {found['layout']}: it {verdict}"
    if not found["fits"]:
        at = "before the trace begins" if found["failed_at"] < 0 else f"at event {found['failed_at']:,}"
        yield f"  {at}: {found['message']}"
    yield (
        f"  at most {_size(found['peak_allocated_bytes'])} allocated, {_size(found['peak_reserved_bytes'])} reserved; "
        f"{found['num_device_alloc']:,} calls for memory, {found['num_alloc_retries']:,} retries"
    )
    if "least_capacity_bytes" in found:
        yield f"  the least that it fits on: {_size(found['least_capacity_bytes'])}"


def _size(size_bytes: int) -> str:
    return format_bytes(size_bytes, binary=True)


def plot_file(file: Path, out: Path, device: int | None) -> None:
    """Draw the memory of a snapshot, or of one device of a run's trace.

    Raises
    ------
    ScenarioError : no image that can be written.
    BadTraceFile, UnsupportedPlan : the file cannot be read or played.
    """
    if out.suffix not in IMAGES:
        fault = Fault(f"expected a file that ends in {', '.join(IMAGES)}, got {shown(str(out))}", "--out")
        raise ScenarioError.of([fault])
    timeline, title = _timeline(file, device)
    with saving(out):
        memory_plot.plot(timeline, title, out)


def write_snapshot(file: Path, out: Path) -> None:
    """Write a simulated run's trace as a snapshot of PyTorch's.

    Raises
    ------
    ScenarioError : it cannot be written.
    BadTraceFile, UnsupportedPlan : no trace of a run with PyTorch's allocator.
    """
    found = pytorch_snapshot.export(Trace.load(file))
    with saving(out):
        snapshots.dump(out, found)


def _is_trace(file: Path) -> bool:
    """Whether an ordinary file is an archive, as traces are."""
    try:
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(len(_ZIP)) == _ZIP
    except OSError as error:
        raise BadTraceFile(f"{printable(str(file))}: cannot be read: {error.strerror}") from None


def _timeline(file: Path, device: int | None) -> tuple[Timeline, str]:
    """The time line of a file, told apart by content, and a title."""
    if not _is_trace(file):
        return memory_timeline.of_snapshot(snapshots.read(file), device), printable(file.name)
    trace = Trace.load(file)
    names = trace.header["devices"]
    if device is None or not 0 <= device < len(names):
        listed = ", ".join(f"{index} ({name})" for index, name in enumerate(names))
        raise ScenarioError.of([Fault(f"expected one of {listed}", "--device")])
    return memory_timeline.of_trace(trace, device), f"{printable(file.name)}: {names[device]}"
