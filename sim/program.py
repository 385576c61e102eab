"""Plans whose order depends on time: actors that yield ops, and a policy that holds their requests.

An actor is a generator of steps. It knows no clock: a backend runs the op of a `Do` and resumes the actor when the op
has ended, or hands an `Ask` to the policy and resumes the actor when the policy releases it. So a test can step an
actor by hand, and the simulator and a real coordinator host the same policy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from sim.memory.buffers import BufferEvent
from sim.ops import Lane, OpId
from sim.schedule import Shape


class Op(NamedTuple):
    """One op as an actor yields it: name, lanes it holds, where its bytes go, what it reads, writes and allocates."""

    id: OpId
    lanes: tuple[Lane, ...]
    source: int
    target: int = -1
    reads: int = -1
    writes: int = -1
    memory: tuple[BufferEvent, ...] = ()


class Do(NamedTuple):
    """Run an op; resume when it has ended."""

    op: Op


class Ask(NamedTuple):
    """Tell the policy that ``actor`` reached ``event`` at its step ``clock``; resume when it releases the request."""

    event: str
    actor: str
    clock: int


Actor = Generator[Do | Ask, None, None]


class Policy(Protocol):
    """Shared state of a program: a pure, picklable state machine."""

    def on(self, request: Ask) -> list[Ask]:
        """Take one request in; return the requests, old or new, that it releases."""
        ...


@dataclass(slots=True)
class BulkSynchronous:
    """The barrier of synchronous training (bsp).

    Workers ask ``applied`` when their gradient of a step has been added, the server asks ``gathered`` before it
    updates and ``updated`` after. The server proceeds when all workers have applied, the workers when it has updated.
    """

    workers: int
    _applied: dict[int, list[Ask]] = field(default_factory=dict)
    _gathering: dict[int, Ask] = field(default_factory=dict)

    def on(self, request: Ask) -> list[Ask]:
        """See `Policy.on`."""
        step = request.clock
        if request.event == "updated":
            return [*self._applied.pop(step), request]
        if request.event == "applied":
            self._applied.setdefault(step, []).append(request)
        else:
            self._gathering[step] = request
        complete = len(self._applied.get(step, ())) == self.workers and step in self._gathering
        return [self._gathering.pop(step)] if complete else []


@dataclass(frozen=True)
class Program:
    """Actors and the policy between them.

    ``actors`` maps a name to a function that starts the actor afresh; ``policy`` makes a fresh policy; ``placement``
    maps (stage, replica) to the device that computes it. ``server`` is the device of the parameter server: one of
    these, or the one after them, a host; ``update`` says who updates the weights.
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

    def __post_init__(self) -> None:
        self.shape.check()
