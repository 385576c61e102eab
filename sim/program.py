"""Plans whose order depends on time: actors that yield steps, and a policy that holds their requests.

An actor is a generator of steps. It knows no clock: whoever hosts it runs the op of a `Do` and resumes the actor when
the op has ended; hands an `Ask` to the policy and resumes the actor with the policy's answer when that releases it;
starts the branch of a `Begin` beside the actor, and holds a `Wait` until branches have ended. So a test can step an
actor by hand, and the simulator and a real coordinator host the same actors and the same policy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from sim.memory.buffers import BufferEvent
from sim.ops import Lane, OpId
from sim.schedule import Shape
from sim.sharding import Part


class Op(NamedTuple):
    """One op as an actor yields it: name, lanes it holds, where its bytes go, what it reads, writes and allocates.

    ``reads`` and ``writes`` may be `sim.op_table.UNSET`: the run counts the versions. Of those that wait for one lane
    the op of the least ``rank`` is next, of equals the one that asked first.
    """

    id: OpId
    lanes: tuple[Lane, ...]
    source: int
    target: int = -1
    reads: int = -1
    writes: int = -1
    memory: tuple[BufferEvent, ...] = ()
    rank: int = 0


class Do(NamedTuple):
    """Run an op; resume when it has ended."""

    op: Op


class Ask(NamedTuple):
    """Tell the policy that ``actor`` reached ``event`` at its step ``clock``; resume with its answer.

    ``part`` is what the event is about, where each part of the parameters has events of its own.
    """

    event: str
    actor: str
    clock: int
    part: int = -1


class Begin(NamedTuple):
    """Start a branch beside the actor, known to it by ``key``; resume at once."""

    key: int
    branch: Actor


class Wait(NamedTuple):
    """Resume when the branches of these keys have ended; one that was never begun has."""

    keys: tuple[int, ...]


class Lost(Exception):
    """Thrown into an actor whose device died and is back: what was under way on it came to nothing."""


Actor = Generator[Do | Ask | Begin | Wait, int, None]


class Released(NamedTuple):
    """A request that the policy lets go on, and its answer."""

    request: Ask
    answer: int = 0


class Policy(Protocol):
    """Shared state of a program: a pure, picklable state machine."""

    def on(self, request: Ask) -> list[Released]:
        """Take one request in; return the requests, old or new, that it releases."""
        ...


class Layout(NamedTuple):
    """What is where in a program of several parameter servers.

    Parameters
    ----------
    workers, background : how many train, and how many belong to a second job: devices 0, 1, … in this order.
    servers : the devices of the servers, after these.
    parts : what travels as one transfer; ``OpId.part`` of pulls, pushes and updates is the number of one.
    blocks : the first and the last layer of each part of a pass; ``OpId.part`` of passes where there are several.
    consistency, bound : ``asp``, ``bsp``, ``ssp`` (bound) or ``backup`` (workers to spare).
    snapshot : when a server reads what it sends.
    order, window_bytes : in which order one connection sends; ``window``: all at once, each so much a round trip.
    """

    workers: int
    background: int
    servers: tuple[int, ...]
    parts: tuple[Part, ...]
    blocks: tuple[tuple[int, int], ...]
    consistency: Literal["asp", "bsp", "ssp", "backup"]
    bound: int
    snapshot: Literal["on_request", "on_delivery"]
    order: Literal["fifo", "reverse", "priority", "window"]
    window_bytes: float = 0.0

    @property
    def sums(self) -> bool:
        """Whether a server updates once for all workers."""
        return self.consistency in ("bsp", "backup")


@dataclass(frozen=True)
class Program:
    """Actors and the policy between them.

    ``actors`` maps a name to a function that starts the actor afresh; ``policy`` makes a fresh policy; ``placement``
    maps (stage, replica) to the device that computes it. ``server`` is the device of the one parameter server: one of
    these, or the one after them, a host; ``update`` says who updates the weights. Several servers have a ``layout``.
    ``homes`` is the device that an actor dies and comes back with. The run is over when all actors have come to their
    end but those in ``endless``.
    """

    shape: Shape
    placement: Mapping[tuple[int, int], int]
    actors: Mapping[str, Callable[[], Actor]]
    policy: Callable[[], Policy]
    weights: str = "latest"
    distances: tuple[tuple[int, int], ...] = ()
    predict: str = ""
    server: int | None = None
    update: Literal["server", "worker"] = "server"
    layout: Layout | None = None
    homes: Mapping[str, int] = field(default_factory=dict)
    endless: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.shape.check()
