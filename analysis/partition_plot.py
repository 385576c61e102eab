"""A profile graph drawn from top to bottom in columns, each operator in the colour of its stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from analysis.text import duration
from sim.antichains import operators_of
from sim.graph import ProfileGraph, ProfileNode
from sim.pipedream_partitioner import PipeDreamPartition, Stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Of Okabe and Ito, in turn; the number of its stage stands in every box."""
LEFT_OUT = "#BBBBBB"
BOX_IN, HEIGHT_IN, ROW_IN, TRACK_IN, GUTTER_IN = 1.75, 0.19, 0.3, 0.09, 0.3
TOP_IN, LEGEND_ROW_IN, MARGIN_IN, DPI, MOST_PIXELS, NAME_LENGTH = 0.75, 0.18, 0.25, 130, 12_000, 21
ASPECT = 1.25
"""Columns are added until the picture is about as wide as this times its height."""
KEY = "bar: forward and backward, of the longest; number: stage; bold: crosses a cut; grey: the last node does without"

Point = tuple[float, float]


class Cell(NamedTuple):
    """Where a node stands: column of the picture, row in it, and lane beside others in that row."""

    column: int
    row: int
    lane: int


@dataclass(frozen=True)
class Layout:
    """Cells by node number, and inches from the left: of each column's first and last edge, and of the whole.

    A producer whose readers do not stand right below it has a wire beside the column, left of lane 0 or right of the
    others; ``tracks`` tells how far out.
    """

    cells: Mapping[int, Cell]
    tracks: Mapping[int, int]
    left_in: tuple[float, ...]
    right_in: tuple[float, ...]
    rows: int
    width_in: float

    def box(self, number: int) -> Point:
        """Lower left corner of a node, y upwards."""
        column, row, lane = self.cells[number]
        return self.left_in[column] + lane * (BOX_IN + GUTTER_IN), -(row + 0.5) * ROW_IN - HEIGHT_IN / 2


def plot(graph: ProfileGraph, partition: PipeDreamPartition, title: str, path: Path) -> None:
    """Write the picture as the image that the suffix of ``path`` asks for: PNG, SVG or PDF."""
    draw(graph, partition, title).savefig(path)


