"""The structured loop: as its unrolled form, with gradients of both orders, closures and nesting."""

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.errors import ShapeError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, TensorType, topological
from gluongraph.ops.autodiff import gradients

T, N, H = 5, 2, 3


def leaf(name, *shape):
    return ops.input(name, TensorType(shape, "f64"))


@pytest.fixture
def env():
    rng = np.random.default_rng(0)
    nodes = [leaf("h", N, H), leaf("c", N, H), leaf("x", T, N, H), leaf("w", H, H), leaf("b", H)]
    return {n: rng.standard_normal(n.shape) for n in nodes}


def cell(h, c, x, w, b):
    """A small recurrent cell with two carries."""
    c = ops.sigmoid(x) * c + ops.tanh(ops.matmul(h, w) + b)
    return ops.tanh(c) * x, c


def looped(h, c, x, w, b, reverse):
    def step(carries, xs):
        new = cell(*carries, *xs, w, b)
        return new, (new[0], new[0] * new[1])

    return ops.scan(step, (h, c), (x,), reverse=reverse)


def unrolled(h, c, x, w, b, reverse):
    seen = {}
    for t in range(T - 1, -1, -1) if reverse else range(T):
        h, c = cell(h, c, ops.reshape(ops.part(x, 0, t, t + 1), (N, H)), w, b)
        seen[t] = (h, h * c)
    return (h, c), tuple(ops.stack(*(seen[t][k] for t in range(T))) for k in (0, 1))


def values(nodes, env):
    return interpreter.evaluate(nodes, env)


