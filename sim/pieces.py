"""What a buffer is made of: an allocator places what each layer has of it by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from sim.memory.buffers import BufferKind
from sim.model import Layer, ModelProfile, total
from sim.partition import Partition

Shares = tuple[tuple[str, float], ...]
"""Layers by name, and in what proportion they share a buffer."""

OF_PARAMETERS = (
    BufferKind.WEIGHTS,
    BufferKind.GRADIENTS,
    BufferKind.OPTIMIZER,
    BufferKind.STASHED_WEIGHTS,
    BufferKind.PREDICTED_WEIGHTS,
    BufferKind.PUSHED_GRADIENT,
)


class Piece(NamedTuple):
    """What one layer has of a buffer; no name where it belongs to a stage as a whole."""

    layer: str
    size_bytes: int


def shares(
    profile: ModelProfile, partition: Partition, checkpoints: Sequence[Sequence[int]] = ()
) -> Mapping[tuple[BufferKind, int], Shares]:
    """The layers of every kind of buffer of every stage; what passes between stages is one tensor, and left out.

    ``checkpoints``: see `sim.binding.Figures`. Of what is recomputed the largest segment counts.
    """
    found: dict[tuple[BufferKind, int], Shares] = {}
    for stage, (first, last) in enumerate(partition):
        layers = saved = profile.layers[first : last + 1]
        if checkpoints:
            kept = checkpoints[stage]
            segments = [layers[start : end - 1] for start, end in pairwise(kept)]
            saved = max(segments, key=lambda segment: total(segment, "saved_bytes"), default=())
            found[BufferKind.CHECKPOINT, stage] = _by([layers[vertex - 1] for vertex in kept[1:]], "saved_bytes")
        found[BufferKind.ACTIVATION, stage] = _by(saved, "saved_bytes")
        found[BufferKind.WEIGHT_STATE, stage] = _by(layers, "weight_state_bytes")
        found |= {(kind, stage): _by(layers, "parameter_bytes") for kind in OF_PARAMETERS}
    return found


def _by(layers: Sequence[Layer], field: str) -> Shares:
    return tuple((layer.name, float(getattr(layer, field))) for layer in layers)


def split(size_bytes: int, among: Shares) -> tuple[Piece, ...]:
    """A buffer in pieces of whole bytes that add up to it; those without a byte are left out."""
    whole = sum(share for _, share in among)
    if not whole:
        return (Piece("", size_bytes),) if size_bytes else ()
    pieces, upto, begin = list[Piece](), 0.0, 0
    for layer, share in among:
        upto += share
        end = round(size_bytes * (upto / whole)) if upto < whole else size_bytes
        if end > begin:
            pieces.append(Piece(layer, end - begin))
        begin = max(begin, end)
    return tuple(pieces)
