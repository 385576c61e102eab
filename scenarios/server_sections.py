"""The sections of a scenario with parameter servers: how they keep and serve the parameters, who is slow, who fails."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue

from scenarios.consistency import MAX_COUNT
from scenarios.quantities import SIZE, Bytes, BytesPerSecond, Seconds, WrongValue, shown
from scenarios.strict import Many, Section
from sim.errors import nearest

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
RULES = ("round_robin", "greedy", "even", "best_fit")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_COUNT


def _word_or_pair(value: Any, words: tuple[str, ...], keys: tuple[str, ...], expected: str) -> tuple[str, Any]:
    """A word as (word, ``None``), a mapping of one key as (key, value)."""
    if isinstance(value, str) and value in words:
        return value, None
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in keys:
        return next(iter(value.items()))
    written = next(iter(value), "") if isinstance(value, dict) else value
    raise WrongValue(f"expected {expected}, got {shown(value)}", nearest(str(written), (*words, *keys)))


def _read_consistency(value: object) -> tuple[str, int]:
    expected = "asp, bsp, {ssp: steps ahead} or {backup: workers to spare}"
    word, bound = _word_or_pair(value, ("asp", "bsp"), ("ssp", "backup"), expected)
    if bound is not None and not _is_count(bound, 0 if word == "ssp" else 1):
        raise WrongValue(f"expected a whole number of {'steps' if word == 'ssp' else 'workers'}, got {shown(bound)}")
    return word, bound or 0


def _read_order(value: object) -> tuple[str, float]:
    expected = "fifo, reverse, priority or {window: 64 KiB}"
    word, window = _word_or_pair(value, ("fifo", "reverse", "priority"), ("window",), expected)
    if window is None:
        return word, 0.0
    size_bytes = SIZE.read(window)
    if not isinstance(size_bytes, float) or not size_bytes:
        raise WrongValue(f"expected a size above 0, such as 64 KiB, got {shown(window)}")
    return word, size_bytes


def _read_sharding(value: object) -> object:
    expected = f"{', '.join(RULES)}, or {{explicit: {{layer: server}}}}"
    word, servers = _word_or_pair(value, RULES, ("explicit",), expected)
    if servers is None:
        return word
    if not isinstance(servers, dict) or not servers or not all(_is_count(each, 0) for each in servers.values()):
        raise WrongValue(f"expected layers and numbers of servers, such as {{conv0: 0}}, got {shown(servers)}")
    return servers


def _read_nic(value: object) -> object:
    return {"worker": value, "server": value} if isinstance(value, str) else value


def _one_key(key: str, schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"type": "object", "properties": {key: schema}, "required": [key], "additionalProperties": False}


_WHOLE: JsonSchemaValue = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
Consistency = Annotated[
    tuple[Literal["asp", "bsp", "ssp", "backup"], int],
    BeforeValidator(_read_consistency),
    WithJsonSchema({"anyOf": [{"enum": ["asp", "bsp"]}, _one_key("ssp", _WHOLE), _one_key("backup", _WHOLE)]}),
]
Order = Annotated[
    tuple[Literal["fifo", "reverse", "priority", "window"], float],
    BeforeValidator(_read_order),
    WithJsonSchema({"anyOf": [{"enum": ["fifo", "reverse", "priority"]}, _one_key("window", SIZE.json_schema())]}),
]
_EXPLICIT: JsonSchemaValue = {"type": "object", "additionalProperties": _WHOLE}
Sharding = Annotated[
    Literal["round_robin", "greedy", "even", "best_fit"] | dict[str, int],
    BeforeValidator(_read_sharding),
    WithJsonSchema({"anyOf": [{"enum": [*RULES]}, _one_key("explicit", _EXPLICIT)]}),
]
"""A rule of `sim.sharding`, or the server of each layer."""


class Nic(Section):
    """What the network card of a worker and of a server carries, in and out; unlimited unless given."""

    worker: BytesPerSecond | None = None
    server: BytesPerSecond | None = None


Nics = Annotated[Nic, BeforeValidator(_read_nic)]


class Apply(Section):
    """What a core of a server takes to apply a gradient; the memory bandwidth of its host decides unless given."""

    bandwidth: BytesPerSecond | None = None
    per_tensor: Seconds | None = None


class ParameterServers(Section):
    """Servers that keep the parameters: as many as the cluster has hosts, unless ``count`` says fewer."""

    count: Count | None = None
    sharding: Sharding = "round_robin"
    cores: Count = 1
    discipline: Literal["fcfs", "processor_sharing"] = "fcfs"
    apply: Apply | None = None


class Background(Section):
    """A second job on the same servers, which lasts as long as the first: the last workers of the cluster are its own.

    ``parameters`` lie on all servers in equal parts; ``compute`` is what a worker takes between pull and push.
    """

    workers: Count = Field(description="how many workers it has")
    parameters: Bytes = Field(description="the size of its parameters")
    compute: Seconds = Field(description="the time that a worker of it computes in a step")


class Straggler(Section):
    """A worker that computes ``factor`` times as long: one by name, or any with a probability at each of its steps."""

    worker: str | None = None
    probability: Annotated[float, Field(gt=0, le=1)] | None = None
    factor: Annotated[float, Field(gt=0, le=1000)] = Field(description="by what its compute time is multiplied")


class Failure(Section):
    """A node that is down for a while, or a link that carries less, both ways."""

    one_of = (("node", "down"), ("link", "bandwidth", "for"))
    at: Seconds = Field(description="when it happens")
    node: str | None = None
    down: Seconds | None = None
    link: Annotated[Many[str], Field(min_length=2, max_length=2)] | None = None
    bandwidth: BytesPerSecond | None = None
    lasts: Seconds | None = Field(default=None, alias="for")
