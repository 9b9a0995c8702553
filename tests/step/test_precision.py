"""Compiled steps of every precision: what the plan multiplies in, what is left out, what is clipped, how they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import amp, debug, gluon, nd
from gluongraph.errors import MXNetError, NotFiniteError, UnsupportedError
from gluongraph.gluon import Parameter, nn
from gluongraph.ir.plan import Plan
from gluongraph.step import TrainStep
from gluongraph.tracing.loss_scaling import PATIENCE
from gluongraph.tracing.precision import PRECISIONS, precision_of

LOW = {"bf16-mixed": "bf16", "16-mixed": "f16"}
Array = np.ndarray[Any, Any]


def digits(count: int, seed: int) -> tuple[Array, Array]:
    """Images of one channel from 0 to 1, and classes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    some = np.random.default_rng(seed).permutation(len(found.target))[:count]
    return (found.images[some, None] / 16).astype(np.float32), found.target[some].astype(np.float32)


def small_network(seed: int) -> nn.HybridSequential:
    mx.random.seed(seed)
    np.random.seed(seed)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, padding=1, in_channels=1), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
    net.add(nn.MaxPool2D(), nn.Flatten(), nn.Dense(32, activation="relu", in_units=128), nn.Dense(10, in_units=32))
    net.initialize(mx.init.Xavier())
    return net


def compiled(net: Any, precision: str, optimizer: str = "adam", **options: Any) -> TrainStep:
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01})
    step: TrainStep = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, precision=precision, **options)
    return step


def contractions(plan: Plan) -> list[tuple[str, set[str], str]]:
    """Of each matrix product and convolution of a plan: its name, the dtypes in memory of its operands, of its sums."""
    found = []
    for launch in plan.launches:
        body = launch.group.body
        memory = dict(zip(body.inputs.values(), launch.reads, strict=True))
        for n in body.nodes():
            if n.op.kind == "contraction":
                found.append((n.op.name, {memory[s].type.dtype for s in n.src}, n.dtype))
    return found


@pytest.mark.parametrize("precision", LOW)
def test_the_plan_multiplies_16_bits_and_sums_in_float32(precision: str) -> None:
    x, y = digits(64, 0)
    step = compiled(small_network(0), precision)
    step(x, y)
    found = contractions(step.plan)
    names = [name.removesuffix("_blocks") for name, _, _ in found]  # how images lie is a matter of the target
    assert sorted(names) == ["conv2d", "conv2d_weight_grad", *6 * ["matmul"]]
    for name, operands, sums in found:
        assert (operands, sums) == ({LOW[precision]}, "f32"), name
    states = {b.type.dtype for launch in step.plan.launches for b in launch.buffers if b.space == "state"}
    assert states == {"f32", LOW[precision]} | ({"i32"} if precision == "16-mixed" else set())  # weights and copies
    stored = [b for launch in step.plan.launches for b in launch.writes if b.space == "scratch"]
    assert LOW[precision] in {b.type.dtype for b in stored}


# -- steps that are left out


def with_states(optimizer: str, **arguments: Any) -> tuple[gluon.Trainer, Parameter, TrainStep]:
    """A step whose loss is weight · data: the data is the gradient."""
    p = Parameter("w", shape=(3, 4))
    p.initialize(mx.init.One())
    trainer = gluon.Trainer([p], optimizer, {"learning_rate": 0.1, **arguments})
    step = mx.compile(lambda x: (p.data() * x).sum(), trainer=trainer, precision="16-mixed")
    return trainer, p, step


def everything(trainer: gluon.Trainer, p: Parameter) -> dict[str, Any]:
    """All that a step may change, but for the loss scale."""
    arrays = {"w": p.data(), **trainer.state_arrays([p.name])}
    numbers = {"num_update": trainer.optimizer.num_update, "rng": mx.random.get_state(mx.cpu())}
    return {**{k: a.asnumpy().copy() for k, a in arrays.items()}, **trainer.optimizer.progress(), **numbers}


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        np.testing.assert_array_equal(value, other[key], err_msg=key)


