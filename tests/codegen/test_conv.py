"""Convolutions and their gradients against float64 numpy: strides, paddings, dilations, groups, edges of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gluongraph.codegen.contraction import conv, conv_1x1, conv_bands, conv_direct_nchwc, conv_tiles
from gluongraph.codegen.contraction.conv import Conv
from gluongraph.codegen.contraction.microkernel import accumulator
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.targets import TARGETS, cpu_flags, target
from gluongraph.codegen.tvm import machine_code, tir
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import CompileError

HOST = target()
assert isinstance(HOST, Cpu)
WORKSPACE = {
    "forward": conv.forward_workspace,
    "data_grad": conv.data_grad_workspace,
    "weight_grad": conv.weight_grad_workspace,
}


def taps(c: Conv) -> Any:
    """For each tap: its place in the kernel, and the slices of padded input that it reads."""
    height, width = c.out
    for i in range(c.kernel[0]):
        for j in range(c.kernel[1]):
            top, left = i * c.dilation[0], j * c.dilation[1]
            rows = slice(top, top + (height - 1) * c.stride[0] + 1, c.stride[0])
            yield i, j, (..., rows, slice(left, left + (width - 1) * c.stride[1] + 1, c.stride[1]))


def reference(kind: str, c: Conv, x: Any, w: Any, g: Any) -> Any:
    """By numpy: the sum over taps of products of whole images."""
    edge = [(0, 0), (0, 0), (c.padding[0],) * 2, (c.padding[1],) * 2]
    whole = np.pad(x, edge).reshape(c.n, c.groups, c.c // c.groups, c.h + 2 * c.padding[0], c.w + 2 * c.padding[1])
    w, g = w.reshape(c.groups, c.o // c.groups, *w.shape[1:]), g.reshape(c.n, c.groups, c.o // c.groups, *c.out)
    y, dx, dw = np.zeros_like(g), np.zeros_like(whole), np.zeros_like(w)
    for i, j, place in taps(c):
        y += np.einsum("ngchw,goc->ngohw", whole[place], w[..., i, j])
        dx[place] += np.einsum("ngohw,goc->ngchw", g, w[..., i, j])
        dw[..., i, j] = np.einsum("ngchw,ngohw->goc", whole[place], g)
    dx = dx[..., c.padding[0] : c.padding[0] + c.h, c.padding[1] : c.padding[1] + c.w]
    return {"forward": y, "data_grad": dx, "weight_grad": dw}[kind].ravel()


def run(
    kind: str, c: Conv, dtype: str = "f32", where: Any = HOST, threads: tuple[int, ...] = (), algorithm: str = ""
) -> list[Any]:
    """What the kernel adds into zeros (so an element written twice shows), per number of threads; the reference."""
    import tvm

    random = np.random.default_rng(3)
    shapes = {"x": (c.n, c.c, c.h, c.w), "w": (c.o, c.c // c.groups, *c.kernel), "g": (c.n, c.o, *c.out)}
    arrays = {name: (random.integers(-99, 99, shape) / 64).astype(numpy_dtype(dtype)) for name, shape in shapes.items()}
    names = {"forward": "xw", "data_grad": "gw", "weight_grad": "xg"}[kind]
    result = {"forward": "g", "data_grad": "x", "weight_grad": "w"}[kind]

    k, total = tir.Kernel("conv"), accumulator(dtype, dtype)
    bufs = {name: k.param(name, arrays[name].size, dtype) for name in names}
    out = k.param("out", arrays[result].size, total)
    space = k.param("space", WORKSPACE[kind](c, dtype, where, algorithm), "u8")

    def pixels(name: str) -> Any:
        channels, size = shapes[name][1], shapes[name][2] * shapes[name][3]
        return lambda n, ch, p, lanes: k.load(bufs[name], (n * channels + ch) * size + p, lanes)

    def add(at: Any, value: Any) -> None:
        k.store(out, k.load(out, at, tir.lanes_of(value)) + value, at)

    def write_pixels(n: Any, ch: Any, p: Any, value: Any) -> None:
        add(k.let((n * shapes[result][1] + ch) * (shapes[result][2] * shapes[result][3]) + p), value)

    if kind == "weight_grad":
        x, g = pixels("x"), pixels("g")
        conv.emit_weight_grad(k, c, dtype, x, g, lambda o, q, v: add(k.let(o * c.q + q), v), where, space, algorithm)
    else:
        emit = conv.emit_forward if kind == "forward" else conv.emit_data_grad
        source = pixels(names[0])
        emit(
            k,
            c,
            dtype,
            source,
            lambda o, q, n: k.load(bufs["w"], o * c.q + q, n),
            write_pixels,
            where,
            space,
            algorithm,
        )
    function = machine_code.build_kernels([k.finish()], where.tvm)["conv"]
    given = [tvm.runtime.tensor(arrays[name].ravel()) for name in names]
    results = []
    for number in threads or (0,):
        if number:
            tvm.get_global_func("runtime.config_threadpool")(1, number)
        made = tvm.runtime.tensor(np.zeros(out.size, numpy_dtype(total)))
        function(*given, made, tvm.runtime.tensor(np.full(space.size, 255, "u1")))  # the workspace starts as NaNs
        results.append(made.numpy())
    return [*results, reference(kind, c, *(arrays[name].astype("f8") for name in "xwg"))]


def check(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    assert np.abs(got - want).max() <= tolerance * max(np.abs(want).max(), 1e-30)


CASES = {
    "one": Conv(1, 1, 1, 1, 1, (1, 1)),
    "plain": Conv(16, 3, 8, 8, 5, (3, 3)),
    "same": Conv(19, 4, 4, 4, 9, (3, 3), padding=(1, 1)),
    "wide": Conv(2, 2, 3, 37, 3, (3, 5), padding=(1, 2)),
    "strided": Conv(17, 3, 9, 8, 7, (3, 3), (2, 2), (1, 1)),
    "skipping": Conv(16, 6, 7, 7, 4, (1, 1), (2, 2)),
    "steep": Conv(5, 3, 9, 4, 7, (1, 3), (3, 1), (0, 2)),
    "dilated": Conv(3, 2, 7, 9, 3, (3, 2), (1, 2), (2, 0), (2, 3)),
    "grouped": Conv(17, 6, 6, 5, 8, (3, 3), (1, 1), (1, 1), (1, 1), 2),
    "depthwise": Conv(16, 6, 7, 5, 6, (3, 3), (2, 1), (1, 1), (1, 1), 6),
    "broad": Conv(1, 1, 2, 30, 2, (2, 19), padding=(0, 4)),
    "whole": Conv(20, 5, 6, 6, 18, (6, 6)),
    "far": Conv(4, 2, 3, 3, 2, (3, 3), padding=(4, 4)),
    "lenet": Conv(16, 20, 12, 12, 50, (5, 5)),
    "deep": Conv(33, 40, 4, 4, 24, (3, 3), padding=(1, 1)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", WORKSPACE)
def test_convolution(kind: str, case: str) -> None:
    check(*run(kind, CASES[case]))


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
@pytest.mark.parametrize("kind", WORKSPACE)
def test_other_dtypes(kind: str, dtype: str) -> None:
    check(*run(kind, CASES["grouped"], dtype))


def test_weights_of_bf16_have_no_address_to_fetch_ahead() -> None:
    """There is no address of them, and there are as many as are asked for where they are float32."""
    check(*run("data_grad", CASES["lenet"], "bf16"))


CHANNELS = {  # fill vectors better than images do: blocks with a rest, remainders of strides without a tap, groups
    "odd": Conv(8, 40, 4, 4, 64, (3, 3), padding=(1, 1)),
    "strided": Conv(3, 32, 8, 8, 48, (3, 3), (2, 2), (1, 1)),
    "skipping": Conv(8, 20, 8, 8, 40, (1, 1), (2, 2)),
    "grouped": Conv(2, 48, 6, 4, 32, (3, 2), (1, 2), (2, 0), (2, 1), 2),
    "far": Conv(2, 16, 3, 3, 17, (3, 3), padding=(4, 4)),
}


@pytest.mark.parametrize("case", CHANNELS)
@pytest.mark.parametrize("kind", WORKSPACE)
def test_channels_in_vectors(kind: str, case: str) -> None:
    c = CHANNELS[case]
    assert all(conv_direct_nchwc.is_profitable(c, channels, TARGETS["x86-64-v4"], "f32") for channels in (c.c, c.o))
    check(*run(kind, c, where=target("x86-64-v3") if case == "odd" else HOST, algorithm="channels"))


BANDS = {  # of few images that fill a vector: a rest of every tile, rows that a stride leaves out, groups, AVX2
    "odd": (Conv(8, 20, 4, 6, 23, (3, 3), padding=(1, 1)), "x86-64-v4"),
    "strided": (Conv(4, 9, 8, 6, 7, (3, 2), (2, 2), (1, 0)), "x86-64-v4"),
    "grouped": (Conv(8, 8, 8, 5, 6, (3, 2), (2, 1), (2, 0), (2, 1), 2), "x86-64-v4"),
    "narrow": (Conv(2, 12, 4, 4, 18, (3, 3), padding=(1, 1)), "x86-64-v3"),
}


@pytest.mark.parametrize("case", BANDS)
@pytest.mark.parametrize("kind", ["forward", "data_grad"])
def test_bands_of_images(kind: str, case: str) -> None:
    c, where = BANDS[case][0], target(BANDS[case][1])
    op = {"forward": "conv2d", "data_grad": "conv2d_data_grad"}[kind]
    assert conv.algorithms(op, c, "f32", where)[0] == "bands"
    if HOST.lanes < where.lanes:
        pytest.skip(f"this machine is no {where.name}")
    one, two, want = run(kind, c, where=where, threads=(1, 2))
    check(one, want)
    assert np.array_equal(one, two)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_bands_of_16_bit_images(dtype: str) -> None:
    c = Conv(2, 5, 16, 8, 9, (3, 3), padding=(1, 1))
    check(*run("forward", c, dtype, algorithm="bands"))


def test_which_images_are_cut_into_bands() -> None:
    """Bands fill a vector, are of whole steps, and more of them than images; many pixels are worth turning weights."""
    cpu, layer = TARGETS["x86-64-v4"], Conv(8, 64, 16, 16, 64, (3, 3), padding=(1, 1))
    assert conv_bands.is_profitable("conv2d", layer, cpu, "f32")
    for change in ({"n": 16}, {"n": 6}, {"h": 15}, {"h": 32, "w": 32}):
        assert not conv_bands.is_profitable("conv2d", replace(layer, **change), cpu, "f32")
    odd = replace(layer, h=6, w=6, stride=(2, 2))
    assert conv_bands.is_supported("conv2d", replace(odd, h=8), cpu, "f32")
    assert not conv_bands.is_supported("conv2d_data_grad", odd, cpu, "f32")


def test_which_fill_vectors() -> None:
    """Channels do not where images do, or of too few channels; odd sizes would leave remainders of unequal length."""
    cpu = TARGETS["x86-64-v4"]
    layer = Conv(8, 32, 8, 8, 64, (3, 3), (2, 2))
    assert conv_direct_nchwc.is_profitable(layer, layer.o, cpu, "f32")
    assert not conv_direct_nchwc.is_profitable(replace(layer, n=32), layer.o, cpu, "f32")
    assert not conv_direct_nchwc.is_profitable(replace(layer, c=3), 3, cpu, "f32")
    assert not conv_direct_nchwc.is_profitable(replace(layer, h=9), layer.o, cpu, "f32")


POINTS = {  # of one tap: a rest of every tile, groups, channels a page apart
    "odd": Conv(3, 40, 4, 4, 24, (1, 1)),
    "grouped": Conv(5, 18, 4, 8, 34, (1, 1), groups=2),
    "page": Conv(2, 70, 32, 32, 9, (1, 1)),
    "skipping": Conv(2, 40, 11, 15, 34, (1, 1), (3, 2), groups=2),
}


@pytest.mark.parametrize("case", POINTS)
@pytest.mark.parametrize("kind", WORKSPACE)
def test_one_tap(kind: str, case: str) -> None:
    cpu, c = TARGETS["x86-64-v4"], POINTS[case]
    assert conv_1x1.is_profitable(c, cpu, "f32")
    op = {"forward": "conv2d", "data_grad": "conv2d_data_grad", "weight_grad": "conv2d_weight_grad"}[kind]
    assert conv.algorithms(op, c, "f32", cpu)[0] == "points"
    one, two, want = run(kind, c, threads=(1, 2))
    check(one, want)
    assert np.array_equal(one, two)


def test_what_is_more_than_one_tap() -> None:
    """Or has edges, or images that end within a vector."""
    cpu, layer = TARGETS["x86-64-v4"], Conv(2, 16, 4, 4, 16, (1, 1))
    assert conv_1x1.is_profitable(layer, cpu, "f32")
    for change in ({"kernel": (1, 3)}, {"padding": (0, 1)}, {"h": 3}):
        assert not conv_1x1.is_profitable(replace(layer, **change), cpu, "f32")


TILED = {  # images that leave a rest of 16 and of 32, channels that leave one of 32, strips and groups, few images
    "odd": Conv(19, 48, 5, 6, 32, (3, 3), padding=(1, 1)),
    "strided": Conv(33, 32, 9, 7, 48, (3, 3), (2, 2), (1, 1)),
    "grouped": Conv(8, 64, 6, 5, 32, (3, 2), (1, 2), (2, 0), (2, 1), 2),
}


@pytest.mark.parametrize("case", TILED)
@pytest.mark.parametrize("kind", WORKSPACE)
@pytest.mark.skipif(not HOST.tiles, reason="this machine has no tiles")
def test_tiles_of_bf16(kind: str, case: str) -> None:
    one, two, want = run(kind, TILED[case], "bf16", threads=(1, 2))
    check(one, want)
    assert np.array_equal(one, two)


@pytest.mark.parametrize("kind", WORKSPACE)
@pytest.mark.skipif("avx512_bf16" not in cpu_flags(), reason="this machine has no AVX512-BF16")
def test_vectors_of_pairs_of_bf16(kind: str) -> None:
    check(*run(kind, TILED["strided"], "bf16", where=target("avx512-bf16")))


@pytest.mark.skipif(not HOST.tiles, reason="this machine has no tiles")
def test_strips_of_lines_of_tiles() -> None:
    """A small cache cuts the lines into strips, whose sums add up."""
    small = replace(HOST, l2=4096)
    wide = Conv(8, 16, 3, 64, 16, (1, 3), padding=(0, 1))
    assert conv_tiles.WeightGrad(wide, small).strip < 3
    check(*run("weight_grad", wide, "bf16", where=small))


def test_what_is_no_convolution_for_tiles() -> None:
    cpu, other = TARGETS["sapphirerapids"], TARGETS["x86-64-v4"]
    layer = Conv(16, 32, 8, 8, 32, (3, 3))
    assert conv_tiles.is_profitable(layer, cpu, "bf16")
    assert not conv_tiles.is_profitable(layer, other, "bf16")
    assert not conv_tiles.is_profitable(layer, cpu, "f16")
    assert not conv_tiles.is_profitable(replace(layer, c=3), cpu, "bf16")
    assert not conv_tiles.is_profitable(replace(layer, n=4), cpu, "bf16")


@pytest.mark.parametrize("kind", WORKSPACE)
def test_narrower_vectors(kind: str) -> None:
    narrow = target("x86-64-v3")
    if HOST.lanes < narrow.lanes:
        pytest.skip("this machine has no AVX2")
    check(*run(kind, CASES["strided"], where=narrow))


@pytest.mark.parametrize("kind", WORKSPACE)
def test_threads_change_no_bit(kind: str) -> None:
    for c in (Conv(40, 8, 9, 9, 20, (3, 3)), Conv(8, 32, 9, 9, 48, (3, 3))):
        one, two, _ = run(kind, c, threads=(1, 2))
        assert np.array_equal(one, two)


def test_weights_too_large_for_sums_by_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that own output channels alone find the same."""
    monkeypatch.setattr("gluongraph.codegen.contraction.conv_direct_nchwn_weights.SMALL", 0)
    check(*run("weight_grad", CASES["lenet"]))
    check(*run("weight_grad", Conv(50, 6, 5, 5, 11, (3, 3), groups=1)))


def test_strips_within_cache() -> None:
    """A small cache cuts the rows into strips, whose sums add up."""
    small = replace(HOST, l1=4096)
    check(*run("weight_grad", CASES["plain"], where=small))


def test_workspace_is_checked() -> None:
    k = tir.Kernel("conv")
    space = k.param("space", 64, "u8")

    def nothing(*_: Any) -> Any:
        raise AssertionError("nothing is read or written before the check")

    with pytest.raises(CompileError, match="bytes of workspace"):
        conv.emit_forward(k, CASES["plain"], "f32", nothing, nothing, nothing, HOST, space)
