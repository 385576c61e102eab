"""``twinrail packets``: demands from captures, how to capture, and captures of simulated runs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

from pydantic import BeforeValidator, Field

from analysis.packets import synthesis, timeline_plot
from analysis.packets.endpoints import parse_servers
from analysis.packets.reading import Reading, read
from analysis.packets.synthesis import MOST_SEGMENT, SEGMENT
from analysis.text import duration, significant
from backends.base import load
from scenarios.compose import Composed, compose
from scenarios.document import Document
from scenarios.load import dump, nearest_file
from scenarios.packets_scenario import loaded_servers, scenario_of
from scenarios.quantities import Seconds, WrongValue, format_bytes, printable, shown
from scenarios.run_folder import read_points, to_json, writing
from scenarios.strict import Section, check
from scenarios.text_file import saving
from sim.errors import Fault, RunFailed, ScenarioError, nearest

SNAPLEN = 128
"""Bytes captured of each packet: headers with IPv6, VLAN and TCP options fit."""


def _read_yaml(value: object) -> object:
    if not str(value).endswith((".yaml", ".yml")):
        raise WrongValue(f"expected a file that ends in .yaml, got {shown(value)}")
    return value


def _read_capture(value: object) -> object:
    if not str(value).endswith(".pcap"):
        raise WrongValue(f"expected a file that ends in .pcap, got {shown(value)}")
    return value


class ReadOptions(Section):
    """What can be known or wanted of a capture, each key an option of the command line."""

    model_bytes: Annotated[int, Field(ge=1, le=10**15)] | None = None
    compute: Seconds | None = None
    yaml: Annotated[str, BeforeValidator(_read_yaml)] | None = None


class CaptureOptions(Section):
    """How to capture."""

    port: Annotated[int, Field(ge=1, le=65535)] = synthesis.PORT
    interface: Annotated[str, Field(min_length=1)] = "any"
    node: str | None = None


class SynthesizeOptions(Section):
    """How a run is captured."""

    out: Annotated[str, BeforeValidator(_read_capture)]
    segment: Annotated[int, Field(ge=64, le=MOST_SEGMENT)] = SEGMENT


S = TypeVar("S", bound=Section)


def _checked(kind: type[S], given: Mapping[str, object], more: Sequence[Fault] = ()) -> S:
    options, wrongs = check(kind, {key: value for key, value in given.items() if value is not None})
    faults = [
        Fault(wrong.message, f"--{str(wrong.path[0]).replace('_', '-')}", suggestion=wrong.suggestion)
        for wrong in wrongs
    ]
    if options is None or faults or more:
        raise ScenarioError.of([*more, *faults])
    return options


def read_file(
    file: str,
    servers: Sequence[str],
    given: Mapping[str, object],
    each_connection: bool,
    out: Path | None,
    progress: Callable[[int], object],
) -> dict[str, Any]:
    """What a capture tells, as JSON holds it; ``-`` is standard input.

    ``given`` are the options as written. ``out`` is a folder for the time line and the result; ``yaml`` in ``given`` a
    file for a scenario with the demands found.

    Raises
    ------
    ScenarioError : every fault of the options; the file cannot be read; no server's packets are in it.
    """
    faults, known = list[Fault](), []
    try:
        known = parse_servers(servers)
    except ScenarioError as error:
        faults += error.faults
    options = _checked(ReadOptions, given, faults)
    name = printable(file)
    with ExitStack() as stack:
        opened: BinaryIO = sys.stdin.buffer if file == "-" else stack.enter_context(_open(file))
        try:
            reading = read(opened, known, options.model_bytes, each_connection, options.compute, progress)
        except OSError as error:
            raise ScenarioError.of([Fault(f"cannot be read: {error.strerror}", file=name)]) from None
        except ScenarioError as error:
            raise ScenarioError.of(
                [Fault(f.message, f.path, name, suggestion=f.suggestion) for f in error.faults]
            ) from None
    _write(reading, name, options, out)
    return dict(reading.result)


def _open(file: str) -> BinaryIO:
    try:
        return open(file, "rb")
    except OSError as error:
        hint = nearest_file(Path(file)) if isinstance(error, FileNotFoundError) else None
        raise ScenarioError.of(
            [Fault(f"cannot be read: {error.strerror}", file=printable(file), suggestion=hint)]
        ) from None
    except ValueError as error:
        raise ScenarioError.of([Fault(f"cannot be read: {error}", file=printable(file))]) from None


def _write(reading: Reading, name: str, options: ReadOptions, out: Path | None) -> None:
    """The files that were asked for."""
    if out and not reading.steps:
        raise ScenarioError.of([Fault("nothing to draw: the capture holds no complete step", "--out", name)])
    if options.yaml and not loaded_servers(reading):
        raise ScenarioError.of([Fault("no server's demands are known, so there is no scenario", "--yaml", name)])
    if out is not None:
        with writing(out):
            (out / "result.json").write_text(to_json(reading.result), encoding="utf-8")
            timeline_plot.plot(reading, name, out / "timeline.png")
    if options.yaml is not None:
        with saving(options.yaml, "--yaml"):
            Path(options.yaml).write_text(dump(scenario_of(reading, name)), encoding="utf-8")


WORKER_COLUMNS = ("worker", "steps", "download", "compute", "upload", "apply", "overlap", "step", "down", "up", "again")
SERVER_COLUMNS = ("server", "steps", "downlink demand", "uplink demand", "apply demand", "down", "up", "again")


def worker_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Workers as rows of a table: mean times of a step, bytes of the whole capture."""
    times = ("download_s", "compute_s", "upload_s", "apply_s", "overlap_s", "step_s")
    return [
        [worker["address"], f"{worker['steps']:,}", *(_time(worker[key]) for key in times), *_sizes(worker)]
        for worker in result["workers"]
    ]


