"""Several steps by one call: to the bit what as many calls are, with everything that goes on between them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, debug, gluon, nd
from gluongraph.errors import IndexRangeError, MXNetError, NotFiniteError, ShapeError
from gluongraph.gluon import nn
from gluongraph.runtime import loader, repeated
from gluongraph.runtime.executor import Executor
from gluongraph.runtime.repeated import Repeated

COUNT = 5  # batches of a call
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2 * COUNT, 6, 4)).astype(np.float32), RNG.integers(0, 3, (2 * COUNT, 6)).astype(np.int32)
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def layers() -> nn.HybridSequential:
    """A net with running statistics and random numbers."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=4), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
        net.add(nn.Dropout(0.3), nn.Dense(3, in_units=8))
    return net


def made(
    optimizer: Any = "adam", settings: Any = None, net: Any = layers, loss: Any = LOSS, ctx: Any = None, **options: Any
) -> Any:
    """A compiled step on a net of its own; the same at every call."""
    mx.random.seed(3)
    block = net()
    block.initialize(mx.init.Xavier(), ctx=ctx)
    given = ({"learning_rate": 0.05} | (settings or {}),) if isinstance(optimizer, str) else ()
    trainer = gluon.Trainer(block.collect_params(), optimizer if isinstance(optimizer, str) else optimizer(), *given)
    return mx.compile(block, loss, trainer, **options)


def state(step: Any) -> dict[str, Any]:
    """All that a training goes on from, as bits, and what a step tells of the last call."""
    content = mx.checkpoint.taken(step, None, None)
    arrays = {name: a.tobytes() for of in content.groups.values() for name, a in of.items()}
    told = {"norm": step.grad_norm, "skipped": step.skipped, "rescale": step.trainer.optimizer.rescale_grad}
    return {**arrays, "parts": content.about["parts"], **told}


def bits(result: Any) -> Any:
    """The arrays of a result as bits."""
    if isinstance(result, nd.NDArray):
        return (result.shape, result.dtype, result.asnumpy().tobytes())
    if isinstance(result, dict):
        return {key: bits(value) for key, value in result.items()}
    return [bits(each) for each in result] if isinstance(result, (list, tuple)) else result


def one_by_one(step: Any, *stacks: Any, **how: Any) -> list[Any]:
    """The results of as many calls."""
    return [step(*(each[i] for each in stacks), **how) for i in range(len(stacks[0]))]


def is_one_call(step: Any) -> bool:
    """Has the last call run its steps in the compiled code?"""
    return vars(step._specializations.last).get("rows") is not None


class Growing(mx.optimizer.Optimizer):
    """An optimizer written for MXNet: Python updates the weights."""

    def create_state(self, index: Any, weight: Any) -> Any:
        return nd.zeros(weight.shape)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._update_count(index)
        state += grad * self.rescale_grad
        weight -= self._get_lr(index) * state


class Embedded(gluon.HybridBlock):
    """Token ids to classes, with row-sparse gradients."""

    def __init__(self) -> None:
        super().__init__(prefix="emb_")
        with self.name_scope():
            self.rows = nn.Embedding(7, 5, sparse_grad=True)
            self.out = nn.Dense(3, in_units=30)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.out(self.rows(x).reshape((0, -1)))


class Warming(mx.optimizer.SGD):
    """Its rate depends on the number of the update, which its base's does not."""

    def scalars(self, index: Any) -> dict[str, float]:
        return {**super().scalars(index), "lr": 0.01 * self.t(index)}


IDS = RNG.integers(0, 7, (2 * COUNT, 6, 6)).astype(np.int32)

