"""Predictions against PyTorch: every storage of real training steps, counted, and its own allocator's record.

On the meta device the same operations bring the same storages to life (tested here), so whole batches cost no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from backends.torch.checkpointed import Checkpointed  # noqa: E402
from backends.torch.live_bytes import LiveBytes  # noqa: E402
from backends.torch.modules import build  # noqa: E402
from backends.torch.peak import count, count_flops, measure  # noqa: E402
from backends.torch.workspaces import columns  # noqa: E402
from scenarios.architecture import shipped_architecture  # noqa: E402
from scenarios.checkpoint_subject import Subject, of_model  # noqa: E402
from scenarios.load import shipped  # noqa: E402
from scenarios.profiles import shipped_table  # noqa: E402
from sim.checkpointing import pytorch, rotor, solvers  # noqa: E402
from sim.checkpointing.objectives import MODES  # noqa: E402
from sim.checkpointing.plan import Plan, Run, of_checkpoints, recomputed  # noqa: E402
from sim.checkpointing.program import front  # noqa: E402
from sim.checkpointing.vertices import GRANULARITIES, Granularity  # noqa: E402
from sim.liveness import Mode, training_step  # noqa: E402
from sim.memory.history import GRADIENTS, INPUT, LASTING, OPTIMIZER, WEIGHTS, WORKSPACE, History  # noqa: E402
from sim.training import MOMENTS, Optimizer  # noqa: E402

MIB = 2**20

# Whole batches: a published one where there is one.
MODELS = {
    "alexnet-avg-pool": 1024,
    "vgg11": 64,
    "vgg13": 64,
    "resnet18": 32,
    "transformer-imdb": 64,
}
DEEP = {"vgg16": 64, "vgg19": 64, "resnet34": 32, "resnet50": 32, "resnet101": 32, "resnet152": 32, "inception-v4": 32}
ALL = [*MODELS.items(), *(pytest.param(*model, marks=pytest.mark.slow) for model in DEEP.items())]


def everything(n: int) -> Plan:
    return tuple(range(1, n + 1))


def counted(subject: Subject, plan: Plan, mode: Mode = "non_reentrant", device: str = "meta") -> History:
    assert subject.vertices is not None
    return count(subject.vertices, subject.batch, plan, mode, subject.optimizer, device)


def plans(subject: Subject, mode: Mode) -> dict[str, Plan]:
    assert subject.seconds is not None
    return {
        "none": everything(len(subject.names)),
        "sqrt_n": of_checkpoints(solvers.sqrt_segments(subject.sizes)),
        "ogc": of_checkpoints(solvers.cubic(subject.sizes)),
        "ours": front(pytorch.program(mode, subject.chain), subject.seconds)[0].plan,
    }


@pytest.mark.parametrize(("model", "batch"), ALL)
def test_predicted_is_counted_to_the_byte_and_ours_is_least(model: str, batch: int) -> None:
    """In both modes; that no plan is predicted and none counted below ours is the same statement then."""
    subject = of_model(model, batch)
    for mode in MODES:
        peaks = {}
        for name, plan in plans(subject, mode).items():
            history = counted(subject, plan, mode)
            predicted = training_step(subject.tape, plan, mode)
            assert predicted.peak().bytes == history.peak().bytes
            assert predicted.peak(LASTING).bytes == history.peak(LASTING).bytes
            peaks[name] = history.peak().bytes
            assert pytorch.peak(mode, subject.chain, plan) - peaks[name] in range(9)  # a loss that is not there yet
        assert peaks["ours"] == min(peaks.values())


# Live bytes of a step without weights and their gradients, MiB: C, reentrant, non-reentrant, without checkpoints.
# Whoever measured these held on to the output of the model, which `step` lets go of.
MEASURED = {
    "vgg13": ([0, 3, 12, 18], 64, 3564.99, 3172.99, 4201.99),
    "vgg11": ([0, 2, 4, 16], 64, 2780.99, 2388.99, 3025.99),
    "alexnet-avg-pool": ([0, 2, 4, 12], 1024, 3225.16, 2860.66, 3751.41),
}


@pytest.mark.parametrize("model", MEASURED)
def test_published_measurements(model: str) -> None:
    kept, batch, reentrant, non_reentrant, none = MEASURED[model]
    subject, plan = of_model(model, batch), of_checkpoints(kept)
    output = subject.sizes[-1]
    for found, published in (
        (counted(subject, plan, "reentrant"), reentrant),
        (counted(subject, plan), non_reentrant),
        (counted(subject, everything(len(subject.names))), none),
    ):
        assert (found.peak(LASTING).bytes + output) / MIB == pytest.approx(published, abs=0.01)
        assert found.peak(LASTING).bytes / MIB == pytest.approx(published, rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_published_measurements_on_real_tensors(mode: Mode) -> None:
    """At a batch of 2, of which all but targets and scalars are in proportion."""
    subject, plan = of_model("vgg13", 2), of_checkpoints([0, 3, 12, 18])
    taken, full = counted(subject, plan, mode, "cpu").peak(LASTING).bytes, MEASURED["vgg13"]
    assert taken == counted(subject, plan, mode).peak(LASTING).bytes
    assert taken * 32 / MIB == pytest.approx(full[2] if mode == "reentrant" else full[3], rel=0.001)


SMALL = {
    "alexnet": (3, 64, 64),
    "vgg11": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "resnet50": (3, 32, 32),
    "inception-v4-cifar": (3, 32, 32),
    "transformer-imdb": (20,),
    "mlp": (64,),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("model", SMALL)
def test_the_meta_device_counts_what_real_tensors_take(model: str) -> None:
    """Operation by operation: sizes, births and deaths in the same order."""
    subject = of_model(model, 2, shape=SMALL[model])
    n = len(subject.names)
    for mode, plan in zip(
        MODES, (of_checkpoints([0, n // 3, n // 2, n]), (Run((Run((1, 2)), 3)), *range(4, n + 1))), strict=True
    ):
        taken, meta = counted(subject, plan, mode, "cpu"), counted(subject, plan, mode)
        assert taken.operations == meta.operations
        assert taken.sizes == meta.sizes
        assert taken.changes == meta.changes


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("model", ["alexnet", pytest.param("resnet18", marks=pytest.mark.slow), "transformer-imdb"])
def test_every_granularity(model: str, granularity: Granularity) -> None:
    subject = of_model(model, 4, granularity)
    for mode in MODES:
        for plan in plans(subject, mode).values():
            assert training_step(subject.tape, plan, mode).peak().bytes == counted(subject, plan, mode).peak().bytes


@pytest.mark.parametrize("optimizer", MOMENTS)
@pytest.mark.parametrize("model", ["alexnet", "resnet18", "transformer-imdb"])
def test_optimizers_and_categories(model: str, optimizer: Optimizer) -> None:
    subject = of_model(model, 2, optimizer=optimizer)
    plan = everything(len(subject.names))
    found, predicted = counted(subject, plan).peak(), training_step(subject.tape, plan, optimizer=optimizer).peak()
    assert found.bytes == predicted.bytes
    lasting = (WEIGHTS, GRADIENTS, OPTIMIZER, INPUT)
    assert [found.consists_of.get(key) for key in lasting] == [predicted.consists_of.get(key) for key in lasting]


@pytest.mark.parametrize("model", ["resnet18", "transformer-imdb"])
def test_runs_in_runs(model: str) -> None:
    subject = of_model(model, 8)
    assert subject.seconds is not None
    for choice in rotor.front(subject.chain, subject.seconds)[:3]:
        assert choice.peak_bytes - counted(subject, choice.plan).peak().bytes in range(9)


def real(subject: Subject) -> Any:
    assert subject.vertices is not None
    return torch.nn.Sequential(*(build(vertex) for vertex in subject.vertices))


def without_dropout(subject: Subject) -> Any:
    chain = real(subject)
    for module in chain.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return chain


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", ["alexnet", "resnet18", "inception-v4-cifar", "transformer-imdb"])
def test_a_plan_changes_no_gradient(model: str, mode: Mode) -> None:
    subject = of_model(model, 3, shape=SMALL[model])
    chain, n = without_dropout(subject), len(subject.names)
    torch.manual_seed(1)
    words = model == "transformer-imdb"
    inputs = torch.randint(9, (3, *SMALL[model])) if words else torch.rand(3, *SMALL[model])
    gradients = []
    for plan in (everything(n), of_checkpoints([0, 2, 3, n - 1, n]), (Run((1, Run((2, 3)), 4)), *range(5, n + 1))):
        chain.zero_grad()
        torch.nn.functional.cross_entropy(Checkpointed(chain, plan, mode)(inputs), torch.tensor([0, 1, 1])).backward()
        gradients.append([weight.grad.clone() for weight in chain.parameters()])
    for other in gradients[1:]:
        assert all(torch.equal(one, two) for one, two in zip(gradients[0], other, strict=True))


def test_offloaded_inputs_come_back() -> None:
    subject = of_model("mlp", 4)
    chain, inputs = without_dropout(subject), torch.rand(4, 64)
    outputs = [Checkpointed(chain, plan)(inputs) for plan in ((1, 2, 3, 4, 5), (1, Run((2, 3), offload=True), 4, 5))]
    found = [torch.autograd.grad(output.sum(), [*chain.parameters()]) for output in outputs]
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_gradients_are_summed_in_place_as_if_nobody_looked() -> None:
    """Unobserved, autograd adds the two gradients at each shortcut in place; under a dispatch mode it would not."""
    subject = of_model("resnet18", 2, shape=(3, 32, 32))
    chain, inputs, targets = without_dropout(subject), torch.rand(2, 3, 32, 32), torch.tensor([0, 1])
    loss = torch.nn.functional.cross_entropy(chain(inputs), targets)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss.backward()
    names = [event.name for event in profile.events()]
    assert (names.count("aten::add_"), names.count("aten::add")) == (8, 0)
    with LiveBytes() as live:
        torch.nn.functional.cross_entropy(chain(inputs), targets).backward()
    assert births(live.history) == [0] * 8


def test_a_gradient_that_somebody_holds_is_not_added_to() -> None:
    """As the engine has it: a sum in place would change what the hook keeps."""
    held: list[Any] = []
    x = torch.ones(3, requires_grad=True)
    with LiveBytes() as live:
        y = x * 2
        total = y + y * 3
        total.register_hook(held.append)
        total.backward(torch.ones(3))
    assert births(live.history)[-1] == 1
    assert torch.equal(held[0], torch.ones(3))
    assert torch.equal(x.grad, torch.full((3,), 8.0))


def births(history: History) -> list[int]:
    """How many storages each sum of two tensors brought to life."""
    sums = [number for number, name in enumerate(history.operations) if name == "aten.add.Tensor"]
    return [sum(change.operation == number and change.sign > 0 for change in history.changes) for number in sums]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet18", "vgg11", "transformer-imdb"])
def test_the_allocators_own_record(model: str) -> None:
    """What PyTorch's CPU allocator reports unobserved is what is counted, and what kernels need for themselves."""
    subject = of_model(model, 8, shape=(200,) if model == "transformer-imdb" else (3, 96, 96))
    chain = real(subject)
    words = model == "transformer-imdb"
    inputs = torch.randint(9, (8, 200)) if words else torch.rand(8, 3, 96, 96)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        torch.nn.functional.cross_entropy(chain(inputs), torch.zeros(8, dtype=torch.long)).backward()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    predicted = training_step(subject.tape).peak([WEIGHTS, INPUT]).bytes
    assert predicted <= most <= 1.05 * predicted


