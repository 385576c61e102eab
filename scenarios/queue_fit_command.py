"""``twinrail queue fit``: demands and discipline from measured throughput, and what they predict for more workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.queueing import baselines, traced
from analysis.queueing.fit import LEVELS, Posterior, Series, extremes, fit
from analysis.queueing.holdout import holdout_error, mean_error
from analysis.queueing.network import Floats
from analysis.queueing.terms import Terms, linear
from analysis.text import duration, percent, significant
from scenarios.quantities import printable
from scenarios.series import MOST_WORKERS, PHASES, Group, Keys, read_series, read_steps
from sim.errors import Fault, ScenarioError

_MODEL = frozenset({"model", "model_mb", "model_bytes", "tensors"})
_BATCH = frozenset({"batch"})


@dataclass(frozen=True)
class _Fitted:
    group: Group
    posterior: Posterior


def fit_series(path: Path, upto: int | None, predict: int | None, steps: Path | None) -> dict[str, Any]:
    """Every series of a file fitted to its readings of at most ``upto`` workers (all), as JSON holds it.

    Predictions go to ``predict`` workers (twice as many). Readings of more workers than ``upto`` only score them.
    ``steps``: recorded steps of one worker, for the trace-driven baseline.

    Raises
    ------
    ScenarioError : every fault of the files and options.
    """
    groups = read_series(path, upto)
    last = upto or max(group.series.workers[-1] for group in groups)
    wanted = 2 * last if predict is None else predict
    if not last < wanted <= 2 * MOST_WORKERS:
        message = f"expected more than the {last} workers that are fitted and at most {2 * MOST_WORKERS}, got {wanted}"
        raise ScenarioError.of([Fault(message, "--predict")])
    recorded = read_steps(steps, groups) if steps is not None else {}
    fitted = [_Fitted(group, fit(group.series.upto(last))) for group in groups]
    return {
        "file": printable(str(path)),
        "upto": last,
        "predict": wanted,
        "groups": [_group(one, last, wanted, recorded.get(one.group.keys)) for one in fitted],
        "demand_terms": list(_demand_terms(fitted)),
        "think_time_terms": list(_think_terms(fitted)),
    }


def _group(fitted: _Fitted, last: int, wanted: int, steps: Floats | None) -> dict[str, Any]:
    """What is known of a series, and what its later readings say of it."""
    group, posterior = fitted.group, fitted.posterior
    series, later = group.series.upto(last), group.series.beyond(last)
    workers = tuple(range(1, wanted + 1))
    low, predicted, high = posterior.predict(workers)
    others = {
        "mva": baselines.mva(series, workers),
        "bound": baselines.bound(series, workers),
        "optimus": baselines.optimus(series, workers, group.attributes.get("servers", 1.0)),
    }
    if steps is not None:
        others["trace"] = traced.predict(steps, tuple(PHASES.values()), workers)
    demands = {"think_time_s": posterior.think_s, "demand_s": posterior.demand_s, "cv": posterior.variation}
    quantiles = {name: np.quantile(draws, LEVELS).tolist() for name, draws in demands.items()}
    return {
        "group": dict(group.keys),
        "readings": len(series.workers),
        "parameters": {name: middle for name, (_, middle, _) in quantiles.items()},
        "parameter_interval": {name: [low, high] for name, (low, _, high) in quantiles.items()},
        "discipline": posterior.discipline,
        "predicted": _by_workers(workers, predicted),
        "interval": _by_workers(workers, np.stack([low, high], axis=1)),
        "baselines": {name: _by_workers(workers, found) for name, found in others.items()},
        "holdout_error": holdout_error(series),
        "equally_good": _equally_good(series, wanted),
        "measured": _score({"fit": predicted, **others}, low, high, later, wanted),
    }


def _by_workers(workers: Sequence[int], values: Floats) -> dict[str, Any]:
    return {str(count): value for count, value in zip(workers, values.tolist(), strict=True)}


def _equally_good(series: Series, workers: int) -> list[dict[str, Any]] | None:
    found = extremes(series, workers)
    return None if found is None else [asdict(explanation) for explanation in found]


def _score(
    predicted: Mapping[str, Floats], low: Floats, high: Floats, later: Series, wanted: int
) -> dict[str, Any] | None:
    """Readings that were not looked at: mean absolute error of each rule, and the part within the interval."""
    scored = later.upto(wanted)
    if not scored.workers:
        return None
    places = np.array(scored.workers) - 1
    readings = np.array(scored.steps_per_s)
    within = (low[places] <= readings) & (readings <= high[places])
    return {
        "steps_per_s": _by_workers(scored.workers, readings),
        "mean_error": {name: mean_error(found[places], scored) for name, found in predicted.items()},
        "within_interval": float(within.mean()),
    }


def _demand_terms(fitted: Sequence[_Fitted]) -> Iterable[dict[str, Any]]:
    """D over bytes and tensors, where several models met the same server."""
    for keys, members in _families(fitted, _MODEL | _BATCH):
        sizes = [{name: one.group.attributes.get(name) for name in ("model_bytes", "tensors")} for one in members]
        columns = {
            "per_byte_s": [size["model_bytes"] for size in sizes],
            "per_tensor_s": [size["tensors"] for size in sizes],
        }
        yield from _terms(keys, [one.posterior.demand_s for one in members], columns)


def _think_terms(fitted: Sequence[_Fitted]) -> Iterable[dict[str, Any]]:
    """Z over the batch, where one model was measured with several."""
    for keys, members in _families(fitted, _BATCH):
        batches = [one.group.attributes.get("batch") for one in members]
        yield from _terms(keys, [one.posterior.think_s for one in members], {"per_sample_s": batches})


def _families(fitted: Sequence[_Fitted], varying: frozenset[str]) -> Iterable[tuple[Keys, list[_Fitted]]]:
    """Series that agree in all keys but ``varying``."""
    found: dict[Keys, list[_Fitted]] = {}
    for one in fitted:
        found.setdefault(tuple(key for key in one.group.keys if key[0] not in varying), []).append(one)
    return found.items()


def _terms(
    keys: Keys, demands_s: Sequence[Floats], columns: Mapping[str, Sequence[float | None]]
) -> Iterable[dict[str, Any]]:
    """The terms of those columns that take several values; nothing where the series cannot tell them apart."""
    varying = {name: [value or 0.0 for value in values] for name, values in columns.items() if len({*values}) > 1}
    terms = linear(demands_s, {"per_step_s": [1.0] * len(demands_s), **varying}) if varying else None
    if terms is not None:
        yield {"group": dict(keys), "series": len(demands_s), **_terms_json(terms)}


def _terms_json(terms: Terms) -> dict[str, Any]:
    return {
        "parameters": {name: middle for name, (_, middle, _) in terms.coefficients.items()},
        "parameter_interval": {name: [low, high] for name, (low, _, high) in terms.coefficients.items()},
        "left_out_error": terms.left_out_error,
    }


def rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The series as a table: columns, and a row each."""
    names = [*result["groups"][0]["baselines"]]
    scored = any(group["measured"] for group in result["groups"])
    columns = ["series", "think", "demand", "cv", f"steps/s at {result['predict']}", "90 %", "held out"]
    columns += [f"error: {name}" for name in ("fit", *names)] if scored else []
    return [*columns, "discipline"], [_row(group, str(result["predict"]), names, scored) for group in result["groups"]]


