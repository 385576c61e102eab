"""The network of a scenario for real, on one Linux machine: a namespace per node, around one that is the switch.

`network` says which commands build it, `bed` runs them and sees to it that nothing is left, whatever ends the run.
"""

from __future__ import annotations

from backends.torch.testbed.bed import Bed, build, missing
from backends.torch.testbed.network import Port, ports

__all__ = ["Bed", "Port", "build", "missing", "ports"]
