"""Traces that PyTorch records here, read back: what they say is what the model, its tensors and the profiler say."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.autograd.graph import saved_tensors_hooks  # noqa: E402
from torch.autograd.profiler_util import FunctionEvent  # noqa: E402
from torch.profiler import profile as profiler  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from scenarios import kineto, kineto_profile  # noqa: E402
from sim.errors import ScenarioError  # noqa: E402


class Block(nn.Module):
    """A residual block, of which what is given may be computed again."""

    def __init__(self, again: bool | None = None) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.again = again

    def inner(self, x: Tensor) -> Tensor:
        done: Tensor = x + self.second(torch.relu(self.norm(self.first(x))))
        return done

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if self.again is None else checkpoint(self.inner, x, use_reentrant=self.again)


class Words(nn.Module):
    """An embedding, an LSTM of which the last output goes on, and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.scores = nn.Embedding(50, 8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.lstm(self.words(x))[0][:, -1])
        return scores


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))


def residual(again: bool | None = None) -> nn.Module:
    body = nn.Sequential(Block(again), Block(again))
    return nn.Sequential(nn.Conv2d(3, 4, 3), body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(50, 8), layer, nn.Flatten(), nn.Linear(48, 5))


def flattened() -> nn.Module:
    """Starts with what has no gradient, and with an input of the shape of a weight."""
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 6), nn.Identity(), nn.Linear(6, 5))


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    sample: Callable[[], Tensor]
    layers: list[str]
    """Names of the modules that are its layers."""


CASES = {
    "perceptron": Case(perceptron, lambda: torch.randn(6, 16), ["0", "1", "2", "3", "4"]),
    "residual": Case(residual, lambda: torch.randn(6, 3, 8, 8), ["0", "1.0", "1.1", "2", "3", "4"]),
    "words": Case(Words, lambda: torch.randint(0, 50, (6, 6)), ["words", "lstm", "scores"]),
    "encoder": Case(encoder, lambda: torch.randint(0, 50, (6, 6)), ["0", "1", "2", "3"]),
    "flattened": Case(flattened, lambda: torch.randn(6, 2, 3), ["0", "1", "2", "3"]),
}


class Traced(NamedTuple):
    """A step as Twinrail reads it, as the profiler tells it, and what it was a step of."""

    read: kineto_profile.Profiled
    events: list[FunctionEvent]
    model: nn.Module
    x: Tensor


def trace(model: nn.Module, x: Tensor, path: Path) -> Traced:
    optimizer, target = torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(len(x), dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()

    step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler's own, about its deprecated options
        with profiler(record_shapes=True, with_stack=True, profile_memory=True) as recorded:
            step()
        recorded.export_chrome_trace(str(path))
        events = list(recorded.events())
    return Traced(kineto_profile.profile(kineto.read(path)), events, model, x)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Traced]:
    found = CASES[request.param]
    torch.manual_seed(0)
    return found, trace(found.make(), found.sample(), tmp_path_factory.mktemp("trace") / "t.json")


def test_layers_are_the_modules_in_their_order(case: tuple[Case, Traced]) -> None:
    wanted, traced = case
    modules = [traced.model.get_submodule(name) for name in wanted.layers]
    assert [layer.name.rpartition("_")[0] for layer in traced.read.layers] == [type(each).__name__ for each in modules]


def test_parameters_are_those_of_the_modules(case: tuple[Case, Traced]) -> None:
    wanted, traced = case
    modules = [traced.model.get_submodule(name) for name in wanted.layers]
    own = [sum(parameter.nbytes for parameter in module.parameters()) for module in modules]
    assert [layer.parameter_bytes for layer in traced.read.layers] == own


def test_outputs_are_what_the_next_layer_is_given(case: tuple[Case, Traced]) -> None:
    wanted, traced = case
    given = list[int]()
    for name in wanted.layers:
        note = lambda module, inputs: given.append(inputs[0].nbytes)  # noqa: E731
        traced.model.get_submodule(name).register_forward_pre_hook(note)
    final = traced.model(traced.x)
    assert traced.read.input_bytes == given[0] == traced.x.nbytes
    assert [layer.output_bytes for layer in traced.read.layers] == [*given[1:], final.nbytes]


