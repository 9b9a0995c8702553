"""Bad input to a compiled step: a clear error, and weights, states, counters and random numbers as they were."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import debug, gluon, nd
from gluongraph.errors import CompileError, DTypeError, MXNetError, NotFiniteError, ShapeError, TraceError

RNG = np.random.RandomState(0)
X = RNG.rand(4, 6).astype(np.float32)
Y = np.array([0, 1, 2, 0], np.int32)
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


class Session:
    """A net with dropout and running statistics, its trainer, and its step."""

    def __init__(self) -> None:
        mx.random.seed(1)
        self.net = gluon.nn.HybridSequential()
        self.net.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.Dropout(0.3), gluon.nn.BatchNorm())
        self.net.add(gluon.nn.Dense(3))
        self.net.initialize(mx.init.Xavier())
        self.net(nd.array(X))
        self.trainer = gluon.Trainer(self.net.collect_params(), "adam", {"learning_rate": 1e-2})
        self.step = mx.compile(self.net, LOSS, self.trainer)

    def state(self) -> dict[str, Any]:
        """All that a step may change, by value."""
        optimizer, trainer = self.trainer.optimizer, self.trainer
        found = {p.name: p.data().asnumpy().tobytes() for p in trainer.params}
        for name, states in trainer.states.items():
            found |= {f"{name}/{key}": array.asnumpy().tobytes() for key, array in states.items()}
        counters = {"num_update": optimizer.num_update, "counts": optimizer.counts(), "scale": optimizer.rescale_grad}
        return {**found, **counters, "random": mx.random.get_state()}


@pytest.fixture(scope="module")
def session() -> Session:
    """One net for all tests here; a step has been made, so that there are states and counts to spoil."""
    made = Session()
    made.step(X, Y)
    return made


def refused(session: Session, call: Callable[[], Any], error: Any, message: str) -> str:
    """The message of `call`, which must fail so, change nothing, and leave a step behind that still works."""
    before = session.state()
    with pytest.raises(error, match=message) as caught:
        call()
    assert session.state() == before
    assert np.isfinite(session.step(X, Y).asnumpy()).all()
    after = session.state()
    assert after["num_update"] == before["num_update"] + 1 and after["random"] != before["random"]
    assert all(after[p.name] != before[p.name] for p in session.trainer.params)
    return str(caught.value)


OBJECTS = np.array([{}, None], dtype=object)
BATCHES: list[tuple[tuple[Any, ...], Any, str]] = [
    ((np.ones((4, 6, 2), np.float32), Y), ShapeError, r"data f32\[4,6,2\] gives rows of 12, weight is f32\[8,6\]"),
    ((np.ones(6, np.float32), Y), ShapeError, r"data f32\[6\]"),
    ((np.ones((4, 5), np.float32), Y), ShapeError, r"data f32\[4,5\] gives rows of 5, weight is f32\[8,6\]"),
    ((X, Y[:3]), ShapeError, r"labels i32\[3\] do not fit the prediction f32\[4,3\]"),
    ((X, Y.reshape(2, 2)), ShapeError, r"labels i32\[2,2\] do not fit the prediction f32\[4,3\]"),
    ((X.astype(np.uint8), Y), DTypeError, r"matmul: dtypes differ: u8\[4,6\] and f32\[8,6\]"),
    ((X.astype(np.float16), Y), DTypeError, r"matmul: dtypes differ: f16\[4,6\] and f32\[8,6\]"),
    ((nd.array(X, dtype="float64"), Y), DTypeError, r"matmul: dtypes differ: f64\[4,6\] and f32\[8,6\]"),
    ((X.astype(np.complex64), Y), DTypeError, "argument 0 of the step is ndarray of complex64: unknown dtype"),
    ((X, np.array(list("abca"))), DTypeError, "argument 1 of the step is ndarray of <U1: unknown dtype"),
    ((X, ["a", "b", "c", "a"]), DTypeError, "argument 1 of the step is list: unknown dtype"),
    ((X, OBJECTS), DTypeError, "argument 1 of the step is ndarray of object: unknown dtype"),
    ((None, Y), DTypeError, "argument 0 of the step is NoneType: unknown dtype"),
    (([[1, 2], [3]], Y), DTypeError, "argument 0 of the step is list: .* inhomogeneous"),
    ((X[:0], Y[:0]), ShapeError, r"argument 0 of the step has no elements: f32\[0,6\]"),
    ((X, nd.array(Y)[:0]), ShapeError, r"argument 1 of the step has no elements"),
    ((X,), TypeError, "a step on 1 array: SoftmaxCrossEntropyLoss: missing a required argument: 'label'"),
    ((), TypeError, "a step on 0 arrays: HybridSequential: missing a required argument: 'x'"),
]


@pytest.mark.parametrize("number", range(len(BATCHES)))
def test_batches_that_do_not_fit(session: Session, number: int) -> None:
    batch, error, message = BATCHES[number]
    text = refused(session, lambda: session.step(*batch), error, message)
    if issubclass(error, mx.MXNetError):
        assert re.search(rf"\n  at {re.escape(__file__)}:\d+( in \w+)?\n  help: ", text), text


class Scaled(gluon.HybridBlock):
    """Written as for MXNet: forward(x, by), for a step of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.params.get("weight", shape=(6,), init="ones")

    def hybrid_forward(self, F: Any, x: Any, by: Any, weight: Any) -> Any:
        return x * by * weight


