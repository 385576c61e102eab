"""A ragged table of integers, as two columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

IntColumn = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """A ragged table of integers: row ``i`` is ``values[starts[i]:starts[i + 1]]``."""

    starts: IntColumn
    values: IntColumn

    @classmethod
    def of(cls, rows: Sequence[Sequence[int] | IntColumn]) -> Rows:
        """Pack a list of rows."""
        sizes = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        values = np.concatenate([np.asarray(row, np.int64) for row in rows]) if len(rows) else np.empty(0, np.int64)
        return cls(np.concatenate([[0], np.cumsum(sizes)]), values)

    @classmethod
    def from_pairs(cls, owner: IntColumn, value: IntColumn, rows: int) -> Rows:
        """Row ``i`` collects ``value`` where ``owner == i``, in the order given."""
        by_owner = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=rows)
        return cls(np.concatenate([[0], np.cumsum(counts)]), value[by_owner])

    @classmethod
    def distinct(cls, owner: IntColumn, value: IntColumn, rows: int) -> Rows:
        """`from_pairs` without doubles, each row sorted; values are below ``rows`` too."""
        pairs = np.sort(owner * rows + value)
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])] if len(pairs) else pairs
        owner = pairs // rows
        return cls(np.searchsorted(owner, np.arange(rows + 1)), pairs % rows)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> IntColumn:
        return self.values[self.starts[row] : self.starts[row + 1]]

    def __iter__(self) -> Iterator[IntColumn]:
        return (self[row] for row in range(len(self)))

    def reversed(self) -> Rows:
        """Row ``j`` lists every ``i`` whose row holds ``j``; values are row numbers of the same table."""
        return Rows.from_pairs(self.values, self.owners, len(self))

    @cached_property
    def owners(self) -> IntColumn:
        """The row of each value."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))