def test_what_is_saved_is_what_autograd_keeps(case: tuple[Case, Traced]) -> None:
    """All layers together: storages that autograd saves and the model made, and what it returns."""
    _, traced = case
    kept: dict[int, int] = {}
    own = [traced.x, *traced.model.parameters(), *traced.model.buffers()]
    known = {tensor.untyped_storage().data_ptr() for tensor in own}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        final = traced.model(traced.x)
    kept[final.untyped_storage().data_ptr()] = final.untyped_storage().nbytes()
    own_bytes = sum(size for storage, size in kept.items() if storage not in known)
    assert sum(layer.saved_bytes or 0 for layer in traced.read.layers) == own_bytes


def surrounding(event: FunctionEvent) -> FunctionEvent | None:
    """What is no Python function around an event; with stacks these are events too."""
    while (event := event.cpu_parent) and event.is_python_function:
        pass
    return event


def outermost(events: list[FunctionEvent], within: FunctionEvent | None = None) -> list[FunctionEvent]:
    return [event for event in events if not event.is_python_function and surrounding(event) is within]


def test_all_time_is_that_of_the_profiler(case: tuple[Case, Traced]) -> None:
    """Forward, loss and backward together are all outermost operators that are not the optimizer's."""
    _, traced = case
    taken = sum(event.cpu_time_total for event in outermost(traced.events) if not event.name.startswith("Optimizer."))
    read = sum(layer.forward_us + layer.backward_us for layer in traced.read.layers)
    assert read == pytest.approx(taken, abs=1)
    (update,) = [event for event in traced.events if event.name.startswith("Optimizer.step")]
    assert traced.read.update_us == pytest.approx(
        sum(each.cpu_time_total for each in outermost(traced.events, update)), abs=1
    )


def test_time_of_each_layer_is_that_of_the_profiler(tmp_path: Path) -> None:
    """A perceptron's operators are one a layer; its backward is cut before what is no node of a linear layer."""
    traced = trace(perceptron(), torch.randn(6, 16), tmp_path / "t.json")
    events = outermost(traced.events)
    forward = [event.cpu_time_total for event in events if event.name in ("aten::linear", "aten::relu")]
    parts = [0.0]
    for event in events:
        name = event.name.removeprefix("autograd::engine::evaluate_function: ")
        if name != event.name:
            parts += [0.0] if name.startswith("Relu") or (name.startswith("Addmm") and parts[0]) else []
            parts[-1] += event.cpu_time_total
    assert [layer.forward_us for layer in traced.read.layers[:-1]] == pytest.approx(forward[:-1], abs=1)
    head, *others = [layer.backward_us for layer in reversed(traced.read.layers)]
    assert [head, *others] == pytest.approx([parts[0] + parts[1], *parts[2:]], abs=1)


def test_what_is_computed_again_counts_to_backward(tmp_path: Path) -> None:
    traced = trace(residual(again=False), torch.randn(6, 3, 8, 8), tmp_path / "t.json")
    own = [4 * 3 * 9 + 4, *[4 * 4 * 9 + 4 + 8 + 4 * 4 + 4] * 2, 0, 0, 25]
    assert [layer.parameter_bytes for layer in traced.read.layers] == [4 * elements for elements in own]
    assert [layer.output_bytes for layer in traced.read.layers][:3] == [6 * 4 * 6 * 6 * 4] * 3
    taken = sum(event.cpu_time_total for event in outermost(traced.events) if event.name.startswith("autograd::engine"))
    assert sum(layer.backward_us for layer in traced.read.layers) == pytest.approx(taken, abs=1)


def test_a_backward_within_a_backward_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="use_reentrant=False"):
        trace(residual(again=True), torch.randn(6, 3, 8, 8, requires_grad=True), tmp_path / "t.json")


def test_what_is_opened_counts_by_its_children(tmp_path: Path) -> None:
    traced = trace(residual(), torch.randn(6, 3, 8, 8), tmp_path / "t.json")
    opened = kineto_profile.profile(kineto.read(tmp_path / "t.json"), ["Block"])
    names = [layer.name.rpartition("_")[0] for layer in opened.layers]
    block = ["Conv2d", "BatchNorm2d", "Conv2d"]
    assert names == ["Conv2d", *block, *block, "AdaptiveAvgPool2d", "Flatten", "Linear"]
    for total in ("forward_us", "backward_us", "parameter_bytes"):
        sums = [sum(getattr(layer, total) for layer in found.layers) for found in (opened, traced.read)]
        assert sums[0] == pytest.approx(sums[1], abs=1e-3)