def test_schedules_advance_with_applied_steps_only() -> None:
    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=1.0)
    p = Parameter("w", shape=(2,))
    p.initialize(mx.init.Zero())
    trainer = gluon.Trainer([p], "sgd", {"lr_scheduler": schedule})
    step = mx.compile(lambda x: (p.data() * x).sum(), trainer=trainer, precision="16-mixed")
    ones, bad = np.ones(2, np.float32), np.full(2, np.inf, np.float32)
    for x in (ones, bad, bad, ones):
        step(x)
    assert trainer.optimizer.num_update == 2
    want = -sum(mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=1.0)(t) for t in (1, 2))
    np.testing.assert_allclose(p.data().asnumpy(), want)


def test_statistics_and_gradients_that_are_added_to_are_left_too() -> None:
    x, y = digits(16, 0)
    net = small_network(0)
    step = compiled(net, "16-mixed", "sgd")
    net[0].weight.grad_req = "add"
    step.loss_scale.scale[:] = 1024.0
    step(x, y)
    statistics = [p for name, p in net.collect_params().items() if "running" in name]
    before = [p.data().asnumpy().copy() for p in (*statistics, net[0].weight)], net[0].weight.grad().asnumpy().copy()
    step(np.where(x > 0.5, np.inf, x), y)
    after = [p.data().asnumpy() for p in (*statistics, net[0].weight)], net[0].weight.grad().asnumpy()
    assert step.skipped == 1
    for one, other in zip((*before[0], before[1]), (*after[0], after[1]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_scale_grows_after_patience_and_up_to_a_limit() -> None:
    trainer, _, step = with_states("sgd")
    trainer.scaler.good[:] = PATIENCE - 1
    step(np.ones((3, 4), np.float32))
    assert (trainer.scaler.scale.asscalar(), trainer.scaler.good.asscalar()) == (2.0**17, 0)
    trainer.scaler.good[:], trainer.scaler.scale[:] = PATIENCE - 1, 2.0**24
    step(np.ones((3, 4), np.float32))
    assert trainer.scaler.scale.asscalar() == 2.0**24


def test_small_gradients_survive_through_the_scale() -> None:
    """1e-9 is 0 in float16; gradients are divided by the scale again, in float32, and so are those of `grads`."""
    x = nd.ones((2, 3))
    for scale, want in ((1.0, 0.0), (2.0**16, 1e-9)):
        net = nn.Dense(1, use_bias=False, in_units=3, weight_initializer="one")
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
        step = mx.compile(lambda x, net=net: net(x).sum() * 5e-10, trainer=trainer, precision="16-mixed")
        trainer.scaler.scale[:] = scale
        (found,) = step.grads(x).values()
        np.testing.assert_allclose(found.asnumpy(), want, rtol=1e-2)


def test_a_batch_whose_gradients_overflow_leaves_statistics_alone() -> None:
    with debug.override(backend="reference"):
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.BatchNorm(in_channels=4), gluon.nn.Dense(1, in_units=4))
        net.initialize()
        step = mx.compile(net, gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), "sgd"), precision="16-mixed")
        x, y = np.ones((4, 3), np.float32) * np.arange(4)[:, None], np.zeros((4, 1), np.float32)
        assert step.grads(x, y) and step.skipped == 0
        before = net[1].running_var.data().asnumpy()
        for call in (step.grads, step.accumulate):
            found = call(x.astype(np.float32) * 1e38, y)
            assert (net[1].running_var.data().asnumpy() == before).all()
        assert step.skipped == 2 and step.loss_scale is not None
        assert step.loss_scale.scale.asscalar() == 2.0**14
        assert all((g.asnumpy() == 0).all() for g in step.grads(x * 1e38, y).values()) and found is not None


