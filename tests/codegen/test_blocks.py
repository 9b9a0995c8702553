"""Convolutions and poolings of images in blocks: strides, edges, dilations, groups, work behind, uncovered pixels."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gluongraph import ops
from gluongraph.codegen.targets import target
from gluongraph.ir import Node, TensorType
from gluongraph.ops.blocks import IN_BLOCKS, blocked

sys.path.insert(0, str(Path(__file__).parent))
from kernels import Case, Library

CPU = target().cpu
assert CPU is not None
K = CPU.lanes
pytestmark = pytest.mark.skipif(K == 1, reason="no vectors: no blocks")
Pair = tuple[int, int]
# channels, height, width, channels made, kernel, stride, padding, dilation, groups
CONVOLUTIONS: dict[str, tuple[int, int, int, int, Pair, Pair, Pair, Pair, int]] = {
    "one": (1, 1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    "same": (5, 8, 8, 7, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "strided": (3, 9, 8, 9, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    "skipping": (6, 7, 7, 4, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    "dilated": (2, 7, 9, 3, (3, 2), (1, 2), (2, 0), (2, 3), 1),
    "depthwise": (6, 7, 5, 6, (3, 3), (2, 1), (1, 1), (1, 1), 6),
    "grouped": (4, 6, 5, 6, (3, 3), (1, 1), (1, 1), (1, 1), 2),
    "filtered": (12, 6, 7, 14, (3, 3), (1, 1), (1, 1), (1, 1), 1),
}


def convolutions(name: str) -> list[Case]:
    """Forward with work behind, both gradients; of two blocks."""
    c, h, w, o, kernel, stride, padding, dilation, groups = CONVOLUTIONS[name]
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x, weight = (2 * K, c, h, w), (o, c // groups, *kernel)
    out = ops.conv2d(ops.zeros(TensorType(x)), ops.zeros(TensorType(weight)), **how).shape
    images, results = blocked(x, K), blocked(out, K)

    def forward(x: Node, w: Node, b: Node, y: Node) -> Node:
        return ops.relu(IN_BLOCKS["conv2d"](x, w, **how) + ops.reshape(b, (1, o, 1, 1, 1))) * y

    return [
        Case(f"{name} forward", forward, [images, weight, (o,), results], "conv", inplace=((0, 3),)),
        Case(
            f"{name} data", lambda g, w: IN_BLOCKS["conv2d_data_grad"](g, w, shape=x, **how), [results, weight], "conv"
        ),
        Case(
            f"{name} weights",
            lambda x, g: IN_BLOCKS["conv2d_weight_grad"](x, g, shape=weight, **how),
            [images, results],
            "conv",
            tolerance=2e-5,
        ),
    ]


def poolings(height: int, width: int, kernel: Pair) -> list[Case]:
    """Largest and average of windows side by side, and their gradients, with work behind."""
    how = {"kernel": kernel, "stride": kernel, "padding": (0, 0), "ceil": False}
    x = (2 * K, 3, height, width)
    images, small = blocked(x, K), blocked((2 * K, 3, height // kernel[0], width // kernel[1]), K)

    def named(name: str, *shapes: tuple[int, ...], **more: object) -> Case:
        def fn(*src: Node) -> Node:
            made = IN_BLOCKS[name](*src[:-1], **how, **more)
            return made * src[-1]

        return Case(f"{name} {height}x{width} by {kernel}", fn, shapes, "pool")

    return [
        named("max_pool2d", images, small),
        named("max_pool2d_grad", images, small, small, images),
        named("avg_pool2d", images, small, count_include_pad=True),
        named("avg_pool2d_grad", small, images, count_include_pad=True, shape=x),
    ]


CASES = [
    *(case for name in CONVOLUTIONS for case in convolutions(name)),
    *(case for window in ((6, 4, (2, 2)), (7, 5, (3, 2))) for case in poolings(*window)),
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