def same(found, expected, env):
    for a, b in zip(values(found, env), values(expected, env), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def flat(made):
    return (*made[0], *made[1])


@pytest.mark.parametrize("reverse", [False, True])
def test_is_its_unrolled_form(env, reverse):
    found, expected = flat(looped(*env, reverse)), flat(unrolled(*env, reverse))
    same(found, expected, env)
    heads = [leaf(f"g{k}", *n.shape) for k, n in enumerate(found)]
    rng = np.random.default_rng(1)
    env = env | {n: rng.standard_normal(n.shape) for n in heads}
    wrt = list(env)[:5]
    same(gradients(found, heads, wrt), gradients(expected, heads, wrt), env)


@pytest.mark.parametrize("reverse", [False, True])
def test_second_gradient_is_that_of_the_unrolled_form(env, reverse):
    wrt = list(env)
    second = []
    for make in (looped, unrolled):
        loss = ops.sum(make(*env, reverse)[1][1])
        first = gradients([loss], [ops.ones(loss.ty)], wrt)
        norm = ops.sum(ops.concat(*(ops.reshape(g * g, (-1,)) for g in first)))
        second.append(gradients([norm], [ops.ones(norm.ty)], wrt))
    same(*second, env)


def test_carries_that_the_body_hands_out_are_not_computed_again(env):
    (_, _), ys = looped(*env, False)
    h, _, _, w, _ = env

    def loops(y, wrt):
        (g,) = gradients([y], [ops.ones(y.ty)], [wrt])
        return sum(n.op is OPS["scan"] for n in topological([g]))

    def step(carries, xs):
        new = ops.tanh(ops.matmul(carries[0], w) + xs[0])
        return (new,), (new,)

    _, (plain,) = ops.scan(step, (h,), (list(env)[2],))
    assert loops(plain, w) == 2, "forward and backward"
    assert loops(ys[0], w) == 3, "and once more for the carry that is not handed out"


def bodies(nodes):
    return [n.attrs["body"] for n in topological(nodes) if n.op is OPS["scan"]]


def count(graph, name):
    return sum(n.op.name == name for n in graph.nodes())


@pytest.mark.parametrize("given", [False, True])
def test_what_the_body_hands_out_is_read_by_the_gradient(env, given):
    h, _, x, w, _ = env

    def step(carries, xs):
        gate = ops.sigmoid(ops.matmul(carries[0], w) + xs[0])
        new = ops.tanh(gate * carries[0])
        return (new,), (new, gate) if given else (new,)

    def grads(y):
        return gradients([y], [ops.ones(y.ty)], [h, x, w])

    _, (y, *_) = ops.scan(step, (h,), (x,))
    found = grads(y)
    forward, backward = bodies(found)
    assert count(forward, "sigmoid") == 1 and count(backward, "sigmoid") == (0 if given else 1)
    assert count(backward, "matmul") == (1 if given else 2), "the product that goes back, and the gate once more"

    last, seen = h, []
    for t in range(T):
        (last,), _ = step((last,), (ops.reshape(ops.part(x, 0, t, t + 1), (N, H)),))
        seen.append(last)
    same(found, grads(ops.stack(*seen)), env)


@pytest.mark.parametrize("reverse", [False, True])
def test_products_and_sums_over_all_turns_wait_for_the_end(env, reverse):
    h, _, x, w, b = env

    def turn(h, x):
        return ops.tanh(ops.matmul(h, ops.transpose(w), tb=True) + b + x)

    def last_of(y):
        return gradients([y], [ops.ones(y.ty)], [w, b, x])

    found = last_of(ops.scan(lambda c, xs: ((turn(c[0], xs[0]),), ()), (h,), (x,), reverse=reverse)[0][0])
    backward = bodies(found)[-1]
    assert list(backward.outputs) == ["c0", "y0"], "no sum is carried along: of h goes back what h brings, x is stacked"
    whole = [n.src[0].shape[0] for n in topological(found) if n.op.name == "matmul"]
    assert whole == [T * N], "one product over the rows of all turns"

    last = h
    for t in range(T - 1, -1, -1) if reverse else range(T):
        last = turn(last, ops.reshape(ops.part(x, 0, t, t + 1), (N, H)))
    same(found, last_of(last), env)


def test_what_stays_the_same_is_computed_before_the_loop(env):
    h, _, x, _, b = env
    root = ops.sqrt(ops.exp(b))

    def step(carries, xs):
        return (carries[0] * root + xs[0],), ()

    (last,), _ = ops.scan(step, (h,), (x,))
    (body,) = bodies([last])
    assert count(body, "exp") == 0 and count(body, "expand") == 1, "a broadcast is made where it is read"
    assert body.inputs["k0"].shape == (H,)
    (g,) = gradients([last], [ops.ones(last.ty)], [h])
    assert count(bodies([g])[-1], "exp") == 0


def test_what_the_gradient_does_not_read_is_not_saved():
    x, w = leaf("x", T, N), leaf("w", N)
    (total,), _ = ops.scan(lambda c, xs: ((c[0] + xs[0] * w,), ()), (ops.zeros(w.ty),), (x,))
    (g,) = gradients([total], [ops.ones(total.ty)], [w])
    scans = [n for n in topological([g]) if n.op is OPS["scan"]]
    assert len(scans) == 1 and scans[0].attrs["xs"] == 1


def test_nested_loops_keep_their_leaves_apart():
    """cumulative sums of cumulative sums; the inner step closes over the outer carry, which has its own type."""
    x = leaf("x", T, T)

    def outer(carries, xs):
        def inner(c, y):
            new = c[0] + y[0] * carries[0]
            return (new,), (new,)

        (last,), ys = ops.scan(inner, (carries[0],), xs)
        return (last,), ys

    _, (y,) = ops.scan(outer, (ops.const(1.0, "f64"),), (x,))
    a = np.random.default_rng(0).standard_normal((T, T))
    carry, rows = 1.0, []
    for row in a:
        rows.append(carry + np.cumsum(row) * carry)
        carry = rows[-1][-1]
    np.testing.assert_allclose(values([y], {x: a})[0], rows)
    (g,) = gradients([y], [ops.ones(y.ty)], [x])
    step, at = 1e-6, (1, 2)
    moved = a.copy()
    moved[at] += step
    slope = (values([y], {x: moved})[0].sum() - values([y], {x: a})[0].sum()) / step
    assert values([g], {x: a})[0][at] == pytest.approx(slope, rel=1e-4)


def test_equal_loops_are_one_node():
    x = leaf("x", T, N)

    def total():
        return ops.scan(lambda c, xs: ((c[0] + xs[0],), ()), (ops.zeros(TensorType((N,), "f64")),), (x,))[0][0]

    assert total() is total()


def test_says_what_is_wrong():
    x, h = leaf("x", T, N), leaf("h", N)
    with pytest.raises(ShapeError, match="changes the type of a carry"):
        ops.scan(lambda c, xs: ((ops.stack(c[0], c[0]),), ()), (h,), (x,))
    with pytest.raises(ShapeError, match="5 elements along axis 0"):
        ops.scan(lambda c, xs: (c, ()), (h,), (x, leaf("short", T - 1)))
    with pytest.raises(ShapeError, match="number of iterations"):
        ops.scan(lambda c, xs: (c, ()), (h,))
