"""How durations of a scenario vary, from its ``jitter``."""

from __future__ import annotations

import math
from pathlib import Path

from scenarios.document import Document
from scenarios.schema import Distribution as DistributionSection
from scenarios.schema import Jitter as JitterSection
from scenarios.text_file import read_text
from sim.distributions import Distribution
from sim.errors import Fault, ScenarioError
from sim.jitter import Jitter

_MOST_BYTES = 16 << 20


def jitter_of(section: JitterSection | None, document: Document) -> Jitter:
    """Who varies how.

    Raises
    ------
    ScenarioError : a file of measured times cannot be read.
    """
    if section is None:
        return Jitter()
    every = _simple(section.lognormal, section.uniform)
    if every is not None:
        return Jitter(every, every, every)
    return Jitter(
        *(
            None if (given := getattr(section, name)) is None else _distribution(given, document, f"jitter.{name}")
            for name in ("compute", "communication", "apply")
        )
    )


def _simple(lognormal: float | None, uniform: float | None) -> Distribution | None:
    if lognormal is not None:
        return Distribution("lognormal", lognormal)
    return None if uniform is None else Distribution("uniform", uniform)


def _distribution(section: DistributionSection, document: Document, path: str) -> Distribution:
    if section.exponential:
        return Distribution("exponential")
    if isinstance(section.empirical, str):
        file = document.directory(f"{path}.empirical") / section.empirical
        return Distribution("empirical", values=_read(file, f"{path}.empirical"))
    if section.empirical is not None:
        return Distribution("empirical", values=section.empirical)
    found = _simple(section.lognormal, section.uniform)
    assert found is not None
    return found


def _read(file: Path, path: str) -> tuple[float, ...]:
    """One time a line, in any unit."""
    values: list[float] = []
    for number, line in enumerate(read_text(file, "measured times, one a line", _MOST_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = float(line)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise ScenarioError.of(
                [Fault(f"expected a time above 0, got '{line.strip()[:40]}'", path, str(file), number)]
            )
        values.append(value)
    if len(values) < 2:
        raise ScenarioError.of([Fault(f"{len(values)} times: expected 2 or more", path, str(file))])
    return tuple(values)