def test_two_contexts_leave_a_step_out_together() -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = nn.Dense(2, in_units=3)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    step = mx.compile(net, gluon.loss.L2Loss(), trainer, precision="16-mixed")
    x, y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    step(x, y)
    before = [w.asnumpy().copy() for w in net.weight.list_data()]
    x[3] = np.inf  # of the second context's share
    step(x, y)
    assert step.skipped == 1
    for old, new in zip(before, net.weight.list_data(), strict=True):
        np.testing.assert_array_equal(old, new.asnumpy())


class Own(gluon.Trainer):
    """One whose gradients Python sees: forward and backward are compiled, the update follows."""

    def _allreduce_grads(self) -> None:
        pass


def own_step(**options: Any) -> tuple[Parameter, gluon.Trainer, TrainStep]:
    p = Parameter("w", shape=(3,))
    p.initialize(mx.init.One())
    trainer = Own([p], "sgd", {"learning_rate": 0.1})
    return p, trainer, mx.compile(lambda x: (p.data() * x).sum(), trainer=trainer, **options)


def test_steps_with_python_between_gradients_and_updates_are_left_out_too() -> None:
    p, trainer, step = own_step(precision="16-mixed")
    step(np.ones(3, np.float32))
    step(np.full(3, np.inf, np.float32))
    assert (step.skipped, trainer.optimizer.num_update, trainer.scaler.scale.asscalar()) == (1, 1, 2.0**15)
    np.testing.assert_allclose(p.data().asnumpy(), 0.9)
    np.testing.assert_array_equal(p.grad().asnumpy(), 1)


def test_a_checkpoint_holds_the_scale(tmp_path: Path) -> None:
    good, bad = np.ones((3, 4), np.float32), np.full((3, 4), np.inf, np.float32)
    trainer, p, step = with_states("adam")
    for x in (good, bad, good):
        step(x)
    step.save(tmp_path)
    told = everything(trainer, p), trainer.scaler.progress()
    step(bad)
    step(good)
    assert step.skipped == 2
    step.load(tmp_path)
    assert step.skipped == 1
    assert trainer.scaler.progress() == told[1] == [2.0**15, 1]
    assert_equal(everything(trainer, p), told[0])


# -- clipping


def test_clipping_where_python_acts_in_between_is_refused() -> None:
    _, _, step = own_step(clip_norm=1.0)
    with pytest.raises(MXNetError, match="clip_global_norm"):
        step(np.ones(3, np.float32))


def test_a_norm_that_clips_nothing_stores_no_gradient() -> None:
    """Squares are summed, and the weight is updated, where the gradient is made."""
    net = gluon.nn.Dense(48, in_units=40)
    net.initialize()
    step = mx.compile(net, gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), "adam"), grad_norm=True)
    with debug.override(backend="reference"):
        step.memory(np.ones((8, 40), np.float32), np.ones((8, 48), np.float32))
    assert not any(b.space == "scratch" and b.type.size >= 40 * 48 for b in step.plan.buffers.values())


def test_gradients_are_clipped_by_the_norm_of_all_together() -> None:
    """Of a million elements the norm is right to 1e-6: blocks, and float64 above them. Short last axes go together."""
    rng = np.random.default_rng(0)
    shapes: list[tuple[int, ...]] = [(1024, 1024), (6, 40, 3, 3), (7,), ()]
    params = [Parameter(f"p{i}", shape=shape or (1,)) for i, shape in enumerate(shapes)]
    for p in params:
        p.initialize(mx.init.Zero())
    grads = [rng.normal(size=p.shape).astype(np.float32) for p in params]
    trainer = gluon.Trainer(params, "sgd", {"learning_rate": 1.0})

    def loss(*given: Any) -> Any:
        return nd.add_n(*((p.data() * g).sum() for p, g in zip(params, given, strict=True)))

    step = mx.compile(loss, trainer=trainer, clip_norm=0.5)
    step(*grads, batch_size=2)
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads)) / 2
    assert step.grad_norm == pytest.approx(norm, rel=1e-6)
    for p, g in zip(params, grads, strict=True):
        np.testing.assert_allclose(p.data().asnumpy(), -g / 2 * (0.5 / norm), rtol=1e-5)
    for p in params:
        p.set_data(nd.zeros(p.shape))
    step(*(g * 1e-6 for g in grads), batch_size=2)  # below the limit nothing is clipped
    for p, g in zip(params, grads, strict=True):
        np.testing.assert_allclose(p.data().asnumpy(), -g * 1e-6 / 2, rtol=1e-5)


