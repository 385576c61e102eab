"""The tables of queueing theory in ``parameter-servers.md``: what scenarios break, and how good the estimate is.

The networks of ``fork-join-simulated.csv`` were drawn by numpy's ``default_rng(101)`` after the estimate was fitted,
and simulated for 2·10⁵ steps each after a tenth as many: lognormal times, processor sharing, random starting phases.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.queueing import exact
from analysis.queueing.bunching import FITTED
from analysis.queueing.demands import BROKEN
from analysis.queueing.fork_join import ForkJoin, Section, bounds, estimates, intervals
from docs.tables import markdown

SIMULATED = Path(__file__).parent / "fork-join-simulated.csv"
APART = FITTED._replace(constant=-1e9)
"""Nothing bunches."""


class Case(NamedTuple):
    """A network of a download and an upload, and its simulated throughput."""

    workers: int
    think_s: float
    demands_s: tuple[float, float]
    variations: tuple[float, float, float]
    shares: Sequence[float]
    steps_per_s: float

    def step(self) -> ForkJoin:
        """As theory wants it."""
        sections = [
            Section(name, demand_s * np.array([self.shares]), np.array([variation]), np.ones(1))
            for name, demand_s, variation in zip(
                ("download", "upload"), self.demands_s, self.variations[1:], strict=True
            )
        ]
        return ForkJoin(self.think_s, self.variations[0], tuple(sections))


class Errors(NamedTuple):
    """Relative errors of what is expected of a network: in turn, the largest share, without bunching, and with it."""

    in_turn: float
    largest_share: float
    apart: float
    estimate: float


@cache
def simulated() -> list[Case]:
    """The recorded networks."""
    with SIMULATED.open(encoding="utf-8") as file:
        return [
            Case(
                workers=int(row["workers"]),
                think_s=float(row["think"]),
                demands_s=(float(row["download"]), float(row["upload"])),
                variations=(float(row["cv_think"]), float(row["cv_download"]), float(row["cv_upload"])),
                shares=[float(share) for share in row["shares"].split()],
                steps_per_s=float(row["steps_per_s"]),
            )
            for row in csv.DictReader(file)
        ]


def expected(case: Case) -> Errors:
    """Steps/s by each way."""
    step, workers = case.step(), case.workers
    networks = step.one_after_another(), step.largest_share()
    rates = [exact.solve(network, workers).throughput_per_s for network in networks]
    rates += [estimates(step, workers, fitted)[-1].throughput_per_s for fitted in (APART, FITTED)]
    return Errors(*rates)


def _is_told(case: Case) -> bool:
    """Whether the simulation lies in the estimate's interval."""
    low, high = intervals(case.step(), case.workers)[-1]
    return low <= case.steps_per_s <= high


def fork_join_errors() -> str:
    """Mean, 95th percentile and most of the absolute errors, over groups of the recorded networks."""
    cases = [case for case in simulated() if len(case.shares) > 1]
    errors = 100 * np.abs([[rate / case.steps_per_s - 1 for rate in expected(case)] for case in cases])
    knees = np.array([bounds(case.step(), case.workers).knee for case in cases])
    workers = np.array([case.workers for case in cases])
    varied = np.array([max(case.variations[1:]) for case in cases])
    told = np.array([_is_told(case) for case in cases])
    equal = np.array([len(set(case.shares)) == 1 for case in cases])
    groups = {
        "all with several servers": np.ones(len(cases), bool),
        "equal shares": equal,
        "skewed shares": ~equal,
        "workers up to the knee": workers <= knees,
        "workers beyond the knee": workers > knees,
        "variation of links up to .2": varied <= 0.2,
        "variation of links above .2": varied > 0.2,
    }
    rows = [
        [
            name,
            str(int(chosen.sum())),
            *(_spread(column) for column in errors[chosen].T),
            _share(errors[chosen, -1] < 5),
            _share(told[chosen]),
        ]
        for name, chosen in groups.items()
    ]
    ways = ["in turn", "largest share", "no bunching", "estimate"]
    return markdown(["networks", "", *ways, "within 5 %", "within its interval"], rows)


def _spread(errors: NDArray[np.float64]) -> str:
    return f"{errors.mean():.1f} / {np.quantile(errors, 0.95):.1f} / {errors.max():.1f}"


def _share(holds: NDArray[np.bool_]) -> str:
    return f"{100 * holds.mean():.1f} %"


FACTS = {
    (1.0,): {4: 3.090, 8: 4.170},
    (0.5, 0.5): {1: 1.233, 4: 4.37, 8: 6.77},
    (0.8, 0.2): {4: 3.556, 8: 5.08},
    (0.25,) * 4: {1: 1.408, 4: 5.40, 8: 9.95},
}
"""Simulated steps/s by shares and workers: Z = .6, download and upload .2 each, variation .1."""


def fork_join_facts() -> str:
    """The estimate beside simulations of others."""
    rows = []
    for shares, by_workers in FACTS.items():
        for workers, steps_per_s in by_workers.items():
            case = Case(workers, 0.6, (0.2, 0.2), (0.1, 0.1, 0.1), shares, steps_per_s)
            rates = expected(case)
            cells = [f"{rate:.3f}" for rate in (steps_per_s, *rates)]
            rows.append(
                [
                    " ".join(f"{share:g}" for share in shares),
                    str(workers),
                    *cells,
                    f"{100 * (rates.estimate / steps_per_s - 1):+.1f} %",
                ]
            )
    columns = ["shares", "workers", "simulated", "in turn", "largest share", "no bunching", "estimate", "off"]
    return markdown(columns, rows)


def assumptions() -> str:
    """What a scenario can break, as `twinrail queue predict` names it."""
    rule = "\n".join(f"| `{key}` | {text} |" for key, text in BROKEN.items())
    return f"| broken assumption | what that means |\n| --- | --- |\n{rule}"


TABLES: dict[str, Callable[[], str]] = {
    "queue-assumptions": assumptions,
    "fork-join-errors": fork_join_errors,
    "fork-join-facts": fork_join_facts,
}
