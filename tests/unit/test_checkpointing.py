"""Checkpoint selection: every solver against brute force, the published table from our layer tables, the command."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from typer.testing import CliRunner, Result

from scenarios.architecture import shipped_architecture
from scenarios.checkpoint_command import read_plan
from scenarios.checkpoint_subject import of_model
from scenarios.command_line import app
from scenarios.load import shipped
from scenarios.pipedream import read_graph
from sim.checkpointing import objectives, pytorch
from sim.checkpointing.objectives import MODES, OBJECTIVES, Objective, peak
from sim.checkpointing.plan import Plan, Run, as_lists, checkpoints, from_lists, of_checkpoints, recomputed, vertices
from sim.checkpointing.program import Choice, front, least_peak, recompute_s
from sim.checkpointing.pytorch import Chain, convolutions
from sim.checkpointing.solvers import all_plans, brute_force, cubic, linear, quadratic, sqrt_segments
from sim.checkpointing.vertices import GRANULARITIES, cut, names, profile_vertices
from sim.liveness import Facts, Mode
from sim.tape import record

MIB = 2**20
PROFILES = Path(__file__).parents[2].parent / "shared" / "data" / "pipedream"
VECTOR = [50, 100, 200, 150, 300, 250, 400, 350, 500, 450, 600, 550, 700, 650, 800, 750, 900, 850, 1000, 950]
VECTOR += [200, 150, 100]


def chains(count: int, most: int, seed: int = 0) -> Iterator[list[int]]:
    """Random sizes, small ones for ties among them."""
    rng = random.Random(seed)
    for _ in range(count):
        largest = rng.choice((3, 20, 1000))
        yield [rng.randint(0, largest) for _ in range(rng.randint(1, most) + 1)]


def solutions(objective: Objective, sizes: Sequence[int]) -> Iterator[list[int]]:
    if objective == "basic":
        yield cubic(sizes)
    else:
        yield quadratic(objective, sizes)
    if objective == "corrected":
        yield linear(sizes)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_solver_is_brute_force(objective: Objective) -> None:
    for sizes in [[7], [10, 1], [0, 0, 0], *chains(1000, 7)]:
        best = peak(objective, sizes, brute_force(objective, sizes))
        assert [peak(objective, sizes, found) for found in solutions(objective, sizes)] == pytest.approx(
            [best] * (1 + (objective == "corrected")), rel=0
        )


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_solver_is_brute_force_on_longer_chains(objective: Objective) -> None:
    for sizes in [*chains(2000, 9, 1), *chains(25, 14, 2)]:
        best = peak(objective, sizes, brute_force(objective, sizes))
        assert {peak(objective, sizes, found) for found in solutions(objective, sizes)} == {best}


def test_the_linear_program_is_the_quadratic_one() -> None:
    for sizes in [*chains(300, 60, 3), *chains(3, 2000, 4)]:
        assert peak("corrected", sizes, linear(sizes)) == peak("corrected", sizes, quadratic("corrected", sizes))


def test_a_published_program_is_off_by_one_here() -> None:
    assert linear([10, 1]) == quadratic("corrected", [10, 1]) == [0, 1]
    assert peak("corrected", [10, 1], [0, 1]) == 21


def test_the_vector_of_the_facts() -> None:
    assert linear(VECTOR) == quadratic("corrected", VECTOR) == [0, 3, 12, 16, 18, 19, 20, 21, 22]
    assert peak("corrected", VECTOR, linear(VECTOR)) == 4900
    assert peak("corrected", VECTOR, objectives.one_segment(VECTOR)) == 11950
    assert peak("corrected", VECTOR, sqrt_segments(VECTOR)) == 6650
    assert sqrt_segments(VECTOR) == [0, 4, 9, 13, 18, 22]
    assert peak("basic", VECTOR, cubic(VECTOR)) == 4550


def feng_and_huang(sizes: Sequence[int]) -> float:
    """For every largest segment a shortest path through the checkpoints it allows: arXiv 1808.00079, section 3.2."""
    between = {(h, i): sum(sizes[h + 1 : i]) for h, i in combinations(range(len(sizes)), 2)}
    totals = []
    for limit in {*between.values()}:
        graph = nx.DiGraph([(h, i, {"weight": sizes[i]}) for (h, i), size in between.items() if size <= limit])
        length = nx.shortest_path_length(graph, 0, len(sizes) - 1, "weight")
        totals.append(sizes[0] + length + limit)
    return min(totals)


def test_the_cubic_program_finds_what_feng_and_huangs_does() -> None:
    for sizes in chains(150, 12, 5):
        assert peak("basic", sizes, cubic(sizes)) == feng_and_huang(sizes)


# MiB under the corrected objective: without checkpoints, round(√n) segments, least, with Feng and Huang's checkpoints.
PUBLISHED = {
    ("alexnet-avg-pool", 1024): (12, 3655.7, 2956.2, 2282.8, 2282.8),
    ("vgg11", 64): (16, 3009.6, 2290.8, 1800.8, 1800.8),
    ("vgg13", 64): (18, 4185.6, 2976.8, 2388.8, 2584.8),
    ("vgg16", 64): (21, 4504.1, 2976.8, 2388.8, 2584.8),
    ("vgg19", 64): (24, 4822.6, 3368.8, 2388.8, 2584.8),
}


@pytest.mark.parametrize(("model", "batch"), PUBLISHED)
def test_the_published_table_from_our_layer_tables(model: str, batch: int) -> None:
    sizes = of_model(model, batch).sizes
    plans = (objectives.one_segment(sizes), sqrt_segments(sizes), linear(sizes), cubic(sizes))
    found = [round(peak("corrected", sizes, plan) / MIB, 1) for plan in plans]
    assert (len(sizes) - 1, *found) == PUBLISHED[model, batch]


def test_a_pool_that_counts_with_its_convolution() -> None:
    sizes = of_model("alexnet", 1024, "plain").sizes
    assert round(peak("corrected", sizes, linear(sizes)) / MIB, 1) == 1446.2


@pytest.mark.parametrize(
    ("model", "kept", "reentrant"), [("vgg13", [0, 3, 12, 18], 3564.75), ("vgg11", [0, 2, 4, 16], 2780.75)]
)
def test_published_peaks_by_sizes_alone(model: str, kept: list[int], reentrant: float) -> None:
    sizes = of_model(model, 64).sizes
    assert peak("reentrant", sizes, kept) / MIB == reentrant
    assert peak("non_reentrant", sizes, kept) / MIB == reentrant - 2 * sizes[kept[1]] / MIB


def test_the_last_layer_of_a_segment_counts_too() -> None:
    """Its output, the gradient of it, and the gradient before its ReLU."""
    assert peak("non_reentrant", [1, 1, 100], [0, 1, 2]) == 1 + 1 + 300
    assert peak("reentrant", [1, 1, 100, 1], [0, 2, 3]) == 1 + 1 + 300 + 1  # and the gradient of y_1


def chain_of_random_facts(rng: random.Random, n: int) -> Chain:
    def size() -> int:
        return rng.randint(0, 12)

    def flag() -> bool:
        return rng.random() < 0.6

    vertices = [Facts(size(), size(), flag(), flag(), *(size() for _ in range(6))) for _ in range(n)]
    loss = Facts(size(), 0, flag(), False, *(size() for _ in range(4)))
    return Chain((*vertices, loss), size(), size(), size())


def best_of(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other beats in both."""
    found: list[tuple[float, float]] = []
    for peak_bytes, seconds in sorted(points):
        if not found or seconds < found[-1][1]:
            found.append((peak_bytes, seconds))
    return found