SCHEDULE = {"lr_scheduler": mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.05, warmup_steps=3)}
CASES: dict[str, tuple[dict[str, Any], bool]] = {  # options, and: does one call run the steps?
    **{name: ({"optimizer": name}, True) for name in ("sgd", "adam", "adamw", "nadam", "lamb", "ftml", "rmsprop")},
    "momentum": ({"optimizer": "sgd", "settings": {"momentum": 0.9, "wd": 1e-2}}, True),
    "noise": ({"optimizer": "sgld"}, True),
    "schedule": ({"settings": SCHEDULE}, True),
    "sgd by a schedule": ({"optimizer": "sgd", "settings": SCHEDULE}, True),
    "torch.sgd, damped": ({"optimizer": "torch.sgd", "settings": {"momentum": 0.9, "dampening": 0.5}}, True),
    "a subclass": ({"optimizer": Warming}, True),
    "bf16-mixed": ({"precision": "bf16-mixed"}, True),
    "16-mixed": ({"precision": "16-mixed", "grad_norm": True}, True),
    "64": ({"precision": "64"}, True),
    "bf16-true": ({"precision": "bf16-true", "settings": {"multi_precision": True}}, True),
    "bf16 states": ({"optimizer_state": "bf16"}, True),
    "clipped": ({"clip_norm": 0.1}, True),
    "averages": ({"ema": 0.9}, True),
    "looked at": ({"detect_anomaly": True}, True),
    "norm looked at": ({"error_if_nonfinite": True, "clip_norm": 0.1}, True),
    "gradients kept": ({"keep_grads": True}, False),
    "in Python": ({"optimizer": Growing}, False),
    "micro-batches": ({"deterministic": 2}, False),
    "contexts": ({"ctx": [mx.cpu(0), mx.cpu(1)]}, False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_as_many_calls(name: str) -> None:
    options, at_once = CASES[name]
    step = made(**options)
    expected = one_by_one(step, X, Y)
    after = state(step)
    several = made(**options, steps_per_call=COUNT)
    found = [several(X[at : at + COUNT], Y[at : at + COUNT]) for at in (0, COUNT)]
    assert np.concatenate([f.asnumpy() for f in found]).tobytes() == np.stack([e.asnumpy() for e in expected]).tobytes()
    assert found[0].shape == (COUNT, *expected[0].shape)
    assert state(several) == after
    assert is_one_call(several) == at_once


def test_row_sparse_gradients_and_token_ids() -> None:
    step = made(net=Embedded)
    expected = one_by_one(step, IDS[:COUNT], Y[:COUNT])
    after = state(step)
    several = made(net=Embedded, steps_per_call=COUNT)
    assert bits(several(IDS[:COUNT], Y[:COUNT])) == bits(nd.stack(*expected))
    assert state(several) == after and is_one_call(several)


def test_artefacts_of_a_version_without_such_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    step = made()
    expected = one_by_one(step, X[:2], Y[:2])
    after = state(step)
    monkeypatch.setattr(loader, "optional_function", lambda module, name: None)
    several = made(steps_per_call=2)
    assert bits(several(X[:2], Y[:2])) == bits(nd.stack(*expected))
    assert state(several) == after and not is_one_call(several)


def test_interpreted_graphs() -> None:
    with debug.override(backend="reference"):
        step = made()
        expected = one_by_one(step, X[:2], Y[:2])
        after = state(step)
        several = made(steps_per_call=2)
        assert bits(several(X[:2], Y[:2])) == bits(nd.stack(*expected))
        assert state(several) == after and not is_one_call(several)


def test_gradients_that_are_added_up() -> None:
    def run(most: int | None) -> Any:
        step = made(steps_per_call=most)
        for p in step.net.collect_params().values():
            p.grad_req = "add" if p.grad_req == "write" else p.grad_req
        step(X[:COUNT], Y[:COUNT]) if most else one_by_one(step, X[:COUNT], Y[:COUNT])
        return state(step)

    assert run(COUNT) == run(None)


def test_the_last_stack_of_an_epoch_is_shorter_and_compiles_nothing() -> None:
    expected = [e.asnumpy() for e in one_by_one(made(), X, Y)]
    several = made(steps_per_call=4)
    found = [several(X[at : at + 4], Y[at : at + 4]).asnumpy() for at in (0, 4, 8)]
    assert [len(f) for f in found] == [4, 4, 2]
    assert np.concatenate(found).tobytes() == np.stack(expected).tobytes()
    assert len(several._specializations.all) == 1


def test_one_batch_is_a_stack_too() -> None:
    expected = bits(nd.stack(made()(X[0], Y[0])))
    assert bits(made(steps_per_call=1)(X[:1], Y[:1])) == expected


def test_a_call_is_one_call_into_the_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    step = made(steps_per_call=COUNT)
    step(X[:2], Y[:2])
    calls = []
    run = Repeated.__call__

    def counted(self: Repeated, *how: Any) -> None:
        calls.append(how[2:])
        run(self, *how)

    monkeypatch.setattr(Repeated, "__call__", counted)
    monkeypatch.setattr(Executor, "__call__", lambda *_: pytest.fail("a call of its own"))
    step(X[:COUNT], Y[:COUNT])
    assert calls == [(0, COUNT)]


def test_tables_of_arguments_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a call has more batches than there is room for tables, it is several calls into the compiled code."""
    options = {"precision": "16-mixed", "grad_norm": True}
    data, labels = X[:COUNT].copy(), Y[:COUNT].copy()
    data[2] *= 1e30
    labels[4, 0] = 8
    step = made(**options)
    one_by_one(step, data[:4], labels[:4])
    after = state(step)
    several = made(**options, steps_per_call=COUNT)
    with pytest.raises(IndexRangeError, match=r"batch \[0\] of 1"):
        several(data[4:], labels[4:])
    table = several._specializations.last.runner.table
    monkeypatch.setattr(repeated, "TABLES", 3 * table.nbytes)
    with pytest.raises(IndexRangeError, match=r"batch \[4\] of 5"):
        several(data, labels)
    assert len(several._specializations.last.rows.run._numbers) == 3
    assert state(several) == after


def test_parameters_that_have_moved() -> None:
    step = made("sgd", net=lambda: nn.Dense(3, in_units=4))
    one_by_one(step, X[:4], Y[:4])
    after = state(step)
    several = made("sgd", net=lambda: nn.Dense(3, in_units=4), steps_per_call=2)
    several(X[:2], Y[:2])
    storage = several.net.weight.data().storage
    before = storage.array
    storage.rehome(before.copy())
    kept = before.copy()
    several(X[2:4], Y[2:4])
    assert state(several) == after and (before == kept).all()


def test_results_of_any_structure_have_a_first_axis() -> None:
    def program(net: Any) -> Any:
        def run(x: Any, y: Any, weight: Any) -> Any:
            out = net(x)
            loss = LOSS(out, y) * weight
            return loss, {"mean": loss.mean(), "again": [loss, out], "name": "kept"}

        return run

    def result(most: int | None) -> Any:
        mx.random.seed(3)
        net = layers()
        net.initialize(mx.init.Xavier())
        step = mx.compile(program(net), trainer=gluon.Trainer(net.collect_params(), "sgd"), steps_per_call=most)
        factors = np.arange(1, COUNT + 1, dtype=np.float32)  # a number for each batch
        if most:
            return step(X[:COUNT], Y[:COUNT], factors)
        parts = [step(X[i], Y[i], nd.array(factors[i])) for i in range(COUNT)]
        return parts

    loss, rest = result(COUNT)
    parts = result(None)
    assert bits(loss) == bits(nd.stack(*[p[0] for p in parts]))
    assert rest["mean"].shape == (COUNT, 1) and rest["name"] == "kept"
    assert bits(rest["mean"]) == bits(nd.stack(*[p[1]["mean"] for p in parts]))
    for i in range(2):
        assert bits(rest["again"][i]) == bits(nd.stack(*[p[1]["again"][i] for p in parts]))


@pytest.mark.parametrize("batch_size", [1, 100])
def test_batch_sizes(batch_size: float) -> None:
    step = made(clip_norm=0.1)
    one_by_one(step, X[:3], Y[:3], batch_size=batch_size)
    after = state(step)
    several = made(clip_norm=0.1, steps_per_call=3)
    several(X[:3], Y[:3], batch_size=batch_size)
    assert state(several) == after


def test_settings_and_other_calls_in_between() -> None:
    def train(most: int | None) -> Any:
        step = made(steps_per_call=most)

        def call(at: int, to: int) -> None:
            step(X[at:to], Y[at:to]) if most else one_by_one(step, X[at:to], Y[at:to])

        call(0, 3)
        step.trainer.set_learning_rate(0.5)
        step.accumulate(X[0], Y[0])
        call(3, 6)
        step.accumulate(X[1], Y[1])
        step.apply()
        found = [step.evaluate(X[0], Y[0]), step.predict(X[0]), *step.grads(X[0], Y[0]).values()]
        step.net.collect_params()["net_dense0_weight"].data()[:] = 0.1
        call(6, 8)
        return bits(found), state(step)

    assert train(COUNT) == train(None)


def test_lists_for_contexts_are_lists_of_stacks() -> None:
    two = [mx.cpu(0), mx.cpu(1)]

    def shared(array: Any, axis: int = 0) -> list[Any]:
        return [nd.array(a, c, array.dtype) for a, c in zip(np.split(array, 2, axis), two, strict=True)]

    step = made(ctx=two)
    parts = [step(shared(X[i]), shared(Y[i])) for i in range(2)]
    after = state(step)
    several = made(ctx=two, steps_per_call=2)
    found = several(shared(X[:2], 1), shared(Y[:2], 1))
    assert [bits(f) for f in found] == [bits(nd.stack(*each)) for each in zip(*parts, strict=True)]
    assert [f.context for f in found] == two
    assert state(several) == after


# --- batches that are not trained on


@pytest.mark.parametrize("at", [0, 3])
def test_an_index_out_of_range_leaves_the_batches_before_it(at: int) -> None:
    labels = Y.copy()
    labels[at, 2] = 7
    step = made("nadam", grad_norm=True)
    one_by_one(step, X[:at], Y[:at])
    with pytest.raises(IndexRangeError):
        step(X[at], labels[at])
    after = state(step)
    rest = bits(nd.stack(*one_by_one(step, X[5:7], Y[5:7])))
    end = state(step)
    several = made("nadam", grad_norm=True, steps_per_call=COUNT)
    told = rf"batch \[{at}\] of {COUNT} in this call: .*label.* 7"
    with pytest.raises(IndexRangeError, match=told) as caught:
        several(X[:COUNT], labels[:COUNT])
    assert ("note: the steps on the batches before it have been made" in str(caught.value)) == bool(at)
    assert state(several) == after
    assert bits(several(X[5:7], Y[5:7])) == rest
    assert state(several) == end


def test_an_index_out_of_range_where_python_runs_the_steps() -> None:
    labels = Y.copy()
    labels[1, 2] = 7
    step = made(keep_grads=True)
    one_by_one(step, X[:1], Y[:1])
    after = state(step)
    several = made(keep_grads=True, steps_per_call=COUNT)
    with pytest.raises(IndexRangeError, match=rf"batch \[1\] of {COUNT} in this call: .*label.* 7"):
        several(X[:COUNT], labels[:COUNT])
    assert state(several) == after


@pytest.mark.parametrize("looks", ["detect_anomaly", "error_if_nonfinite"])
def test_a_nan_leaves_the_batches_before_it(looks: str) -> None:
    data = X.copy()
    data[2, 0, 0] = np.nan
    step = made(**{looks: True})
    one_by_one(step, X[:2], Y[:2])
    after = state(step)
    several = made(steps_per_call=COUNT, **{looks: True})
    with pytest.raises(NotFiniteError, match=r"batch \[2\] of 5 in this call: .*(nan|NaN)"):
        several(data[:COUNT], Y[:COUNT])
    assert state(several) == after


def test_overflows_leave_batches_out_and_halve_the_scale() -> None:
    data = X.copy()
    for number in (0, 3, 9):
        data[number] *= 1e30
    options = {"optimizer": "nadam", "precision": "16-mixed", "grad_norm": True, "settings": SCHEDULE}
    step = made(**options)
    expected = [e.asnumpy() for e in one_by_one(step, data, Y)]
    after = state(step)
    several = made(**options, steps_per_call=COUNT)
    found = [several(data[at : at + COUNT], Y[at : at + COUNT]).asnumpy() for at in (0, COUNT)]
    assert np.concatenate(found).tobytes() == np.stack(expected).tobytes()
    assert state(several) == after or _but_for_nan(state(several), after)
    assert several.skipped == 3 and is_one_call(several)


def _but_for_nan(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Are they equal, where both norms are NaN or infinite?"""
    return bool({**one, "norm": 0} == {**other, "norm": 0} and not np.isfinite(one["norm"] + other["norm"]))


class Ending(mx.lr_scheduler.LRScheduler):
    """A schedule that has no rate after some updates."""

    def rate(self, num_update: int) -> float:
        if num_update > 3:
            raise ValueError("the schedule has ended")
        return self.base_lr / num_update


def test_a_schedule_that_fails() -> None:
    settings = {"lr_scheduler": Ending(0.1)}
    step = made(settings=settings)
    one_by_one(step, X[:3], Y[:3])
    after = state(step)
    several = made(settings=settings, steps_per_call=COUNT)
    with pytest.raises(ValueError, match=r"batch \[3\] of 5 in this call: the schedule has ended"):
        several(X[:COUNT], Y[:COUNT])
    assert state(several) == after
    with pytest.raises(ValueError, match=r"batch \[0\] of 2 in this call: the schedule has ended"):
        several(X[:2], Y[:2])
    assert state(several) == after


def test_an_interrupt_before_the_first_step_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    step = made(steps_per_call=COUNT)
    step(X[:2], Y[:2])
    asked: list[int] = []

    class Interrupting(mx.lr_scheduler.LRScheduler):
        def rate(self, num_update: int) -> float:
            asked.append(num_update)
            if len(asked) == 3:
                raise KeyboardInterrupt
            return 0.1

    monkeypatch.setattr(step.trainer.optimizer, "lr_scheduler", Interrupting())
    before = state(step)
    asked.clear()
    with pytest.raises(KeyboardInterrupt):
        step(X[:COUNT], Y[:COUNT])
    assert state(step) == before


# --- files


def test_checkpoints_between_calls(tmp_path: pathlib.Path) -> None:
    step = made(steps_per_call=3, ema=0.9)
    step(X[:3], Y[:3])
    step.save(tmp_path / "run", asynchronous=True)
    expected = bits(step(X[3:5], Y[3:5]))
    step.wait()
    for most in (3, None):
        other = made(steps_per_call=most, ema=0.9)
        other.load(tmp_path / "run")
        assert other.trainer.optimizer.num_update == 3
        found = other(X[3:5], Y[3:5]) if most else nd.stack(*one_by_one(other, X[3:5], Y[3:5]))
        assert bits(found) == expected
        assert state(other) == state(step)


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"precision": "16-mixed"}, {"detect_anomaly": True}, {"clip_norm": 0.1, "ema": 0.9}),
        {"error_if_nonfinite": True},
        *({"optimizer": "sgd"}, {"optimizer": "sgd", "settings": SCHEDULE}),
    ],
)
def test_exported_steps(tmp_path: pathlib.Path, options: dict[str, Any]) -> None:
    step = made(steps_per_call=3, **options)
    step(X[:3], Y[:3])
    step.export(tmp_path / "step.gga")
    random = mx.random.get_state()
    expected = bits(step(X[3:6], Y[3:6]))
    for most in (3, None):
        mx.random.set_state(random)
        loaded = mx.load(tmp_path / "step.gga", steps_per_call=most)
        found = loaded(X[3:6], Y[3:6]) if most else nd.stack(*one_by_one(loaded, X[3:6], Y[3:6]))
        assert bits(found) == expected
        assert loaded.trainer.optimizer.num_update == step.trainer.optimizer.num_update
        if most:
            assert is_one_call(loaded)
    broken = Y[3:6].copy()
    broken[1, 0] = 9
    with pytest.raises(IndexRangeError, match=r"batch \[1\] of 3 in this call"):
        mx.load(tmp_path / "step.gga", steps_per_call=3)(X[3:6], broken)


