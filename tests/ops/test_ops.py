"""One table for all ops: what is asked of every op that is declared. A new op needs no edit here, only samples."""

import zlib

import numpy as np
import numpy_algebra
import pytest

from gluongraph import ops
from gluongraph.dtypes import dtype_name, is_float, numpy_dtype
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, TensorType
from gluongraph.ops.autodiff import gradients

NO_LOWER = {"input", "literal"}  # they lie in memory
# So many sources only say where the gradient goes: nothing is smooth in them.
POINTING = {"max_pool2d_grad": 2, "max_pool2d_grad_blocks": 2}
OWN = {"output"}  # their gradient is said, and is not the derivative


def type_of(value):
    if isinstance(value, tuple):
        return tuple(map(type_of, value))
    value = np.asarray(value)
    return TensorType(value.shape, dtype_name(value.dtype))


def generator(op, number=0):
    return np.random.default_rng([zlib.crc32(op.name.encode()), number])


def samples(op):
    return list(op.samples(generator(op))) if op.samples else []


def table(choose):
    """One test per op and sample that `choose` takes."""
    return [
        pytest.param(op, arrays, attrs, id=f"{op.name}-{number}")
        for op in OPS.values()
        for number, (arrays, attrs) in enumerate(samples(op))
        if choose(op, arrays)
    ]


def doubles(arrays):
    """Are all floats among the arrays f64?"""
    dtypes = [a.dtype for a in arrays if not isinstance(a, tuple)]
    return np.float64 in dtypes and not any(is_float(dtype_name(d)) and d != np.float64 for d in dtypes)


def leaves(arrays):
    return [ops.input(f"a{k}", type_of(a)) for k, a in enumerate(arrays)]


def meaning(op, arrays, attrs):
    """The value by the op's numpy meaning, or through its body."""
    if op.numpy is not None:
        with np.errstate(all="ignore"):
            return op.numpy(*arrays, **attrs)
    nodes = leaves(arrays)
    (value,) = interpreter.evaluate([op(*nodes, **attrs)], dict(zip(nodes, arrays, strict=True)))
    return value


@pytest.mark.parametrize("op", OPS.values(), ids=str)
def test_is_tested(op):
    assert op.doc, f"{op.name} has no doc"
    if op.name == "input":
        return
    found = samples(op)
    assert found, f"{op.name} has no samples"
    assert op.numpy is not None or op.body is not None, f"{op.name} has no meaning"
    if op.grad is not None:
        assert any(doubles(arrays) for arrays, _ in found), f"{op.name} has a gradient and no sample in f64"
    if op.kind not in ("composite", "control", "collective") and op.name not in NO_LOWER:
        assert op.lower is not None, f"{op.name} has no lower rule"


@pytest.mark.parametrize(("op", "arrays", "attrs"), table(lambda op, arrays: True))
def test_type(op, arrays, attrs):
    assert op.infer(*map(type_of, arrays), **attrs) == type_of(meaning(op, arrays, attrs))


@pytest.mark.parametrize(("op", "arrays", "attrs"), table(lambda op, arrays: op.lower is not None))
def test_lower(op, arrays, attrs):
    expected = np.asarray(meaning(op, arrays, attrs))
    rng = generator(op, 1)
    exact = not is_float(dtype_name(expected.dtype)) or op.name in ("uniform", "bernoulli")
    size = min(expected.dtype.itemsize, 4) if op.name == "normal" else expected.dtype.itemsize  # drawn in f32
    tolerance = 0 if exact else {2: 2e-2, 4: 2e-5, 8: 1e-12}[size]
    with np.errstate(all="ignore"):
        for index in numpy_algebra.indices(rng, expected.shape):
            found = numpy_algebra.evaluate(op, arrays, attrs, index)
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(
                np.broadcast_to(found, expected[index].shape).astype(numpy_dtype("f64")),
                expected[index].astype(numpy_dtype("f64")),
                rtol=tolerance,
                atol=tolerance,
            )


def differentiable(op, arrays):
    return op.name not in OWN and doubles(arrays) and (op.grad is not None or op.body is not None)


def results(n):
    return ops.get_tuple_elements(n) if isinstance(n.type, tuple) else (n,)


