"""What the front end refuses, one test a message: the op, its types, the user's line, the way out."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, debug, gluon, nd
from gluongraph.errors import DTypeError, NotFiniteError, ShapeError, TraceError

Program = Callable[[nd.NDArray], Any]


def line_of(function: Callable[..., Any]) -> str:
    """Where the message must say that it went wrong: this file, the first line of the function."""
    code = function.__code__
    return f"{pathlib.Path(code.co_filename)}:{code.co_firstlineno}"


def eager(program: Program) -> Any:
    return program(nd.ones((2, 3)))


def compiled(program: Program) -> Any:
    return mx.compile(program).predict(nd.ones((2, 3)))


PROGRAMS: list[tuple[Program, type[Exception], list[str]]] = [
    (lambda x: x + nd.ones((4, 5)), ShapeError, ["add", "f32[2,3]", "f32[4,5]", "reshape or expand"]),
    (lambda x: nd.dot(x, nd.ones((4, 5))), ShapeError, ["dot", "f32[2,3]", "f32[4,5]", "transpose_a"]),
    (lambda x: nd.FullyConnected(x, nd.ones((5, 4)), None, 5, True), ShapeError, ["FullyConnected", "f32[5,4]"]),
    (lambda x: nd.concat(x, nd.ones((4, 5)), dim=0), ShapeError, ["concat", "f32[2,3]", "f32[4,5]"]),
    (lambda x: x + nd.ones((2, 3), dtype="float64"), DTypeError, ["add", "f32[2,3]", "f64[2,3]", "cast one"]),
    (lambda x: nd.stack(x, nd.ones((2, 4))), ShapeError, ["stack", "f32[2,3] and f32[2,4]", "concat joins"]),
    (lambda x: nd.concat(x, nd.ones((2, 3), dtype="int32")), DTypeError, ["concat", "i32[2,3]", "cast them"]),
    (lambda x: nd.softmax(x, axis=2), ShapeError, ["axis 2 does not exist in f32[2,3]", "axes are 0 to 1"]),
    (lambda x: x.reshape((4, 2)), ShapeError, ["reshape", "6 elements of shape [2, 3]", "[4, 2]", "-1"]),
]


@pytest.mark.parametrize("run", [eager, compiled])
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_types_that_do_not_fit(run: Callable[[Program], Any], number: int) -> None:
    """Eager and compiled say the same: op, types, the line of the program, and mostly what to do."""
    program, error, parts = PROGRAMS[number]
    with pytest.raises(error) as caught:
        run(program)
    text = str(caught.value)
    assert isinstance(caught.value, mx.MXNetError)
    for part in [*parts, f"at {line_of(program)}"]:
        assert part in text, text
    assert not STRAY.search(text), text


STRAY = re.compile(r"0x[0-9a-f]{6,}|<function|gluongraph/(?!tests)\w+\.py")  # addresses, and lines that nobody wrote

NUMBERS: list[tuple[Program, str]] = [
    (lambda x: x if x.sum() > 0 else -x, "a branch"),
    (lambda x: x.sum() > 0 and x, "a branch"),
    (lambda x: x * float(x.sum()), "float()"),
    (lambda x: x * int(x.sum()), "int()"),
    (lambda x: nd.array(x.asnumpy()), "asnumpy()"),
    (lambda x: x * x.sum().asscalar(), "asscalar()"),
    (lambda x: x * x.sum().item(), "item()"),
]


@pytest.mark.parametrize("number", range(len(NUMBERS)))
def test_numbers_of_traced_values(number: int) -> None:
    program, what = NUMBERS[number]
    with pytest.raises(TraceError, match=rf"^{re.escape(what)}.* of a traced value") as caught:
        compiled(program)
    assert f"at {line_of(program)}" in str(caught.value)
    assert "help: choose between values with where" in str(caught.value)
    eager(program)  # which is a program like any other
    nd.ones(2).asnumpy()  # and no trace is left behind


def test_a_traced_value_kept_outside() -> None:
    kept: list[nd.NDArray] = []
    mx.compile(lambda x: kept.append(x * 2) or x).predict(nd.ones(2))
    with pytest.raises(TraceError, match="another trace"):
        mx.compile(lambda x: x + kept[0]).predict(nd.ones(2))


# -- parameters, optimizers


def test_a_parameter_never_initialized() -> None:
    net = gluon.nn.Dense(3, in_units=2)
    for use in (
        lambda: net(nd.ones((1, 2))),
        lambda: mx.compile(net).predict(nd.ones((1, 2))),
        lambda: gluon.Trainer(net.collect_params(), "sgd"),
    ):
        with pytest.raises(RuntimeError, match=r"parameter 'dense\d+_\w+' has not been initialized") as caught:
            use()
        assert "help: call initialize() on the block" in str(caught.value) and __file__ in str(caught.value)


def trainer(optimizer: str, **options: Any) -> gluon.Trainer:
    net = gluon.nn.Dense(3, in_units=2)
    net.initialize()
    return gluon.Trainer(net.collect_params(), optimizer, options)


@pytest.mark.parametrize("name", ["adma", "adamm", "adm"])
def test_an_unknown_optimizer(name: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}'; did you mean 'adam'\? There are: adabelief, adadelta"):
        trainer(name)
    with pytest.raises(ValueError, match=r"'gradient'\. There are: adabelief, adadelta"):
        trainer("gradient")


def test_a_net_in_place_of_its_parameters() -> None:
    with pytest.raises(ValueError, match="params is a list or dictionary of parameters, not Dense") as caught:
        gluon.Trainer(gluon.nn.Dense(3, in_units=2), "sgd")
    assert "help: net.collect_params()" in str(caught.value) and __file__ in str(caught.value)


@pytest.mark.parametrize("how", ["eager", "hybridized", "compiled"])
def test_the_layer_that_failed_is_named(how: str) -> None:
    """The user's line is that of the outermost call; which of the layers behind it went wrong is what one asks."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.Dense(2, in_units=5))
    net.initialize()
    if how == "hybridized":
        net.hybridize()
    run = mx.compile(net).predict if how == "compiled" else net
    with pytest.raises(ShapeError, match=rf"FullyConnected(.|\n)*test_messages\.py:\d+ in {net[1].name}\n"):
        run(nd.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"test_messages\.py:\d+\n"):  # and nothing afterwards
        nd.dot(nd.ones((2, 3)), nd.ones((2, 3)))


