"""``twinrail checkpoint``: the plan of least peak, or of least recomputed time under a budget, beside others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from scenarios.checkpoint_subject import Subject, of_model, of_profile, of_sizes
from scenarios.load import dump, load_document
from scenarios.quantities import SIZE, BytesPerSecond, Capacity, WrongValue, format_bytes, printable, shown
from scenarios.strict import Section, check
from scenarios.text_file import saving
from sim.checkpointing import objectives, pytorch, rotor, solvers
from sim.checkpointing.objectives import MODES, Objective
from sim.checkpointing.plan import Plan, as_lists, checkpoints, from_lists, of_checkpoints, recomputed, vertices
from sim.checkpointing.program import Choice, Program, front, least_peak
from sim.checkpointing.vertices import Granularity
from sim.errors import Fault, InfeasibleBudget, ScenarioError, UnsupportedPlan
from sim.liveness import Mode, training_step
from sim.tape import Device
from sim.training import Optimizer

MOST_SIZES = 20_000
MOST_WITH_FRONT = 300
"""Vertices up to which the plan of least peak is also the one of these that recomputes least, and budgets are met."""
MOST_OF_BASIC = 3_000
PLAN_FORMAT = 1
OF_MODELS = ("batch", "shape", "granularity", "optimizer", "platform", "device")


def _read_sizes(value: object) -> object:
    """Bytes of y_0 … y_n, separated by commas, each with or without a unit."""
    words = str(value).split(",")
    if len(words) > MOST_SIZES:
        raise WrongValue(f"expected at most {MOST_SIZES} sizes, got {len(words)}")
    return tuple(_read_size(word.strip()) for word in words)


def _read_size(word: str) -> int:
    if word.isdecimal() and word.isascii() and len(word) <= 18:
        return int(word)
    try:
        return round(SIZE.read(word))
    except WrongValue:
        raise WrongValue(f"expected bytes such as 50,100,200 or '4 MiB,1 MiB', got {shown(word)}") from None


def _read_shape(value: object) -> object:
    words = str(value).split(",")
    if not all(word.strip().isdecimal() and word.isascii() and len(word) < 18 for word in words):
        raise WrongValue(f"expected whole numbers such as 3,224,224, got {shown(value)}")
    return tuple(int(word) for word in words)


class Options(Section):
    """What can be asked, each key an option of the command line."""

    model: str | None = None
    sizes: Annotated[tuple[int, ...] | None, BeforeValidator(_read_sizes)] = None
    objective: Objective | None = None
    ends: Literal["counted", "not"] | None = None
    budget: Capacity | None = None
    nested: bool = False
    offload: BytesPerSecond | None = None
    batch: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    shape: Annotated[tuple[int, ...] | None, BeforeValidator(_read_shape)] = None
    granularity: Granularity | None = None
    optimizer: Optimizer | None = None
    platform: Device | None = None
    device: str | None = None
    measure: bool = False
    out: str | None = None

    @property
    def is_profile(self) -> bool:
        """Whether the model is a file of PipeDream's profiler."""
        return self.model is not None and self.model.endswith(".txt")

    @property
    def wanted(self) -> Objective:
        """The objective that was given, else the one that says most."""
        return self.objective or ("corrected" if self.model is None or self.is_profile else "non_reentrant")


def solve(given: Mapping[str, object]) -> dict[str, Any]:
    """The answer as JSON holds it, and its plan in a file where one is wanted.

    ``given`` are the options as written, those that were.

    Raises
    ------
    ScenarioError : every fault of the options; no writing where the plan goes.
    InfeasibleBudget : no plan is within the budget.
    UnsupportedPlan : an objective that says nothing of this model or of budgets.
    """
    options, wrongs = check(Options, {key: value for key, value in given.items() if value not in (None, False)})
    faults = [Fault(wrong.message, f"--{wrong.path[0]}", suggestion=wrong.suggestion) for wrong in wrongs]
    faults += [] if options is None else _at_odds(options)
    if options is None or faults:
        raise ScenarioError.of(faults)
    question = _Question(_subject(options), options)
    solver, answer = question.answer()
    result = question.describe(solver, answer)
    if options.measure:
        result |= question.measured(answer.plan)
    if options.out is not None:
        _write(Path(options.out), result)
    return result