def of_choices(choices: Sequence[Choice]) -> list[tuple[float, float]]:
    return [(choice.peak_bytes, choice.recompute_s) for choice in choices]


@pytest.mark.parametrize("mode", MODES)
def test_plans_for_pytorch_are_brute_force(mode: Mode) -> None:
    """On facts as wild as they come: least peak, and the whole front of peak against recomputed time."""
    rng = random.Random(6)
    for n in (*range(1, 6), *(rng.randint(1, 6) for _ in range(250))):
        chain, seconds = chain_of_random_facts(rng, n), [rng.randint(0, 9) for _ in range(n)]
        points = [(pytorch.peak(mode, chain, plan), recompute_s(plan, seconds)) for plan in all_plans(n)]
        program = pytorch.program(mode, chain)
        assert pytorch.peak(mode, chain, least_peak(program)) == min(points)[0]
        assert of_choices(front(program, seconds)) == best_of(points)


def test_the_front_of_the_corrected_objective_is_brute_force() -> None:
    rng = random.Random(7)
    for sizes in chains(60, 9, 8):
        n = len(sizes) - 1
        seconds = [rng.randint(1, 9) for _ in range(n)]
        sets = ({0, n, *chosen} for count in range(n) for chosen in combinations(range(1, n), count))
        points = [
            (peak("corrected", sizes, sorted(kept)), sum(seconds[k - 1] for k in range(1, n) if k not in kept))
            for kept in sets
        ]
        assert of_choices(front(objectives.program("corrected", sizes), seconds)) == best_of(points)


