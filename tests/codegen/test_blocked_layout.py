"""Convolutions and poolings of images in blocks: strides, edges, dilations, groups, work behind, uncovered pixels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels import Case, Library

from gluongraph import ops
from gluongraph.codegen.contraction import conv_tile_blocks
from gluongraph.codegen.contraction.conv import Conv
from gluongraph.codegen.targets import TARGETS, cpu_flags, target
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops.blocked_layout import IN_BLOCKS, blocked

CPU = target()
assert CPU is not None
K = CPU.lanes
pytestmark = pytest.mark.skipif(K == 1, reason="this machine has no vectors of float32: images lie in no blocks here")
Pair = tuple[int, int]
# channels, height, width, channels made, kernel, stride, padding, dilation, groups
Shape = tuple[int, int, int, int, Pair, Pair, Pair, Pair, int]
CONVOLUTIONS: dict[str, Shape] = {
    "one": (1, 1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    "same": (5, 8, 8, 7, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "strided": (3, 9, 8, 9, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    "skipping": (6, 7, 7, 4, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    "dilated": (2, 7, 9, 3, (3, 2), (1, 2), (2, 0), (2, 3), 1),
    "depthwise": (6, 7, 5, 6, (3, 3), (2, 1), (1, 1), (1, 1), 6),
    "grouped": (4, 6, 5, 6, (3, 3), (1, 1), (1, 1), (1, 1), 2),
    "filtered": (12, 6, 7, 14, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "products": (16 * K + 2, 2, 3, 16 * K + 4, (1, 1), (1, 1), (0, 0), (1, 1), 2),
    "products skipping": (8 * K + 2, 4, 3, 8 * K + 3, (1, 1), (3, 2), (0, 0), (1, 1), 1),
}
# Of bf16: for tiles, with channels that leave a rest of 16 or 32 or are fewer, and too few for them.
LOW: dict[str, Shape] = {
    "bf16 same": (16, 8, 20, 16, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "bf16 strided": (48, 9, 8, 37, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    "bf16 skipping": (40, 7, 7, 48, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    "bf16 dilated": (9, 7, 9, 32, (3, 2), (1, 2), (2, 0), (2, 3), 1),
    "bf16 few": (3, 6, 5, 7, (3, 3), (1, 1), (1, 1), (1, 1), 1),
}


def convolutions(name: str, shape: Shape, dtype: str = "f32") -> list[Case]:
    """Forward with work behind, both gradients; of two blocks."""
    c, h, w, o, kernel, stride, padding, dilation, groups = shape
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x, weight = (2 * K, c, h, w), (o, c // groups, *kernel)
    out = ops.conv2d(ops.zeros(TensorType(x)), ops.zeros(TensorType(weight)), **how).shape
    images, results = blocked(x, K), blocked(out, K)
    sums = {} if dtype == "f32" else {"dtype": "f32"}

    def forward(x: Node, w: Node, b: Node, y: Node) -> Node:
        return ops.relu(IN_BLOCKS["conv2d"](x, w, **how, **sums) + ops.reshape(b, (1, o, 1, 1, 1))) * y

    def data(g: Node, w: Node) -> Node:
        return IN_BLOCKS["conv2d_data_grad"](g, w, shape=x, **how, **sums)

    def weights(x: Node, g: Node) -> Node:
        return IN_BLOCKS["conv2d_weight_grad"](x, g, shape=weight, **how, **sums)

    first, second, g = (images, dtype), (weight, dtype), (results, dtype)
    return [
        Case(f"{name} forward", forward, [first, second, (o,), results], "conv", inplace=((0, 3),)),
        Case(f"{name} data", data, [g, second], "conv"),
        Case(f"{name} weights", weights, [first, g], "conv", tolerance=2e-5),
    ]


def poolings(height: int, width: int, kernel: Pair, dtype: str = "f32") -> list[Case]:
    """Largest and average of windows side by side, and their gradients, with work behind."""
    how = {"kernel": kernel, "stride": kernel, "padding": (0, 0), "ceil": False}
    x = (2 * K, 3, height, width)
    images, small = blocked(x, K), blocked((2 * K, 3, height // kernel[0], width // kernel[1]), K)

    def named(name: str, *shapes: tuple[int, ...], **more: object) -> Case:
        def fn(*src: Node) -> Node:
            made = IN_BLOCKS[name](*src[:-1], **how, **more)
            return made * src[-1]

        return Case(f"{name} {height}x{width} by {kernel} {dtype}", fn, [(shape, dtype) for shape in shapes], "pool")

    return [
        named("max_pool2d", images, small),
        named("max_pool2d_grad", images, small, small, images),
        named("avg_pool2d", images, small, count_include_pad=True),
        named("avg_pool2d_grad", small, images, count_include_pad=True, shape=x),
    ]


CASES = [
    *(case for name, shape in CONVOLUTIONS.items() for case in convolutions(name, shape)),
    *(case for name, shape in LOW.items() for case in convolutions(name, shape, "bf16")),
    *(case for window in ((6, 4, (2, 2)), (7, 5, (3, 2))) for case in poolings(*window)),
    *poolings(5, 4, (2, 2), "bf16"),
]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel(library: Library, case: Case) -> None:
    library.check(case)


@pytest.mark.parametrize("lanes", [K // 2, 2 * K])
def test_blocks_of_another_target_are_no_work_for_these_rules(lanes: int) -> None:
    def fn(x: Node, w: Node) -> Node:
        return IN_BLOCKS["conv2d"](x, w, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)

    case = Case("other", fn, [(1, 2, 4, 4, lanes), (3, 2, 3, 3)], "conv", "fallback")
    Library([case]).check(case)


def test_pairs_of_bf16_in_vectors() -> None:
    """Where there are no tiles, but vectors of pairs."""
    if "avx512_bf16" not in cpu_flags():
        pytest.skip("this machine has no AVX512-BF16")
    pairs = target("avx512-bf16")
    if pairs.lanes != K:
        pytest.skip(f"GG_TARGET has blocks of {K} channels or images")
    cases = convolutions("dots", LOW["bf16 strided"], "bf16")
    library = Library(cases, pairs)
    for case in cases:
        assert library.launches[case.name].candidate.tiles
        library.check(case)


def test_strips_of_lines_of_tiles() -> None:
    """A small cache cuts the lines of a piece into strips, whose sums add up."""
    small = replace(CPU, l2=4096, chunks=3)
    (*_, case) = convolutions("strips", LOW["bf16 same"], "bf16")
    Library([case], small).check(case)


def test_pieces_own_channels_of_many_weights() -> None:
    (*_, case) = convolutions("large", (272, 2, 3, 304, (1, 3), (1, 1), (0, 1), (1, 1), 1), "bf16")
    Library([case]).check(case)


def test_what_is_no_convolution_for_tiles() -> None:
    """Few channels, groups, float16, another processor, images that fill no block."""
    cpu, other = TARGETS["sapphirerapids"], TARGETS["x86-64-v4"]
    assert cpu is not None and other is not None
    layer = Conv(32, 20, 8, 8, 50, (5, 5))
    assert conv_tile_blocks.is_profitable(layer, cpu, "bf16")
    assert not conv_tile_blocks.is_profitable(layer, other, "bf16")
    assert not conv_tile_blocks.is_profitable(layer, cpu, "f16")
    for change in ({"c": 3}, {"groups": 2}, {"n": 24}):
        assert not conv_tile_blocks.is_profitable(replace(layer, **change), cpu, "bf16")