def _at_odds(options: Options) -> list[Fault]:
    """Options that say nothing beside others, or want others."""
    faults, wanted = [], options.wanted
    if (options.model is None) == (options.sizes is None):
        faults.append(Fault("give a model, or --sizes 50,100,200 instead", "MODEL"))
    if options.model is None or options.is_profile:
        what = "a measured profile" if options.is_profile else "--sizes"
        idle = [name for name in (*OF_MODELS, "measure") if getattr(options, name)]
        faults += [Fault(f"has no influence on {what}", f"--{name}") for name in idle]
    if options.is_profile and wanted in MODES:
        message = "a profile does not say what PyTorch saves of its operators"
        faults.append(Fault(message, "--objective", suggestion="use corrected"))
    if options.ends and wanted in MODES:
        faults.append(Fault("has no influence on what PyTorch holds: for basic and corrected", "--ends"))
    if (options.nested or options.offload) and wanted != "non_reentrant":
        message = "runs within runs are planned for objective non_reentrant"
        faults.append(Fault(message, "--nested" if options.nested else "--offload"))
    if options.budget is not None and wanted == "basic":
        message = "basic has none: its peak is not that of one segment at a time"
        faults.append(Fault(message, "--budget", suggestion="use corrected"))
    return faults


def _subject(options: Options) -> Subject:
    if options.sizes is not None:
        return of_sizes(options.sizes)
    assert options.model is not None
    if options.is_profile:
        return of_profile(Path(options.model))
    return of_model(options.model, **{key: value for key in OF_MODELS if (value := getattr(options, key)) is not None})


class _Candidate(NamedTuple):
    """A plan for PyTorch, its peak under the objective, and which vertices that counts as kept and as recomputed."""

    plan: Plan
    peak_bytes: float
    checkpoints: list[int]
    recomputed: list[int]


