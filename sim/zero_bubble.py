"""Zero bubble (arXiv 2401.10241): orders of forward, input gradient and weight gradient on a straight pipeline.

The micro-batches of a mini-batch pass every stage in their order, so the order of a stage is a word over F, I and W
(the paper's F, B and W), such as ``FFIFIWIWW``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, product

from sim.assembly import ScheduleBuilder
from sim.errors import UnsupportedPlan
from sim.ops import OpId, OpKind
from sim.schedule import Schedule, Shape
from sim.stage_costs import StageCosts

WARM_UPS = 16
"""Lengths of warm-up that the search tries, from that of 1F1B to a tenth more than the wait for the first gradient."""

ROUNDINGS = (0.0, 0.5, 1 - 1e-9)
"""Down, nearest, up: from time to a number of forwards."""

PATIENCES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How long a wait must be for the search to put a weight gradient there, as parts of its time."""

KINDS = {"F": OpKind.FORWARD, "I": OpKind.BACKWARD_INPUT, "W": OpKind.BACKWARD_WEIGHT}

_ROUNDING = 1e-9


def schedule(shape: Shape, words: Sequence[str]) -> Schedule:
    """Stage k, on GPU k, runs ``words[k]`` in every mini-batch, then updates."""
    builder = ScheduleBuilder(shape)
    for stage, word in enumerate(words):
        gpu = builder.lane(stage, "compute")
        for mini_batch in range(shape.mini_batches):
            micro_batch = {letter: count(mini_batch * shape.micro_batches) for letter in KINDS}
            for letter in word:
                builder.add(gpu, OpId(KINDS[letter], stage, next(micro_batch[letter])))
            builder.add(gpu, OpId(OpKind.UPDATE, stage, mini_batch))
    return builder.build()


def by_hand(shape: Shape, depth: int) -> list[str]:
    """The words of ZB-H1 (``depth`` 1) and ZB-H2 (2) of the paper.

    Stage k of N runs ``depth``·(N − 1 − k) forwards ahead, and the weight gradient of micro-batch j − ``depth``·k right
    after the input gradient of j.
    """
    words = []
    for stage in range(shape.stages):
        warm_up = min(depth * (shape.stages - 1 - stage), shape.micro_batches)
        late = min(depth * stage, shape.micro_batches)
        steady = (
            "F" * (warm_up + number < shape.micro_batches) + "I" + "W" * (number >= late)
            for number in range(shape.micro_batches)
        )
        words.append("F" * warm_up + "".join(steady) + "W" * late)
    return words


def searched(shape: Shape, memory_limit: float, costs: StageCosts | None) -> Schedule:
    """The schedule with the shortest longest stage span that the heuristic of the paper (section 3.1) finds.

    Stages run forwards until about the first gradient comes, then an input gradient and a forward in turn, put weight
    gradients where they would wait or have no room, and run the rest of them at the end. How many forwards, and how
    long a wait, is tried over a grid; ZB-H1 and ZB-H2 compete where they fit.

    Parameters
    ----------
    memory_limit : of every stage, in activations of one micro-batch on it: a forward takes one, an input gradient
        leaves the weight state of it, a weight gradient frees that.
    costs : ``None``: every pass takes as long, transfers are free, and the weight state is the whole activation.

    Raises
    ------
    UnsupportedPlan : not even one micro-batch at a time fits.
    """
    shape.check()
    pipeline = _Pipeline(shape, costs or StageCosts.equal(shape.stages), memory_limit)
    best_s, words = math.inf, list[str]()
    for stages in pipeline.candidates():
        pipeline.play(stages, best_s)
        if (span_s := max(stage.span_s for stage in stages)) < best_s:
            best_s, words = span_s, ["".join(stage.word) for stage in stages]
        if best_s <= pipeline.least_span_s() + _ROUNDING * best_s:
            break
    return schedule(shape, words)


