"""Traces of PyTorch's profiler (Kineto, Chrome JSON), read without PyTorch and without trust.

What is used of ``torch.profiler.profile(record_shapes=True, with_stack=True, profile_memory=True)``, exported by
``export_chrome_trace``: spans of ``nn.Module`` calls (``python_function``), of operators (``cpu_op``: sequence number,
sizes and types of inputs) and of ``Optimizer.step``; on a GPU also kernels, each joined by its correlation to the call
that launched it; and the memory events of ``profile_memory``. Times of a trace are microseconds.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scenarios.load import nearest_file
from scenarios.quantities import printable
from sim.errors import Fault, ScenarioError

_MOST_BYTES = 256 << 20
_MOST_VALUES = 1 << 25
"""Of a file that is read as a whole: in memory each value takes some 100 bytes, however few it takes in the file."""
_MOST_FAULTS = 10
_LARGEST = 1e18
_WHAT = "a trace of torch.profiler"
MODULE, STEP, BACKWARD = "nn.Module: ", "Optimizer.step#", "autograd::engine::evaluate_function: "
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")

Thread = tuple[int | str, int | str]


class Span(NamedTuple):
    """Something that a thread did from ``start_us`` until ``end_us``."""

    name: str
    thread: Thread
    start_us: float
    end_us: float
    arguments: Mapping[str, Any]


class Allocation(NamedTuple):
    """Bytes that a thread allocated, negative where it freed them."""

    thread: Thread
    at_us: float
    size_bytes: int
    on_gpu: bool


@dataclass(frozen=True)
class Recording:
    """A trace: spans in the order of their starts, what surrounds others first.

    ``kernels`` are at the time and on the thread of their launch, as long as they ran.
    """

    modules: Sequence[Span]
    ops: Sequence[Span]
    steps: Sequence[Span]
    kernels: Sequence[Span]
    memory: Sequence[Allocation]
    device: str
    file: str


def read(path: Path) -> Recording:
    """The trace in a file, which gzip may have packed.

    Raises
    ------
    ScenarioError : no such file, none of PyTorch's profiler, spans that are none; each fault with its place.
    """
    file = printable(str(path))
    try:
        data = json.loads(_content(path, file), strict=False)
    except (ValueError, RecursionError) as error:
        at = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise ScenarioError.of([Fault(f"no JSON, or cut short: expected {_WHAT}", file=file, line=at)]) from None
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise ScenarioError.of([Fault(f"no traceEvents: expected {_WHAT}", file=file)])
    reader = _Reader()
    for number, event in enumerate(events):
        if isinstance(event, dict) and not reader.take(event):
            reader.faults.append(Fault("not what the profiler writes of such an event", f"traceEvents.{number}", file))
    if faults := reader.faults:
        more = [Fault(f"{len(faults) - _MOST_FAULTS} more such events", file=file)] if faults[_MOST_FAULTS:] else []
        raise ScenarioError.of([*faults[:_MOST_FAULTS], *more])
    return reader.recording(_device(data), file)


def _content(path: Path, file: str) -> bytes:
    try:
        if not path.is_file():
            message = f"no ordinary file: expected {_WHAT}" if path.exists() else "no such file"
            raise ScenarioError.of([Fault(message, file=file, suggestion=nearest_file(path))])
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            content = gzip.GzipFile(fileobj=raw).read(_MOST_BYTES + 1) if packed else raw.read(_MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise ScenarioError.of([Fault("a damaged gzip file", file=file)]) from None
    except OSError as error:
        raise ScenarioError.of([Fault(f"cannot be read: {error.strerror}", file=file)]) from None
    if len(content) > _MOST_BYTES:
        message = f"more than {_MOST_BYTES >> 20} MiB, unpacked: more than is read"
        raise ScenarioError.of([Fault(message, file=file, suggestion="profile fewer steps")])
    if sum(map(content.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        message = f"more than {_MOST_VALUES} values: more than is read"
        raise ScenarioError.of([Fault(message, file=file, suggestion="profile fewer steps")])
    return content


def _device(data: Mapping[str, Any]) -> str:
    """The name of the first GPU, as the trace says it."""
    devices = data.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return printable(name)[:100] if isinstance(name, str) else "GPU"


class _Reader:
    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.modules: list[Span] = []
        self.ops: list[Span] = []
        self.steps: list[Span] = []
        self.memory: list[Allocation] = []
        self.launches: dict[int, Span] = {}
        self.kernels: list[Span] = []

    def take(self, event: dict[str, Any]) -> bool:
        """Keep an event that matters; whether it is as it should be."""
        phase, category, name = event.get("ph"), event.get("cat"), event.get("name")
        if phase == "i" and name == "[memory]":
            return self.allocation(event)
        if phase != "X" or not isinstance(category, str):
            return True
        if category == "cpu_op":
            return self.keep(self.ops, event)
        if category == "python_function" and str(name).startswith(MODULE):
            return self.keep(self.modules, event)
        if category == "user_annotation" and str(name).startswith(STEP):
            return self.keep(self.steps, event)
        return category not in (*_LAUNCHES, *_KERNELS) or self.correlated(event, category)

    def keep(self, spans: list[Span], event: dict[str, Any]) -> bool:
        if span := _span(event):
            spans.append(span)
        return span is not None

    def correlated(self, event: dict[str, Any], category: str) -> bool:
        span = _span(event)
        number = span.arguments.get("correlation") if span else None
        if span and type(number) is int:
            if category in _LAUNCHES:
                self.launches[number] = span
            else:
                self.kernels.append(span)
        return span is not None and (type(number) is int or category in _LAUNCHES)

    def allocation(self, event: dict[str, Any]) -> bool:
        span, arguments = _span({**event, "dur": 0}), event.get("args")
        if span is None or not isinstance(arguments, dict):
            return False
        size, device = arguments.get("Bytes"), arguments.get("Device Type")
        if not isinstance(size, int) or abs(size) > _LARGEST or not isinstance(device, int):
            return False
        self.memory.append(Allocation(span.thread, span.start_us, size, device != 0))
        return True

    def recording(self, device: str, file: str) -> Recording:
        launched = [
            Span(kernel.name, launch.thread, launch.start_us, launch.start_us + kernel.end_us - kernel.start_us, {})
            for kernel in self.kernels
            if (launch := self.launches.get(kernel.arguments["correlation"]))
        ]
        return Recording(
            modules=sorted(self.modules, key=_order),
            ops=sorted(self.ops, key=_order),
            steps=sorted(self.steps, key=_order),
            kernels=sorted(launched, key=_order),
            memory=self.memory,
            device=device if launched else "cpu",
            file=file,
        )


def _order(span: Span) -> tuple[float, float]:
    return span.start_us, -span.end_us


def _span(event: dict[str, Any]) -> Span | None:
    name, arguments, process, thread = (event.get(key) for key in ("name", "args", "pid", "tid"))
    start_us, length_us = _number(event.get("ts")), _number(event.get("dur"))
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        return None
    if not isinstance(process, int | str) or not isinstance(thread, int | str):
        return None
    if start_us is None or length_us is None or length_us < 0:
        return None
    return Span(name, (process, thread), start_us, start_us + length_us, arguments or {})


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST else None
