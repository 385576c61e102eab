"""Which package of Python's standard library is a line of source from? Windows of 48 characters of six packages.

The last module of each package in the order of names is for testing: no window of it is seen in training.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.torch.tasks import Task

PACKAGES = ("asyncio", "email", "importlib", "logging", "unittest", "xml")
WINDOW, STRIDE, WORDS = 48, 24, 128
MOST_EACH, TEST_EACH = 1200, 150
"""Windows of each package to train and to test on, spread over all its modules."""


def load() -> Task:
    """Characters by their ASCII numbers, others as 0."""
    train, test = list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    for package in PACKAGES:
        folder = Path(str(importlib.import_module(package).__file__)).parent
        *seen, unseen = sorted(folder.rglob("*.py"), key=lambda file: (file.stat().st_size > 4096, file.name))
        train.append(_spread(_windows(seen), MOST_EACH))
        test.append(_spread(_windows([unseen]), TEST_EACH))
    return Task(*_labelled(train), *_labelled(test))


def _windows(files: list[Path]) -> NDArray[np.int64]:
    text = b"\n".join(file.read_bytes() for file in files)
    characters = np.frombuffer(text, np.uint8).astype(np.int64)
    characters[characters >= WORDS] = 0
    return np.lib.stride_tricks.sliding_window_view(characters, WINDOW)[::STRIDE]


def _spread(windows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    chosen = np.linspace(0, len(windows) - 1, min(most, len(windows))).astype(np.int64)
    return windows[chosen]


def _labelled(by_package: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    labels = np.repeat(np.arange(len(by_package)), [len(windows) for windows in by_package])
    order = np.random.default_rng(0).permutation(len(labels))
    return np.concatenate(by_package)[order], labels[order]
