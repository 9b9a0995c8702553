"""amp: contractions of 16-bit operands with float32 sums, everything else in float32, one rounding of each value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from random_graphs import FEW, graphs, values_for

from gluongraph import ops
from gluongraph.compiler import run_passes
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.printer import read, show
from gluongraph.ir.serialize import dumps, loads
from gluongraph.ir.verify import verify
from gluongraph.ops.autodiff import differentiate
from gluongraph.passes import amp
from gluongraph.passes.amp import is_low
from gluongraph.passes.pipeline import Context

LOW = ("bf16", "f16")


def value(name: str, *shape: int) -> Node:
    return ops.input(name, TensorType(shape))


def graph_of(*outputs: Node) -> Graph:
    """A graph over all inputs that the outputs need."""
    found = Graph({}, {f"y{i}": n for i, n in enumerate(outputs)})
    return Graph({n.attrs["name"]: n for n in found.nodes() if n.op.name == "input"}, found.outputs)


def named(graph: Graph, name: str) -> list[Node]:
    return [n for n in graph.nodes() if n.op.name == name]


def run(graph: Graph, given: dict[str, Any]) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        outputs: dict[str, Any] = interpreter.run(graph, given)[0]
    return outputs


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    """Types and names stay, twice is once, no contraction is left in float32, texts read back."""
    after = amp(graph, "bf16")
    verify(after)
    assert {k: n.type for k, n in after.outputs.items()} == {k: n.type for k, n in graph.outputs.items()}
    assert amp(after, "bf16") is after
    assert not any(map(is_low, after.nodes()))
    assert read(show(after)) == after
    assert loads(dumps(after)) == after


@pytest.mark.parametrize("low", LOW)
def test_every_contraction_of_a_step_reads_16_bits_and_gives_its_float32_sums(low: str) -> None:
    image, kernel, weight = value("x", 2, 3, 6, 6), value("k", 4, 3, 3, 3), value("w", 5, 144)
    y = ops.relu(ops.conv2d(image, kernel, padding=1))
    y = ops.matmul(ops.reshape(y, (2, 144)), weight, tb=True)
    loss = ops.sum(ops.softmax(y, -1) * y, -1)
    after = amp(differentiate(graph_of(loss), "y0", ("x", "k", "w")), low)
    contractions = [n for n in after.nodes() if n.op.kind == "contraction"]
    assert len(contractions) == 6
    for n in contractions:
        assert {s.dtype for s in n.src} == {low}, n
        assert n.dtype == "f32", n
    for n in after.nodes():
        if n.op.kind == "reduce" or n.op.numeric == "full":
            assert n.dtype == "f32", n
    assert all(n.dtype == "f32" for n in after.results)


def test_gradients_are_the_sums_themselves() -> None:
    """What becomes of the gradient of a parameter is not rounded on its way out, added up or moved about."""
    x, w = value("x", 3, 4), value("w", 4, 4)
    y = ops.matmul(ops.relu(ops.matmul(x, w)), ops.reshape(w, (4, 4)))
    after = amp(differentiate(graph_of(y * y), "y0", ("w",)), "bf16")
    (total,) = [n for k, n in after.outputs.items() if k == "grad:w"]
    assert total.op.name == "add"
    assert all(s.op.name == "matmul" and s.dtype == "f32" for s in total.src)


def test_what_a_contraction_reads_is_rounded_once_for_all() -> None:
    """relu is read by a product and by its own gradient: both see one 16-bit value, and nothing stores 4 bytes."""
    x, w, v = value("x", 3, 4), value("w", 5, 4), value("v", 2, 5)
    y = ops.matmul(ops.relu(ops.matmul(x, w, tb=True)), v, tb=True)
    after = amp(differentiate(graph_of(y), "y0", ("w", "v")), "bf16")
    (relu,) = named(after, "relu")
    (rounded,) = after.users()[relu]
    assert (rounded.op.name, rounded.dtype) == ("cast", "bf16")
    assert {u.op.name for u in after.users()[rounded]} == {"matmul", "cast"}


def test_what_lies_between_products_is_rounded() -> None:
    """The slope of gelu waits for a gradient, in 2 bytes; what it is made of is read at once, and keeps its digits."""
    x, w, v = value("x", 3, 4), value("w", 5, 4), value("v", 2, 5)
    y = ops.matmul(ops.gelu(ops.matmul(x, w, tb=True)), v, tb=True)
    after = amp(differentiate(graph_of(y * y), "y0", ("w", "v")), "bf16")
    (share,), (density,) = named(after, "normal_cdf"), named(after, "normal_pdf")
    assert share.src[0].op.name == "matmul"
    assert all(u.op.name != "cast" for n in (share, density) for u in after.users()[n])
    (part,) = after.users()[density]  # x · density
    (slope,) = after.users()[part]
    (rounded,) = after.users()[slope]
    assert (rounded.op.name, rounded.dtype) == ("cast", "bf16")


def test_attention_is_products_in_16_bit_around_a_softmax_in_float32() -> None:
    q, k, v = (value(name, 1, 2, 4, 8) for name in "qkv")
    after = amp(graph_of(ops.attention(q, k, v, causal=True)), "f16")
    (softmax,) = named(after, "softmax")
    assert softmax.dtype == softmax.src[0].dtype == "f32"
    assert len(named(after, "matmul")) == 2
    given = values_for(after)
    (y,) = run(after, given).values()
    (want,) = run(graph_of(ops.attention(q, k, v, causal=True)), given).values()
    np.testing.assert_allclose(y, want, atol=2e-2)


def test_attention_with_a_kernel_stays_whole_and_rounds_what_products_read() -> None:
    q, k, v, w = (*(value(name, 1, 2, 4, 8) for name in "qkv"), value("w", 8, 8))
    y = ops.attention(ops.matmul(q, w), k, v, causal=True, scale=0.05)
    graph = differentiate(graph_of(ops.matmul(y, w)), "y0", ("w", "k"))
    after = amp(graph, "bf16", lambda n: n.op.kind == "composite")
    (forward,), (backward,) = named(after, "attention"), named(after, "attention_grad")
    assert {s.dtype for s in (*forward.src, *backward.src)} == {"bf16"}
    assert forward.dtype == "bf16"  # it is multiplied; the gradient of k is a result
    assert {t.dtype for t in backward.types} == {"f32"}
    given = values_for(graph)
    exact = run(graph, given)
    for name, found in run(after, given).items():
        np.testing.assert_allclose(found, exact[name], atol=2e-2 * max(1.0, abs(exact[name]).max()))
    pinned = graph_of(ops.attention(ops.keep_precision(q), k, v, causal=False))
    assert not any(map(is_low, amp(pinned, "bf16", lambda n: True).nodes()))


def test_numbers_that_16_bits_cannot_hold_stay_float32() -> None:
    x, w = value("x", 3, 4), value("w", 4, 4)
    masked = ops.where(ops.greater(x, 0), ops.matmul(x, w), -1e30)
    after = amp(graph_of(ops.softmax(masked, -1), ops.max(masked, -1)), "f16")
    (where,) = named(after, "where")
    assert {u.op.name for u in after.users()[where]} == {"softmax", "max"}


@pytest.mark.parametrize("low", LOW)
def test_the_largest_of_a_window_is_found_again_by_its_gradient(low: str) -> None:
    """Equal numbers stay equal: each window hands its gradient on, although the pooled image is rounded for a product.
    Maxima of reductions are not rounded but for the product itself."""
    x, k = value("x", 2, 3, 8, 8), value("k", 4, 3, 1, 1)
    pooled = ops.max_pool2d(x * 1.5, 2)
    y = ops.sum(ops.conv2d(pooled, k), (1, 2, 3))
    graph = differentiate(graph_of(y), "y0", ("x",))
    given = values_for(graph)
    got, want = run(amp(graph, low), given)["grad:x"], run(graph, given)["grad:x"]
    assert np.count_nonzero(got) == np.count_nonzero(want) == 2 * 3 * 16
    w = value("w", 3, 2)
    graph = differentiate(graph_of(ops.matmul(ops.max(x * 1.5, (2, 3)), w)), "y0", ("x",))
    given = values_for(graph)
    assert np.count_nonzero(run(amp(graph, low), given)["grad:x"]) == 2 * 3


def test_pinned_operands_keep_a_product_and_its_gradients_in_float32() -> None:
    x, w, v = value("x", 3, 4), value("w", 5, 4), value("v", 2, 5)
    hidden = ops.matmul(ops.keep_precision(x), ops.transpose(ops.keep_precision(w), (1, 0)))
    graph = differentiate(graph_of(ops.matmul(hidden, v, tb=True)), "y0", ("w", "v"))
    products = named(amp(graph, "bf16"), "matmul")
    by_dtype = sorted(n.src[0].dtype for n in products)
    assert by_dtype == ["bf16", "bf16", "bf16", "f32", "f32"]


def test_loops_multiply_in_16_bit_too() -> None:
    h, xs, w = value("h", 3, 4), value("xs", 5, 3, 4), value("w", 4, 4)

    def turn(carries: Any, slices: Any) -> Any:
        new = ops.tanh(ops.matmul(carries[0], w) + slices[0])
        return (new,), (new,)

    (last,), _ = ops.scan(turn, (h,), (xs,))
    graph = graph_of(last)
    after = amp(graph, "bf16")
    (scan,) = named(after, "scan")
    (product,) = named(scan.attrs["body"], "matmul")
    assert [s.dtype for s in product.src] == ["bf16", "bf16"]
    assert scan.types == named(graph, "scan")[0].types
    given = values_for(graph)
    np.testing.assert_allclose(run(after, given)["y0"], run(graph, given)["y0"], atol=5e-2)


@pytest.mark.parametrize("low", LOW)
def test_other_dtypes_are_left_alone(low: str) -> None:
    a, b = (ops.input(name, TensorType((3, 3), "f64")) for name in "ab")
    c, d = (ops.input(name, TensorType((3, 3), "bf16")) for name in "cd")
    graph = graph_of(ops.matmul(a, b), ops.matmul(c, d))
    assert amp(graph, low) is graph


def test_widening_is_the_readers_business() -> None:
    """A kernel stores a rounded value in 2 bytes and its readers widen it: no kernel is there to copy it."""
    x, w, v = value("x", 8, 16), value("w", 16, 16), value("v", 4, 16)
    y = ops.matmul(ops.relu(ops.matmul(x, w, tb=True)), v, tb=True)
    graph = amp(differentiate(graph_of(y * y), "y0", ("x", "w", "v")), "bf16")
    graph = run_passes.run(graph, Context(), "shapes", "fuse")
    bodies = [n.attrs["body"] for n in graph.nodes() if n.op.name == "fused"]
    copies = [b for b in bodies if all(n.op.name in ("input", "cast") for n in b.nodes())]
    inputs = {"x", "w", "v"}
    assert len(copies) == len(inputs)  # rounded before anything else, and nothing else is a kernel of its own
    assert all(n.dtype == "bf16" for b in copies for n in b.outputs.values())