def test_the_front_of_rounded_times_has_exact_peaks() -> None:
    rng = random.Random(9)
    chain = convolutions([rng.randint(1, 100) for _ in range(30)])
    choices = front(pytorch.program("non_reentrant", chain), [rng.random() for _ in range(29)])
    assert all(pytorch.peak("non_reentrant", chain, choice.plan) == choice.peak_bytes for choice in choices)
    assert all(a.peak_bytes < b.peak_bytes and a.recompute_s > b.recompute_s for a, b in pairwise(choices))


def test_plans_as_lists_and_back() -> None:
    plan: Plan = (1, Run((2, Run((3, 4), offload=True), 5)), 6)
    assert as_lists(plan) == [1, [2, {"offload": [3, 4]}, 5], 6]
    assert from_lists(as_lists(plan)) == plan
    assert [*vertices(plan)] == [1, 2, 3, 4, 5, 6]
    assert checkpoints(plan) == [0, 1, 5, 6]
    assert recomputed(plan) == [2, 3, 3, 4, 4, 5]
    assert of_checkpoints([0, 2, 3, 5]) == (Run((1, 2)), 3, 4, 5)
    assert recompute_s(plan, [1.0] * 6) == 6
    assert len([*all_plans(3)]) == 13


# Where models are cut


@pytest.mark.parametrize("name", ["vgg11", "resnet50", "inception-v4", "transformer-imdb"])
def test_vertices_end_at_articulation_points(name: str) -> None:
    model = shipped_architecture(name)
    for granularity in GRANULARITIES:
        found = cut(model, granularity)
        assert [entry for vertex in found for entry in vertex] == [*model.entries]
        tape = record(found, 1)
        edges = [(read, step.writes) for vertex in tape.vertices for step in vertex for read in step.reads]
        articulation = {*nx.articulation_points(nx.Graph(edges))}
        assert articulation.issuperset(tape.boundaries[1:-1])
        assert len({*names(found, granularity)}) == len(found)


def test_granularity_of_vgg() -> None:
    model = shipped_architecture("vgg11")
    assert [len(cut(model, granularity)) for granularity in GRANULARITIES] == [11, 16, 18]
    assert names(cut(model, "standalone_pool"), "standalone_pool")[:3] == ["conv1", "max_pool2", "conv3"]


@pytest.mark.parametrize(("name", "count"), [("vgg16", 24), ("resnet50", 22), ("gnmt", 2)])
def test_profiles_are_cut_where_one_tensor_passes(name: str, count: int) -> None:
    path = PROFILES / f"{name}.txt"
    if not path.exists():
        pytest.skip(f"needs {path}")
    graph = read_graph(path)
    found = profile_vertices(graph)
    operators = [node for vertex in found for node in vertex]
    crossing = dict(zip((node.number for node in operators), graph.cut_bytes(operators), strict=True))
    assert len(found) == count
    assert all(crossing[vertex[-1].number] == vertex[-1].activation_bytes for vertex in found[:-1])


# The command


def twinrail(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *arguments])


