"""mx.compile: the same numbers as eager mode, live settings, variants, guards, and exactly one packed call a step."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, debug, gluon, nd
from gluongraph.step import TrainStep

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
RNG = np.random.RandomState(0)
X = RNG.rand(16, 1, 12, 12).astype(np.float32)
Y = RNG.randint(0, 10, 16).astype(np.int32)


def dense() -> gluon.HybridBlock:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(32, activation="relu"), gluon.nn.Dropout(0.3), gluon.nn.Dense(10))
    return net


def conv() -> gluon.HybridBlock:
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(4, 3, padding=1),
        gluon.nn.BatchNorm(),
        gluon.nn.Activation("relu"),
        gluon.nn.MaxPool2D(2, 2),
        gluon.nn.Conv2D(6, 3, activation="tanh"),
        gluon.nn.GlobalAvgPool2D(),
        gluon.nn.Flatten(),
        gluon.nn.LayerNorm(),
        gluon.nn.Dense(10),
    )
    return net


def made(build: Callable[[], gluon.HybridBlock] = dense, optimizer: str = "sgd", **options: Any) -> tuple[Any, Any]:
    """An initialized net and its trainer, the same at every call."""
    mx.random.seed(7)
    net = build()
    net.initialize(mx.init.Xavier())
    net(nd.array(X))
    return net, gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.05, **options})


def eager_step(net: Any, trainer: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with autograd.record():
        loss = LOSS(net(nd.array(x)), nd.array(y, dtype="int32"))
    loss.backward()
    trainer.step(len(x))
    return loss.asnumpy()


def parameters(net: Any) -> list[gluon.Parameter]:
    return list(net.collect_params().values())


def weights(net: Any) -> list[np.ndarray]:
    return [p.data().asnumpy() for p in parameters(net)]


CASES = [
    (dense, "sgd", {}),
    (dense, "sgd", {"momentum": 0.9, "wd": 1e-2}),
    (dense, "adam", {"clip_gradient": 0.01}),
    (dense, "adamw", {"wd": 1e-2}),
    (conv, "sgd", {"momentum": 0.9}),
    (conv, "adam", {}),
]


@pytest.mark.parametrize(("build", "optimizer", "options"), CASES)
def test_compiled_training_is_eager_training(build: Any, optimizer: str, options: dict[str, Any]) -> None:
    """Same losses (dropout's masks included), same weights, same running statistics, up to rounding."""
    net, trainer = made(build, optimizer, **options)
    expected = [eager_step(net, trainer, X, Y) for _ in range(3)]
    after = weights(net)
    net, trainer = made(build, optimizer, **options)
    step = mx.compile(net, LOSS, trainer)
    for loss in expected:
        np.testing.assert_allclose(step(X, Y).asnumpy(), loss, rtol=2e-3, atol=2e-4)
    if optimizer == "sgd":  # weights after several Adam steps measure nothing: tiny gradients are scaled up
        for got, want in zip(weights(net), after, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_gradients_agree_with_eager_ones() -> None:
    net, _ = made(conv)
    with autograd.record():
        loss = LOSS(net(nd.array(X)), nd.array(Y, dtype="int32"))
    loss.backward()
    net2, trainer2 = made(conv)
    found = mx.compile(net2, LOSS, trainer2).grads(X, Y)
    pairs = [(p, q) for p, q in zip(parameters(net), parameters(net2), strict=True) if p.grad_req != "null"]
    largest = max(abs(p.grad().asnumpy()).max() for p, _ in pairs)
    for p, q in pairs:
        np.testing.assert_allclose(found[q.name].asnumpy(), p.grad().asnumpy(), rtol=0, atol=1e-4 * largest)


def test_settings_act_on_the_next_step_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    net, trainer = made(dense, "sgd", momentum=0.9, wd=0.1)
    step = mx.compile(net, LOSS, trainer)
    step(X, Y)
    variants = step._specializations.all
    before = weights(net)
    trainer.set_learning_rate(0.0)
    for p in net.collect_params().values():
        p.wd_mult = 0.5
    step(X, Y, batch_size=4)
    assert step._specializations.all == variants
    moved = [abs(a - b).max() for a, b in zip(weights(net), before, strict=True)]
    assert max(moved) > 0  # momentum goes on, as in Gluon: it holds the old rate
    trainer.optimizer.momentum = 0.0
    now = weights(net)
    step(X, Y)
    assert all((a == b).all() for a, b in zip(weights(net), now, strict=True))  # rate 0, no momentum: another graph
    assert len(step._specializations.all) == 2


def test_a_momentum_that_was_0_for_a_while_begins_anew_and_is_the_trainers(tmp_path: pathlib.Path) -> None:
    """Without momentum there is no state: the variant of before must not go on with one that nobody saves."""
    trained = []
    for compiled in (False, True):
        net, trainer = made(momentum=0.9)
        step = mx.compile(net, LOSS, trainer)
        for momentum in (0.9, 0.0, 0.5, 0.5):
            trainer.optimizer.momentum = momentum
            step(X, Y) if compiled else eager_step(net, trainer, X, Y)
        trainer.save_states(str(tmp_path / "states"))
        trainer.load_states(str(tmp_path / "states"))
        eager_step(net, trainer, X, Y)
        trained.append(weights(net))
    for eager, other in zip(*trained, strict=True):
        np.testing.assert_allclose(other, eager, rtol=1e-4, atol=1e-6)


def test_batch_size_divides_the_gradient() -> None:
    changes = []
    for size in (16, 32):
        net, trainer = made(conv)
        before = weights(net)
        mx.compile(net, LOSS, trainer)(X, Y, batch_size=size)
        changes.append([b - a for a, b in zip(before, weights(net), strict=True)])
    trained = [i for i, p in enumerate(net.collect_params().values()) if p.grad_req != "null"]
    for i in trained:
        np.testing.assert_allclose(changes[0][i], 2 * changes[1][i], rtol=1e-3, atol=1e-6)


def test_other_shapes_are_variants_on_the_same_weights() -> None:
    net, trainer = made()
    step = mx.compile(net, LOSS, trainer)
    step(X, Y)
    assert step(X[:5], Y[:5]).shape == (5,)
    assert len(step._specializations.all) == 2
    trained = weights(net)
    np.testing.assert_allclose(step.predict(X).asnumpy(), net(nd.array(X)).asnumpy(), rtol=1e-4, atol=1e-5)
    assert all((a == b).all() for a, b in zip(weights(net), trained, strict=True))
    assert step.evaluate(X, Y).shape == (16,)


def test_handles_taken_before_and_set_data_after_compiling_are_live() -> None:
    net, trainer = made(dense, "sgd")
    handle = net[0].weight.data()
    step = mx.compile(net, LOSS, trainer)
    step(X, Y)
    assert (handle.asnumpy() == net[0].weight.data().asnumpy()).all()
    net[2].weight.set_data(nd.zeros(net[2].weight.shape))
    net[2].bias.set_data(nd.zeros(10))
    np.testing.assert_allclose(step.evaluate(X, Y).asnumpy(), np.log(10), rtol=1e-5)


def test_weights_and_states_lie_in_one_arena_each() -> None:
    net, trainer = made(dense, "adam")
    handles = [p.data() for p in trainer.params]
    before = [h.asnumpy() for h in handles]
    step = mx.compile(net, LOSS, trainer)
    step.evaluate(X, Y)
    assert trainer.arenas == {}  # only an update has a reason to move anything
    step(X, Y)
    assert set(trainer.arenas) == {("weight", "f32"), ("mean", "f32"), ("var", "f32")}
    arena = trainer.arenas["weight", "f32"]
    assert [h.storage for h in reversed(handles)] == list(arena.storages)
    for h, start in zip(reversed(handles), arena.offsets, strict=True):
        assert h.storage.array.ctypes.data == arena.memory.ctypes.data + start
        assert start % 64 == 0
    assert any((h.asnumpy() != b).any() for h, b in zip(handles, before, strict=True))
    step(X[:4], Y[:4])  # another variant shares them
    assert trainer.arenas["weight", "f32"] is arena


def test_mixing_eager_and_compiled_steps() -> None:
    net, trainer = made(conv, "sgd", momentum=0.9)
    expected = [eager_step(net, trainer, X, Y) for _ in range(4)]
    net, trainer = made(conv, "sgd", momentum=0.9)
    step = mx.compile(net, LOSS, trainer)
    got = [step(X, Y).asnumpy(), eager_step(net, trainer, X, Y), step(X, Y).asnumpy(), eager_step(net, trainer, X, Y)]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_kept_gradients_lie_where_backward_puts_them() -> None:
    net, trainer = made(conv)
    expected = mx.compile(net, LOSS, trainer).grads(X, Y)
    net2, trainer2 = made(conv)
    step = mx.compile(net2, LOSS, trainer2, keep_grads=True)
    step(X, Y)
    for p, q in zip(parameters(net), parameters(net2), strict=True):
        if p.grad_req != "null":
            np.testing.assert_allclose(q.grad().asnumpy(), expected[p.name].asnumpy(), rtol=1e-4, atol=1e-4)


def test_a_step_completes_the_shapes_of_parameters() -> None:
    """Nobody need call the net before it is compiled; contexts share the batch out as ever."""
    losses = []
    for contexts in ([mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]):
        mx.random.seed(3)
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.Dense(10))
        net.initialize(mx.init.Xavier(), ctx=contexts)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        step = mx.compile(net, LOSS, trainer)
        losses.append([step(X, Y).mean().asscalar() for _ in range(2)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][1] < losses[0][0]


def test_gradients_that_a_step_has_used_up_are_said_to_be_gone() -> None:
    net, trainer = made()
    step, weight = mx.compile(net, LOSS, trainer), next(iter(net.collect_params().values()))
    step(X, Y)
    for ask in (weight.grad, weight.list_grad):
        with pytest.raises(RuntimeError, match=rf"gradient of '{weight.name}' was used up .*\n.*\n.*keep_grads=True"):
            ask()
    eager_step(net, trainer, X, Y)  # a backward writes it
    assert abs(weight.grad().asnumpy()).max() > 0
    step(X, Y)
    net.collect_params().zero_grad()
    assert (weight.grad().asnumpy() == 0).all()


def test_a_function_with_metrics() -> None:
    net, trainer = made()

    def program(x: nd.NDArray, y: nd.NDArray) -> tuple[nd.NDArray, dict[str, nd.NDArray]]:
        out = net(x)
        return LOSS(out, y), {"largest": out.max()}

    loss, metrics = mx.compile(program, trainer=trainer)(X, Y)
    assert loss.shape == (16,) and metrics["largest"].size == 1


def test_a_net_alone_predicts() -> None:
    net, _ = made(conv)
    np.testing.assert_allclose(mx.compile(net).predict(X).asnumpy(), net(nd.array(X)).asnumpy(), rtol=1e-4, atol=1e-5)


def test_exactly_one_packed_call_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    net, trainer = made()
    step = mx.compile(net, LOSS, trainer)
    step(X, Y)
    (variant,) = step._specializations.all
    calls = []
    run = variant.runner._run
    monkeypatch.setattr(variant.runner, "_run", lambda: (calls.append(1), run())[1])
    for _ in range(3):
        step(X, Y)
    assert len(calls) == 3


def test_the_result_is_the_callers_and_stays() -> None:
    net, trainer = made()
    step = mx.compile(net, LOSS, trainer)
    first = step(X, Y)
    kept = first.asnumpy()
    step(X, Y)
    assert (first.asnumpy() == kept).all()


@pytest.mark.parametrize("hybridized", [False, True])
def test_threads_take_turns(hybridized: bool) -> None:
    """A call lets other threads run: each gets the results of its own inputs."""
    net, trainer = made()
    step = mx.compile(net, LOSS, trainer)
    net.hybridize(hybridized)
    predict = net if hybridized else step.predict
    images = [nd.random.normal(shape=(64, 144)) for _ in range(4)]
    expected = [predict(x).asnumpy() for x in images]
    found: list[set[bytes]] = [set() for _ in images]

    def run(number: int) -> None:
        for _ in range(60):
            found[number].add(predict(images[number]).asnumpy().tobytes())

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{outputs.tobytes()} for outputs in expected]


def test_steps_of_one_trainer_take_turns() -> None:
    """Counts, rates and the scale of gradients are the trainer's: two threads leave what one does after the other."""
    weights = []
    for threaded in (False, True):
        net, trainer = made(lambda: gluon.nn.Dense(10), "adam")
        losses = [lambda p, y, by=by: LOSS(p, y) * by for by in (1.0, 1.0)]
        steps = [mx.compile(net, loss, trainer) for loss in losses]

        def run(step: TrainStep) -> None:
            for _ in range(60):
                step(X, Y)

        for step in steps:  # compiled before, so that all that follows is calls
            step(X, Y)
        threads = [threading.Thread(target=run, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
            if not threaded:
                thread.join()
        for thread in threads:
            thread.join()
        weights.append(net.weight.data().asnumpy())
        assert trainer.optimizer.num_update == 122
    assert (weights[0] == weights[1]).all()


@pytest.mark.parametrize("first", ["compiled", "eager"])
def test_eager_and_compiled_steps_of_a_trainer_take_turns(first: str) -> None:
    """While one of them asks for its rate, the other begins in a thread: it waits until the first is through."""
    waiting: list[threading.Thread] = []

    def rate(updates: int) -> float:
        if waiting and waiting[0].ident is None:
            waiting[0].start()
            waiting[0].join(0.2)
            assert waiting[0].is_alive()
        return 0.1

    def eager() -> None:
        with autograd.record():
            loss = LOSS(net(nd.array(X)), nd.array(Y))
        loss.backward()
        trainer.step(16)

    net, trainer = made(lambda: gluon.nn.Dense(10), lr_scheduler=rate)
    step = mx.compile(net, LOSS, trainer)
    step.memory(X, Y)  # compiles it
    calls: dict[str, Callable[[], Any]] = {"compiled": lambda: step(X, Y), "eager": eager}
    now = calls.pop(first)
    waiting.append(threading.Thread(target=calls.popitem()[1]))
    now()
    waiting[0].join()
    assert trainer.optimizer.num_update == 2


def test_repr() -> None:
    net, trainer = made()
    assert repr(trainer) == "Trainer(4 parameters, SGD(learning_rate=0.05, wd=0.0))"
    step = mx.compile(net, LOSS, trainer, precision="bf16-mixed")
    assert repr(step) == f"TrainStep({net.name}, SGD(learning_rate=0.05, wd=0.0), precision='bf16-mixed')"
    assert repr(mx.compile(abs)) == "TrainStep(abs, precision='32')"


def test_the_same_seed_gives_the_same_bits() -> None:
    runs = []
    for _ in range(2):
        net, trainer = made(dense, "adam")
        step = mx.compile(net, LOSS, trainer)
        runs.append([step(X, Y).asnumpy() for _ in range(3)] + weights(net))
    assert all((a == b).all() for a, b in zip(*runs, strict=True))


def test_frozen_parameters_stay() -> None:
    net, trainer = made()
    net[0].weight.grad_req = "null"
    before = net[0].weight.data().asnumpy()
    step = mx.compile(net, LOSS, trainer)
    step(X, Y)
    assert (net[0].weight.data().asnumpy() == before).all()
    net[0].weight.grad_req = "write"
    step(X, Y)
    assert (net[0].weight.data().asnumpy() != before).any()


def test_reference_backend_gives_the_same_numbers() -> None:
    results = []
    for backend in ("", "reference"):
        with debug.override(backend=backend):
            net, trainer = made(conv, "adam")
            step = mx.compile(net, LOSS, trainer)
            results.append([step(X, Y).asnumpy() for _ in range(2)])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_graph_plan_kernels_and_artefact_can_be_looked_at() -> None:
    net, trainer = made()
    step = mx.compile(net, LOSS, trainer)
    with pytest.raises(mx.MXNetError, match="call the step once"):
        _ = step.plan
    step(X, Y)
    assert "dense" in next(iter(step.graph.updates))
    assert len(step.kernels) <= len(step.plan.launches) == 10  # one counts labels out of range
    assert step.artefact.path is not None and step.artefact.path.exists()
    rows = step.profile(X, Y, repeat=2)
    assert len(rows) == len(step.plan.launches) and all(row.seconds > 0 for row in rows)


WARM = """
import sys, time
import numpy as np
import gluongraph as mx
from gluongraph import gluon, nd
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(8, activation="relu", in_units=6), gluon.nn.Dense(3, in_units=8))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "adam")
step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
step(np.ones((4, 6), np.float32), np.zeros(4, np.int32))
print(step.artefact.compiled, "tvm.tirx" in sys.modules, any("libtvm_compiler" in l for l in open("/proc/self/maps")))
"""


def test_a_second_process_compiles_nothing_and_loads_no_compiler(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    runs = [
        subprocess.run([sys.executable, "-c", WARM], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert int(runs[0][0]) > 0 and runs[0][1:] == ["True", "True"]
    assert runs[1] == ["0", "False", "False"]


def test_results_do_not_depend_on_the_number_of_threads(tmp_path: pathlib.Path) -> None:
    code = WARM + "\nprint(float(net[0].weight.data().asnumpy().sum()).hex())"
    code = code.replace("net.initialize", "mx.random.seed(1); net.initialize")
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PATH": "/usr/bin:/bin", "GG_CACHE": str(tmp_path), "GG_THREADS": threads, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for threads in ("1", "2", "3")
    }
    assert len(found) == 1


def test_train_step_is_what_compile_gives() -> None:
    net, trainer = made()
    assert isinstance(mx.compile(net, LOSS, trainer), TrainStep)
