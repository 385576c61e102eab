"""What PyTorch's kernels take for themselves while they run, where shapes tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Workspace = Callable[[Any, tuple[Any, ...], Any], int]
"""From an operation, its arguments and its result: bytes that are taken and given back before it ends."""


def columns(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """Of a convolution on a GPU without cuDNN: one sample unfolded, input channels × kernel × output positions.

    Source: ``slow_conv2d`` in aten/src/ATen/native/cuda/ConvolutionMM2d.cu.
    """
    if func is torch.ops.aten.convolution.default:
        weight, leaving = args[1], result
    elif func is torch.ops.aten.convolution_backward.default:
        weight, leaving = args[2], args[0]
    else:
        return 0
    assert isinstance(weight, Tensor)
    return int(math.prod(weight.shape[1:]) * math.prod(leaving.shape[2:]) * weight.element_size())