@pytest.mark.parametrize("model", ["vgg11", "resnet18", "transformer-imdb"])
def test_recomputed_flops(model: str) -> None:
    """PyTorch counts the forward pass of what a plan recomputes once more, but for what lies behind the last saved."""
    subject = of_model(model, 4)
    assert subject.vertices is not None
    n, table = len(subject.names), shipped_table(model)
    kept = [0, *range(3, n, 3), n]
    plan = of_checkpoints(kept)
    none, found = (count_flops(subject.vertices, 4, each, "reentrant") for each in (everything(n), plan))
    ends = [len(vertex) for vertex in subject.vertices]
    layers = [table.layers[sum(ends[: k - 1]) : sum(ends[:k])] for k in recomputed(plan)]
    assert found - none == 4 * sum(layer.forward_flops for vertex in layers for layer in vertex)
    assert none < count_flops(subject.vertices, 4, plan) <= found


def test_measure_says_how() -> None:
    subject = of_model("mlp", 4, optimizer="adam")
    assert subject.vertices is not None
    found = measure(subject.vertices, 4, everything(5), optimizer="adam")
    assert found.bytes > found.activation_bytes > 0
    assert "PyTorch" in found.how


@pytest.mark.parametrize("name", shipped("models"))
def test_modules_are_the_layers_of_the_table(name: str) -> None:
    model = shipped_architecture(name)
    found = []
    with torch.device("meta"), torch.no_grad():
        passing = torch.zeros(2, *model.input, dtype=torch.long if model.reads_words else torch.float)
        for module in build(model.entries):
            passing = module(passing)
            found.append((passing.numel() / 2, sum(weight.numel() for weight in module.parameters())))
    layers = shipped_table(name).layers
    assert found == [(layer.output_elements, layer.parameter_elements) for layer in layers]
    if not name.startswith("residual-lstm"):
        assert sum(of_model(name, 2).tape.parameters) == 4 * sum(layer.parameter_elements for layer in layers)


@pytest.mark.cuda
@pytest.mark.parametrize("model", ["resnet50", "vgg11"])
def test_the_allocator_of_a_gpu(model: str) -> None:
    subject = of_model(model, 32, platform="cuda")
    assert subject.vertices is not None
    for mode in MODES:
        for plan in plans(subject, mode).values():
            found = measure(subject.vertices, 32, plan, mode)
            assert found.bytes == pytest.approx(pytorch.peak(mode, subject.chain, plan), rel=0.05)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_columns_are_one_sample_unfolded_in_either_pass(device: str) -> None:
    """As ``torch.nn.functional.unfold`` lays it out."""
    convolution = torch.nn.Conv2d(3, 8, kernel_size=(5, 3), stride=2, padding=1).to(device)
    batch = torch.zeros(4, 3, 20, 14, device=device, requires_grad=True)
    with LiveBytes(columns) as live:
        convolution(batch).sum().backward()
    unfolded = torch.nn.functional.unfold(batch[:1].detach(), (5, 3), stride=2, padding=1)
    taken = [size for size, tag in zip(live.history.sizes, live.history.tags, strict=True) if tag.category == WORKSPACE]
    assert taken == [unfolded.nbytes] * 2
