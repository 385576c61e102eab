"""Namespaces that live no longer than the process that built them.

Only root makes namespaces, and only their names outlive processes. So a keeper, a shell in a session of its own, makes
each one and waits at the end of a pipe: when this process closes it or dies, by whichever signal, the keeper kills what
is left in the namespaces and deletes them. Only if the keeper is killed too does a name stay, and the next testbed of
that name says so. Of the host nothing changes but the names of namespaces in /run/netns.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backends.torch.testbed.network import INTERFACE, Port, address, commands, namespaces
from sim.errors import BackendFailure

SNAPLEN = 128
"""Bytes captured of each packet: headers with TCP options fit."""

_HANDED_OVER_S = 1.0
"""After so long tcpdump has been handed what was captured; what has not been is lost when it ends."""

_KEEPER = """
while read -r name; do
    answer=$(ip netns add "$name" 2>&1) && made="$made $name"
    echo $answer
done
for name in $made; do
    kill -9 $(ip netns pids "$name") 2>/dev/null
    ip netns delete "$name"
done
"""

_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # the second to make namespaces: linux/capability.h


@dataclass(frozen=True)
class Bed:
    """A network that is up; ``prefix`` begins the names of its namespaces."""

    prefix: str
    layout: tuple[Port, ...]

    def address(self, node: str) -> str:
        """The IPv4 address of a node."""
        return address([port.node for port in self.layout].index(node))

    def command_prefix(self, node: str) -> tuple[str, ...]:
        """What a command begins with that is to run on a node."""
        return ("ip", "netns", "exec", f"{self.prefix}-{node}")

    @contextmanager
    def capture(self, node: str, file: Path) -> Iterator[None]:
        """Capture the TCP packets of a node meanwhile: headers, times in nanoseconds.

        Raises
        ------
        BackendFailure : there is no tcpdump, or it does not capture.
        """
        if reason := missing("tcpdump"):
            raise BackendFailure(reason)
        command = [*self.command_prefix(node), "tcpdump", "-i", INTERFACE, "-n", "-s", str(SNAPLEN), "-B", "65536"]
        command += ["--time-stamp-precision=nano", "-w", "-", "tcp"]
        with (
            file.open("wb") as out,
            subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, process_group=0) as tcpdump,
        ):
            assert tcpdump.stderr is not None
            said = ""
            while "listening on" not in said:
                if not (line := tcpdump.stderr.readline()):
                    raise BackendFailure(f"no capture on {node}: {said.strip()}")
                said += line
            try:
                yield
                time.sleep(_HANDED_OVER_S)
            finally:
                tcpdump.send_signal(signal.SIGINT)


@contextmanager
def build(layout: Sequence[Port], prefix: str | None = None) -> Iterator[Bed]:
    """Build a network, and leave nothing of it whatever ends its use.

    Raises
    ------
    BackendFailure : no rights, tools or kernel support for it; a namespace of a name exists already.
    """
    if reason := missing():
        raise BackendFailure(reason)
    bed = Bed(prefix or f"twinrail-{os.getpid()}", tuple(layout))
    with _kept(namespaces(bed.prefix, bed.layout)):
        for command in commands(bed.prefix, bed.layout):
            _run(command)
        yield bed


def missing(*tools: str) -> str | None:
    """What this machine lacks for a testbed, and for ``tools`` on it; ``None``: nothing."""
    if lacking := [tool for tool in ("ip", "tc", *tools) if shutil.which(tool) is None]:
        packages = " and ".join(dict.fromkeys(tool if tool in tools else "iproute2" for tool in lacking))
        return f"a testbed needs {', '.join(lacking)}: install {packages}"
    mine = _capabilities()
    if denied := [name for name, bit in _CAPABILITIES.items() if not mine >> bit & 1]:
        return f"a testbed makes network namespaces: run it as root, or with {' and '.join(denied)}"
    return None


def _capabilities() -> int:
    """What this process may do, a bit each."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)


@contextmanager
def _kept(names: Sequence[str]) -> Iterator[None]:
    """Namespaces that end with this process."""
    with subprocess.Popen(
        ["sh", "-c", _KEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        for name in names:
            print(name, file=keeper.stdin, flush=True)
            if answer := keeper.stdout.readline().strip():
                raise BackendFailure(_refusal(name, answer))
        yield


def _refusal(name: str, answer: str) -> str:
    if "File exists" in answer:
        return f"namespace '{name}' exists already: end what uses it, or delete it with 'ip netns delete {name}'"
    return f"namespace '{name}' cannot be made: {answer}"


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    if "netem" in command and "unknown" in said:
        raise BackendFailure("this kernel has no netem, so links have no latency here: leave out cluster.link.latency")
    raise BackendFailure(f"'{' '.join(command)}' failed: {said}")
