"""How tensors travel between the processes of a run: every channel and every circle of an all-reduce has a group.

A group of its own lets a channel wait for nobody else. Over gloo what is in the memory of a GPU passes through pinned
memory of the host; over nccl it goes from GPU to GPU, which takes one of its own for every rank.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from backends.torch.job import TransportName

_FOREVER = timedelta(days=365)
"""The parent is the watchdog."""


class Transport:
    """The groups of one rank. Every rank makes them in the same order, so that they meet.

    Parameters
    ----------
    where : the device of what is sent, and of what arrives.
    meeting : URL by which ranks find each other; a file: all are on this machine, and use its loopback interface.
    channels : pairs of ranks, from and to. ``circles``: ranks that sum tensors among each other.
    """

    def __init__(
        self,
        name: TransportName,
        where: torch.device,
        meeting: str,
        rank: int,
        ranks: int,
        channels: Iterable[tuple[int, int]],
        circles: Iterable[Sequence[int]],
    ) -> None:
        self._where, self._staged = where, name == "gloo" and where.type == "cuda"
        if meeting.startswith("file:"):
            os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=_FOREVER)
        self._groups: dict[tuple[int, ...], Any] = {
            members: dist.new_group([*dict.fromkeys(members)], backend=name, timeout=_FOREVER)
            for members in (*map(tuple, channels), *map(tuple, circles))
        }

    def send(self, tensor: Tensor, channel: tuple[int, int], tag: int) -> None:
        """Give a tensor to the one at the other end; return when it may be overwritten."""
        dist.send(self._outside(tensor), channel[1], group=self._groups[channel], tag=tag)

    def receive(self, tensor: Tensor, channel: tuple[int, int], tag: int) -> None:
        """Fill a tensor with what comes."""
        arriving = self._outside(tensor, copy=False)
        dist.recv(arriving, channel[0], group=self._groups[channel], tag=tag)
        self._inside(arriving, tensor)

    def all_reduce(self, tensors: Sequence[Tensor], circle: tuple[int, ...]) -> None:
        """Overwrite tensors with their sums over a circle: as one message, copied together and apart."""
        total = torch.cat([tensor.reshape(-1) for tensor in tensors])
        passing = self._outside(total)
        dist.all_reduce(passing, group=self._groups[circle])
        self._inside(passing, total)
        parts = torch.split(total, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def _outside(self, tensor: Tensor, copy: bool = True) -> Tensor:
        """Where gloo can read and write it."""
        if not self._staged:
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor) if copy else host

    def _inside(self, arrived: Tensor, tensor: Tensor) -> None:
        if arrived is not tensor:
            tensor.copy_(arrived)