class Unbegun(gluon.Block):
    def __init__(self, part: Any) -> None:
        self.part = part


@pytest.mark.parametrize("part", [gluon.nn.Dense(3), gluon.Parameter("weight")])
def test_a_block_that_forgets_to_begin_its_base(part: Any) -> None:
    with pytest.raises(AttributeError, match=r"help: super\(\).__init__\(\) comes first") as caught:
        Unbegun(part)
    assert __file__ in str(caught.value)


class InLists(gluon.Block):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [gluon.nn.Dense(3)]


def half() -> gluon.nn.Dense:
    net = gluon.nn.Dense(3, in_units=2)
    net.initialize()
    net.cast("float16")
    return net


OTHER_THINGS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: nd.ones((2,), ctx="cpu"), TypeError, r"ctx is a context, as mx.cpu\(\), not 'cpu'"),
    (lambda: gluon.nn.Dense(3, in_units=2).initialize(ctx="cpu"), TypeError, "ctx is a context, .* not 'cpu'"),
    (lambda: mx.cpu("first"), TypeError, r"a whole number, as cpu\(0\), not 'first'"),
    (lambda: nd.ones((2,))["first"], IndexError, "indexed by numbers, .*, not by 'first'"),
    (lambda: nd.concat(), ShapeError, "concat of no arrays"),
    (
        lambda: gluon.utils.clip_global_norm(half().collect_params(), 1.0),
        TypeError,
        r"list of arrays(.|\n)*p\.grad\(\)",
    ),
    (lambda: gluon.nn.Sequential().add(abs), TypeError, r"children of a block are blocks(.|\n)*nn.Lambda"),
    (lambda: gluon.nn.HybridSequential().add(abs), TypeError, r"children of a block are blocks(.|\n)*nn.Lambda"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), OTHER_THINGS)