class _Question:
    """A subject under an objective."""

    def __init__(self, subject: Subject, options: Options) -> None:
        self._subject, self._options, self._objective = subject, options, options.wanted
        counted = options.ends != "not"
        self._sizes = subject.sizes if counted else tuple(objectives.without_ends(subject.sizes))
        self._vertices = len(subject.sizes) - 1
        self._seconds = subject.seconds or (1.0,) * self._vertices

    @property
    def _mode(self) -> Mode:
        """The mode of PyTorch that plans are for."""
        return "reentrant" if self._objective == "reentrant" else "non_reentrant"

    def answer(self) -> tuple[str, _Candidate]:
        """The solver by name, and what it finds."""
        options, n = self._options, self._vertices
        if options.nested or options.offload:
            return "rotor", self._within_budget(rotor.front(self._subject.chain, self._seconds, options.offload))
        if options.budget is not None:
            self._limit(MOST_WITH_FRONT, "--budget")
            return "quadratic", self._within_budget(front(self._program(), self._seconds))
        if self._objective == "basic":
            self._limit(MOST_OF_BASIC, "--objective")
            return "cubic", self._of_checkpoints(solvers.cubic(self._sizes))
        if self._objective == "corrected":
            return "linear", self._of_checkpoints(solvers.linear(self._sizes))
        program = self._program()
        return "quadratic", self._of_plan(
            least_peak(program) if n > MOST_WITH_FRONT else front(program, self._seconds)[0].plan
        )

    def _program(self) -> Program:
        if self._objective in MODES:
            return pytorch.program(self._objective, self._subject.chain)
        return objectives.program(self._objective, self._sizes)

    def _within_budget(self, choices: Sequence[Choice]) -> _Candidate:
        """The fastest within the budget; the one of least peak where there is no budget."""
        budget, least = self._options.budget, choices[0].peak_bytes
        if budget is not None and least > budget:
            hint = "" if self._options.nested or self._objective != "non_reentrant" else "; --nested may need less"
            error = InfeasibleBudget(f"no plan is within {_both(budget)}: the least that works is {_both(least)}{hint}")
            error.least_bytes = least
            raise error
        plan = [choice.plan for choice in choices if choice.peak_bytes <= (budget or least)][-1]
        return self._of_plan(plan) if self._objective in MODES else self._of_checkpoints(checkpoints(plan))

    def _limit(self, most: int, option: str) -> None:
        if self._vertices > most:
            raise ScenarioError.of([Fault(f"takes at most {most} vertices, there are {self._vertices}", option)])

    def _of_plan(self, plan: Plan) -> _Candidate:
        """A plan as PyTorch runs it."""
        assert self._objective in MODES
        peak_bytes = pytorch.peak(self._objective, self._subject.chain, plan)
        return _Candidate(plan, peak_bytes, checkpoints(plan), recomputed(plan))

    def _of_checkpoints(self, kept: list[int]) -> _Candidate:
        """Checkpoints as papers have them: what lies between two of them is recomputed."""
        plan = of_checkpoints(kept)
        if self._objective in MODES:
            return self._of_plan(plan)
        between = [k for k in range(self._vertices + 1) if k not in set(kept)]
        return _Candidate(plan, objectives.peak(self._objective, self._sizes, kept), kept, between)

    def _others(self) -> dict[str, _Candidate | None]:
        """What the answer is compared with; Feng and Huang's takes too long for many vertices."""
        nothing = tuple(range(1, self._vertices + 1))
        if self._objective in MODES:
            none = self._of_plan(nothing)
        else:
            none = self._of_checkpoints(objectives.one_segment(self._sizes))._replace(plan=nothing, recomputed=[])
        ogc = self._of_checkpoints(solvers.cubic(self._sizes)) if self._vertices <= MOST_OF_BASIC else None
        return {"none": none, "sqrt_n": self._of_checkpoints(solvers.sqrt_segments(self._sizes)), "ogc": ogc}

    def describe(self, solver: str, answer: _Candidate) -> dict[str, Any]:
        """The answer without what is measured."""
        subject, others = self._subject, self._others()
        found: dict[str, Any] = {"subject": subject.name, "objective": self._objective, "solver": solver}
        if self._objective in MODES:
            found["counts"] = "all that is alive in a training step" if subject.vertices else "outputs and gradients"
        else:
            found |= {"ends": self._options.ends or "counted", "counts": "outputs and at most one gradient"}
        found |= self._row(answer)
        found["plan"] = as_lists(answer.plan)
        found["alternatives"] = {name: other and _whole(other.peak_bytes) for name, other in others.items()}
        compared = {**others, "ours": answer}
        found["comparison"] = [{"plan": name, **self._row(other)} for name, other in compared.items() if other]
        found["vertices"] = list(subject.names)
        return found | self._of_model(answer.plan)

    def _row(self, candidate: _Candidate) -> dict[str, Any]:
        seconds, step_s = sum(self._seconds[k - 1] for k in candidate.recomputed if k), self._subject.step_s
        return {
            "peak_bytes": _whole(candidate.peak_bytes),
            "checkpoints": candidate.checkpoints,
            "recomputed": candidate.recomputed,
            "recompute_s": seconds if step_s else None,
            "recompute_share": seconds / step_s if step_s else None,
        }

    def _of_model(self, plan: Plan) -> dict[str, Any]:
        """What is known of a model only."""
        subject = self._subject
        if subject.vertices is None:
            return {}
        found: dict[str, Any] = {"batch": subject.batch}
        found["granularity"] = {"name": subject.granularity, "vertices": self._vertices, "finer": self._finer()}
        if self._objective in MODES:
            history = training_step(subject.tape, plan, self._mode, subject.optimizer, subject.names)
            _, operation, consists_of = history.peak()
            found |= {"optimizer": subject.optimizer, "platform": subject.platform}
            found |= {"peak_at": operation, "consists_of": dict(consists_of)}
        return found

    def _finer(self) -> dict[str, Any] | None:
        """The least peak if the model were cut more finely."""
        granularity = self._subject.finer
        if granularity is None:
            return None
        asked = {"granularity": granularity, "budget": None, "nested": False, "offload": None}
        options = self._options.model_copy(update=asked)
        other = _Question(_subject(options), options)
        peak_bytes = _whole(other.answer()[1].peak_bytes)
        return {"name": granularity, "vertices": other._vertices, "peak_bytes": peak_bytes}

    def measured(self, plan: Plan) -> dict[str, Any]:
        """The peak as PyTorch has it; beside basic and corrected without what belongs to the parameters.

        Raises
        ------
        UnsupportedPlan : PyTorch is not installed.
        """
        subject = self._subject
        try:
            from backends.torch.peak import measure
        except ModuleNotFoundError:
            raise UnsupportedPlan("--measure needs PyTorch: pip install 'twinrail[torch]'") from None
        assert subject.vertices is not None
        found = measure(subject.vertices, subject.batch, plan, self._mode, subject.optimizer)
        size = found.bytes if self._objective in MODES else found.activation_bytes
        details = {"how": found.how, "mode": self._mode, "step_bytes": found.bytes}
        details |= {"without_parameters_bytes": found.activation_bytes, "reserved_bytes": found.reserved_bytes}
        return {"measured_bytes": size, "measured": details}


