"""Everything that can go wrong, as one tree.

    TwinrailError
    ├── ScenarioError      the input is wrong: every fault at once           exit 2
    ├── InvalidSchedule    an order nobody can execute, with its grid        exit 2
    ├── UnsupportedPlan    this backend or planner cannot honour the plan    exit 2
    ├── BadTraceFile       a file that is no trace of ours                   exit 2
    ├── InfeasibleBudget   no plan fits into the memory that was given       exit 2
    └── RunFailed          the input was fine, the run was not               exit 1
        ├── OutOfMemory      device, request, what held the memory
        ├── Deadlock         each blocked op and what it waits for
        ├── BackendFailure   a worker died, hung or raised
        └── BrokenInvariant  the simulator caught itself: bytes, capacity, order

Each is built from one message string (SimPy rebuilds exceptions from ``args``); attributes are set after.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar


class TwinrailError(Exception):
    """Any failure that a user should read; never shown with a traceback."""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with an input file.

    Parameters
    ----------
    message : what is wrong, in the words of the field, with the unit or values expected.
    path : where in the document, dotted (``schedule.stages``); empty for the whole file.
    file, line : where on disk, the line counted from 1; ``None`` where there is none.
    suggestion : what to write instead, or ``None``.
    """

    message: str
    path: str = ""
    file: str | None = None
    line: int | None = None
    suggestion: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        text = ": ".join(part for part in (place, self.path, self.message) if part)
        return f"{text} ({self.suggestion})" if self.suggestion else text


class ScenarioError(TwinrailError):
    """The input is wrong. ``faults`` holds every fault found, in file order."""

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.faults: tuple[Fault, ...] = tuple(faults) or (Fault(message),)

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> ScenarioError:
        """An error that lists all ``faults``, one a line."""
        return cls("\n".join(str(fault) for fault in faults), faults)


class InvalidSchedule(TwinrailError):
    """An order that cannot be executed. ``op`` names the first faulty op, ``grid`` shows it."""

    op: str = ""
    grid: str = ""


class UnsupportedPlan(TwinrailError):
    """A backend, planner or pass that cannot honour the plan says so instead of approximating."""


class BadTraceFile(TwinrailError):
    """A file that is not a trace, or one that is damaged."""


class InfeasibleBudget(TwinrailError):
    """No checkpoint plan fits; ``least_bytes`` is the least that one needs."""

    least_bytes: float = 0.0


class RunFailed(TwinrailError):
    """The input was right and the run still failed."""

    exit_code = 1


class OutOfMemory(RunFailed):
    """A device had no room for an allocation."""

    device: str = ""
    requested_bytes: int = 0
    live_bytes: int = 0
    capacity_bytes: int = 0


class Deadlock(RunFailed):
    """Work is left and nothing can move. ``blocked`` maps each op to what it waits for."""

    blocked: dict[str, str]


class BackendFailure(RunFailed):
    """A worker of a real backend died, hung or raised."""


class BrokenInvariant(RunFailed):
    """A law that every run must obey was broken: a defect of Twinrail, reported as one."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """``did you mean 'x'?`` for the closest of ``known``, or ``None`` where nothing is close."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean '{match[0]}'?" if match else None