def test_something_else_than_is_wanted(wrong: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        wrong()
    assert f"at {line_of(wrong)}" in str(caught.value)


def step_of(net: gluon.Block) -> None:
    trainer = gluon.Trainer(net.collect_params(), "adam")
    trainer.state_arrays(trainer.names)


@pytest.mark.parametrize(
    ("doubtful", "message"),
    [
        (lambda: half().initialize(), "already initialized"),
        (lambda: InLists().collect_params(), "neither initialized nor trained"),
        (lambda: InLists().initialize(), "neither initialized nor trained"),
        (lambda: step_of(half()), "small updates are lost"),
        (lambda: gluon.utils.clip_global_norm([nd.array([np.inf])], 1.0), "the norm of the gradients is"),
        (lambda: mx.optimizer.LBSGD(warmup_strategy="slow"), "no warmup_strategy 'slow'"),
    ],
)
def test_warnings_are_of_the_users_line(doubtful: Callable[[], Any], message: str) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        doubtful()
    assert {w.filename for w in caught} == {__file__}


@pytest.mark.parametrize(
    ("optimizer", "keyword", "meant"),
    [
        ("adam", "learning_rte", "learning_rate"),
        ("adam", "lr", "learning_rate"),
        ("adamw", "weight_decay", "wd"),
        ("adam", "eps", "epsilon"),
        ("sgd", "momentun", "momentum"),
    ],
)
def test_an_unknown_keyword_of_an_optimizer(optimizer: str, keyword: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"no argument '{keyword}'; did you mean '{meant}'") as caught:
        trainer(optimizer, **{keyword: 0.1})
    assert __file__ in str(caught.value) and "There are: " in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": "0.1"}, "SGD: learning_rate is a number or None, not '0.1'"),
        ({"wd": None}, "SGD: wd is a number, not None"),
        ({"momentum": "x"}, "SGD: momentum is a number, not 'x'"),
        ({"lr_scheduler": 0.1}, "SGD: lr_scheduler is a function of the number of updates, not 0.1"),
    ],
)
def test_arguments_of_an_optimizer_that_are_no_numbers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        mx.optimizer.create("sgd", **options)
    with pytest.raises(TypeError, match="learning_rate is a number, not None"):
        mx.optimizer.SGD().set_learning_rate(None)


def test_arguments_of_all_optimizers_that_are_no_numbers() -> None:
    for name, argument in (("adam", "epsilon"), ("rmsprop", "gamma1"), ("lars", "eta"), ("ftrl", "lamda1")):
        with pytest.raises(TypeError, match=f"{argument} is a number, not None"):
            mx.optimizer.create(name, **{argument: None})
    with pytest.raises(TypeError, match=r"SGD: momentum is a number, not \[1\]"):
        mx.optimizer.SGD([1])


class Leaning(mx.optimizer.SGD):
    def __init__(self, lean: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lean = lean


@pytest.mark.parametrize("name", ["lr", "wd", "rescale_grad", "momentum", "lean"])
def test_settings_of_an_optimizer_stay_numbers(name: str) -> None:
    optimizer = Leaning(learning_rate=0.1)
    before = getattr(optimizer, name)
    for wrong in ("x", None):
        with pytest.raises(TypeError, match=f"Leaning: {name} is a number, not {wrong!r}") as caught:
            setattr(optimizer, name, wrong)
        assert __file__ in str(caught.value) and getattr(optimizer, name) == before
    for array in (nd.array([0.5]), nd.array([1.0, 2.0]), np.array(0.5)):
        with pytest.raises(TypeError, match=rf"Leaning: {name} is a number, not an array of shape \(") as caught:
            setattr(optimizer, name, array)
        assert "help: float(array)" in str(caught.value) and getattr(optimizer, name) == before
    setattr(optimizer, name, np.float32(0.25))
    assert getattr(optimizer, name) == 0.25


class Unfinished(mx.optimizer.Optimizer):
    """What a test writes into `makes` is what the formula gives, and `factor` what it multiplies by."""

    def __init__(self, makes: Callable[[Any], Any] = lambda w: (w, {"m": w}), factor: Any = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.makes, self.factor = makes, factor

    def states(self, weight: Any) -> dict[str, Any]:
        return {"m": weight}

    def scalars(self, index: Any) -> dict[str, float]:
        return {**super().scalars(index), "factor": self.factor}

    def rule(self, w: Any, g: Any, state: Any, s: Any) -> Any:
        return self.makes(w - s["lr"] * s["factor"] * g)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"makes": lambda w: w}, "Unfinished.rule gives the new weight and its states, not Node"),
        ({"makes": lambda w: (w, w)}, "Unfinished.rule gives the new weight and its states, not tuple"),
        ({"makes": lambda w: (w, {})}, "Unfinished.rule gives .*, and m is not among the states"),
        ({"factor": "x"}, "what scalars\\(\\) gives for 'factor' is a number, not 'x'"),
        ({"factor": None}, "what scalars\\(\\) gives for 'factor' is a number, not None"),
        ({"lr_scheduler": lambda updates: None}, "what lr_scheduler gives is a number, not None"),
    ],
)
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_an_optimizer_that_is_not_finished(way: str, options: dict[str, Any], message: str) -> None:
    net = gluon.nn.Dense(3, in_units=2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), Unfinished(**options))
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    x, y, before = nd.ones((4, 2)), nd.zeros((4, 3)), net.weight.data().asnumpy()
    with autograd.record():
        loss = gluon.loss.L2Loss()(net(x), y)
    loss.backward()
    for _ in range(2):
        with pytest.raises(TypeError, match=message) as caught:
            trainer.step(4) if way == "eager" else step(x, y)
    assert __file__ in str(caught.value)
    assert trainer.optimizer.num_update == 0 and (net.weight.data().asnumpy() == before).all()


