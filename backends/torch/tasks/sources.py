"""What does a line of source do: assign, call, define, decide, import or return? Lines of Python's standard library.

The label is that of Python's own parser. Every fifth module is for testing: no line of it is seen in training.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.torch.tasks import Task

PACKAGES = ("asyncio", "email", "http", "importlib", "json", "logging", "multiprocessing", "unittest", "urllib", "xml")
KINDS: tuple[tuple[type[ast.stmt], ...], ...] = (
    (ast.Assign, ast.AugAssign, ast.AnnAssign),
    (ast.Expr,),
    (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    (ast.If,),
    (ast.Import, ast.ImportFrom),
    (ast.Return,),
)
"""The statements of each class; of expressions only calls count, for the others are mostly texts."""
CHARACTERS, WORDS = 48, 128
MOST_EACH, TEST_EACH, TEST_OF = 1000, 60, 5
"""Lines of each class to train and to test on, spread over all modules, and which share of modules is for testing."""


def load() -> Task:
    """The first characters of each line without its indentation, by their ASCII numbers, others and none as 0."""
    lines: tuple[list[list[str]], ...] = tuple([[] for _ in KINDS] for _ in range(2))
    for number, file in enumerate(_files()):
        for kind, line in _statements(file.read_text("utf-8")):
            lines[number % TEST_OF == TEST_OF - 1][kind].append(line)
    train, test = (
        [_spread(each, most) for each in found] for found, most in zip(lines, (MOST_EACH, TEST_EACH), strict=True)
    )
    return Task(*_labelled(train), *_labelled(test))


def _files() -> Iterator[Path]:
    for package in PACKAGES:
        folder = Path(str(importlib.import_module(package).__file__)).parent
        yield from sorted(folder.rglob("*.py"))


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The kind and the first line of each statement."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        for kind, types in enumerate(KINDS):
            if isinstance(node, types) and (not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call)):
                yield kind, lines[node.lineno - 1].strip()


def _spread(lines: list[str], most: int) -> NDArray[np.int64]:
    chosen = [lines[place] for place in np.linspace(0, len(lines) - 1, min(most, len(lines))).astype(int).tolist()]
    rows = np.zeros((len(chosen), CHARACTERS), np.int64)
    for row, line in zip(rows, chosen, strict=True):
        numbers = np.array([ord(character) for character in line[:CHARACTERS]], np.int64)
        row[: len(numbers)] = np.where(numbers < WORDS, numbers, 0)
    return rows


def _labelled(by_class: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    labels = np.repeat(np.arange(len(by_class)), [len(lines) for lines in by_class])
    order = np.random.default_rng(0).permutation(len(labels))
    return np.concatenate(by_class)[order], labels[order]