def answer(*arguments: str) -> Any:
    result = twinrail(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


SIZES = ("--sizes", ",".join(map(str, VECTOR)))


def test_the_contract_for_sizes() -> None:
    found = answer(*SIZES, "--objective", "corrected")
    assert found["objective"] == "corrected"
    assert found["solver"] == "linear"
    assert (found["peak_bytes"], found["checkpoints"]) == (4900, [0, 3, 12, 16, 18, 19, 20, 21, 22])
    assert found["recomputed"] == [k for k in range(23) if k not in found["checkpoints"]]
    assert found["alternatives"] == {"none": 11950, "sqrt_n": 6650, "ogc": 5400}
    assert answer("--sizes", "10,1")["peak_bytes"] == 21
    assert answer("--sizes", "7")["peak_bytes"] == 7
    assert answer("--sizes", "1 KiB, 2 KiB")["peak_bytes"] == 4096


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_answers(objective: Objective) -> None:
    found = answer(*SIZES, "--objective", objective)
    assert found["peak_bytes"] == peak(objective, VECTOR, found["checkpoints"])
    assert found["peak_bytes"] <= min(found["alternatives"].values())


def test_ends_that_somebody_else_holds() -> None:
    found = answer(*SIZES, "--ends", "not")
    inside = [0, *VECTOR[1:-1], 0]
    assert found["peak_bytes"] == peak("corrected", inside, linear(inside))
    assert found["ends"] == "not"


def test_the_contract_for_a_model(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "plan.yaml"
    found = answer("resnet18", "--batch", "8", "--optimizer", "adam", "--measure", "--out", str(file))
    assert found["measured_bytes"] == found["peak_bytes"] < found["alternatives"]["none"]
    assert sum(found["consists_of"].values()) == found["peak_bytes"]
    assert found["granularity"]["name"] == "standalone_pool"
    assert found["granularity"]["finer"]["vertices"] > found["granularity"]["vertices"] == 12
    plan, mode = read_plan(file)
    assert (as_lists(plan), mode) == (found["plan"], "non_reentrant")


def test_a_budget_buys_time() -> None:
    """What is asked for is kept to; more memory, never less of it used, never more time."""
    least = answer("resnet50", "--batch", "4")["peak_bytes"]
    none = answer("resnet50", "--batch", "4")["alternatives"]["none"]
    for nested in ((), ("--nested",)):
        before = (0, math.inf)
        for share in (0.0, 0.1, 0.3, 0.6, 0.9, 1.0):
            budget = math.ceil(least + share * (none - least))
            found = answer("resnet50", "--batch", "4", "--budget", f"{budget} B", *nested)
            now = (found["peak_bytes"], found["recompute_s"])
            assert before[0] <= now[0] <= budget
            assert now[1] <= before[1]
            before = now
        assert before == (none, 0)


def test_a_budget_that_is_too_small() -> None:
    result = twinrail(*SIZES, "--budget", "4899 B")
    assert result.exit_code == 2
    assert "the least that works is 4.79 KiB (4900 bytes)" in result.stderr
    assert answer(*SIZES, "--budget", "4900 B")["peak_bytes"] == 4900


def test_people_get_a_table() -> None:
    shown = twinrail("vgg11", "--batch", "2", "--compare").stdout
    assert all(word in shown for word in ("none", "sqrt_n", "ogc", "ours", "of step", "peak at backward"))


def test_a_measured_profile() -> None:
    path = PROFILES / "resnet50.txt"
    if not path.exists():
        pytest.skip(f"needs {path}")
    found = answer(str(path))
    assert found["objective"] == "corrected"
    assert found["peak_bytes"] < found["alternatives"]["sqrt_n"]
    assert 0 < found["recompute_share"] < 1
    assert "does not say" in twinrail(str(path), "--objective", "reentrant").stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give a model"),
        (("vgg11", "--sizes", "1,2"), "give a model"),
        (("vgg1",), "did you mean 'vgg19'?"),
        (("vgg11", "--device", "p41"), "did you mean 'p40'?"),
        (("--sizes", "1,x"), "--sizes: expected bytes"),
        (("--sizes", "1,2", "--objective", "correct"), "did you mean 'corrected'?"),
        (("--sizes", "1,2", "--batch", "3"), "--batch: has no influence on --sizes"),
        (("--sizes", "1,2", "--measure"), "--measure: has no influence"),
        (("--sizes", "1,2", "--ends", "counted", "--objective", "reentrant"), "--ends: has no influence"),
        (("--sizes", "1,2", "--objective", "basic", "--budget", "1 GB"), "--budget: basic has none"),
        (("--sizes", "1,2", "--nested"), "objective non_reentrant"),
        (("vgg11", "--shape", "3,x"), "--shape: expected whole numbers"),
        (("residual-lstm-imdb",), "no rule for what PyTorch keeps of a layer 'lstm'"),
        (("--sizes", "1,2", "--out", "/dev/null/plan.yaml"), "--out: cannot write there"),
    ],
)
def test_faults_are_messages(arguments: tuple[str, ...], says: str) -> None:
    result = twinrail(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    from sim.errors import ScenarioError

    for text in ("name: x", "checkpoint_plan: 1\nmode: reentrant\nplan: [2]\nvertices: [a]"):
        file = tmp_path / "plan.yaml"
        file.write_text(text)
        with pytest.raises(ScenarioError, match="no checkpoint plan"):
            read_plan(file)


def test_models_of_the_same_family_count_up() -> None:
    assert {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"} <= shipped("models").keys()
    sizes = [sum(of_model(name, 1).tape.parameters) / 4 for name in ("resnet34", "resnet101")]
    assert sizes == [21_797_672, 44_549_160]