def test_multipliers_are_numbers() -> None:
    weight, text, nothing = gluon.Parameter("weight"), cast("Any", "x"), cast("Any", None)
    for change in (lambda: setattr(weight, "lr_mult", "x"), lambda: gluon.Parameter("weight", lr_mult="x")):
        with pytest.raises(TypeError, match="Parameter: lr_mult is a number, not 'x'"):
            change()
    with pytest.raises(TypeError, match="Parameter: wd_mult is a number, not None"):
        weight.wd_mult = nothing
    with pytest.raises(TypeError, match="SGD: lr_mult of 'weight' is a number, not 'x'"):
        mx.optimizer.SGD().set_lr_mult({"weight": text})
    assert (weight.lr_mult, weight.wd_mult) == (1.0, 1.0)


def test_clipping_may_be_put_off() -> None:
    optimizer, text = mx.optimizer.SGD(clip_gradient=1.0), cast("Any", "x")
    with pytest.raises(TypeError, match="SGD: clip_gradient is a number or None, not 'x'"):
        optimizer.clip_gradient = text
    optimizer.clip_gradient = None
    assert not optimizer.clips


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gluon.nn.Dense(0), "Dense: units is a whole number from 1 on, not 0"),
        (lambda: gluon.nn.Dense(2.5), "Dense: units is a whole number from 1 on, not 2.5"),
        (lambda: gluon.nn.Embedding(4, -1), "Embedding: output_dim is a whole number from 1 on, not -1"),
        (lambda: gluon.nn.Conv2D(0, 3), "Conv2D: channels is a whole number from 1 on, not 0"),
        (lambda: gluon.nn.Conv2DTranspose(2, 3, groups=0), "Conv2DTranspose: groups is a whole number from 1 on"),
        (lambda: gluon.rnn.GRUCell(0), "GRUCell: hidden_size is a whole number from 1 on, not 0"),
    ],
)
def test_layers_of_no_units(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["scalar:lr", "rng", "rng@cpu(0)", "data0"])
def test_names_that_compiled_code_gives_to_inputs_of_its_own(name: str) -> None:
    with pytest.raises(ValueError, match=r"a parameter cannot be called '.*\n.*\n  help: give its block another"):
        gluon.Parameter(name, shape=(2,))


