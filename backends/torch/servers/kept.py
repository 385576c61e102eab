"""A part of the parameters as a server keeps it: its values and momentum, who is in them, and what was sent of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import zmq
from torch import Tensor

from backends.torch.server_state import PartState
from backends.torch.servers.job import Array
from backends.torch.servers.wire import Change
from sim.training import Training


class Kept(PartState):
    """``newest``: by worker the newest step whose gradient is in here, so that none counts twice.

    What is ``on_the_way`` to workers shares the memory of the values.
    """

    def __init__(self, values: Tensor, training: Training) -> None:
        super().__init__(values, training)
        self.newest: dict[int, int] = {}
        self.on_the_way: list[zmq.MessageTracker] = []

    def holds(self, worker: int, number: int) -> bool:
        """Whether the gradient of that step is in here already."""
        return self.newest.get(worker, -1) >= number

    def change(self, what: Change, worker: int, number: int, gradient: Array | None) -> None:
        """Apply or add a gradient, or update with the mean."""
        if what is not Change.ADD:
            self._leave()
        if what is Change.MEAN:
            self.apply_mean()
        else:
            assert gradient is not None
            (self.add if what is Change.ADD else self.apply)(torch.from_numpy(gradient))
            self.newest[worker] = number

    def _leave(self) -> None:
        """Leave the memory to what is on the way still: that is the snapshot that was asked for."""
        if not all(tracker.done for tracker in self.on_the_way):
            self.values = self.values.clone()
        self.on_the_way.clear()

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """All there is to keep: JSON types, and arrays by name."""
        arrays = {"values": self.values, "velocity": self.velocity, "sum": self._sum}
        about = {"version": self.version, "added": self._added, "newest": sorted(self.newest.items())}
        return about, {name: tensor.numpy() for name, tensor in arrays.items() if tensor is not None}

    def restore(self, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Be as `state` found it."""
        self.version, self._added, self.newest = about["version"], about["added"], dict(about["newest"])
        self.values = torch.from_numpy(arrays["values"])
        self.velocity = torch.from_numpy(arrays["velocity"]) if "velocity" in arrays else None
        self._sum = torch.from_numpy(arrays["sum"]) if "sum" in arrays else None
