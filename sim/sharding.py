"""Which server keeps which variables, and what travels between a worker and a server as one transfer.

Variables stand in the order of their creation, weights before their biases, as a framework numbers them. A rule maps
them to servers, whole or in slices:

- ``round_robin``: one after the other (TensorFlow's default). With an even number of servers all weights of a network
  of weights and biases land on every other server.
- ``greedy``: each to the server with the fewest bytes so far (tf_cnn_benchmarks).
- ``even``: variables of a million elements or more in equal slices on all servers, each other one on a server chosen by
  its number (MXNet's kvstore).
- ``best_fit``: by decreasing size; those larger than an even share are cut into shares, tiny ones go where the fewest
  are, the others where they leave the least room (Optimus; Peng et al., EuroSys 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from sim.model import ModelProfile

EVEN_ELEMENTS = 10**6
"""From this size on ``even`` cuts a variable (MXNET_KVSTORE_BIGARRAY_BOUND)."""
TINY = 0.01
"""Below this share of an even share ``best_fit`` counts a variable by number, not by size."""


class Variable(NamedTuple):
    """A parameter tensor of a layer."""

    layer: int
    elements: float


class Slice(NamedTuple):
    """Elements ``start`` to ``stop`` of a variable."""

    variable: int
    start: float
    stop: float

    @property
    def elements(self) -> float:
        """How many there are."""
        return self.stop - self.start


class Part(NamedTuple):
    """What travels as one transfer: slices of variables of some layers, in the order of creation, on one server."""

    server: int
    layers: tuple[int, ...]
    slices: tuple[Slice, ...]

    @property
    def elements(self) -> float:
        """Parameters in it."""
        return sum(piece.elements for piece in self.slices)


Shards = tuple[tuple[Slice, ...], ...]
"""For each server its slices, in the order of creation."""
Rule = Literal["round_robin", "greedy", "even", "best_fit"]


def variables_of(profile: ModelProfile) -> tuple[Variable, ...]:
    """The variables of a model, in the order of creation."""
    each = profile.parameter_bytes_each
    return tuple(
        Variable(number, size_bytes / each)
        for number, layer in enumerate(profile.layers)
        for size_bytes in layer.variable_bytes
    )


def shard(variables: Sequence[Variable], servers: int, rule: Rule | Mapping[int, int]) -> Shards:
    """The variables on their servers by a rule, or explicitly by layer."""
    placed = _explicit(variables, rule) if isinstance(rule, Mapping) else _RULES[rule](variables, servers)
    shards: list[list[Slice]] = [[] for _ in range(servers)]
    for server, piece in placed:
        shards[server].append(piece)
    return tuple(tuple(sorted(pieces)) for pieces in shards)


Placed = Iterable[tuple[int, Slice]]


def _explicit(variables: Sequence[Variable], server_of: Mapping[int, int]) -> Placed:
    return ((server_of[each.layer], Slice(number, 0, each.elements)) for number, each in enumerate(variables))


def _round_robin(variables: Sequence[Variable], servers: int) -> Placed:
    return ((number % servers, Slice(number, 0, each.elements)) for number, each in enumerate(variables))


def _greedy(variables: Sequence[Variable], servers: int) -> Placed:
    held = [0.0] * servers
    for number, variable in enumerate(variables):
        server = held.index(min(held))
        held[server] += variable.elements
        yield server, Slice(number, 0, variable.elements)


def _even(variables: Sequence[Variable], servers: int) -> Placed:
    for number, variable in enumerate(variables):
        if variable.elements < EVEN_ELEMENTS:
            yield number * 9973 % servers, Slice(number, 0, variable.elements)
            continue
        cuts = [variable.elements * server // servers for server in range(servers)]
        for server, (start, stop) in enumerate(zip(cuts, [*cuts[1:], variable.elements], strict=True)):
            yield server, Slice(number, start, stop)


def _best_fit(variables: Sequence[Variable], servers: int) -> Placed:
    share = math.ceil(sum(variable.elements for variable in variables) / servers)
    held, count = [0.0] * servers, [0] * servers

    def place(server: int, piece: Slice) -> tuple[int, Slice]:
        held[server] += piece.elements
        count[server] += 1
        return server, piece

    for number in sorted(range(len(variables)), key=lambda number: -variables[number].elements):
        elements = variables[number].elements
        if elements < TINY * share:
            yield place(count.index(min(count)), Slice(number, 0, elements))
            continue
        start = 0
        while elements - start > share:
            yield place(held.index(min(held)), Slice(number, start, start + share))
            start += share
        rest = elements - start
        fitting = [server for server in range(servers) if held[server] + rest <= share]
        server = max(fitting, key=held.__getitem__) if fitting else held.index(min(held))
        yield place(server, Slice(number, start, elements))


_RULES: Mapping[Rule, Callable[[Sequence[Variable], int], Placed]] = {
    "round_robin": _round_robin,
    "greedy": _greedy,
    "even": _even,
    "best_fit": _best_fit,
}


def whole(shards: Shards, variables: Sequence[Variable]) -> tuple[Part, ...]:
    """One part for each server that keeps something."""
    return tuple(_part(server, pieces, variables) for server, pieces in enumerate(shards) if pieces)


def by_layer(shards: Shards, variables: Sequence[Variable], bucket_elements: float) -> tuple[Part, ...]:
    """A part for each slice, small neighbours on one server together up to a bucket; in the order of their layers."""
    parts: list[Part] = []
    for server, pieces in enumerate(shards):
        bucket: list[Slice] = []
        for piece in pieces:
            if bucket and sum(each.elements for each in bucket) + piece.elements > bucket_elements:
                parts.append(_part(server, bucket, variables))
                bucket = []
            bucket.append(piece)
        if bucket:
            parts.append(_part(server, bucket, variables))
    return tuple(sorted(parts, key=lambda part: part.slices))


def _part(server: int, pieces: Sequence[Slice], variables: Sequence[Variable]) -> Part:
    return Part(server, tuple(sorted({variables[piece.variable].layer for piece in pieces})), tuple(pieces))


def held(shards: Shards) -> tuple[float, ...]:
    """Parameters on each server."""
    return tuple(sum(piece.elements for piece in pieces) for pieces in shards)


def imbalance(shards: Shards) -> float:
    """The most that a server keeps over the mean: from 1, all the same, to the number of servers, all on one."""
    sizes = held(shards)
    return max(sizes) * len(sizes) / sum(sizes) if sum(sizes) else 1.0