@pytest.mark.parametrize("norm_type", [1.0, 1.5, 2, 8.0, np.inf])
def test_gradients_are_clipped_by_other_norms(norm_type: float, tmp_path: Path) -> None:
    """In an exported step too. Powers of small elements are not lost."""
    rng = np.random.default_rng(0)
    shapes: list[tuple[int, ...]] = [(50, 70), (6, 4, 3, 3), (7,)]
    params = [Parameter(f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
    for p in params:
        p.initialize(mx.init.Zero())
    grads = [rng.normal(size=p.shape).astype(np.float32) * 1e-6 for p in params]
    step = mx.compile(
        lambda *given: nd.add_n(*((p.data() * g).sum() for p, g in zip(params, given, strict=True))),
        trainer=gluon.Trainer(params, "sgd", {"learning_rate": 1.0}),
        clip_norm=1e-7,
        norm_type=norm_type,
    )
    step(*grads, batch_size=1)
    norm = np.linalg.norm(np.concatenate([g.reshape(-1) for g in grads]).astype(np.float64), norm_type)
    assert step.grad_norm == pytest.approx(norm, rel=1e-6)
    for p, g in zip(params, grads, strict=True):
        np.testing.assert_allclose(p.data().asnumpy(), -g * (1e-7 / norm), rtol=1e-5)
    step.export(tmp_path / "step.gga", batches=[grads])
    loaded = mx.load(tmp_path / "step.gga")
    loaded(*grads, batch_size=1)
    assert loaded.grad_norm == step.grad_norm and loaded.options.norm_type == norm_type


def test_norms_of_what_is_not_finite() -> None:
    p = Parameter("p", shape=(3,))
    p.initialize(mx.init.Zero())
    for norm_type in (1.0, 2.0, 3.0, np.inf):
        trainer = gluon.Trainer([p], "sgd")
        step = mx.compile(lambda x: (p.data() * x).sum(), trainer=trainer, error_if_nonfinite=True, norm_type=norm_type)
        for x in ([1, np.nan, 2], [np.inf, 1, 2], [1, 2, -np.inf]):
            with pytest.raises(NotFiniteError):
                step(np.array(x, np.float32), batch_size=1)
        assert not p.data().asnumpy().any()


@pytest.mark.parametrize("norm_type", [0, -1, "2", True, np.nan])
def test_what_is_no_norm(norm_type: Any) -> None:
    with pytest.raises(ValueError, match="norm_type is the p of a p-norm, a number above 0"):
        mx.compile(lambda x: x, norm_type=norm_type)


def test_the_norm_may_change_and_go(tmp_path: Path) -> None:
    p = Parameter("p", shape=(2,))
    p.initialize(mx.init.Zero())
    trainer = gluon.Trainer([p], "sgd", {"learning_rate": 1.0})
    step = mx.compile(lambda x: (p.data() * x).sum(), trainer=trainer, clip_norm=5.0)
    x = np.array([3, 4], np.float32)

    def update(used: TrainStep) -> float:
        """The norm of what an update changes."""
        assert used.trainer is not None
        weight = used.trainer.params[0].data()
        before = weight.asnumpy()
        used(x, batch_size=1)
        return float(np.linalg.norm(weight.asnumpy() - before))

    found = [update(step)]
    for bound in (1.0, None, 2.0, 0.5):
        step.clip_norm = bound
        found.append(update(step))
        assert step.clip_norm == bound
    np.testing.assert_allclose(found, [5, 1, 5, 2, 0.5], rtol=1e-6)
    assert len(step._specializations.all) == 2, "a bound is a number of the program"
    with pytest.raises(ValueError, match="clip_norm is a positive number, not 0"):
        step.clip_norm = 0
    assert step.clip_norm == 0.5
    step.export(tmp_path / "step.gga", batches=[(x,)])
    loaded = mx.load(tmp_path / "step.gga")
    loaded.clip_norm = 0.25
    assert update(loaded) == pytest.approx(0.25, rel=1e-5)
    with pytest.raises(UnsupportedError, match="artefact whose programs clip"):
        loaded.clip_norm = None


# -- pins, other precisions, errors


def test_pinned_blocks_and_parts_multiply_in_float32() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), amp.keep_float32(nn.Dense(2, in_units=4)))
    net.initialize()

    def loss(x: Any, y: Any) -> Any:
        z = net(x)
        with amp.float32():
            return nd.dot(z, y).sum(axis=1)

    step = mx.compile(loss, trainer=gluon.Trainer(net.collect_params(), "sgd"), precision="bf16-mixed")
    step(np.ones((5, 3), np.float32), np.ones((2, 2), np.float32))
    found = sorted(dtype for _, operands, _ in contractions(step.plan) for dtype in operands)
    assert found == ["bf16", "bf16", *5 * ["f32"]]  # x W, and the gradient of W; the others are pinned