def _row(group: Mapping[str, Any], wanted: str, names: Sequence[str], scored: bool) -> list[str]:
    parameters, (low, high) = group["parameters"], group["interval"][wanted]
    errors = group["measured"]["mean_error"] if group["measured"] else {}
    return [
        printable(" ".join(group["group"].values())) or "all",
        *(duration(parameters[key]) for key in ("think_time_s", "demand_s")),
        significant(parameters["cv"]),
        significant(group["predicted"][wanted]),
        f"{significant(low)}–{significant(high)}",
        _percent(group["holdout_error"]),
        *([_percent(errors.get(name)) for name in ("fit", *names)] if scored else []),
        group["discipline"],
    ]


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share)


def summary(result: Mapping[str, Any]) -> str:
    """What the demands are made of, and how sure all this is."""
    lines = [
        f"fitted to at most {result['upto']} workers; 'held out': each reading predicted from those of fewer workers"
    ]
    for what, kind in (("demand", "demand_terms"), ("think time", "think_time_terms")):
        lines += [
            f"{what}{_of(terms['group'])}: {_sum(terms['parameters'])}{_left_out(terms['left_out_error'])}"
            for terms in result[kind]
        ]
    return "\n".join(lines) + "\n"


def _of(keys: Mapping[str, str]) -> str:
    return printable(f" of {' '.join(keys.values())}") if keys else ""


def _sum(parameters: Mapping[str, float]) -> str:
    units = {
        "per_step_s": (1.0, ""),
        "per_byte_s": (1e6, " a MB"),
        "per_tensor_s": (1.0, " a tensor"),
        "per_sample_s": (1.0, " a sample"),
    }
    return " + ".join(f"{duration(value * units[name][0])}{units[name][1]}" for name, value in parameters.items())


def _left_out(error: float | None) -> str:
    return "" if error is None else f" (a series left out: {percent(error)} off)"
