"""differentiate: the reverse walk on graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.dtypes import dtype_name
from gluongraph.errors import MXNetError, Origin, VerifyError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, Node, Op, TensorType
from gluongraph.ir.verify import verify
from gluongraph.ops.autodiff import INTEGRAL, differentiate, gradients

A, B, INDEX = (ops.input(n, TensorType((2, 3), d)) for n, d in (("a", "f64"), ("b", "f64"), ("i", "i32")))
RNG = np.random.default_rng(0)
VALUES = {
    A: RNG.standard_normal((2, 3)),
    B: RNG.standard_normal((2, 3)),
    INDEX: np.array([[0, 1, 2], [2, 1, 0]], np.int32),
}


def value(n: Node | None) -> np.ndarray:
    assert n is not None
    return np.asarray(interpreter.evaluate([n], VALUES)[0])


def graph(loss: Node, **updates: Node) -> Graph:
    return Graph({"a": A, "b": B, "i": INDEX}, {"loss": loss}, updates)


def test_outputs_are_added_for_what_the_loss_reads() -> None:
    found = differentiate(graph(ops.mul(A, A), b=B), "loss", ["a", "b"])
    verify(found)
    assert list(found.outputs) == ["loss", "grad:a"] and list(found.updates) == ["b"]
    np.testing.assert_allclose(value(found.outputs["grad:a"]), 2 * VALUES[A])


@pytest.mark.parametrize(
    ("loss", "wrt", "message"),
    [("x", "a", "no output 'x'; there are loss"), ("loss", "x", "no input 'x'"), ("loss", "i", "'i' is i32")],
)
def test_errors(loss: str, wrt: str, message: str) -> None:
    with pytest.raises(MXNetError, match=message):
        differentiate(graph(A), loss, [wrt])


def test_shared_nodes_are_walked_once_and_add_up() -> None:
    y = A
    for _ in range(60):  # 2 ** 60 paths
        y = ops.add(ops.mul(y, 0.5), ops.mul(y, 0.5))
    (g,) = gradients([y], [ops.ones(y.ty)], [A])
    np.testing.assert_allclose(value(g), np.ones((2, 3)))


def test_long_chains_do_not_recurse() -> None:
    y = A
    for _ in range(3000):
        y = ops.neg(y)
    (g,) = gradients([y], [ops.ones(y.ty)], [A])
    assert (value(g) == 1).all()


def test_wrt_may_depend_on_one_another() -> None:
    y = ops.mul(A, A)
    z = ops.mul(y, A)
    gy, ga = gradients([z], [ops.ones(z.ty)], [y, A])
    np.testing.assert_allclose(value(gy), VALUES[A])
    np.testing.assert_allclose(value(ga), 3 * VALUES[A] ** 2)


def test_a_head_that_is_wrt_itself_and_a_repeated_head() -> None:
    (g,) = gradients([A, A], [ops.ones(A.ty), ops.ones(A.ty)], [A])
    assert (value(g) == 2).all()


def test_what_stops() -> None:
    through_integers = ops.cast(ops.cast(A, "i32"), "f64")
    for y in (ops.stop_gradient(A), through_integers, ops.floor(A), B):
        found = gradients([y], [ops.ones(y.ty)], [A])
        assert found[0] is None or (value(found[0]) == 0).all()
    assert gradients([ops.stop_gradient(A)], [ops.ones(A.ty)], [A]) == [None]
    assert gradients([through_integers], [ops.ones(A.ty)], [A]) == [None]


def test_integer_sources_are_skipped() -> None:
    y = ops.gather(A, INDEX, axis=1)
    ga, gi = gradients([y], [B], [A, INDEX])
    assert gi is None
    expected = np.zeros((2, 3))
    np.add.at(expected, (np.arange(2)[:, None], VALUES[INDEX]), VALUES[B])
    np.testing.assert_allclose(value(ga), expected)


MOVEMENT = {"reshape", "transpose", "expand", "slice", "concat", "pad", "flip"}


@pytest.mark.parametrize("name", sorted((INTEGRAL | MOVEMENT) - {"cast"}))
def test_gradients_of_integers_are_those_of_equal_floats(name: str) -> None:
    found = 0
    samples = OPS[name].samples
    assert samples is not None
    for arrays, attrs in samples(np.random.default_rng(0)):
        if "dtype" in attrs:
            continue
        asked = [i for i, a in enumerate(arrays) if a.dtype.kind not in "biu"]
        whole = [np.ceil(a.astype(np.float64)) if i in asked else a for i, a in enumerate(arrays)]
        expected, integers = (
            _gradients(name, [a.astype(dtype) if i in asked else a for i, a in enumerate(whole)], asked, attrs)
            for dtype in (np.float64, np.int64)
        )
        for of_floats, of_integers in zip(expected, integers, strict=True):
            if of_integers is not None:
                assert of_integers.dtype == np.int64
                np.testing.assert_array_equal(of_integers, of_floats)
                found += 1
    assert found


def _gradients(name: str, arrays: list[np.ndarray], asked: list[int], attrs: dict[str, Any]) -> list[Any]:
    """The gradients of an op by the arguments `asked` for, with a head of twos."""
    inputs = [ops.input(f"x{i}", TensorType(a.shape, dtype_name(a.dtype))) for i, a in enumerate(arrays)]
    y = OPS[name](*inputs, **attrs)
    made = gradients([y], [ops.full(y.shape, 2, y.dtype)], [inputs[i] for i in asked])
    table = dict(zip(inputs, arrays, strict=True))
    return [None if g is None else np.asarray(interpreter.evaluate([g], table)[0]) for g in made]


def test_head_of_another_type() -> None:
    with pytest.raises(MXNetError, match=r"f64\[2\](.|\n)*f64\[2,3\]"):
        gradients([A], [ops.ones(TensorType((2,), "f64"))], [A])


def test_several_results() -> None:
    x = ops.input("x", TensorType((4, 3), "f64"))
    gamma, beta = (ops.input(n, TensorType((3,), "f64")) for n in ("gamma", "beta"))
    y, mean, _ = ops.batch_norm(x, gamma, beta, axis=1, eps=1e-5)
    (g,) = gradients([mean], [ops.ones(mean.ty)], [x])
    env = {x: RNG.standard_normal((4, 3)), gamma: np.ones(3), beta: np.zeros(3)}
    assert g is not None
    np.testing.assert_allclose(interpreter.evaluate([g], env)[0], np.full((4, 3), 0.25), atol=1e-12)
    (gy,) = gradients([y], [ops.ones(y.ty)], [x])
    assert gy is not None
    np.testing.assert_allclose(interpreter.evaluate([gy], env)[0], np.zeros((4, 3)), atol=1e-12)


@pytest.fixture
def made() -> object:
    """Lets a test declare ops, and takes them back."""
    before = dict(OPS)
    yield
    for name in OPS.keys() - before.keys():
        del OPS[name]


@pytest.mark.usefixtures("made")
def test_composites_without_a_rule_go_through_their_body_and_no_further() -> None:
    def body(x: Node, y: Node) -> Node:
        return ops.mul(ops.exp(x), y)

    op = Op("test_scaled_exp", "composite", infer=lambda x, y: x, body=body)
    inner = ops.mul(A, 2.0)
    y = op(inner, A)  # A is a source of the composite, and of its other source
    (g,) = gradients([y], [ops.ones(y.ty)], [A])
    a = VALUES[A]
    np.testing.assert_allclose(value(g), np.exp(2 * a) * (2 * a + 1))


@pytest.mark.usefixtures("made")
def test_composites_use_the_rule_that_they_have() -> None:
    op = Op("test_odd", "composite", infer=lambda x: x, body=ops.exp, grad=lambda g, y, x: (ops.mul(g, 7.0),))
    (g,) = gradients([op(A)], [ops.ones(A.ty)], [A])
    assert (value(g) == 7).all()


@pytest.mark.usefixtures("made")
def test_a_rule_that_gives_another_type_is_named() -> None:
    op = Op("test_wrong", "elementwise", infer=lambda x: x, grad=lambda g, y, x: (ops.sum(g),))
    with pytest.raises(VerifyError, match=r"test_wrong: .* f64\[\] for a source f64\[2,3\]"):
        gradients([op(A)], [ops.ones(A.ty)], [A])


def test_origins_of_gradients() -> None:
    y = ops.tanh(ops.mul(A, B))
    where = {n: Origin("net.py", line, "dense0") for n, line in ((y, 7), (y.src[0], 6))}
    found = differentiate(Graph({"a": A, "b": B}, {"loss": y}, origins=where), "loss", ["a"])
    new = {n: o for n, o in found.origins.items() if n not in where}
    assert new and {str(o) for o in new.values()} == {"dense0 backward net.py:7", "dense0 backward net.py:6"}
    assert found.origins[y] == where[y] and found.origins[found.outputs["grad:a"]].line == 6
