"""The roofline against numbers worked out by hand."""

from __future__ import annotations

import pytest

from sim.model import DeviceSpec, LayerTable, LayerWork, roofline

# 0.5 Tflop/s and 50 GB/s in effect; bf16 1 Tflop/s.
DEVICE = DeviceSpec(
    name="toy",
    memory_bytes=10**9,
    memory_bytes_per_s=100e9,
    peak_flops_per_s={"fp32": 1e12, "bf16": 4e12},
    compute_efficiency={"fp32": 0.5, "bf16": 0.25},
    memory_efficiency=0.5,
    source="a test",
)
TABLE = LayerTable(
    name="toy",
    input_elements=1_000,
    layers=(
        LayerWork("busy", forward_flops=1e9, output_elements=2_000, parameter_elements=500),
        LayerWork("relu", forward_flops=0, output_elements=2_000, parameter_elements=0, in_place=True),
        LayerWork("wide", forward_flops=2e6, output_elements=10, parameter_elements=1_000_000),
    ),
    source="by hand",
)


def test_a_layer_takes_the_longer_of_arithmetic_and_memory() -> None:
    busy, relu, wide = roofline(TABLE, DEVICE, "fp32", samples=4).layers
    assert busy.forward_s == pytest.approx(4e9 / 0.5e12)
    assert relu.forward_s == pytest.approx((8_000 + 8_000) * 4 / 50e9)
    # Four samples share one reading of the parameters: 8000 in, 40 out, a million weights.
    assert wide.forward_s == pytest.approx((8_000 + 40 + 1_000_000) * 4 / 50e9)


def test_backward_has_one_pass_a_gradient_and_none_that_nobody_needs() -> None:
    busy, relu, wide = roofline(TABLE, DEVICE, "fp32", samples=4).layers
    assert (busy.backward_input_s, busy.backward_weight_s) == (0, busy.forward_s)
    assert (relu.backward_input_s, relu.backward_weight_s) == (relu.forward_s, 0)
    assert (wide.backward_input_s, wide.backward_weight_s) == (wide.forward_s, wide.forward_s)


def test_bytes_follow_the_dtype_and_an_in_place_layer_saves_none() -> None:
    profile = roofline(TABLE, DEVICE, "bf16", samples=4)
    assert profile.input_bytes == 4 * 1_000 * 2
    assert [layer.output_bytes for layer in profile.layers] == [16_000, 16_000, 80]
    assert [layer.saved_bytes for layer in profile.layers] == [16_000, 0, 80]
    assert [layer.parameter_bytes for layer in profile.layers] == [1_000, 0, 2_000_000]
    assert profile.parameter_bytes_each == 2
    assert profile.layers[0].forward_s == pytest.approx(4e9 / 1e12)
    assert sum(layer.flops for layer in profile.layers) == 4 * (1e9 + 2e6)


def test_a_compute_bound_layer_scales_with_samples_and_a_parameter_bound_one_hardly() -> None:
    one, many = (roofline(TABLE, DEVICE, "fp32", samples).layers for samples in (1, 16))
    assert many[0].forward_s == pytest.approx(16 * one[0].forward_s)
    assert many[2].forward_s < 1.1 * one[2].forward_s


def test_a_dtype_the_device_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="'toy' has no peak for dtype fp64"):
        roofline(TABLE, DEVICE, "fp64", samples=1)