class OfAnotherLibrary:
    """What numpy can read: a tensor of PyTorch, say."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.ones((1, 2), np.float32)


@pytest.mark.parametrize(
    ("block", "given", "message"),
    [
        (gluon.nn.Dense(3), [[[1.0, 2.0]]], r"Dense 'dense\d+' was given a list as argument 0\n"),
        (gluon.nn.Dense(3), [np.ones((1, 2))], r"Dense 'dense\d+' was given a numpy array as argument 0\n"),
        (gluon.nn.Dense(3), [OfAnotherLibrary()], r"Dense 'dense\d+' was given a .*OfAnotherLibrary as argument 0\n"),
        (gluon.loss.L2Loss(), [nd.ones((2,)), (1.0, 2.0)], r"L2Loss 'l2loss\d+' was given a tuple as argument 1\n"),
    ],
)
def test_what_is_no_array_yet(block: gluon.HybridBlock, given: list[Any], message: str) -> None:
    block.initialize()
    with pytest.raises(TypeError, match=message + r".*\n  help: make an array of it: nd.array"):
        block(*given)


def test_errors_of_blocks_that_take_lists_are_their_own() -> None:
    class Summed(gluon.HybridBlock):
        def forward(self, x: nd.NDArray, axes: list[int]) -> Any:
            return x.total(axes)

    net = gluon.nn.HybridSequential()
    net.add(Summed())
    for block in (net[0], net):
        with pytest.raises(AttributeError, match="'NDArray' object has no attribute 'total'"):
            block(nd.ones((2, 3)), [0, 1])


def test_layers_as_arguments_of_a_sequential() -> None:
    with pytest.raises(TypeError, match=r"Sequential: prefix is a text, not Dense\(.*\n.*\n  help: net.add"):
        gluon.nn.Sequential(gluon.nn.Dense(3), gluon.nn.Dense(2))


def test_an_error_inside_an_optimizer_is_not_taken_for_a_keyword() -> None:
    class Odd(mx.optimizer.SGD):
        def __init__(self, **kwargs: Any):
            super().__init__(**kwargs)
            len(3)

    mx.optimizer.register(Odd)
    with pytest.raises(TypeError, match="has no len"):
        mx.optimizer.create("odd", momentum=0.5)


# -- gradients


def test_backward_without_record() -> None:
    x = nd.ones(2)
    x.attach_grad()
    y = x * 2
    with pytest.raises(mx.MXNetError, match="backward: this array is not in a computational graph") as caught:
        y.backward()
    assert "autograd.record()" in str(caught.value) and __file__ in str(caught.value)


def test_a_second_backward() -> None:
    x = nd.ones(2)
    x.attach_grad()
    with autograd.record():
        y = x * x
    y.backward()
    before = x.grad.asnumpy()
    with pytest.raises(mx.MXNetError, match="used up by an earlier backward") as caught:
        y.backward()
    assert "retain_graph=True" in str(caught.value)
    assert (x.grad.asnumpy() == before).all()


def test_a_step_without_backward_changes_nothing() -> None:
    made = trainer("adam")
    before = [p.data().asnumpy() for p in made.params]
    with pytest.raises(UserWarning, match="has not been updated by a backward") as caught:
        made.step(2)
    assert "call backward first" in str(caught.value)
    assert all((p.data().asnumpy() == b).all() for p, b in zip(made.params, before, strict=True))
    assert made.optimizer.num_update == 0 and made.optimizer.counts() == {} and made.optimizer.rescale_grad == 1.0


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf"), "4", None])
def test_a_batch_size_that_divides_nothing(size: Any) -> None:
    made = trainer("sgd")
    with pytest.raises((ZeroDivisionError, ValueError), match=f"division of the gradient by batch_size={size!r}"):
        made.step(size)
    assert made.optimizer.num_update == 0


# -- labels


@pytest.mark.parametrize("shape", [(3,), (2, 2), (4, 3), (1, 4)])
def test_labels_of_another_shape(shape: tuple[int, ...]) -> None:
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    with pytest.raises(ShapeError, match=r"SoftmaxCrossEntropyLoss: labels .* do not fit the prediction f32\[4,3\]"):
        loss(nd.ones((4, 3)), nd.zeros(shape))
    for good in ((4,), (4, 1)):
        assert loss(nd.ones((4, 3)), nd.zeros(good)).shape == (4,)


# -- NaN


def test_python_may_say_which_name_is_meant() -> None:
    """It looks for one like `name` in what `obj` has."""
    for package, wrong in ((mx, "complie"), (gluon, "Trianer"), (gluon.nn, "Conv2d")):
        with pytest.raises(AttributeError, match=f"has no attribute '{wrong}'") as caught:
            getattr(package, wrong)
        assert caught.value.name == wrong and caught.value.obj is package


def test_nan_in_eager_mode_names_the_op_and_the_line() -> None:
    minus = nd.array([-1.0, 4.0])
    assert np.isnan(nd.log(minus).asnumpy()[0])  # nobody watches
    with debug.override(check="nan"):
        good = nd.sqrt(minus * minus)

        def program() -> Any: return nd.log(minus)  # fmt: skip

        with pytest.raises(NotFiniteError, match=r"^log\(f32\[2\]\) made a NaN") as caught:
            program()
        assert f"at {line_of(program)}" in str(caught.value) and "help:" in str(caught.value)
        with pytest.raises(NotFiniteError, match=r"add.*\n.*came in: there is a NaN in argument 0"):
            nd.array([np.nan]) + good[:1]
    assert np.isnan(nd.log(minus).asnumpy()[0])


def test_nan_in_an_eager_gradient() -> None:
    x = nd.zeros(2)
    x.attach_grad()
    with debug.override(check="nan"):
        with autograd.record():
            y = nd.sqrt(x) * x
        with pytest.raises(NotFiniteError, match="in the gradient of sqrt: div"):
            y.backward()
    assert (x.grad.asnumpy() == 0).all()


def test_nan_in_an_eager_update_changes_nothing() -> None:
    with debug.override(check="nan"):
        made = trainer("adam")
        before = [p.data().asnumpy() for p in made.params]
        for p in made.params:
            p.grad()[:] = np.nan
            p.data()._leaf.fresh = True
        with pytest.raises(NotFiniteError, match="came in"):
            made.step(1)
    assert all((p.data().asnumpy() == b).all() for p, b in zip(made.params, before, strict=True))
    assert made.optimizer.num_update == 0 and made.optimizer.counts() == {}
