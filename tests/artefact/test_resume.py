"""A step that went through a file trains on bit for bit as the one that was exported."""

from __future__ import annotations

import math
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from exporting import LOSS, X, Y, batch, exported, network, run, state, training

import gluongraph as mx
from gluongraph import gluon, lr_scheduler, optimizer
from gluongraph.formulas import sqrt
from gluongraph.ir.graph import Node
from gluongraph.optimizer.base import Nodes, Updated

COSINE = {"learning_rate": 0.05, "wd": 0.01}


def _both(step: Any, folder: pathlib.Path, steps: int = 4, **how: Any) -> tuple[Any, Any]:
    """The states of the step and of its twin, after some more steps of each from the same random numbers."""
    window = how.pop("window", 0)
    twin = exported(step, folder, **how)
    random = mx.random.get_state()
    mine = run(step, range(3, 3 + steps), window)
    mx.random.set_state(random)
    theirs = run(twin, range(3, 3 + steps), window)
    assert mine == theirs
    assert state(step) == state(twin)
    return step, twin


CASES: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    ("adam", {**COSINE, "lr_scheduler": lambda: lr_scheduler.CosineScheduler(9, 0.05, 0.01, warmup_steps=4)}, {}),
    ("sgd", {**COSINE, "momentum": 0.9, "clip_gradient": 0.02}, {"layers": False}),
    (
        "lars",
        {**COSINE, "momentum": 0.9, "lr_scheduler": lambda: lr_scheduler.FactorScheduler(2, 0.5)},
        {"layers": False},
    ),
    ("nadam", COSINE, {"layers": False}),
    ("sgld", COSINE, {"layers": False}),
    ("lbsgd", {"momentum": 0.9, "batch_scale": 2, "updates_per_epoch": 2, "warmup_epochs": 3}, {"layers": False}),
    ("adam", COSINE, {"precision": "bf16-mixed", "clip_norm": 0.1, "ema": 0.9}),
    ("adam", COSINE, {"optimizer_state": "bf16", "keep_grads": True, "layers": False}),
]