def directional(nodes, wrt, env, rng):
    """d <c, nodes> along a random direction of wrt: by the gradient graph, and by a difference quotient."""
    weights = [rng.standard_normal(n.shape) for n in nodes]
    heads = [ops.input(f"head{k}", n.ty) for k, n in enumerate(nodes)]
    found = gradients(nodes, heads, wrt)
    steps = {n: rng.standard_normal(n.shape) for n in wrt}
    wanted = [(n, g) for n, g in zip(wrt, found, strict=True) if g is not None]
    values = interpreter.evaluate([g for _, g in wanted], {**env, **dict(zip(heads, weights, strict=True))})
    slope = sum(np.sum(v * steps[n]) for (n, _), v in zip(wanted, values, strict=True))

    def loss(t):
        moved = {n: a + t * steps[n] if n in steps else a for n, a in env.items()}
        return sum(np.sum(w * v) for w, v in zip(weights, interpreter.evaluate(nodes, moved), strict=True))

    h = 1e-5
    return slope, (loss(h) - loss(-h)) / (2 * h)


@pytest.mark.parametrize(("op", "arrays", "attrs"), table(differentiable))
def test_gradient(op, arrays, attrs):
    nodes = leaves(arrays)
    made = [n for n in results(op(*nodes, **attrs)) if n.dtype == "f64"]
    if not made:
        return
    wrt = [n for n in nodes if is_float(n.dtype)][POINTING.get(op.name, 0) :]
    slope, quotient = directional(made, wrt, dict(zip(nodes, arrays, strict=True)), generator(op, 2))
    assert slope == pytest.approx(quotient, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(("op", "arrays", "attrs"), table(differentiable))
def test_second_gradient(op, arrays, attrs):
    nodes = leaves(arrays)
    wrt = [n for n in nodes if is_float(n.dtype)][POINTING.get(op.name, 0) :]
    made = [n for n in results(op(*nodes, **attrs)) if n.dtype == "f64"]
    heads = [ops.input(f"outer{k}", n.ty) for k, n in enumerate(made)]
    first = [g for g in gradients(made, heads, wrt) if g is not None]
    if not first:
        return
    rng = generator(op, 3)
    env = dict(zip(nodes, arrays, strict=True)) | {h: rng.standard_normal(h.shape) for h in heads}
    slope, quotient = directional(first, [*wrt, *heads], env, rng)
    assert slope == pytest.approx(quotient, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_is_one_where_it_is_to_the_last_bit(dtype):
    """gelu multiplies what is left with x, so that a rounding of erf far out would be a number of any size."""
    far = np.array([9, 40, 1e30, np.inf], dtype)
    assert np.array_equal(ops.erf.numpy(far), np.ones_like(far))
    assert np.array_equal(ops.normal_cdf.numpy(-far), np.zeros_like(far))
    assert np.isnan(ops.erf.numpy(np.array([np.nan], dtype))).all()


@pytest.mark.parametrize(("op", "arrays", "attrs"), table(lambda op, arrays: op.lower is not None))
def test_what_compares_for_equality_says_so(op, arrays, attrs):
    """`passes.compared` must know of it."""
    algebra, shape = numpy_algebra.NumpyAlgebra(), np.asarray(meaning(op, arrays, attrs)).shape
    with np.errstate(all="ignore"):
        for index in numpy_algebra.indices(generator(op, 1), shape):
            numpy_algebra.evaluate(op, arrays, attrs, index, algebra)
    assert not algebra.compares_equal or "compares_equal" in op.traits


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("name", ["cholesky", "syevd", "gelqf", "inverse"])
def test_a_matrix_without_an_answer_leaves_the_others_of_its_batch_theirs(name: str, dtype: str) -> None:
    op, good = OPS[name], np.diag([1.0, 2.0, 3.0])
    batch = np.stack([good, np.full((3, 3), np.nan), good]).astype(numpy_dtype(dtype))
    whole, alone = op.numpy(batch), op.numpy(batch[0])
    for found, wanted in zip(*((x if isinstance(x, tuple) else (x,)) for x in (whole, alone)), strict=True):
        np.testing.assert_array_equal(found[0], wanted)
        np.testing.assert_array_equal(found[2], wanted)
        assert np.isnan(found[1]).any() and found.dtype == wanted.dtype