def test_recurrent_layers_multiply_16_bits_in_each_turn() -> None:
    """Products within a scan, in tiles where the machine has them."""
    losses = {}
    for precision in ("32", "bf16-mixed"):
        mx.random.seed(1)
        net = gluon.rnn.LSTM(64, input_size=64)
        net.initialize(mx.init.Xavier())
        trainer, l2 = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}), gluon.loss.L2Loss()
        step = mx.compile(lambda x, y, net=net, l2=l2: l2(net(x), y), trainer=trainer, precision=precision)
        x = nd.array(np.random.default_rng(0).normal(size=(3, 32, 64)))
        losses[precision] = [float(step(x, nd.ones((3, 32, 64))).mean().asscalar()) for _ in range(3)]
    np.testing.assert_allclose(losses["bf16-mixed"], losses["32"], rtol=2e-3)
    assert losses["32"][-1] < losses["32"][0]


@pytest.mark.parametrize("precision", ["64", "bf16-true", "16-true"])
@pytest.mark.filterwarnings("ignore:SGD keeps a weight")
def test_whole_precisions_cast_parameters_and_inputs(precision: str) -> None:
    x, y = digits(16, 0)
    net = small_network(0)
    step = compiled(net, precision, "sgd")
    dtype = np.dtype(net[5].weight.dtype).name if precision == "64" else str(net[5].weight.dtype)
    first = step(x, y).asnumpy().mean()
    for _ in range(20):
        last = step(x, y).asnumpy().mean()
    assert last < first
    assert PRECISIONS[precision].whole in dtype
    short = {"float64": "f64", "bfloat16": "bf16", "float16": "f16"}[PRECISIONS[precision].whole or ""]
    assert {dtype for _, operands, _ in contractions(step.plan) for dtype in operands} == {short}


def test_predictions_are_float32_and_near() -> None:
    x, _ = digits(16, 0)
    net = small_network(0)
    want = net(nd.array(x)).asnumpy()
    for precision in LOW:
        got = compiled(net, precision).predict(x)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got.asnumpy(), want, atol=3e-2 * abs(want).max())


@pytest.mark.parametrize(("given", "name"), [(32, "32"), ("bf16", "bf16-mixed"), (16, "16-mixed"), ("64-true", "64")])
def test_other_names(given: Any, name: str) -> None:
    assert precision_of(given).name == name


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"precision": "8-mixed"}, "'16-mixed'"),
        ({"precision": "transformer-engine"}, "8-bit floats"),
        ({"clip_norm": 0.0}, "clip_norm is a positive number"),
        ({"clip_norm": "1"}, "clip_norm is a positive number, not '1'"),
    ],
)
def test_errors(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        mx.compile(nn.Dense(1), **options)