@pytest.mark.parametrize(("name", "settings", "options"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_goes_on_bit_for_bit(name: str, settings: Any, options: Any, tmp_path: pathlib.Path) -> None:
    given = {key: value() if callable(value) else value for key, value in settings.items()}
    step = training(name, given, **options)
    run(step, range(3))
    _, twin = _both(step, tmp_path, modes=["step"])
    assert twin.trainer.learning_rate == step.trainer.learning_rate
    if options.get("keep_grads"):
        for mine, theirs in zip(step.trainer.params, twin.trainer.params, strict=True):
            assert np.array_equal(mine.grad().asnumpy(), theirs.grad().asnumpy())
    if "clip_norm" in options:
        assert twin.grad_norm == step.grad_norm
        assert all(np.array_equal(a.asnumpy(), twin.averages[k].asnumpy()) for k, a in step.averages.items())


def test_scaled_losses_and_skipped_steps(tmp_path: pathlib.Path) -> None:
    step = training(precision="16-mixed", layers=False)
    run(step, range(2))
    step.loss_scale.scale[:] = 2.0**24
    step, twin = _both(step, tmp_path, steps=9, modes=["step"])
    assert step.skipped == twin.skipped > 0


def test_windows_and_their_modes(tmp_path: pathlib.Path) -> None:
    """Exported in the middle of a window, with a gradient that the user adds up."""
    step = training("sgd", layers=True)
    next(iter(step.trainer.params)).grad_req = "add"
    run(step, range(3), window=2)
    assert step.accumulator.batches == 1
    step, twin = _both(step, tmp_path, window=2)
    x, y = batch(5)
    assert np.array_equal(step.predict(x).asnumpy(), twin.predict(x).asnumpy())
    assert np.array_equal(step.evaluate(x, y).asnumpy(), twin.evaluate(x, y).asnumpy())
    random = mx.random.get_state()
    mine = step.grads(x, y)
    mx.random.set_state(random)
    theirs = twin.grads(x, y)
    assert mine.keys() == theirs.keys() and all(np.array_equal(mine[k].asnumpy(), theirs[k].asnumpy()) for k in mine)


def test_checkpoints_go_both_ways(tmp_path: pathlib.Path) -> None:
    step = training()
    run(step, range(2))
    twin = exported(step, tmp_path, modes=["step"])
    step.save(tmp_path / "of the step", extra={"epoch": 1})
    run(twin, range(5))
    assert twin.load(tmp_path / "of the step") == {"epoch": 1}
    random = mx.random.get_state()
    there = run(twin, range(2, 5)), state(twin)
    twin.save(tmp_path / "of the twin")
    mx.random.set_state(random)
    assert (run(step, range(2, 5)), state(step)) == there
    run(step, range(3))
    step.load(tmp_path / "of the twin")
    assert state(step) == there[1]


def test_a_loaded_step_is_exported_again(tmp_path: pathlib.Path) -> None:
    """Where its training is by then: in a window, with averages."""
    step = training(precision="bf16-mixed", clip_norm=0.1, ema=0.9)
    run(step, range(3))
    twin = exported(step, tmp_path, modes=["step", "accumulate", "apply"])
    run(twin, range(3, 5), window=2)
    assert twin.accumulator.batches == 1
    (tmp_path / "again").mkdir()
    third = exported(twin, tmp_path / "again")
    random = mx.random.get_state()
    mine = run(twin, range(5, 8), window=2), state(twin)
    mx.random.set_state(random)
    assert (run(third, range(5, 8), window=2), state(third)) == mine


def test_batches_of_several_sizes(tmp_path: pathlib.Path) -> None:
    step = training("sgd")
    run(step, range(2))
    twin = exported(step, tmp_path, batch_sizes=[4, 3], modes=["step", "predict"])
    random = mx.random.get_state()
    mine = [run(step, range(2)), run(step, [1], size=3), state(step)]
    mx.random.set_state(random)
    assert mine == [run(twin, range(2)), run(twin, [1], size=3), state(twin)]
    before = state(twin)
    with pytest.raises(mx.MXNetError, match=r"no code to step float32\[7, 5\].*float32\[4, 5\].*float32\[3, 5\]"):
        twin(*batch(0, 7))
    with pytest.raises(mx.MXNetError, match="no call of this mode"):
        twin.evaluate(*batch(0))
    assert state(twin) == before


def test_batches_of_predict_are_no_batches_of_a_step(tmp_path: pathlib.Path) -> None:
    step = training("sgd")
    run(step, range(1))
    step.predict(batch(0, 7)[0])
    twin = exported(step, tmp_path)
    assert twin.predict(batch(0)[0]).shape == (4, 3)
    with pytest.raises(mx.MXNetError, match="no code to predict"):
        twin.predict(batch(0, 7)[0])


@pytest.mark.parametrize("store", ["device", "dist_sync"])
@pytest.mark.parametrize("kind", ["2bit", "1bit", "sign", "bf16"])
def test_compressed_gradients_of_one_process(kind: str, store: str, tmp_path: pathlib.Path) -> None:
    net = network(layers=False)
    compression = {"type": kind, "threshold": 0.5}
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=store, compression_params=compression
    )
    step = mx.compile(net, LOSS, trainer)
    run(step, range(2))
    twin = exported(step, tmp_path, modes=["step"])
    assert run(step, range(2, 6)) == run(twin, range(2, 6)) and state(step) == state(twin)


def test_two_arrays_of_one_name_are_refused(tmp_path: pathlib.Path) -> None:
    """A program that reads one array while it trains and another while it does not."""
    net, some, others = network(layers=False), mx.nd.ones((4,)), mx.nd.zeros((4,))
    trainer = gluon.Trainer(net.collect_params(), "sgd")

    def program(x: Any, y: Any) -> Any:
        return LOSS(net(x), y) * (some if mx.autograd.is_training() else others)

    step = mx.compile(program, trainer=trainer)
    with pytest.raises(mx.MXNetError, match="capture0 is one array in step and another in evaluate"):
        step.export(tmp_path / "step.gga", modes=["step", "evaluate"], batches=[batch(0)])
    step.export(tmp_path / "step.gga", modes=["evaluate"], batches=[batch(0)])
    assert not mx.load(tmp_path / "step.gga").evaluate(*batch(0)).asnumpy().any()


def test_a_step_that_was_never_called(tmp_path: pathlib.Path) -> None:
    """The batches that it is compiled for settle the shapes of parameters that wait for a first forward."""
    net = gluon.nn.Dense(3)
    net.initialize()
    step = mx.compile(net, LOSS, gluon.Trainer(net.collect_params(), "sgd"))
    with pytest.raises(mx.MXNetError, match="no shapes are known yet"):
        step.export(tmp_path / "step.gga")
    twin = exported(step, tmp_path, batches=[batch(0)], modes=["step"])
    assert run(step, range(2)) == run(twin, range(2)) and net.weight.shape == (3, 5)


def test_what_cannot_be_exported(tmp_path: pathlib.Path) -> None:
    step = training("sgd", layers=False)
    path = tmp_path / "step.gga"
    with pytest.raises(mx.MXNetError, match="no shapes are known yet"):
        step.export(path)
    with pytest.raises(ValueError, match="there is no mode 'fly'"):
        step.export(path, modes=["fly"])
    with pytest.raises(ValueError, match="'apply' without 'accumulate'"):
        step.export(path, modes=["apply"])
    run(step, range(1))
    with pytest.raises(FileNotFoundError) as caught:
        step.export(tmp_path / "missing" / "step.gga")
    assert caught.value.filename == str(tmp_path / "missing" / "step.gga")
    for sizes in ([], [0], [2.5]):
        with pytest.raises(ValueError, match="batch_sizes are positive numbers"):
            step.export(path, batch_sizes=sizes)
    net = network(layers=False)
    net.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
    both = mx.compile(net, LOSS, gluon.Trainer(net.collect_params(), "sgd"))
    with pytest.raises(mx.MXNetError, match="its parameters are on 2 contexts"):
        both.export(path, batches=[batch(0)])
    step.export(path, modes=["step"])
    with pytest.raises(mx.MXNetError, match="the code of its artefact alone: no modes="):
        mx.load(path).export(tmp_path / "other.gga", modes=["step"])
    with pytest.raises(mx.MXNetError, match="the rate of this one is known"):
        mx.load(path, lr_scheduler=_told)


# -- schedules and optimizers of the user's own


class _Halving(lr_scheduler.LRScheduler):
    """A formula of the user's own."""

    def rate(self, num_update: int) -> float:
        return self.base_lr / 2 ** (num_update // 2)


def _told(num_update: int) -> float:
    """No formula: math wants a number."""
    return 0.1 * math.exp(-num_update / 4)


def test_a_schedule_of_the_users_own_is_traced(tmp_path: pathlib.Path) -> None:
    step = training("sgd", {"lr_scheduler": _Halving(base_lr=0.1)}, layers=False)
    run(step, range(3))
    _, twin = _both(step, tmp_path, modes=["step"])
    assert twin.trainer.learning_rate == 0.1 / 2**3
    twin.trainer.optimizer.lr_scheduler.base_lr = 0.4
    assert twin.trainer.learning_rate == 0.4 / 2**3


def test_a_schedule_that_cannot_be_traced_is_the_callers(tmp_path: pathlib.Path) -> None:
    step = training("sgd", {"lr_scheduler": _told}, layers=False)
    run(step, range(3))
    twin = exported(step, tmp_path, modes=["step"])
    before = state(twin)
    with pytest.raises(mx.MXNetError, match=r"the schedule function is Python(.|\n)*set_learning_rate"):
        twin(*batch(3))
    assert state(twin) == before
    twin.trainer.set_learning_rate(_told(4))
    given = mx.load(tmp_path / "step.gga", lr_scheduler=_told)
    mine, theirs, others = (run(each, [3]) for each in (step, twin, given))
    assert mine == theirs == others
    weights = [[p.data().asnumpy().tolist() for p in each.trainer.params] for each in (step, twin, given)]
    assert weights[0] == weights[1] == weights[2]
    assert given.trainer.learning_rate == _told(4)


@optimizer.register
class Rooted(optimizer.Optimizer):
    """w = w - lr / sqrt(t) g, stopped where the rate has come down to `least`."""

    def __init__(self, least: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.least = least

    def scalars(self, index: int | str) -> dict[str, float]:
        return {"step": max(self.rate(index) / sqrt(self.t(index)), self.least) * self.rescale_grad}

    def rule(self, w: Node, g: Node, state: Nodes, s: Nodes) -> Updated:
        return w - s["step"] * g, {}


class Impure(Rooted):
    """Its numbers depend on how often they have been asked for."""

    asked = 0

    def scalars(self, index: int | str) -> dict[str, float]:
        type(self).asked += 1
        return {"step": self.lr / self.asked}


def test_an_optimizer_of_the_users_own_is_not_needed_to_load(tmp_path: pathlib.Path) -> None:
    step = training(Rooted(learning_rate=0.1, least=0.004), layers=False)
    run(step, range(3))
    step.export(tmp_path / "step.gga", modes=["step"])
    program = (
        "import sys, numpy as np, gluongraph as mx\n"
        "step = mx.load(sys.argv[1])\n"
        "given = np.load(sys.argv[2])\n"
        "print([step(x, y).asnumpy().tolist() for x, y in zip(given['x'], given['y'])])\n"
        "print(sorted(m for m in ('tvm', 'gluongraph.compiler.lower') if m in sys.modules))\n"
    )
    batches = [batch(n) for n in range(3, 6)]
    np.savez(tmp_path / "batches.npz", x=[x for x, _ in batches], y=[y for _, y in batches])
    command = [sys.executable, "-c", program, str(tmp_path / "step.gga"), str(tmp_path / "batches.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    losses, imported = done.stdout.splitlines()
    assert eval(losses) == run(step, range(3, 6))
    assert imported == "[]"


def test_numbers_that_are_no_formula_are_refused(tmp_path: pathlib.Path) -> None:
    step = training(Impure(learning_rate=0.1), layers=False)
    run(step, range(2))
    with pytest.raises(mx.MXNetError, match="numbers of Impure cannot be written down as formulas"):
        step.export(tmp_path / "step.gga", modes=["step"])
    assert not list(tmp_path.iterdir())


# -- settings


def test_settings_act_on_the_next_step(tmp_path: pathlib.Path) -> None:
    step = training("adam", {"learning_rate": 0.05, "wd": 0.01}, layers=False)
    run(step, range(3))
    twin = exported(step, tmp_path, modes=["step"])
    for each in (step, twin):
        each.trainer.set_learning_rate(0.2)
        each.trainer.optimizer.wd = each.trainer.optimizer.beta1 = 0.5
        for p in each.trainer.params:
            p.lr_mult = 0.7
    assert run(step, range(3, 6)) == run(twin, range(3, 6))
    assert state(step) == state(twin)


def test_what_the_code_depends_on_cannot_change(tmp_path: pathlib.Path) -> None:
    step = training("sgd", {"learning_rate": 0.05, "momentum": 0.9}, layers=False)
    run(step, range(3))
    twin = exported(step, tmp_path, modes=["step"])
    before = state(twin)
    twin.trainer.optimizer.momentum = 0.0
    with pytest.raises(mx.MXNetError, match="a setting of the optimizer or its schedule has changed"):
        twin(*batch(3))
    twin.trainer.optimizer.momentum = 0.9
    assert state(twin) == before
    next(iter(twin.trainer.params)).lr_mult = 0.3
    with pytest.raises(mx.MXNetError, match="have come apart since the export"):
        twin(*batch(3))


def test_a_net_without_trainer_predicts(tmp_path: pathlib.Path) -> None:
    net = network()
    step = mx.compile(net)
    wanted = step.predict(X[:4]).asnumpy()
    twin = exported(step, tmp_path)
    assert np.array_equal(twin.predict(X[:4]).asnumpy(), wanted)
    assert np.array_equal(twin.net(X[:4]).asnumpy(), wanted)


def test_a_function_with_metrics_and_arrays_of_its_own(tmp_path: pathlib.Path) -> None:
    net, weights = network(layers=False), mx.nd.array([1.0, 2.0, 0.5, 1.0])
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

    def program(x: Any, y: Any) -> Any:
        out = net(x)
        return LOSS(out, y) * weights, {"right": (out.argmax(axis=1) == y.astype("float32")).mean(), "of": 4}

    step = mx.compile(program, trainer=trainer)
    step(X[:4], Y[:4])
    twin = exported(step, tmp_path, modes=["step"])
    mine, theirs = step(X[4:8], Y[4:8]), twin(X[4:8], Y[4:8])
    assert np.array_equal(mine[0].asnumpy(), theirs[0].asnumpy())
    assert mine[1]["right"].asscalar() == theirs[1]["right"].asscalar() and theirs[1]["of"] == 4