class _Pipeline:
    """What the search knows: costs, and for each stage how far away the others are."""

    def __init__(self, shape: Shape, costs: StageCosts, memory_limit: float) -> None:
        self.shape, self.micro_batches = shape, shape.micro_batches
        self.costs, self.memory_limit = costs, memory_limit
        held = zip(costs.weight_state_bytes, costs.activation_bytes, strict=True)
        self.weight_states = [state / activation if activation else 1.0 for state, activation in held]
        if memory_limit < (least := max(1.0, *self.weight_states)):
            raise UnsupportedPlan(f"memory_limit = {memory_limit:g}: one micro-batch alone needs {least:g}")
        self._both_s = [sum(pair) for pair in zip(costs.forward_s, costs.backward_input_s, strict=True)]
        sends = zip(self._both_s, costs.send_activation_s, costs.send_gradient_s[1:], strict=False)
        self._depth_s = list(accumulate(map(sum, sends), initial=0.0))

    def least_span_s(self) -> float:
        """No order has a shorter longest span: some stage must wait for all passes of another, there and back."""
        work_s = [
            self.micro_batches * (both_s + weight_s)
            for both_s, weight_s in zip(self._both_s, self.costs.backward_weight_s, strict=True)
        ]
        from_first_s = [
            depth_s + self.micro_batches * both_s for depth_s, both_s in zip(self._depth_s, self._both_s, strict=True)
        ]
        return max(*work_s, *from_first_s)

    def candidates(self) -> Iterator[list[_Stage]]:
        """Stages to play: those of the orders by hand, and of every warm-up and patience."""
        for depth in (1, 2):
            stages = [_Given(self, *word) for word in enumerate(by_hand(self.shape, depth))]
            if all(stage.fits for stage in stages):
                yield [*stages]
        for warm_up, patience in product(self._warm_ups(), PATIENCES):
            yield [_Stage(self, number, forwards, patience) for number, forwards in enumerate(warm_up)]

    def _warm_ups(self) -> Iterator[list[int]]:
        """Forwards in flight at most on each stage."""
        fitting = list(self._fitting())
        longest = min(math.ceil(1.1 * fitting[0]), self.micro_batches)
        shortest = min(len(fitting) - 1, int(self.memory_limit) - 1, longest)
        tried: list[list[int]] = []
        for step, rounding in product(range(WARM_UPS + 1), ROUNDINGS):
            further = shortest + step * max((longest - shortest) / WARM_UPS, 1.0)  # on stage 0
            parts = [fit / fitting[0] if fitting[0] else 0.0 for fit in fitting]
            warm_up = [min(int(1 + further * part + rounding), self.micro_batches) for part in parts]
            if further <= longest + _ROUNDING and warm_up not in tried:
                tried.append(warm_up)
                yield warm_up

    def _fitting(self) -> Iterator[float]:
        """How many further forwards each stage can end before the gradient of its first one comes."""
        slowest_s = accumulate(self.costs.forward_s, max)
        for depth_s, both_s, forward_s in zip(self._depth_s, self._both_s, slowest_s, strict=True):
            away_s = self._depth_s[-1] - depth_s + self._both_s[-1] - both_s
            yield away_s / forward_s if forward_s else self.micro_batches

    def play(self, stages: Sequence[_Stage], limit_s: float) -> None:
        """Play stages to the end, or until a span is sure to reach ``limit_s``."""
        stages[0].inputs_s.extend([0.0] * self.micro_batches)
        pending = [stages[0]]
        while pending:
            stage = pending.pop()
            while (end := stage.step()) is not None:
                letter, end_s = end
                if stage.span_s >= limit_s:
                    return
                if letter == "F" and stage.number < len(stages) - 1:
                    after = stages[stage.number + 1]
                    after.inputs_s.append(end_s + self.costs.send_activation_s[stage.number])
                    pending.append(after)
                elif letter == "F":
                    stage.gradients_s.append(end_s)
                elif letter == "I" and stage.number:
                    before = stages[stage.number - 1]
                    before.gradients_s.append(end_s + self.costs.send_gradient_s[stage.number])
                    pending.append(before)


class _Stage:
    """A stage while it is played: ``inputs_s`` and ``gradients_s`` come at these times, as far as they are known."""

    def __init__(self, pipeline: _Pipeline, number: int, warm_up: int, patience: float) -> None:
        costs = pipeline.costs
        self.number, self.warm_up, self.micro_batches = number, warm_up, pipeline.micro_batches
        self.room, self.weight_state = pipeline.memory_limit + _ROUNDING, pipeline.weight_states[number]
        passes_s = costs.forward_s, costs.backward_input_s, costs.backward_weight_s
        self.seconds = dict(zip("FIW", (column[number] for column in passes_s), strict=True))
        self.patience_s = patience * self.seconds["W"]
        self.inputs_s, self.gradients_s = list[float](), list[float]()
        self.word: list[str] = []
        self.done = dict.fromkeys("FIW", 0)
        self.clock_s = 0.0
        self.span_s = self.micro_batches * sum(self.seconds.values())  # grows with every wait

    def step(self) -> tuple[str, float] | None:
        """Run the next pass: its letter and its end. ``None``: not known yet when it can start, or all is done."""
        letter = self._wanted()
        if letter != "W":
            arrivals_s = self.inputs_s if letter == "F" else self.gradients_s
            if self.done[letter] == len(arrivals_s):
                return None
            wait_s = arrivals_s[self.done[letter]] - self.clock_s
            if wait_s > 0:
                if self._owed and wait_s >= self.patience_s:
                    letter = "W"
                else:
                    self.clock_s += wait_s
                    self.span_s += wait_s if self.word else 0.0
        elif not self._owed:
            return None
        self.word.append(letter)
        self.done[letter] += 1
        self.clock_s += self.seconds[letter]
        return letter, self.clock_s

    @property
    def _owed(self) -> int:
        """Weight gradients that may run."""
        return self.done["I"] - self.done["W"]

    def _wanted(self) -> str:
        in_flight, owed = self.done["F"] - self.done["I"], self._owed
        held = in_flight + owed * self.weight_state
        if in_flight < self.warm_up and self.done["F"] < self.micro_batches:
            if held + 1 <= self.room and in_flight + self.weight_state <= self.room:
                return "F"
            return "W" if owed else "I"
        if in_flight:
            return "W" if owed and held - 1 + self.weight_state > self.room else "I"
        return "W"


class _Given(_Stage):
    """A stage whose order is settled; it ``fits`` where its memory is enough."""

    def __init__(self, pipeline: _Pipeline, number: int, word: str) -> None:
        super().__init__(pipeline, number, warm_up=0, patience=0.0)
        self.patience_s, self._given = math.inf, word
        effects = {"F": 1.0, "I": self.weight_state - 1, "W": -self.weight_state}
        self.fits = max(accumulate(effects[letter] for letter in word)) <= self.room

    def _wanted(self) -> str:
        return self._given[len(self.word)] if len(self.word) < len(self._given) else "W"
