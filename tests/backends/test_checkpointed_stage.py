"""What a checkpointed stage runs again: the same layers in seconds of the binding and in calls on the real rail."""

from __future__ import annotations

from collections import Counter

import pytest

from sim.binding import Cost, Figures, bind
from sim.cluster import Cluster, Node
from sim.model import Layer, ModelProfile
from sim.ops import OpKind
from sim.planners import single
from sim.training import Training

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install twinrail[torch]")

KEPT = [
    (0, 3, 7),
    (0, 1, 2, 7),
    (0, 1, 2, 3, 4, 5, 6, 7),
    (0, 7),
    (0, 4, 5, 7),
]


@pytest.mark.parametrize("kept", KEPT)
def test_the_layers_that_run_again_are_those_whose_seconds_count(kept: tuple[int, ...]) -> None:
    """Layer k takes 2ᵏ seconds, so the sum tells which."""
    layers = tuple(Layer(f"l{k}", 2.0**k, 0.0, 0.0, 8.0, 8.0, 0.0) for k in range(7))
    profile = ModelProfile("seven", 1, layers, 8.0, "assumed", "made for this test")
    cluster = Cluster("one", (Node("gpu0", "gpu"),), [])
    figures = Figures(profile, ((0, 6),), Training(), cluster, ("gpu0",), 1, update_s=0.0, checkpoints=(kept,))
    seconds = bind(single.plan(), figures).seconds[Cost(OpKind.RECOMPUTE, 0)]
    assert _runs_again(kept) == {k for k in range(7) if int(seconds) >> k & 1}
    without = bind(single.plan(), figures._replace(checkpoints=()))
    assert Cost(OpKind.RECOMPUTE, 0) not in without.seconds


def _runs_again(kept: tuple[int, ...]) -> set[int]:
    from backends.torch.stage import Stage
    from backends.torch.weights import VersionedWeights

    ran = Counter[int]()
    layers = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(7)))
    for number, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, number=number: ran.update([number]))
    weights = VersionedWeights(list(layers.parameters()), Training(), Counter())
    stage = Stage(layers, [vertex for vertex in kept if 0 < vertex < 7], True, weights)
    stage.forward(0, torch.ones(2, 3), weights.live, lambda output: output.sum())
    assert set(ran.values()) == {1}
    stage.recompute(0, weights.live)
    stage.backward(0, 0, None, weights.live)
    assert set(ran.values()) <= {1, 2}
    return {number for number, times in ran.items() if times == 2}
