"""``twinrail import topo|nccl``: clusters from what machines say of their wiring."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from scenarios import hardware
from scenarios.command_line import app
from scenarios.schema import Cluster as Section
from sim.cluster import Cluster

DGX_1 = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity
GPU0\tX\tNV1\tNV2\tNV1\tSYS\tSYS\tSYS\tNV2\tNODE\tSYS\t0-23,48-71\t0
GPU1\tNV1\tX\tNV1\tNV2\tSYS\tSYS\tNV2\tSYS\tNODE\tSYS\t0-23,48-71\t0
GPU2\tNV2\tNV1\tX\tNV2\tSYS\tNV1\tSYS\tSYS\tPIX\tSYS\t0-23,48-71\t0
GPU3\tNV1\tNV2\tNV2\tX\tNV1\tSYS\tSYS\tSYS\tPIX\tSYS\t0-23,48-71\t0
GPU4\tSYS\tSYS\tSYS\tNV1\tX \tNV2\tNV2\tNV1\tSYS\tNODE\t24-47,72-95\t1
GPU5\tSYS\tSYS\tNV1\tSYS\tNV2\tX \tNV1\tNV2\tSYS\tNODE\t24-47,72-95\t1
GPU6\tSYS\tNV2\tSYS\tSYS\tNV2\tNV1\tX \tNV1\tSYS\tPIX\t24-47,72-95\t1
GPU7\tNV2\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tX \tSYS\tPIX\t24-47,72-95\t1
mlx5_0\tNODE\tNODE\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\tX\tSYS\t\t
mlx5_1\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\tPIX\tSYS\tX \t\t

Legend:

  X    = Self
"""
"""Eight V100 in a hypercube mesh, as printed by a real machine."""

TWO_SOCKETS = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tNIC3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tSYS\tPHB\tPHB\tSYS\tSYS\t0-13,28-41\t0\t\tN/A
GPU1\tSYS\t X \tSYS\tSYS\tPHB\tPHB\t14-27,42-55\t1\t\tN/A
NIC0\tPHB\tSYS\t X \tPIX\tSYS\tSYS
NIC1\tPHB\tSYS\tPIX\t X \tSYS\tSYS
NIC2\tSYS\tPHB\tSYS\tSYS\t X \tPIX
NIC3\tSYS\tPHB\tSYS\tSYS\tPIX\t X
"""

NVSWITCH = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\n" + "".join(
    f"GPU{a}\t" + "\t".join(" X " if a == b else "NV18" for b in range(4)) + "\t0-63\n" for a in range(4)
)

NCCL = """\
<system version="1">
  <cpu numaid="0" affinity="00ffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207">
    <pci busid="0000:16:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:18:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="5" tclass="0x068000"/>
          <nvlink target="0000:06:00.0" count="13" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:19:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="8">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ff000000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207">
    <pci busid="0000:98:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
      <gpu dev="1" sm="90" rank="1" gdr="1">
        <nvlink target="0000:07:00.0" count="18" tclass="0x068000"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Result]:
    def run(kind: str, text: str, *options: str) -> Result:
        (tmp_path / "box.txt").write_text(text)
        arguments = ["import", kind, str(tmp_path / "box.txt"), "--out", str(tmp_path / "box.yaml"), *options]
        return CliRunner().invoke(app, arguments)

    return run


@pytest.fixture
def built(imported: Callable[..., Result], tmp_path: Path) -> Callable[..., Cluster]:
    def build(kind: str, text: str, *options: str) -> Cluster:
        told = imported(kind, text, *options)
        assert told.exit_code == 0, told.stderr
        return hardware.build_cluster(Section.model_validate({"file": "box.yaml"}), tmp_path)

    return build


def figures(cluster: Cluster, a: str, b: str) -> tuple[int, float]:
    """Links on the way, and the least bandwidth in GB/s."""
    route = cluster.route(a, b)
    return len(route), cluster.bytes_per_s(route) / 1e9


def test_a_hypercube_mesh_of_nvlinks(built: Callable[..., Cluster]) -> None:
    cluster = built("topo", DGX_1, "--device", "v100")
    rows = {line.split()[0]: line.split()[1:9] for line in DGX_1.splitlines()[1:9]}
    for a, b in permutations(range(8), 2):
        told = rows[f"GPU{a}"][b]
        links, gb_per_s = figures(cluster, f"gpu{a}", f"gpu{b}")
        if told.startswith("NV"):
            assert (links, gb_per_s) == (1, 20 * int(told[2:]))  # SM70_NVLINK_BW
        else:
            assert (links, gb_per_s >= 20) == (2, True)  # over one GPU that has NVLinks to both, NCCL's NVB
    assert [node.name for node in cluster.hosts] == ["host0", "host1"]
    assert figures(cluster, "gpu0", "host0") == (1, 12)
    assert figures(cluster, "gpu2", "mlx5_0") == (2, 12)  # PIX: over one switch
    assert figures(cluster, "gpu0", "mlx5_0") == (3, 12)  # NODE: over the socket and the switch
    assert figures(cluster, "host0", "host1") == (1, 10)
    assert "src/graph/topo.h" in cluster.source