def server_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Servers as rows of a table: seconds that a step needs of each of their stations."""
    return [
        [
            server["address"],
            f"{server['steps']:,}",
            *(_demand(server["demand_s"][station]) for station in ("downlink", "uplink", "apply")),
            *_sizes(server),
        ]
        for server in result["servers"]
    ]


def _sizes(row: Mapping[str, Any]) -> list[str]:
    return [format_bytes(row[key]) for key in ("bytes_down", "bytes_up", "retransmitted_bytes")]


def _time(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _demand(estimate: Mapping[str, float | None] | None) -> str:
    """A mean with its 95 % interval as a share of it."""
    if estimate is None or estimate["mean"] is None:
        return ""
    text = duration(estimate["mean"])
    if estimate["high"] is None or not estimate["mean"]:
        return text
    return f"{text} ± {100 * (estimate['high'] / estimate['mean'] - 1):.1f} %"


def summary(result: Mapping[str, Any]) -> str:
    """The rest as sentences."""
    return "".join(f"{line}\n" for line in _sentences(result))


def _sentences(result: Mapping[str, Any]) -> Iterator[str]:
    if result["think_time_s"] is not None:
        rate = "" if result["steps_per_s"] is None else f"; {significant(result['steps_per_s'])} steps/s of all workers"
        yield f"think time {_demand(result['think_time_s'])}{rate}"
        sizes = (f"{format_bytes(size)} {way}" for way, size in result["step_bytes"].items())
        yield f"a step moves {' and '.join(sizes)}"
    yield f"{result['packets']:,} packets, {result['unreadable_records']:,} unreadable records"
    yield from (f"note: {note}" for note in result["notes"])


def commands(document: Document, given: Mapping[str, object]) -> dict[str, list[str]]:
    """The command that captures on each node of a scenario with parameter servers, or on the one that is asked for.

    Raises
    ------
    ScenarioError : every fault of the options or the scenario.
    """
    options = _checked(CaptureOptions, given)
    nodes = list(dict.fromkeys(_composed(document).binding.devices))
    if options.node is not None and options.node not in nodes:
        hint = nearest(options.node, nodes)
        message = f"no node '{options.node}' in the plan: there are {', '.join(nodes)}"
        raise ScenarioError.of([Fault(message, "--node", suggestion=hint)])
    wanted = nodes if options.node is None else [options.node]
    return {node: _tcpdump(node, options) for node in wanted}


def _tcpdump(node: str, options: CaptureOptions) -> list[str]:
    """Headers only, times in nanoseconds, a buffer of 64 MiB so that bursts are not dropped."""
    fixed = ["-n", "-s", str(SNAPLEN), "--time-stamp-precision=nano", "-B", "65536"]
    return ["tcpdump", "-i", options.interface, *fixed, "-w", f"{node}.pcap", f"tcp port {options.port}"]


def line(command: Sequence[str]) -> str:
    """A command as a shell takes it."""
    return shlex.join(command)


def capture(command: Sequence[str]) -> None:
    """Run a capture here until it is interrupted.

    Raises
    ------
    RunFailed : there is no tcpdump, or it failed.
    """
    if shutil.which(command[0]) is None:
        raise RunFailed(f"{command[0]} is not installed here: install it, or run the printed command where it is")
    try:
        status = subprocess.run(command, check=False).returncode
    except KeyboardInterrupt:  # tcpdump has been interrupted too, and writes what it has
        return
    if status:
        raise RunFailed(f"{command[0]} ended with status {status}: capturing needs root, or the capability cap_net_raw")


def synthesize(document: Document, given: Mapping[str, object]) -> dict[str, Any]:
    """Simulate a scenario and write the capture that its run would have produced.

    Raises
    ------
    ScenarioError : every fault of the options or the scenario; the file cannot be written.
    UnsupportedPlan : no parameter server, or too many packets.
    """
    options = _checked(SynthesizeOptions, given)
    scenario = read_points(document)[0].scenario
    plan, binding = _composed(document)
    trace = load(scenario.backend).execute(plan, binding, scenario.seed)
    transfers = synthesis.of_trace(trace, binding.cluster)
    records = synthesis.synthesize(transfers, options.segment)
    with saving(options.out):
        synthesis.write(records, Path(options.out))
    servers = synthesis.addresses(1 + max(transfer.server for transfer in transfers))
    return {
        "file": options.out,
        "packets": len(records),
        "workers": 1 + max(transfer.worker for transfer in transfers),
        "servers": servers,
        "read_with": line(["twinrail", "packets", "read", options.out, *(f"--server={each}" for each in servers)]),
    }


def _composed(document: Document) -> Composed:
    points = read_points(document)
    if len(points) > 1:
        raise ScenarioError(f"this scenario holds a sweep of {len(points)} points: choose one with --set sweep=null")
    return compose(points[0].scenario, points[0].document)
