"""What a micro-batch costs on each stage: what a planner looks at whose order depends on how long things take."""

from __future__ import annotations

from dataclasses import dataclass

from sim.binding import Binding, Cost
from sim.memory.buffers import BufferKind
from sim.ops import OpId, OpKind
from sim.program import Program
from sim.schedule import Schedule


@dataclass(frozen=True)
class StageCosts:
    """One micro-batch on a straight pipeline; each tuple has an entry a stage.

    ``send_activation_s``: from a stage to the next. ``send_gradient_s``: from a stage to the one before.
    ``activation_bytes``: held from the forward to the end of the input gradient; ``weight_state_bytes``: from there to
    the end of the weight gradient.
    """

    forward_s: tuple[float, ...]
    backward_input_s: tuple[float, ...]
    backward_weight_s: tuple[float, ...]
    send_activation_s: tuple[float, ...]
    send_gradient_s: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    weight_state_bytes: tuple[float, ...]

    @classmethod
    def equal(
        cls,
        stages: int,
        forward_s: float = 1.0,
        backward_input_s: float = 1.0,
        backward_weight_s: float = 1.0,
        transfer_s: float = 0.0,
        weight_state: float = 1.0,
    ) -> StageCosts:
        """Stages that are alike; ``weight_state`` is the weight state's share of the activation."""
        costs = (forward_s, backward_input_s, backward_weight_s, transfer_s, transfer_s, 1.0, weight_state)
        return cls(*((cost,) * stages for cost in costs))

    @classmethod
    def of(cls, work: Schedule | Program, binding: Binding) -> StageCosts:
        """The figures of a plan, transfers where nothing contends."""
        stages = range(work.shape.stages)

        def seconds(kind: OpKind) -> tuple[float, ...]:
            return tuple(binding.seconds[Cost(kind, stage)] for stage in stages)

        def sending(kind: OpKind, step: int) -> tuple[float, ...]:
            ends = [(work.placement[stage, 0], work.placement.get((stage + step, 0), -1)) for stage in stages]
            return tuple(
                binding.op_seconds(OpId(kind, stage, 0), source, target, ()) if target not in (-1, source) else 0.0
                for stage, (source, target) in zip(stages, ends, strict=True)
            )

        def held(kind: BufferKind) -> tuple[float, ...]:
            return tuple(float(binding.buffer_bytes[kind, stage]) for stage in stages)

        return cls(
            forward_s=seconds(OpKind.FORWARD),
            backward_input_s=seconds(OpKind.BACKWARD_INPUT),
            backward_weight_s=seconds(OpKind.BACKWARD_WEIGHT),
            send_activation_s=sending(OpKind.SEND_ACTIVATION, +1),
            send_gradient_s=sending(OpKind.SEND_GRADIENT, -1),
            activation_bytes=held(BufferKind.ACTIVATION),
            weight_state_bytes=held(BufferKind.WEIGHT_STATE),
        )