# --- arguments that do not fit


@pytest.mark.parametrize("most", [0, -1, 2.0, "2", True])
def test_numbers_of_steps_that_are_none(most: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="steps_per_call is how many batches a call takes, stacked"):
        made(steps_per_call=most)
    with pytest.raises(ValueError, match="steps_per_call is how many batches a call takes, stacked"):
        mx.load(tmp_path / "none.gga", steps_per_call=most)


def batch_sizes() -> Iterator[Any]:
    yield (
        "a batch",
        (X[0], Y[0]),
        r"argument 0 of the step is f32\[6,4\], 6 batches .* up to 5: .* \[5,6,4\] if it is one batch",
    )
    yield "too many", (X, Y), r"argument 0 of the step is f32\[10,6,4\], 10 batches .* up to 5: \[5,6,4\], or"
    yield "unequal", (X[:4], Y[:3]), r"argument 1 of the step is i32\[3,6\], not \[4,6\]: argument 0 has 4 batches"
    yield "a number", (X[:4], np.float32(3)), r"argument 1 of the step is f32\[\], not a stack .*: \[5\] if"
    yield "nothing", (), "a call without arrays: nothing says how many steps it is"
    yield "empty", (X[:0], Y[:0]), "argument 0 of the step has no elements"


@pytest.mark.parametrize(("given", "told"), [c[1:] for c in batch_sizes()], ids=[c[0] for c in batch_sizes()])
def test_shapes_that_are_no_stacks(given: Any, told: str) -> None:
    step = made(steps_per_call=COUNT)
    step(X[:2], Y[:2])
    before = state(step)
    with pytest.raises(ShapeError, match=told):
        step(*given)
    assert state(step) == before


def test_a_small_batch_that_looks_like_a_stack() -> None:
    step = made(steps_per_call=8)
    with pytest.raises(
        MXNetError, match=r"note: with steps_per_call a step gets one batch of each stack, here f32\[4\]"
    ):
        step(X[0], Y[0])


def test_a_step_without_trainer() -> None:
    net = layers()
    net.initialize()
    step = mx.compile(net, steps_per_call=2)
    with pytest.raises(MXNetError, match="compiled without a trainer"):
        step(X[:2])
    with autograd.predict_mode():
        assert step.predict(X[0]).shape == (6, 3)