def _whole(size_bytes: float) -> float:
    """Bytes as a whole number where they are one."""
    return int(size_bytes) if float(size_bytes).is_integer() else size_bytes


def _write(path: Path, result: Mapping[str, Any]) -> None:
    """The plan as a file for a runtime, YAML or JSON by its name."""
    keys = ("subject", "batch", "granularity", "objective", "peak_bytes", "checkpoints", "plan", "vertices")
    text: dict[str, Any] = {"checkpoint_plan": PLAN_FORMAT}
    text |= {key: result[key] for key in keys if key in result}
    text["mode"] = "reentrant" if result["objective"] == "reentrant" else "non_reentrant"
    if "granularity" in text:
        text["granularity"] = text["granularity"]["name"]
    with saving(path):
        path.write_text(json.dumps(text, indent=2) + "\n" if path.suffix == ".json" else dump(text), "utf-8")


def read_plan(path: Path) -> tuple[Plan, Mode]:
    """A plan that was written with ``--out``.

    Raises
    ------
    ScenarioError : a file that is no plan.
    """
    data = load_document(path).data
    try:
        if data["checkpoint_plan"] != PLAN_FORMAT or data["mode"] not in MODES:
            raise ValueError
        plan = from_lists(data["plan"])
        if [*vertices(plan)] != list(range(1, len(data["vertices"]) + 1)):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ScenarioError.of([Fault("no checkpoint plan, or a damaged one", file=str(path))]) from None
    return plan, data["mode"]


COLUMNS = ("plan", "peak", "of none", "recomputed", "of step", "checkpoints")


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The comparison as a table under `COLUMNS`."""
    none = result["comparison"][0]["peak_bytes"]
    return [
        (
            row["plan"],
            format_bytes(row["peak_bytes"], True),
            f"{100 * row['peak_bytes'] / none:.1f} %" if none else "",
            f"{len(row['recomputed'])}",
            "" if row["recompute_share"] is None else f"{100 * row['recompute_share']:.1f} %",
            printable(_shortened(row["checkpoints"])),
        )
        for row in result["comparison"]
    ]


def _shortened(numbers: Sequence[int]) -> str:
    """Numbers, runs of them as ``4–9``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return " ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)


def summary(result: Mapping[str, Any]) -> str:
    """The answer in words."""
    size = result["peak_bytes"]
    lines = [f"{printable(result['subject'])}, {result['objective']} ({result['solver']}): peak {_both(size)}"]
    lines.append(f"counted: {result['counts']}" + (f", ends {result['ends']}" if "ends" in result else ""))
    lines.append(f"plan, recomputed in brackets: {json.dumps(result['plan'])}")
    if "granularity" in result:
        used, finer = result["granularity"], result["granularity"]["finer"]
        more = f"; {finer['name']} has {finer['vertices']}: {_both(finer['peak_bytes'])}" if finer else ""
        lines.append(f"batch {result['batch']}, granularity {used['name']} with {used['vertices']} vertices{more}")
    if "peak_at" in result:
        parts = (f"{name} {format_bytes(size, True)}" for name, size in result["consists_of"].items())
        lines.append(f"peak at {result['peak_at']}: {', '.join(parts)}")
    if "measured_bytes" in result:
        lines.append(f"measured {_both(result['measured_bytes'])}: {result['measured']['how']}")
    return "\n".join(lines) + "\n"


def _both(size_bytes: float) -> str:
    return f"{format_bytes(size_bytes, True)} ({size_bytes:.0f} bytes)"