def draw(graph: ProfileGraph, partition: PipeDreamPartition, title: str) -> Figure:
    """The picture of a graph: stages by colour and number, and a bar in each box for its share of the longest time.

    Bold wires cross a cut. Input nodes belong to the first stage; nodes that the last one does not need are grey.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    operators = operators_of(graph)
    stage_of = {
        operators[layer].number: index for index, stage in enumerate(partition.stages) for layer in stage.layers
    }
    stage_of |= dict.fromkeys(graph.inputs & graph.needed, 0)
    layout = _layout(graph)
    legend_in = TOP_IN + LEGEND_ROW_IN * math.ceil(len(partition.stages) / 2)
    depth_in = layout.rows * ROW_IN + TRACK_IN * (max(layout.tracks.values(), default=0) + 1) + MARGIN_IN
    width_in, height_in = max(layout.width_in, 8.0), legend_in + depth_in
    figure = Figure(figsize=(width_in, height_in), dpi=min(DPI, MOST_PIXELS / max(width_in, height_in)))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, depth_in / height_in), xlim=(0, width_in), ylim=(-depth_in, 0))
    axes.axis("off")
    _draw_wires(axes, graph, layout, stage_of)
    _draw_boxes(axes, graph, layout, stage_of)
    _legend(figure, operators, partition.stages, title)
    return figure


def _levels(graph: ProfileGraph) -> dict[int, int]:
    """The row of each node in one long column: as far down as its readers allow; what is left out hangs below."""
    longest: dict[int, int] = {}
    for node in graph.order:
        longest[node.number] = max((longest[number] + 1 for number in graph.digraph.pred[node.number]), default=0)
    levels: dict[int, int] = {}
    for node in reversed(graph.order):
        readers = [levels[reader] for reader in graph.digraph[node.number] if reader in levels]
        if node.number in graph.needed:
            levels[node.number] = min(readers) - 1 if readers else longest[node.number]
    for node in graph.order:
        if node.number not in levels:
            levels[node.number] = max((levels[number] + 1 for number in graph.digraph.pred[node.number]), default=0)
    top = min(levels.values())
    return {number: level - top for number, level in levels.items()}


def _lanes(graph: ProfileGraph, levels: Mapping[int, int]) -> dict[int, int]:
    """Below a node that it reads where that is next above, else in the first lane that is free."""
    by_level: dict[int, list[int]] = {}
    for node in graph.order:
        by_level.setdefault(levels[node.number], []).append(node.number)
    lanes: dict[int, int] = {}
    for level in sorted(by_level):
        taken: set[int] = set()
        above = {
            number: min(
                (lanes[producer] for producer in graph.digraph.pred[number] if levels[producer] == level - 1),
                default=math.inf,
            )
            for number in by_level[level]
        }
        for number in sorted(by_level[level], key=lambda number: (number not in graph.needed, above[number])):
            lane = above[number]
            if lane in taken or not math.isfinite(lane):
                lane = next(free for free in range(len(taken) + 1) if free not in taken)
            lanes[number] = int(lane)
            taken.add(int(lane))
    return lanes


def _layout(graph: ProfileGraph) -> Layout:
    levels = _levels(graph)
    lanes = _lanes(graph, levels)
    depth, wide = max(levels.values()) + 1, max(lanes.values()) + 1
    columns = max(1, round(math.sqrt(ASPECT * depth * ROW_IN / (wide * (BOX_IN + GUTTER_IN) + GUTTER_IN))))
    rows = math.ceil(depth / columns)
    cells = {number: Cell(level // rows, level % rows, lanes[number]) for number, level in levels.items()}
    tracks = _tracks(graph, levels, cells)
    beside_in = GUTTER_IN + TRACK_IN * (max(tracks.values(), default=0) + 1)
    left_in, right_in = [], [0.0]
    for column in range(math.ceil(depth / rows)):
        left_in.append(right_in[-1] + beside_in)
        widest = max(cell.lane for cell in cells.values() if cell.column == column)
        right_in.append(left_in[-1] + widest * (BOX_IN + GUTTER_IN) + BOX_IN + beside_in * (widest > 0))
    edges_in = [right - beside_in * (right - left > BOX_IN) for left, right in zip(left_in, right_in[1:], strict=True)]
    return Layout(cells, tracks, tuple(left_in), tuple(edges_in), rows, right_in[-1] + GUTTER_IN + MARGIN_IN)


def _is_below(cells: Mapping[int, Cell], producer: int, reader: int) -> bool:
    """Whether a reader stands in the next row of the same column."""
    cell, to = cells[producer], cells[reader]
    return (to.column, to.row) == (cell.column, cell.row + 1)


def _tracks(graph: ProfileGraph, levels: Mapping[int, int], cells: Mapping[int, Cell]) -> dict[int, int]:
    """A track for each producer with far readers; wires that pass one another lie side by side."""
    tracks: dict[int, int] = {}
    free_from: list[int] = []
    for number in sorted(levels, key=lambda number: (levels[number], number)):
        far = [levels[reader] for reader in graph.digraph[number] if not _is_below(cells, number, reader)]
        if far:
            track = next((t for t, level in enumerate(free_from) if level <= levels[number]), len(free_from))
            free_from[track : track + 1] = [max(far)]
            tracks[number] = track
    return tracks


def _draw_wires(axes: Axes, graph: ProfileGraph, layout: Layout, stage_of: Mapping[int, int]) -> None:
    from matplotlib.collections import LineCollection

    for cut, colour, width in ((False, "#999999", 0.7), (True, "black", 1.6)):
        chosen = [edge for edge in graph.edges if (_stage(stage_of, edge[0]) < _stage(stage_of, edge[1])) == cut]
        lines = [_wire(layout, *edge) for edge in chosen]
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=width, zorder=1 + cut))


def _stage(stage_of: Mapping[int, int], number: int) -> float:
    return stage_of.get(number, -math.inf)


def _wire(layout: Layout, producer: int, reader: int) -> Sequence[Point]:
    """From the lower edge of a node to the upper edge of its reader, along the gaps between rows and columns."""
    (x, y), (to_x, to_y) = layout.box(producer), layout.box(reader)
    x, to_x, to_y = x + BOX_IN / 2, to_x + BOX_IN / 2, to_y + HEIGHT_IN
    leave_y, arrive_y = y - (ROW_IN - HEIGHT_IN) / 3, to_y + (ROW_IN - HEIGHT_IN) / 3
    if _is_below(layout.cells, producer, reader):
        return [(x, y), (x, leave_y), (to_x, leave_y), (to_x, to_y)]
    cell, out_in = layout.cells[producer], GUTTER_IN / 2 + TRACK_IN * layout.tracks[producer]
    line = [(x, y)]
    if cell.row < layout.rows - 1:
        x = layout.right_in[cell.column] + out_in if cell.lane else layout.left_in[cell.column] - out_in
        line += [(line[0][0], leave_y), (x, leave_y)]
    bottom_y = -layout.rows * ROW_IN - TRACK_IN * layout.tracks[producer]
    for column in range(cell.column, layout.cells[reader].column):
        line += [(x, bottom_y), (x := layout.left_in[column + 1] - out_in, bottom_y)]
    return [*line, (x, arrive_y), (to_x, arrive_y), (to_x, to_y)]


def _draw_boxes(axes: Axes, graph: ProfileGraph, layout: Layout, stage_of: Mapping[int, int]) -> None:
    from matplotlib.patches import Rectangle

    working = {node.number: node.forward_s + node.backward_s for node in graph.nodes if node.number not in graph.inputs}
    longest_s = max(working.values())
    for node in graph.nodes:
        x, y = layout.box(node.number)
        stage = stage_of.get(node.number)
        colour = LEFT_OUT if stage is None else COLOURS[stage % len(COLOURS)]
        share = working.get(node.number, 0.0) / longest_s
        axes.add_patch(Rectangle((x, y), BOX_IN, HEIGHT_IN, facecolor="white", edgecolor="none", zorder=3))
        axes.add_patch(Rectangle((x, y), BOX_IN, HEIGHT_IN, facecolor=colour, alpha=0.22, linewidth=0, zorder=4))
        axes.add_patch(Rectangle((x, y), BOX_IN * share, HEIGHT_IN, facecolor=colour, alpha=0.6, linewidth=0, zorder=5))
        axes.add_patch(Rectangle((x, y), BOX_IN, HEIGHT_IN, fill=False, edgecolor=colour, linewidth=0.8, zorder=6))
        _label(axes, node, (x, y + HEIGHT_IN / 2), stage, working.get(node.number))


def _label(axes: Axes, node: ProfileNode, at: Point, stage: int | None, time_s: float | None) -> None:
    name = f"{node.number} {node.kind}".encode("latin-1", "replace").decode("latin-1")
    name = name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
    x, y = at
    write = partial(axes.text, y=y, fontsize=6.3, va="center_baseline", zorder=7, parse_math=False)
    write(x=x + 0.04, s=name, ha="left")
    if time_s:
        write(x=x + BOX_IN - 0.2, s=duration(time_s), ha="right")
    if stage is not None:
        write(x=x + BOX_IN - 0.04, s=str(stage), ha="right", weight="bold")


def _legend(figure: Figure, operators: Sequence[ProfileNode], stages: Sequence[Stage], title: str) -> None:
    from matplotlib.patches import Patch

    width_in, height_in = figure.get_size_inches()
    write = partial(figure.text, x=MARGIN_IN / width_in, va="top", parse_math=False)
    write(y=1 - 0.15 / height_in, s=title, fontsize=11, weight="bold")
    write(y=1 - 0.37 / height_in, s=KEY, fontsize=7.5, color="#444444")
    figure.legend(
        handles=[
            Patch(
                facecolor=COLOURS[index % len(COLOURS)],
                alpha=0.7,
                label=f"{index}: {_described(stage, operators)}",
            )
            for index, stage in enumerate(stages)
        ],
        loc="upper left",
        bbox_to_anchor=(MARGIN_IN / width_in, 1 - 0.53 / height_in),
        borderpad=0,
        borderaxespad=0,
        ncols=2 if len(stages) > 1 else 1,
        frameon=False,
        fontsize=8,
        handlelength=1.2,
    )


def _described(stage: Stage, operators: Sequence[ProfileNode]) -> str:
    ends = " … ".join(dict.fromkeys(operators[stage.layers[end]].name for end in (0, -1)))
    machines = f"{stage.replicas} machine{'s' * (stage.replicas > 1)}"
    transfers = f", transfers {duration(stage.transfer_s)}" if stage.transfer_s else ""
    return f"{ends} on {machines}, {duration(stage.time_s)}{transfers}"
