"""Parameters: deferred shapes, gradients, initializer precedence, and what goes wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import autograd, cpu, gluon, gpu, init, nd, random
from gluongraph.gluon import Constant, DeferredInitializationError, Parameter, ParameterDict, nn


def test_basics() -> None:
    p = Parameter("w", shape=(2, 3))
    p.initialize(init.One())
    assert p.data().shape == (2, 3) and p.dtype == np.float32 and p.list_ctx() == [cpu(0)]
    assert (p.data().asnumpy() == 1).all() and (p.grad().asnumpy() == 0).all()
    assert str(p) == "Parameter w (shape=(2, 3), dtype=<class 'numpy.float32'>)"
    assert p.data() is p.list_data()[0] and p.grad() is p.list_grad()[0]


def test_gradient_write_add_null() -> None:
    p = Parameter("w", shape=(2,))
    p.initialize(init.One())

    def backward() -> None:
        with autograd.record():
            loss = (p.data() * 3.0).sum()
        loss.backward()

    backward()
    backward()
    assert p.grad().asnumpy().tolist() == [3, 3]
    p.grad_req = "add"
    backward()
    backward()
    assert p.grad().asnumpy().tolist() == [6, 6]
    p.zero_grad()
    assert p.grad().asnumpy().tolist() == [0, 0]
    p.grad_req = "null"
    with pytest.raises(RuntimeError, match="grad_req is 'null'"):
        p.grad()
    p.grad_req = "write"
    backward()
    assert p.grad().asnumpy().tolist() == [3, 3]


def test_what_cannot_be_differentiated_stays_null() -> None:
    p = Parameter("mean", shape=(2,), differentiable=False)
    p.grad_req = "write"
    assert p.grad_req == "null"


def test_deferred() -> None:
    p = Parameter("w", shape=(2, 0), allow_deferred_init=True)
    p.initialize(init.One())
    with pytest.raises(DeferredInitializationError, match="first forward"):
        p.data()
    assert p.list_ctx() == [cpu(0)]
    p.shape = (2, 3)
    p.finish_deferred_init()
    assert (p.data().asnumpy() == 1).all()


def test_deferred_data() -> None:
    p = Parameter("w", shape=(2, 0), allow_deferred_init=True)
    p.initialize()
    p.set_data(np.full((2, 3), 5.0, np.float32))
    p.finish_deferred_init()
    assert (p.data().asnumpy() == 5).all()


def test_initializer_precedence() -> None:
    for own, given, default, value in [(2, 3, 4, 3), (2, None, 4, 2), (None, None, 4, 4)]:
        p = Parameter("w", shape=(1,), init=None if own is None else init.Constant(own))
        p.initialize(None if given is None else init.Constant(given), default_init=init.Constant(default))
        assert p.data().asscalar() == value


def test_a_layers_own_initializer_wins_over_the_blocks() -> None:
    net = nn.Dense(2, in_units=2)
    net.initialize(init.Constant(3))
    assert (net.weight.data().asnumpy() == 3).all() and (net.bias.data().asnumpy() == 0).all()
    net = nn.Dense(2, in_units=2, bias_initializer=None)
    net.initialize(init.Constant(3))
    assert (net.bias.data().asnumpy() == 3).all()


def test_initialize_again() -> None:
    p = Parameter("w", shape=(1,))
    p.initialize(init.One())
    with pytest.warns(UserWarning, match="already initialized"):
        p.initialize(init.Zero())
    assert p.data().asscalar() == 1
    p.initialize(init.Zero(), force_reinit=True)
    assert p.data().asscalar() == 0


def test_an_initializer_that_fails_leaves_everything_as_it_was() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=2, weight_initializer="ones"), nn.Dense(2, in_units=2, bias_initializer=init.Xavier()))
    with pytest.raises(ValueError, match="at least 2 axes"):
        net.initialize()
    with pytest.raises(RuntimeError, match="has not been initialized"):
        net[0].weight.data()
    net[1].bias.init = "zeros"
    net.initialize()
    arrays = [p.data() for p in net.collect_params().values()]
    net[1].bias.init = "nonsense"
    with pytest.raises(AssertionError, match="nonsense"):
        net.initialize(force_reinit=True)
    assert all(p.data() is array for p, array in zip(net.collect_params().values(), arrays, strict=True))


def test_set_data_keeps_the_array() -> None:
    p = Parameter("w", shape=(2,))
    p.initialize()
    array = p.data()
    p.set_data(nd.array([1, 2]))
    assert p.data() is array and array.asnumpy().tolist() == [1, 2]
    with pytest.raises(AssertionError, match="does not fit"):
        p.set_data(nd.array([1, 2, 3]))


def test_cast() -> None:
    p = Parameter("w", shape=(2,))
    p.initialize(init.One())
    p.cast("float64")
    assert p.data().dtype == np.float64 and p.grad().dtype == np.float64 and p.dtype == np.float64


def test_several_contexts() -> None:
    p = Parameter("w", shape=(2,))
    p.initialize(init.Uniform(), ctx=[cpu(0), cpu(1)])
    a, b = p.list_data()
    assert (a.asnumpy() == b.asnumpy()).all() and p.data(cpu(1)) is b
    assert p.data() is a  # the current context's
    with pytest.raises(RuntimeError, match="was not initialized on"):
        p.data(cpu(2))
    with cpu(1):
        assert p.data() is b and p.grad() is b.grad
    p.set_data(nd.array([1, 2]))
    b[:] = nd.array([3, 4], ctx=cpu(1))
    assert p.averaged().tolist() == [2, 3]  # what is saved
    p.reset_ctx([cpu(1), cpu(2)])
    assert p.list_ctx() == [cpu(1), cpu(2)] and [d.asnumpy().tolist() for d in p.list_data()] == [[2, 3], [2, 3]]
    assert [g.context for g in p.list_grad()] == p.list_ctx()


def test_the_first_values_do_not_depend_on_the_contexts() -> None:
    drawn = []
    for ctx in (cpu(0), cpu(1), [cpu(2), cpu(0)]):
        random.seed(3)
        p = Parameter("w", shape=(4,))
        p.initialize(init.Normal(), ctx=ctx)
        drawn.append(p.list_data()[0].asnumpy())
    assert (drawn[0] == drawn[1]).all() and (drawn[0] == drawn[2]).all()


def test_blocks_run_where_their_input_lies() -> None:
    """The parameters' replicas there, in eager mode and hybridized, and random numbers of that device."""
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=2), nn.Dropout(0.5))
    net.initialize(ctx=[cpu(0), cpu(1)])
    net[0].weight.data(cpu(1))[:] = 0.0
    for hybrid in (False, True):
        net.hybridize(hybrid)
        outs = [net(nd.ones((1, 2), ctx=c)) for c in (cpu(0), cpu(1))]
        assert [o.context for o in outs] == [cpu(0), cpu(1)] and outs[0].asnumpy().any() and not outs[1].asnumpy().any()
        net[0].bias.set_data(nd.ones((3,)))
        masks = []
        for c in (cpu(0), cpu(1)):
            random.seed(1)
            with autograd.train_mode():
                masks.append(net(nd.zeros((20, 2), ctx=c)).asnumpy())
        assert (masks[0] != masks[1]).any()
        net[0].bias.set_data(nd.zeros((3,)))
    add = nn.HybridLambda(lambda F, a, b: a + b)
    add.hybridize()
    with pytest.raises(ValueError, match=r"lie on cpu\(0\) and cpu\(1\)"):
        add(nd.ones((1,)), nd.ones((1,), ctx=cpu(1)))


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: Parameter("w", shape=(2,)).data(), RuntimeError, "has not been initialized"),
    (lambda: Parameter("w", shape=(2, 0)).initialize(), ValueError, "its shape is"),
    (lambda: Parameter("w", grad_req="sometimes"), AssertionError, "grad_req is one of"),
    (lambda: Parameter("w", stype="row_sparse"), RuntimeError, "stype='row_sparse' does not exist"),
    (lambda: ParameterDict().get_constant("c"), KeyError, "no constant 'c'"),
    (lambda: Parameter("w", shape=(2,)).set_data(nd.ones((2,))), AssertionError, "has not been initialized"),
    (lambda: Parameter("w", shape=(2,)).reset_ctx(cpu(1)), ValueError, "cannot move, it has no data yet"),
    (lambda: Parameter("w", shape=(2,)).initialize(ctx=[]), ValueError, "on one context, or on several"),
    (lambda: Parameter("w", shape=(2,)).initialize(ctx=[cpu(0)] * 2), ValueError, "on one context, or on several"),
    (lambda: Parameter("w", shape=(2,)).initialize(ctx=gpu(0)), RuntimeError, r"arrays on gpu\(0\) do not exist"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_shape_may_only_be_completed() -> None:
    p = Parameter("w", shape=(2, 0))
    p.shape = (2, 5)
    with pytest.raises(AssertionError, match="does not fit"):
        p.shape = (2, 6)


def test_dictionary() -> None:
    d = ParameterDict("net_")
    p = d.get("w", shape=(2, 0))
    assert p.name == "net_w" and d.get("w", shape=(0, 3)) is p and p.shape == (2, 3)
    with pytest.raises(AssertionError, match="does not fit"):
        d.get("w", shape=(4, 4))
    with pytest.raises(AssertionError, match="exists with"):
        d.get("w", dtype="float64")
    other = ParameterDict("net_")
    other.get("w", shape=(1,))
    with pytest.raises(ValueError, match="two different parameters"):
        d.update(other)
    d.setattr("lr_mult", 0.5)
    assert p.lr_mult == 0.5


def test_constant() -> None:
    c = Constant("c", np.arange(3))
    c.initialize()
    assert c.data().asnumpy().tolist() == [0, 1, 2] and c.grad_req == "null"
    with pytest.warns(UserWarning, match="has no gradient"):
        c.grad_req = "write"
    assert c.grad_req == "null" and c.data().dtype == np.float32
    assert Constant("c", nd.array([1, 2], dtype="int32")).dtype == np.int32


@pytest.mark.parametrize("name", ["uniform", "normal", "xavier", "msraprelu", "orthogonal"])
def test_seed_repeats_initialization(name: str) -> None:
    drawn = []
    for seed in (1, 1, 2):
        random.seed(seed)
        p = Parameter("w", shape=(4, 6))
        p.initialize(init.create(name))
        drawn.append(p.data().asnumpy())
    assert (drawn[0] == drawn[1]).all() and not (drawn[0] == drawn[2]).any()


def test_distributions() -> None:
    def values(how: init.Initializer, shape: tuple[int, ...] = (200, 300)) -> Any:
        p = Parameter("w", shape=shape)
        p.initialize(how)
        return p.data().asnumpy().astype(np.float64)

    random.seed(0)
    assert np.abs(values(init.Uniform(0.5))).max() <= 0.5 and values(init.Uniform(0.5)).std() == pytest.approx(
        0.5 / 3**0.5, rel=0.02
    )
    assert values(init.Normal(0.2)).std() == pytest.approx(0.2, rel=0.02)
    assert values(init.Xavier()).std() == pytest.approx((3 / 250 / 3) ** 0.5, rel=0.02)
    assert values(init.Xavier("gaussian", "in", 2)).std() == pytest.approx((2 / 300) ** 0.5, rel=0.02)
    assert values(init.Xavier(factor_type="out"), (20, 30, 5, 5)).std() == pytest.approx((3 / 500 / 3) ** 0.5, rel=0.03)
    square = values(init.Orthogonal(scale=1.0), (20, 40))
    np.testing.assert_allclose(square @ square.T, np.eye(20), atol=1e-5)
    with pytest.raises(ValueError, match="at least 2 axes"):
        values(init.Xavier(), (3,))


def test_initializer_by_name_of_the_array() -> None:
    arrays = {name: nd.zeros((2,)) + 5 for name in ("fc_bias", "bn_gamma", "bn_running_var", "fc_weight")}
    for name, array in arrays.items():
        init.Constant(7)(name, array)
    assert [a.asnumpy()[0] for a in arrays.values()] == [0, 1, 1, 7]
    with pytest.raises(ValueError, match="does not say what it is"):
        init.Zero()("thing", nd.zeros((1,)))
    with pytest.raises(AssertionError, match="did you mean 'xavier'"):
        init.create("xaver")


def test_own_initializer() -> None:
    class Ramp(init.Initializer):
        def _init_weight(self, name: str, arr: nd.NDArray) -> None:
            arr[:] = nd.arange(arr.size).reshape(arr.shape)

    net = nn.Dense(2, in_units=2, weight_initializer=Ramp())
    net.initialize()
    assert net.weight.data().asnumpy().tolist() == [[0, 1], [2, 3]]
    mixed = gluon.nn.Dense(1, in_units=1, prefix="m_")
    mixed.initialize(init.Mixed([".*weight", ".*"], [init.Constant(4), init.Zero()]))
    assert mixed.weight.data().asscalar() == 4


def test_when_the_shape_becomes_known_does_not_change_what_is_drawn() -> None:
    drawn = []
    for known in (True, False):
        random.seed(1)
        net = nn.HybridSequential()
        net.add(nn.Dense(3, in_units=2 if known else 0), nn.Dense(4, in_units=3 if known else 0))
        net.initialize(init.Xavier())
        drawn.append(random.uniform(shape=(2,)).asnumpy())
        net(nd.ones((1, 2)))
        drawn.append(net[1].weight.data().asnumpy())
    assert (drawn[0] == drawn[2]).all() and (drawn[1] == drawn[3]).all()


def test_a_seed_given_after_initialize_counts() -> None:
    drawn = []
    for first in (1, 2):
        random.seed(first)
        net = nn.Dense(3)
        net.initialize()
        random.seed(7)
        net(nd.ones((1, 2)))
        drawn.append(net.weight.data().asnumpy())
    assert (drawn[0] == drawn[1]).all()
