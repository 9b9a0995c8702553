"""Convolutions and their gradients against float64 numpy: strides, paddings, dilations, groups, edges of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import tvm
from conv_kernels import HOST, OPS, ConvCase, ConvKernels, fractions

from gluongraph.codegen.contraction import conv, conv_1x1, conv_bands, conv_direct_nchwc, conv_tiles
from gluongraph.codegen.contraction.conv import Conv
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.targets import TARGETS, cpu_flags, target
from gluongraph.codegen.tvm import tir
from gluongraph.errors import CompileError


def cpu(name: str) -> Cpu:
    """Return a target, whether or not this machine can run its code."""
    found = TARGETS[name]
    assert isinstance(found, Cpu)
    return found


def cpu_here(name: str) -> Cpu:
    """Return a target whose code this machine can run; skip the test if it cannot."""
    if HOST.lanes < cpu(name).lanes:
        pytest.skip(f"this machine is no {name}")
    found = target(name)
    assert isinstance(found, Cpu)
    return found


def of_algorithm(convs: Mapping[str, Conv], algorithm: str, dtype: str = "f32") -> dict[str, ConvCase]:
    """The cases of one algorithm, the first also with an epilogue."""
    cases = {name: ConvCase(c, dtype, algorithm) for name, c in convs.items()}
    first = next(iter(cases))
    return {**cases, f"{first}, epilogue": replace(cases[first], epilogue=True)}


def check_threads(kernels: ConvKernels, name: str, op: str) -> None:
    """The numbers are right, and the same to the bit by one and two threads."""
    kernels.check(name, op)
    operands, results = fractions(op, kernels.cases[name].conv), []
    for threads in (1, 2):
        tvm.get_global_func("runtime.config_threadpool")(1, threads)
        results.append(kernels.run(name, op, operands))
    assert np.array_equal(*results)


CONVS = {
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


@pytest.fixture(scope="module")
def by_default() -> ConvKernels:
    return ConvKernels({name: ConvCase(c, epilogue=name == "strided") for name, c in CONVS.items()})


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("op", OPS)
def test_convolution(by_default: ConvKernels, op: str, name: str) -> None:
    by_default.check(name, op)


DTYPES = {dtype: ConvCase(CONVS["grouped"], dtype) for dtype in ("f64", "bf16", "f16")}


@pytest.fixture(scope="module")
def of_dtypes() -> ConvKernels:
    return ConvKernels({**DTYPES, "lenet": ConvCase(CONVS["lenet"], "bf16")})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_other_dtypes(of_dtypes: ConvKernels, op: str, dtype: str) -> None:
    of_dtypes.check(dtype, op)


def test_weights_of_bf16_are_not_prefetched(of_dtypes: ConvKernels) -> None:
    """Where they are float32 there would be an address to prefetch; so many they have to be."""
    of_dtypes.check("lenet", "conv2d_data_grad")


DIRECT = {
    **{name: CONVS[name] for name in ("plain", "dilated", "grouped")},
    "few": Conv(3, 4, 5, 6, 7, (3, 3)),
}


@pytest.fixture(scope="module", params=["images", "flat"])
def direct(request: pytest.FixtureRequest) -> ConvKernels:
    return ConvKernels(of_algorithm(DIRECT, request.param))


@pytest.mark.parametrize("name", [*DIRECT, "plain, epilogue"])
@pytest.mark.parametrize("op", OPS)
def test_images_and_flat_pixels_in_vectors(direct: ConvKernels, op: str, name: str) -> None:
    """Both algorithms support every convolution, whichever is the default."""
    direct.check(name, op)


CHANNELS = {  # fill vectors better than images do: blocks with a rest, remainders of strides without a tap, groups
    "odd": Conv(8, 40, 4, 4, 64, (3, 3), padding=(1, 1)),
    "strided": Conv(3, 32, 8, 8, 48, (3, 3), (2, 2), (1, 1)),
    "skipping": Conv(8, 20, 8, 8, 40, (1, 1), (2, 2)),
    "grouped": Conv(2, 48, 6, 4, 32, (3, 2), (1, 2), (2, 0), (2, 1), 2),
    "far": Conv(2, 16, 3, 3, 17, (3, 3), padding=(4, 4)),
}


@pytest.fixture(scope="module")
def channels() -> ConvKernels:
    return ConvKernels(of_algorithm(CHANNELS, "channels"))


@pytest.mark.parametrize("name", [*CHANNELS, "odd, epilogue"])
@pytest.mark.parametrize("op", OPS)
def test_channels_in_vectors(channels: ConvKernels, op: str, name: str) -> None:
    c = channels.cases[name].conv
    assert all(conv_direct_nchwc.is_profitable(c, each, cpu("x86-64-v4"), "f32") for each in (c.c, c.o))
    channels.check(name, op)


@pytest.mark.parametrize("op", OPS)
def test_channels_in_narrow_vectors(op: str) -> None:
    case = ConvCase(CHANNELS["odd"], algorithm="channels")
    ConvKernels({"odd": case}, cpu_here("x86-64-v3"), [op]).check("odd", op)


BANDS = {  # of few images that fill a vector: a rest of every tile, rows that a stride leaves out, groups, AVX2
    "odd": (Conv(8, 20, 4, 6, 23, (3, 3), padding=(1, 1)), "x86-64-v4"),
    "strided": (Conv(4, 9, 8, 6, 7, (3, 2), (2, 2), (1, 0)), "x86-64-v4"),
    "grouped": (Conv(8, 8, 8, 5, 6, (3, 2), (2, 1), (2, 0), (2, 1), 2), "x86-64-v4"),
    "narrow": (Conv(2, 12, 4, 4, 18, (3, 3), padding=(1, 1)), "x86-64-v3"),
}


@pytest.mark.parametrize("name", BANDS)
@pytest.mark.parametrize("op", ["conv2d", "conv2d_data_grad"])
def test_bands_of_images(op: str, name: str) -> None:
    c, where = BANDS[name][0], BANDS[name][1]
    assert conv.algorithms(op, c, "f32", cpu(where))[0] == "bands"
    check_threads(ConvKernels({name: ConvCase(c, epilogue=name == "odd")}, cpu_here(where), [op]), name, op)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_bands_of_16_bit_images(dtype: str) -> None:
    case = ConvCase(Conv(2, 5, 16, 8, 9, (3, 3), padding=(1, 1)), dtype, "bands")
    ConvKernels({"odd": case}, cpu_here("x86-64-v4"), ["conv2d"]).check("odd", "conv2d")


def test_which_images_are_cut_into_bands() -> None:
    """Bands fill a vector and consist of whole strides, and there are more of them than images; with many pixels it
    pays to reorder the weights."""
    on, layer = cpu("x86-64-v4"), Conv(8, 64, 16, 16, 64, (3, 3), padding=(1, 1))
    assert conv_bands.is_profitable("conv2d", layer, on, "f32")
    for change in ({"n": 16}, {"n": 6}, {"h": 15}, {"h": 32, "w": 32}):
        assert not conv_bands.is_profitable("conv2d", replace(layer, **change), on, "f32")
    odd = replace(layer, h=6, w=6, stride=(2, 2))
    assert conv_bands.is_supported("conv2d", replace(odd, h=8), on, "f32")
    assert not conv_bands.is_supported("conv2d_data_grad", odd, on, "f32")


def test_whose_channels_fill_vectors() -> None:
    """Not where images do, not of too few channels; odd sizes would leave remainders of unequal length."""
    on, layer = cpu("x86-64-v4"), Conv(8, 32, 8, 8, 64, (3, 3), (2, 2))
    assert conv_direct_nchwc.is_profitable(layer, layer.o, on, "f32")
    assert not conv_direct_nchwc.is_profitable(replace(layer, n=32), layer.o, on, "f32")
    assert not conv_direct_nchwc.is_profitable(replace(layer, c=3), 3, on, "f32")
    assert not conv_direct_nchwc.is_profitable(replace(layer, h=9), layer.o, on, "f32")


POINTS = {  # of one tap: a rest of every tile, groups, channels a page apart
    "odd": Conv(3, 40, 4, 4, 24, (1, 1)),
    "grouped": Conv(5, 18, 4, 8, 34, (1, 1), groups=2),
    "page": Conv(2, 70, 32, 32, 9, (1, 1)),
    "skipping": Conv(2, 40, 11, 15, 34, (1, 1), (3, 2), groups=2),
}


@pytest.fixture(scope="module")
def points() -> ConvKernels:
    return ConvKernels(of_algorithm(POINTS, "points"))


@pytest.mark.parametrize("name", [*POINTS, "odd, epilogue"])
@pytest.mark.parametrize("op", OPS)
def test_one_tap(points: ConvKernels, op: str, name: str) -> None:
    c = points.cases[name].conv
    assert conv.algorithms(op, c, "f32", cpu("x86-64-v4"))[0] == "points"
    check_threads(points, name, op)


def test_what_is_more_than_one_tap() -> None:
    """Or has edges, or images that end within a vector."""
    on, layer = cpu("x86-64-v4"), Conv(2, 16, 4, 4, 16, (1, 1))
    assert conv_1x1.is_profitable(layer, on, "f32")
    for change in ({"kernel": (1, 3)}, {"padding": (0, 1)}, {"h": 3}):
        assert not conv_1x1.is_profitable(replace(layer, **change), on, "f32")


K = HOST.lanes
BLOCKED = {  # images in the NCHWn layout: strided, grouped, dilated, a kernel larger than the image
    "points": Conv(2 * K, 9, 6, 5, 12, (1, 1), blocks=True),
    "skipping": Conv(K, 10, 7, 9, 6, (1, 1), (3, 2), groups=2, blocks=True),
    "strided": Conv(2 * K, 5, 9, 8, 7, (3, 3), (2, 2), (1, 1), blocks=True),
    "dilated": Conv(K, 6, 7, 9, 8, (3, 2), (1, 2), (2, 0), (2, 3), 2, blocks=True),
    "far": Conv(K, 2, 3, 3, 2, (3, 3), padding=(4, 4), blocks=True),
}
BLOCKED_CASES = [(name, algorithm) for name in BLOCKED for algorithm in ("points", "images")
                 if algorithm == "images" or BLOCKED[name].kernel == (1, 1)]  # fmt: skip


@pytest.fixture(scope="module")
def in_blocks() -> ConvKernels:
    if K == 1:
        pytest.skip("this machine has no vectors of float32: images lie in no blocks here")
    cases = {f"{name} {algorithm}": ConvCase(BLOCKED[name], algorithm=algorithm) for name, algorithm in BLOCKED_CASES}
    return ConvKernels(cases | {"strided, epilogue": ConvCase(BLOCKED["strided"], epilogue=True)})


@pytest.mark.parametrize("name", [*map(" ".join, BLOCKED_CASES), "strided, epilogue"])
@pytest.mark.parametrize("op", OPS)
def test_images_in_blocks(in_blocks: ConvKernels, op: str, name: str) -> None:
    check_threads(in_blocks, name, op)


TILED = {  # images that leave a rest of 16 and of 32, channels that leave one of 32, strips and groups, few images
    "odd": Conv(19, 48, 5, 6, 32, (3, 3), padding=(1, 1)),
    "strided": Conv(33, 32, 9, 7, 48, (3, 3), (2, 2), (1, 1)),
    "grouped": Conv(8, 64, 6, 5, 32, (3, 2), (1, 2), (2, 0), (2, 1), 2),
}


@pytest.fixture(scope="module")
def tiled() -> ConvKernels:
    if not HOST.tiles:
        pytest.skip("this machine has no tiles")
    return ConvKernels(of_algorithm(TILED, "tiles", "bf16"))


@pytest.mark.parametrize("name", [*TILED, "odd, epilogue"])
@pytest.mark.parametrize("op", OPS)
def test_tiles_of_bf16(tiled: ConvKernels, op: str, name: str) -> None:
    check_threads(tiled, name, op)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.skipif("avx512_bf16" not in cpu_flags(), reason="this machine has no AVX512-BF16")
def test_vectors_of_pairs_of_bf16(op: str) -> None:
    where = target("avx512-bf16")
    assert isinstance(where, Cpu)
    ConvKernels({"strided": ConvCase(TILED["strided"], "bf16", "tiles")}, where, [op]).check("strided", op)


@pytest.mark.skipif(not HOST.tiles, reason="this machine has no tiles")
def test_strips_of_lines_of_tiles() -> None:
    """A small cache cuts the lines into strips, whose sums add up."""
    small = replace(HOST, l2=4096)
    wide = Conv(8, 16, 3, 64, 16, (1, 3), padding=(0, 1))
    assert conv_tiles.WeightGrad(wide, small).strip < 3
    ConvKernels({"wide": ConvCase(wide, "bf16", "tiles")}, small, ["conv2d_weight_grad"]).check(
        "wide", "conv2d_weight_grad"
    )


def test_what_is_no_convolution_for_tiles() -> None:
    on, other = cpu("sapphirerapids"), cpu("x86-64-v4")
    layer = Conv(16, 32, 8, 8, 32, (3, 3))
    assert conv_tiles.is_profitable(layer, on, "bf16")
    assert not conv_tiles.is_profitable(layer, other, "bf16")
    assert not conv_tiles.is_profitable(layer, on, "f16")
    assert not conv_tiles.is_profitable(replace(layer, c=3), on, "bf16")
    assert not conv_tiles.is_profitable(replace(layer, n=4), on, "bf16")


@pytest.mark.parametrize("op", OPS)
def test_narrower_vectors(op: str) -> None:
    ConvKernels({"strided": ConvCase(CONVS["strided"])}, cpu_here("x86-64-v3"), [op]).check("strided", op)


THREADS = {"by image": Conv(40, 8, 9, 9, 20, (3, 3)), "by channel": Conv(8, 32, 9, 9, 48, (3, 3))}


@pytest.mark.parametrize("op", OPS)
def test_threads_change_no_bit(op: str) -> None:
    kernels = ConvKernels({name: ConvCase(c) for name, c in THREADS.items()}, names=[op])
    for name in THREADS:
        check_threads(kernels, name, op)


def test_weights_too_large_for_sums_by_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that own output channels alone give the same."""
    monkeypatch.setattr("gluongraph.codegen.contraction.conv_direct_nchwn_weights.SMALL", 0)
    op, convs = "conv2d_weight_grad", {"lenet": CONVS["lenet"], "odd": Conv(50, 6, 5, 5, 11, (3, 3))}
    kernels = ConvKernels({name: ConvCase(c, algorithm="images") for name, c in convs.items()}, HOST, [op])
    for name in convs:
        kernels.check(name, op)


def test_strips_within_cache() -> None:
    """A small cache cuts the rows into strips, whose sums add up."""
    op = "conv2d_weight_grad"
    ConvKernels({"plain": ConvCase(CONVS["plain"])}, replace(HOST, l1=4096), [op]).check("plain", op)


def test_workspace_is_checked() -> None:
    k = tir.Kernel("conv")
    space = k.param("space", 64, "u8")

    def nothing(*_: object) -> tir.Expr:
        raise AssertionError("nothing is read or written before the check")

    with pytest.raises(CompileError, match="bytes of workspace"):
        conv.emit_forward(k, CONVS["plain"], "f32", nothing, nothing, nothing, HOST, space)