def a_function(x: Any, y: Any) -> Any:
    return (x - y).square()


@pytest.mark.parametrize(
    ("net", "loss", "inputs", "mode", "message"),
    [
        (gluon.nn.Dense(2), LOSS, 1, "predict", "2 arrays for Dense: too many .* help: the arrays go to Dense\\(x\\)"),
        (
            gluon.nn.Dense(2),
            LOSS,
            2,
            "evaluate",
            "2 arrays: Dense: too many .* help: .*mx.compile: inputs=2\\), Softmax",
        ),
        (Scaled(), LOSS, 1, "evaluate", "2 arrays: Scaled: missing .*'by'.* help: Scaled\\(x, by\\) gets the first"),
        (
            Scaled(),
            LOSS,
            2,
            "evaluate",
            "2 arrays: Softmax.*: missing .*'label'.*Loss\\(pred, label, sample_weight=None",
        ),
        (a_function, None, 1, "predict", None),
        (lambda x: x, None, 1, "predict", "2 arrays for <lambda>: too many .* help: the arrays go to <lambda>\\(x\\)"),
        (lambda *xs: xs[1], None, 1, "predict", None),
    ],
)
def test_another_number_of_arrays(net: Any, loss: Any, inputs: int, mode: str, message: str | None) -> None:
    step = mx.compile(net, loss, inputs=inputs)
    call = partial(getattr(step, mode), X, X)
    if message is None:
        assert call().shape == X.shape
        return
    with pytest.raises(TypeError, match=f"(?s){message}") as caught:
        call()
    assert re.search(rf"\n  at {re.escape(__file__)}:\d+( in \w+)?\n  help: ", str(caught.value))


@pytest.mark.parametrize("size", [0, -1, float("nan"), "4"])
def test_batch_sizes(session: Session, size: Any) -> None:
    call = partial(session.step, X, Y, batch_size=size)
    refused(session, call, (ZeroDivisionError, ValueError), f"batch_size={size!r}")


class Scales(gluon.Block):
    """The product of the input and of parameters of these names."""

    def __init__(self, *names: str):
        super().__init__(prefix="")
        self.scales = [gluon.Parameter(name, shape=(3,), init="ones") for name in names]
        for number, parameter in enumerate(self.scales):
            setattr(self, f"scale{number}", parameter)

    def forward(self, x: nd.NDArray) -> nd.NDArray:
        for parameter in self.scales:
            x = x * parameter.data()
        return x


