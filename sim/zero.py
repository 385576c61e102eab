"""ZeRO: data-parallel replicas that share what all of them would hold alike (Rajbhandari et al., arXiv 1910.02054).

Each of R replicas holds 1/R of the optimizer state from stage 1 on, of the gradients from 2 on, of the parameters at 3,
and updates its share. Gradients are summed by a reduce-scatter, one round of the ring (`sim.ring`); the other round of
an all-reduce is spent on gathering the parameters after the update. At stage 3 they are gathered before each layer's
forward instead, and again before its backward: three rounds, 1.5 times the bytes of an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sim.memory.buffers import BufferKind
from sim.model import Layer, ModelProfile

SHARED_FROM: Mapping[BufferKind, int] = {BufferKind.OPTIMIZER: 1, BufferKind.GRADIENTS: 2, BufferKind.WEIGHTS: 3}
"""The stage from which on the replicas share what they hold of a kind."""


def held(kind: BufferKind, stage: int, replicas: int, whole_bytes: float, at_work_bytes: float = 0.0) -> float:
    """Bytes that a replica holds of ``whole_bytes``: its share, and the rest of what is at work, which is whole."""
    if stage < SHARED_FROM[kind]:
        return whole_bytes
    return whole_bytes / replicas + at_work_bytes * (1 - 1 / replicas)


def gathering(profile: ModelProfile, gather_s: Callable[[float], float]) -> ModelProfile:
    """The model at stage 3: both passes of a layer wait until its parameters are gathered, ``gather_s`` of so many."""

    def waiting(layer: Layer) -> Layer:
        seconds = gather_s(layer.parameter_bytes / profile.parameter_bytes_each) if layer.parameter_bytes else 0.0
        return replace(layer, forward_s=layer.forward_s + seconds, backward_input_s=layer.backward_input_s + seconds)

    return replace(profile, layers=tuple(waiting(layer) for layer in profile.layers))
