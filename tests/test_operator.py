"""Operators in Python: nd.Custom in eager mode, with autograd, in hybridized blocks and in compiled steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd, operator
from gluongraph.errors import HostCallError, MXNetError, ShapeError

ARRAY = "NDArray-or-Symbol"


class Scaled(operator.CustomOp):
    """y = factor x, and z = x + state; the state counts calls."""

    def __init__(self, factor: float):
        self.factor = factor

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], self.factor * in_data[0])
        self.assign(out_data[1], req[1], in_data[0] + aux[0])
        aux[0][:] += 1

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        self.assign(in_grad[0], req[0], self.factor * out_grad[0])
        self.assign(in_grad[0], "add", out_grad[1])


@operator.register("test_scaled")
class ScaledProp(operator.CustomOpProp):
    def __init__(self, factor: str):
        super().__init__()
        self.factor = float(factor)

    def list_outputs(self) -> list[str]:
        return ["scaled", "moved"]

    def list_auxiliary_states(self) -> list[str]:
        return ["state"]

    def infer_shape(self, in_shape: Any) -> Any:
        return in_shape, [in_shape[0], in_shape[0]], [[1]]

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> operator.CustomOp:
        assert in_shapes == [[2, 3]]
        return Scaled(self.factor)


class Squared(operator.CustomOp):
    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], in_data[0] * in_data[0])

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])


@operator.register("test_squared")
class SquaredProp(operator.CustomOpProp):
    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> operator.CustomOp:
        return Squared()


def test_outputs_gradients_and_states() -> None:
    x, state = nd.array(np.arange(6).reshape(2, 3)), nd.zeros((1,))
    x.attach_grad()
    for call in range(2):
        with autograd.record():
            y, z = nd.Custom(x, state, op_type="test_scaled", factor=3)
            loss = (y * 2 + z).sum()
        loss.backward()
        assert (y == 3 * x).asnumpy().all() and (z == x + call).asnumpy().all()
        assert (x.grad == 7).asnumpy().all() and state.asscalar() == call + 1
    by_name = nd.Custom(data=x, state=state, op_type="test_scaled", factor=1.5)
    assert (by_name[0] == 1.5 * x).asnumpy().all()
    out = nd.zeros((2, 3))
    assert nd.Custom(x, op_type="test_squared", out=out) is out and (out == x * x).asnumpy().all()


def test_the_gradient_is_that_of_finite_differences() -> None:
    x = np.random.default_rng(1).uniform(0.5, 1.5, (3, 2))
    mx.test_utils.check_numeric_gradient(lambda x: nd.Custom(x, op_type="test_squared"), [x], dtype=np.float64)
    with pytest.raises(AssertionError, match="NUMERICAL_0 and BACKWARD_0 differ"):
        mx.test_utils.check_numeric_gradient(lambda x: x * x.detach(), [x], dtype=np.float64)


class _Net(gluon.HybridBlock):
    """A dense layer, the square of what it gives, and a dense layer."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.first, self.last = gluon.nn.Dense(4), gluon.nn.Dense(1)

    def forward(self, x: Any) -> Any:
        return self.last(self.function(self.first(x)))


def test_a_hybridized_block_runs_in_eager_mode_and_says_so_once() -> None:
    class Square(autograd.Function):
        def forward(self, *inputs: Any) -> Any:
            self.save_for_backward(*inputs)
            return inputs[0] * inputs[0]

        def backward(self, *heads: Any) -> Any:
            return 2 * self.saved_tensors[0] * heads[0]

    for function, what in (
        (lambda x: nd.Custom(x, op_type="test_squared"), r"nd\.Custom\(op_type='test_squared'\)"),
        (lambda x: Square()(x), r"Square, an autograd\.Function,"),
    ):
        net = _Net(function)
        net.initialize()
        x = nd.random.uniform(shape=(5, 3))
        with autograd.record():
            expected = net(x)
        expected.backward()
        gradient = net.first.weight.grad().asnumpy()
        net.hybridize()
        with pytest.warns(UserWarning, match=f"is not compiled, it runs in eager mode: {what} is Python"):
            net(x)
        with autograd.record():
            got = net(x)  # a warning would be an error here
        got.backward()
        assert np.allclose(got.asnumpy(), expected.asnumpy(), 1e-5)
        assert np.allclose(net.first.weight.grad().asnumpy(), gradient, 1e-4)
        assert net.first._is_traced


def test_a_compiled_step_says_what_is_in_the_way() -> None:
    net = _Net(lambda x: nd.Custom(x, op_type="test_squared"))
    net.initialize()
    x = nd.ones((2, 3))
    net(x)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    with pytest.raises(
        HostCallError, match=r"'test_squared'\) is Python(.|\n)*test_operator(.|\n)*help: call it in eager"
    ):
        step(x, nd.ones((2, 1)))


def test_errors() -> None:
    with pytest.raises(MXNetError, match=r"no operator is registered as 'test_nothing'(.|\n)*register"):
        nd.Custom(nd.ones(2), op_type="test_nothing")
    with pytest.raises(MXNetError, match="arrays are missing: state"):
        nd.Custom(nd.ones(2), op_type="test_scaled", factor=1)
    with pytest.raises(TypeError, match="decorates a subclass of CustomOpProp"):
        operator.register("test_wrong")(Squared)  # type: ignore[type-var]

    @operator.register("test_shapes")
    class Shapes(operator.CustomOpProp):
        def infer_shape(self, in_shape: Any) -> Any:
            return [[7]], [[7]], []

    with pytest.raises(ShapeError, match=r"inputs f32\[2\], where infer_shape wants \(7,\)"):
        nd.Custom(nd.ones(2), op_type="test_shapes")

    class Failing(operator.CustomOp):
        def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            raise KeyError("lost")

    @operator.register("test_failing")
    class FailingProp(operator.CustomOpProp):
        def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> operator.CustomOp:
            return Failing()

    with pytest.raises(MXNetError, match=r"nd\.Custom\('test_failing'\): KeyError: 'lost'") as caught:
        nd.Custom(nd.ones(2), op_type="test_failing")
    assert isinstance(caught.value.__cause__, KeyError)
    assert "test_shapes" in operator.get_all_registered() and "dot" in operator.get_all_registered_operators()


@pytest.mark.parametrize(
    "name,types",  # as MXNet 1.9.1 gives them
    [
        ("Activation", [ARRAY, "{'relu', 'sigmoid', 'softrelu', 'softsign', 'tanh'}, required"]),
        ("broadcast_add", [ARRAY, ARRAY]),
        ("where", [ARRAY, ARRAY, ARRAY]),
        ("clip", [ARRAY, "float, required", "float, required"]),
        ("expand_dims", [ARRAY, "int, required"]),
        ("stack", [ARRAY + "[]", "int, optional, default='0'"]),
    ],
)
def test_arguments_of_operators(name: str, types: list[str]) -> None:
    found = operator.get_operator_arguments(name)
    assert found.types == types and found.narg == len(found.names) == len(types)
    assert operator.get_operator_arguments("Activation").names == ["data", "act_type"]
    assert operator.get_operator_arguments("topk").types[3] == (
        "{'both', 'indices', 'mask', 'value'}, optional, default='indices'"
    )
