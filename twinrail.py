"""Twinrail's public names. No logic here, and nothing of ours imports this module.

>>> import twinrail
>>> schedule = twinrail.PLANNERS["one_f_one_b"](stages=2, micro_batches=2)
>>> print(twinrail.grid(schedule))
d0.compute │ 0F0 0F1     0B0     0B1
d1.compute │     1F0 1B0 1F1 1B1
"""

from __future__ import annotations

from analysis.result import compute as analyse
from backends.base import Backend, load
from scenarios.compose import Composed, compose
from scenarios.load import apply_sets, load_document
from scenarios.points import Point, parse_points
from scenarios.schema import Scenario, parse
from sim import VERSION
from sim.assembly import ScheduleBuilder
from sim.binding import Binding
from sim.cluster import Cluster, Link, Node
from sim.errors import TwinrailError
from sim.longest_path import grid
from sim.model import Layer, ModelProfile
from sim.ops import OpId, OpKind
from sim.plan import Plan
from sim.planners import PLANNERS
from sim.program import Program
from sim.schedule import Schedule, Shape
from sim.trace import Trace
from sim.training import Training

__all__ = [
    "PLANNERS",
    "VERSION",
    "Backend",
    "Binding",
    "Cluster",
    "Composed",
    "Layer",
    "Link",
    "ModelProfile",
    "Node",
    "OpId",
    "OpKind",
    "Plan",
    "Point",
    "Program",
    "Scenario",
    "Schedule",
    "ScheduleBuilder",
    "Shape",
    "Trace",
    "Training",
    "TwinrailError",
    "analyse",
    "apply_sets",
    "compose",
    "grid",
    "load",
    "load_document",
    "parse",
    "parse_points",
]