@pytest.mark.parametrize("names", [("w", "w/mean"), ("w/var", "w"), ("w", "average:w"), ("window:w", "w")])
def test_parameters_with_names_of_arrays_of_the_step(names: tuple[str, str]) -> None:
    net = Scales(*names)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    step = mx.compile(net, gluon.loss.L2Loss(), trainer, ema=0.9)
    batch = nd.ones((2, 3)), nd.zeros((2, 3))
    with debug.override(backend="reference"), pytest.raises(MXNetError, match=r"a parameter is called 'w/|:w'"):
        step.accumulate(*batch)
        step(*batch)


def test_parameters_with_names_of_replicas() -> None:
    net = Scales("w", "w@cpu(1)")
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ValueError, match=r"called 'w@cpu\(1\)', as another one is on that context"):
        gluon.Trainer(net.collect_params(), "sgd").allreduce_grads()


PROGRAMS: list[tuple[Callable[[Any], Callable[..., Any]], Any, str]] = [
    (lambda net: lambda x, y: None, TraceError, "the traced function gives back no array"),
    (lambda net: lambda x, y: 3.0, TraceError, "the traced function gives back no array"),
    (lambda net: lambda x, y: y, TraceError, r"the loss is i32\[4\]; only floats have gradients"),
    (lambda net: lambda x, y: x, TraceError, "reads no parameter of the trainer"),
    (lambda net: lambda x, y: net(x) if x.sum() > 0 else y, TraceError, "a branch"),
    (lambda net: lambda x, y: float(LOSS(net(x), y).mean()), TraceError, r"float\(\) of a traced value"),
    (lambda net: lambda x, y: 1 / 0, ZeroDivisionError, "division"),
]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_without_a_loss(session: Session, number: int) -> None:
    build, error, message = PROGRAMS[number]
    step = mx.compile(build(session.net), trainer=session.trainer)
    refused(session, lambda: step(X, Y), error, message)


def test_a_dtype_mismatch_in_the_program(session: Session) -> None:
    def program(x: nd.NDArray, y: nd.NDArray) -> Any:
        return session.net(x) + nd.ones((4, 3), dtype="float64")

    step = mx.compile(program, trainer=session.trainer)
    text = refused(session, lambda: step(X, Y), DTypeError, "add: dtypes differ")
    assert "f32[4,3] and f64[4,3]" in text and "help: cast one" in text
    assert f"{__file__}:{program.__code__.co_firstlineno + 1}" in text


def test_nan_names_the_op_its_layer_and_the_line(session: Session) -> None:
    def program(x: nd.NDArray, y: nd.NDArray) -> Any:
        out = session.net(x)
        return LOSS(nd.log(-nd.abs(out) - 1), y)

    step = mx.compile(program, trainer=session.trainer)
    with debug.override(check="nan"):
        message = r"^log\(f32\[4,3\]\) made a NaN\n  made by the program at "
        text = refused(session, lambda: step(X, Y), NotFiniteError, message)
        assert f"{__file__}:{program.__code__.co_firstlineno + 2}" in text and "help: look at" in text

        bad = X.copy()
        bad[1, 2] = np.nan
        text = refused(session, lambda: session.step(bad, Y), NotFiniteError, r"^matmul\(f32\[4,6\], f32\[8,6\]\)")
        assert "there is a NaN in data0" in text and re.search(rf"made by {session.net[0].name} at ", text)


def test_the_check_begins_and_ends_with_its_block(session: Session) -> None:
    """A step that was compiled before is interpreted within, and runs its code again afterwards."""
    session.step(X, Y)
    with debug.override(check="nan"):
        session.step(X, Y)
        with pytest.raises(mx.MXNetError, match="there is no compiled code: GG_BACKEND or GG_CHECK"):
            _ = session.step.artefact
    session.step(X, Y)
    assert session.step.artefact is not None


# -- what works