def test_two_sockets_without_nvlinks(built: Callable[..., Cluster]) -> None:
    cluster = built("topo", TWO_SOCKETS, "--device", "h100", "--system", "20 GB/s")
    assert figures(cluster, "gpu0", "gpu1") == (3, 20)
    assert figures(cluster, "gpu0", "nic1") == (3, 48)
    assert figures(cluster, "nic2", "nic3") == (2, 48)
    assert "sockets 20 GB/s as given" in cluster.source


def test_more_nvlinks_than_ports_are_a_switch(built: Callable[..., Cluster]) -> None:
    cluster = built("topo", NVSWITCH, "--device", "h100")
    assert all(
        figures(cluster, f"gpu{a}", f"gpu{b}") == (2, pytest.approx(18 * 20.6)) for a, b in permutations(range(4), 2)
    )
    assert len(cluster.hosts) == 1
    told = built("topo", NVSWITCH, "--device", "h100", "--nvlink", "25 GB/s")
    assert figures(told, "gpu0", "gpu1") == (2, 450)


def test_a_dump_of_nccl(built: Callable[..., Cluster]) -> None:
    cluster = built("nccl", NCCL, "--device", "h100")
    assert [node.name for node in cluster.gpus] == ["gpu0", "gpu1"]
    assert figures(cluster, "gpu0", "gpu1") == (2, pytest.approx(18 * 20.6))
    assert figures(cluster, "gpu0", "host0") == (2, 48)
    assert figures(cluster, "gpu1", "host1") == (1, 24)
    assert figures(cluster, "mlx5_0", "host0") == (2, 24)
    assert figures(cluster, "host0", "host1") == (1, 10)


def test_a_scenario_uses_it(built: Callable[..., Cluster], tmp_path: Path) -> None:
    built("topo", DGX_1, "--device", "v100")
    (tmp_path / "scenario.yaml").write_text(
        "name: box\nmodel: {name: vgg16, batch_size: 64}\ncluster: {file: box.yaml}\n"
        "schedule: {name: gpipe, stages: 4, micro_batches: 4}\n"
    )
    run = CliRunner().invoke(app, ["run", str(tmp_path / "scenario.yaml"), "--json"])
    assert run.exit_code == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    result = result[0] if isinstance(result, list) else result
    assert {link["name"] for link in result["links"]} >= {"gpu0>gpu1", "gpu1>gpu2", "gpu2>gpu3"}
    assert "nvidia-smi topo -m" in result["provenance"]["cluster"]["source"]


BOMB = '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><system>&b;</system>'


@pytest.mark.parametrize(
    ("kind", "text", "options", "expected"),
    [
        ("topo", "nothing\n", ("v100",), "no table of nvidia-smi topo -m"),
        ("topo", DGX_1.replace("\tNV2\tNV1\tX\t", "\tNV2\tNV1\tY\t"), ("v100",), ":4: GPU2 GPU2: expected NV#"),
        ("topo", DGX_1.replace("GPU1\tNV1", "GPU1\tNV2"), ("v100",), ":3: GPU1 GPU0: NV2 here, 'NV1' the other way"),
        ("topo", DGX_1.replace("GPU7\tNV2\tSYS", "GPU9\tNV2\tSYS"), ("v100",), ":9: unknown row 'GPU9'"),
        ("topo", DGX_1, ("v10",), "--device: unknown GPU 'v10' (did you mean 'v100'?)"),
        ("topo", DGX_1, ("p40",), "--device: the table has NVLinks, a p40 has none"),
        ("topo", DGX_1, ("v100", "--pcie", "12"), "--pcie: expected a bandwidth such as 16 GB/s"),
        ("nccl", BOMB, ("h100",), "a document type is declared"),
        ("nccl", NCCL.replace("</pci>", "", 1), ("h100",), "not XML: mismatched tag"),
        ("nccl", NCCL.replace('link_speed="16 GT/s"', 'link_speed=""'), ("h100",), ":16: pci: expected link_speed"),
        ("nccl", NCCL.replace('count="18"', 'count="x"'), ("h100",), ":18: nvlink: count: expected a number"),
        ("nccl", NCCL.replace('dev="1"', 'dev="0"'), ("h100",), ":17: gpu: 'gpu0' is there twice"),
        ("nccl", "<a/>", ("h100",), ":1: a: expected a <system>"),
        ("nccl", "<a>" * 99, ("h100",), "nested deeper than 64 levels"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    imported: Callable[..., Result], kind: str, text: str, options: tuple[str, ...], expected: str
) -> None:
    told = imported(kind, text, "--device", *options)
    assert told.exit_code == 2
    assert expected in told.stderr
