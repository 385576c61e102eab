"""The tables of ``parameter-servers.md``, computed and filled in between ``<!-- NAME -->`` and ``<!-- /NAME -->``.

``python -m docs.tables_parameter_servers``; ``--check`` writes nothing and fails where the page is out of date. The
measured series are those of CM-DARE (Apache-2.0), read where ``shared/data`` lies beside the repository.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from analysis.queueing import baselines
from analysis.queueing.disciplines import GRAINS, variation
from analysis.queueing.fit import Explanation, Series, extremes, fit
from analysis.queueing.holdout import Rule, holdout_error, mean_error, posterior_median
from analysis.text import duration, significant
from docs import tables_queueing
from docs.tables import fill, markdown
from scenarios.series import Group, read_series

PAGE = Path(__file__).parent / "parameter-servers.md"
MEASURED = Path(__file__).parents[2] / "shared" / "data" / "cm-dare" / "steps_per_second.csv"
UPTO, PREDICT = 4, 8


@cache
def _measured() -> list[Group]:
    return read_series(MEASURED, UPTO)


def _split(group: Group) -> tuple[Series, Series]:
    return group.series.upto(UPTO), group.series.beyond(UPTO)


def _errors(rule: Rule) -> list[float]:
    """Mean absolute error of each series, in percent."""
    splits = map(_split, _measured())
    return [100 * mean_error(rule(few, later.workers), later) for few, later in splits]


def _of_gpu(values: Sequence[float], gpu: str) -> float:
    return float(np.mean([value for value, group in zip(values, _measured(), strict=True) if _gpu(group) == gpu]))


def _gpu(group: Group) -> str:
    return dict(group.keys)["gpu"]


def fit_errors() -> str:
    """Of every series the mean absolute error from 4 workers at 5 to 8, beside the baselines."""
    rules: dict[str, Rule] = {
        "fit": posterior_median,
        "MVA": baselines.mva,
        "bound": baselines.bound,
        "Optimus": baselines.optimus,
    }
    errors = {name: _errors(rule) for name, rule in rules.items()}
    errors["held out"] = [100 * (holdout_error(_split(group)[0]) or math.nan) for group in _measured()]
    errors["covered"] = [100 * _covered(group) for group in _measured()]
    rows = [
        [" ".join((_gpu(group), dict(group.keys)["model"])), *(f"{errors[name][index]:.1f}" for name in errors)]
        for index, group in enumerate(_measured())
    ]
    means = [[f"mean {gpu}", *(f"{_of_gpu(errors[name], gpu):.1f}" for name in errors)] for gpu in ("k80", "p100")]
    return markdown(["series", *errors], [*rows, *means])


def _covered(group: Group) -> float:
    """Which part of the later readings lies in the 90 % interval."""
    few, later = _split(group)
    low, _, high = fit(few).predict(later.workers)
    return float(((low <= later.steps_per_s) & (later.steps_per_s <= high)).mean())


def fit_rules() -> str:
    """What other rules would have made of it, and which one the other series choose for each that is left out."""
    errors = {name: _errors(rule) for name, rule in _rules().items()}
    chosen = _chosen_by_others(errors)
    rows = [
        [
            name,
            *(f"{_of_gpu(found, gpu):.1f}" for gpu in ("k80", "p100")),
            f"{np.mean(found):.1f}",
            str(chosen.count(name)),
        ]
        for name, found in errors.items()
    ]
    return markdown(["rule", "K80", "P100", "all", "chosen"], rows)


def _rules() -> dict[str, Rule]:
    """Every discipline for all series, two ways to pick one for each, and ours."""
    return {
        **{_name(grains): _always(grains) for grains in GRAINS},
        "least residual": lambda few, workers: _always(_best_fitting(few))(few, workers),
        "least error held out": lambda few, workers: _always(_best_held_out(few))(few, workers),
        "posterior median": posterior_median,
    }


def _name(grains: float) -> str:
    return {1: "MVA", math.inf: "bound"}.get(grains, f"FCFS, cv {variation(grains):.2f}")


def _always(grains: float) -> Rule:
    return lambda few, workers: baselines.predict(grains, few, workers)


def _best_fitting(few: Series) -> float:
    def squares(grains: float) -> float:
        return float(((_always(grains)(few, few.workers) / np.array(few.steps_per_s) - 1) ** 2).sum())

    return min(GRAINS, key=squares)


def _best_held_out(few: Series) -> float:
    return min(GRAINS, key=lambda grains: holdout_error(few, _always(grains)) or math.inf)


def _chosen_by_others(errors: Mapping[str, Sequence[float]]) -> list[str]:
    """For every series the rule whose errors on all the others have the least mean."""
    return [
        min(errors, key=lambda rule: sum(errors[rule]) - errors[rule][left_out]) for left_out in range(len(_measured()))
    ]


def fit_undecided() -> str:
    """Two explanations of each series that its readings up to 4 workers do not tell apart."""
    rows = []
    for group in _measured():
        found = extremes(_split(group)[0], PREDICT)
        assert found is not None
        least, most = found
        cells = [significant(one.steps_per_s) for one in (least, most)] + [
            f"{most.steps_per_s / least.steps_per_s:.1f}"
        ]
        measured = significant(group.series.steps_per_s[PREDICT - 1])
        rows.append([" ".join((_gpu(group), dict(group.keys)["model"])), *map(_explained, found), *cells, measured])
    return markdown(["series", "least: cv, Z, D", "most: cv, Z, D", "least", "most", "ratio", "measured"], rows)


def _explained(one: Explanation) -> str:
    return f"{one.cv:.2f}, {duration(one.think_time_s)}, {duration(one.demand_s)}"


FIT: dict[str, Callable[[], str]] = {
    "fit-errors": fit_errors,
    "fit-rules": fit_rules,
    "fit-undecided": fit_undecided,
}
"""Those of measured series."""
TABLES = {**FIT, **tables_queueing.TABLES}


def main(arguments: Sequence[str]) -> int:
    """Fill the page; under ``--check`` say whether it is out of date."""
    parser = argparse.ArgumentParser(prog="python -m docs.tables_parameter_servers", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the page is out of date")
    given = parser.parse_args(arguments)
    page = PAGE.read_text("utf-8")
    filled = fill(page, {name: table() for name, table in TABLES.items()})
    if given.check:
        print("" if filled == page else f"{PAGE.name} is out of date\n", end="")
        return int(filled != page)
    PAGE.write_text(filled, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