def losses(*batches: tuple[Any, Any]) -> list[np.ndarray]:
    """The first loss of each batch, each on a session of its own; interpreted, for each type is a compilation."""
    with debug.override(backend="reference"):
        return [Session().step(*batch).asnumpy() for batch in batches]


def test_arrays_of_all_kinds() -> None:
    """Lists and float64 count as float32, as in nd.array; strides and read-only memory do not matter."""
    wide = np.repeat(X, 2, axis=1)
    still = X.copy()
    still.flags.writeable = False
    y = Y.astype
    kinds = [(X, Y), (X.astype(np.float64), Y), (X.tolist(), Y.tolist()), (wide[:, ::2], Y), (np.asfortranarray(X), Y)]
    kinds += [(still, Y), (nd.array(X), nd.array(Y)), (X, y(np.int64)), (X, y(np.uint8)), (X, y(np.float64))]
    first, *others = losses(*kinds)
    for other in others:
        np.testing.assert_array_equal(other, first)
    assert not still.flags.writeable and (still == X).all()


def test_a_float64_net_takes_float64_arrays() -> None:
    net = gluon.nn.Dense(2, in_units=6)
    net.initialize()
    net.cast("float64")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    target = np.ones((4, 2))
    assert step(nd.array(X, dtype="float64"), nd.array(target, dtype="float64")).dtype == np.float64
    with pytest.raises(DTypeError, match=r"matmul: dtypes differ: f32\[4,6\] and f64\[2,6\]"):
        step(X.astype(np.float64), target)  # float32, as nd.array(...) of it is


# -- what compile() takes


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("net", LOSS), {}, "net is a Block or a function, not 'net'"),
        ((None,), {}, "net is a Block or a function, not None"),
        ((abs, "l2"), {}, "loss is a Loss or a function, not 'l2'"),
        ((gluon.nn.Flatten,), {}, "net is a Block or a function, not <class"),
        ((abs, gluon.loss.L2Loss), {}, "loss is a Loss or a function, not <class"),
        ((abs, LOSS, "sgd"), {}, "trainer is a gluon.Trainer, not 'sgd'"),
        ((abs, LOSS), {"inputs": 0}, "inputs says how many arrays go to the net"),
        ((abs, LOSS), {"inputs": "x"}, "inputs says how many arrays go to the net"),
        ((abs, LOSS), {"speed": "high"}, "unexpected keyword argument 'speed'"),
    ],
)
def test_arguments_of_compile(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        mx.compile(*arguments, **options)


def test_trainer_and_loss_the_wrong_way_round(session: Session) -> None:
    with pytest.raises(TypeError, match=r"loss is a Loss or a function, not .*\n.*\n  help: compile\(net, loss"):
        mx.compile(session.net, session.trainer, LOSS)


def test_an_unknown_target(session: Session) -> None:
    with pytest.raises(CompileError, match="unknown target 'x86-64-v9'; there are cpu, "):
        mx.compile(session.net, LOSS, session.trainer, target="x86-64-v9")


def test_a_step_without_a_trainer(session: Session) -> None:
    step = mx.compile(session.net, LOSS)
    refused(session, lambda: step(X, Y), mx.MXNetError, r"without a trainer, it cannot update\n.*\n  help: use predict")
    refused(session, lambda: step.grads(X, Y), mx.MXNetError, "gradients need a trainer")


def test_apply_before_anything_else() -> None:
    """Where shapes wait for the first batch, too."""
    net = gluon.nn.Dense(2)
    net.initialize()
    step = mx.compile(net, gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), "sgd"))
    with pytest.raises(mx.MXNetError, match=r"nothing has been accumulated\n.*\n  help: step.accumulate"):
        step.apply()


def test_nothing_compiled_yet(session: Session) -> None:
    with pytest.raises(mx.MXNetError, match=r"nothing has been compiled yet\n.*\n  help: call the step once"):
        _ = mx.compile(session.net, LOSS, session.trainer).graph
