"""Trainings that are done, kept in the run folder until all are: an experiment that was stopped goes on where it was.

A training is found again by everything that it depends on: its scenario, task, rate and seed, and the versions at work.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from analysis.convergence import Run
from sim import VERSION

_IRRELEVANT = ("name", "converge")
"""Sections of a scenario that say which trainings there are, not what one of them does."""

Case = tuple[dict[str, Any], str, float, int]
"""The scenario of one method, its task, its learning rate and its seed."""


def once(folder: Path, case: Case, train: Callable[[], Run]) -> Run:
    """A training of an earlier run, or a new one, which is kept."""
    file = _kept(folder) / f"{_key(case)}.npz"
    if file.exists():
        with np.load(file) as columns:
            return Run(**columns)
    run = train()
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as stream:
        np.savez(stream, **run._asdict())
    part.replace(file)
    return run


def forget(folder: Path) -> None:
    """All are done, and written elsewhere."""
    shutil.rmtree(_kept(folder), ignore_errors=True)


def _kept(folder: Path) -> Path:
    return folder / "unfinished"


def _key(case: Case) -> str:
    scenario, *others = case
    relevant = {key: value for key, value in scenario.items() if key not in _IRRELEVANT}
    versions = VERSION, version("torch"), np.__version__
    text = json.dumps([relevant, others, versions], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
