"""Files of trainer states: by name, for any contexts, exact to the bit when training goes on; nothing else fits."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from gluongraph import autograd, cpu, init, lr_scheduler, nd, optimizer
from gluongraph.errors import FormatError
from gluongraph.gluon import Parameter, Trainer
from gluongraph.nd import files

TWO = [cpu(0), cpu(1)]
START = {"a": 0.5, "b": -0.75}


def parameters(ctx: Any = None, values: dict[str, Any] | None = None, dtype: str = "float32") -> list[Parameter]:
    made = []
    for name, start in (values or START).items():
        p = Parameter(name, shape=(2, 3), dtype=dtype)
        p.initialize(init.Constant(start), ctx=ctx)
        made.append(p)
    return made


def trained(params: list[Parameter], steps: range, *given: Any, file: str = "", **how: Any) -> Trainer:
    """A trainer of these after some steps, gradients drawn by the number of the step; `file` is loaded before."""
    trainer = Trainer(params, *given, **how)
    if file:
        trainer.load_states(file)
    for number in steps:
        rng = np.random.default_rng(number)
        with autograd.record():
            losses = []
            for c in params[0].list_ctx():
                draws = [rng.normal(size=(2, 3)) for _ in params]
                inputs = [nd.array(g, ctx=c).astype(p.dtype) for g, p in zip(draws, params, strict=True)]
                losses.append(sum((p.data(c) * x).sum() for p, x in zip(params, inputs, strict=True)))
        autograd.backward(losses)
        trainer.step(2)
    return trainer


def values(params: list[Parameter]) -> list[Any]:
    return [array.asnumpy() for p in params for array in p.list_data()]


def resumed(tmp_path: pathlib.Path, *given: Any, ctx: Any = None, dtype: str = "float32", **how: Any) -> None:
    """Five steps in a row, and five with a new trainer after the third, give the same bits."""
    file = str(tmp_path / "states")
    straight = parameters(ctx, dtype=dtype)
    trained(straight, range(5), *given, **how)
    first = parameters(ctx, dtype=dtype)
    trained(first, range(3), *given, **how).save_states(file)
    again = parameters(ctx, dtype=dtype)
    for p, q in zip(again, first, strict=True):
        p.set_data(q.data(q.list_ctx()[0]))
    trainer = trained(again, range(3, 5), *given, file=file, **how)
    assert trainer.optimizer.num_update == 5
    np.testing.assert_array_equal(values(again), values(straight))


OWN = {name for name, made in optimizer.Optimizer.opt_registry.items() if made.__module__.startswith("gluongraph.")}
NAMES = sorted(OWN - {"sgld"})  # which draws random numbers


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_goes_on_as_if_nothing_had_happened(name: str, tmp_path: pathlib.Path) -> None:
    resumed(tmp_path, name, {"learning_rate": 0.1})


@pytest.mark.parametrize("on_store", [True, False])
def test_on_several_contexts_with_schedule_and_compression(on_store: bool, tmp_path: pathlib.Path) -> None:
    settings = {"momentum": 0.9, "lr_scheduler": lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)}
    compression = {"type": "2bit", "threshold": 0.5}
    resumed(tmp_path, "sgd", settings, ctx=TWO, update_on_kvstore=on_store, compression_params=compression)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_master_weights(dtype: str, tmp_path: pathlib.Path) -> None:
    resumed(tmp_path, "adam", {"learning_rate": 0.1, "multi_precision": True}, dtype=dtype)


class Counting(optimizer.Optimizer):
    """Written for MXNet, with nested states."""

    def create_state(self, index: Any, weight: nd.NDArray) -> Any:
        return (nd.zeros(weight.shape, ctx=weight.context), (None, nd.ones((1,), ctx=weight.context)))

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Any) -> None:
        self._update_count(index)
        mom, (_, number) = state
        mom[:] = 0.5 * mom - 0.1 * number * grad
        number[:] = number + 1
        weight[:] = weight + mom


@pytest.mark.parametrize("ctx", [cpu(0), TWO])
def test_optimizers_without_a_formula(ctx: Any, tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "states")
    straight, first, again = parameters(ctx), parameters(ctx), parameters(ctx)
    trained(straight, range(4), Counting())
    trained(first, range(2), Counting()).save_states(file)
    for p, q in zip(again, first, strict=True):
        p.set_data(q.data(cpu(0)))
    trained(again, range(2, 4), Counting(), file=file)
    np.testing.assert_array_equal(values(again), values(straight))


@pytest.mark.parametrize("ctx,other", [(cpu(0), cpu(1)), (cpu(0), TWO), (TWO, cpu(1))])
def test_on_other_contexts(ctx: Any, other: Any, tmp_path: pathlib.Path) -> None:
    """The count goes on too, which MXNet starts anew on another device."""
    file = str(tmp_path / "states")
    saved = trained(parameters(ctx), range(3), "adam")
    saved.save_states(file)
    for on_store in (None, False) if isinstance(other, list) else (None,):
        trainer = Trainer(parameters(other), "adam", update_on_kvstore=on_store)
        trainer.load_states(file)
        assert trainer.optimizer.counts() == {0: 3, 1: 3}
        names = [n for names in trainer.exchange.replicas.values() for n in (names if on_store is False else names[:1])]
        for name, array in trainer.state_arrays(names).items():
            owner, _, key = name.partition("/")
            expected = saved.state_arrays([owner.partition("@")[0]])[f"{owner.partition('@')[0]}/{key}"]
            np.testing.assert_array_equal(array.asnumpy(), expected.asnumpy())


def test_order_does_not_matter_and_new_parameters_are_new(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "states")
    saved = trained(parameters(), range(3), "adam")
    saved.save_states(file)
    trainer = Trainer(parameters(values={"c": 1.0, "b": -0.75, "a": 0.5}), "adam")
    trainer.load_states(file)
    assert trainer.optimizer.counts() == {1: 3, 2: 3} and "c" not in trainer.states
    mean = trainer.state_arrays(["a"])["a/mean"].asnumpy()
    np.testing.assert_array_equal(mean, saved.state_arrays(["a"])["a/mean"].asnumpy())


def test_states_that_are_not_in_the_file_are_new_again(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "states")
    trainer = Trainer(parameters(), "adam")
    trainer.save_states(file)  # before any update: there are none
    moved = trained(parameters(), range(2), "adam")
    handle = moved.state_arrays(["a"])["a/mean"]
    moved.load_states(file)
    assert not handle.asnumpy().any() and moved.optimizer.num_update == 0


def test_what_the_file_holds(tmp_path: pathlib.Path) -> None:
    """Arrays by name, and JSON that says the rest: no pickle, and nothing by position."""
    file = str(tmp_path / "states")
    trained(parameters(), range(1), "adam", {"learning_rate": 0.25}).save_states(file)
    assert sorted(files.load(file)) == ["a/mean", "a/var", "b/mean", "b/var"]
    about = json.loads(files.read(file)[1]["trainer"])
    assert about["format"] == 2 and about["progress"] == {
        "optimizer": "Adam",
        "lr": 0.25,
        "num_update": 1,
        "counts": {"a": 1, "b": 1},
        "carried": {},
    }


def other_trainers() -> list[tuple[Any, str]]:
    wide = Parameter("a", shape=(4, 3))
    wide.initialize()
    return [
        (Trainer(parameters(), "sgd"), "is of Adam, the trainer uses SGD"),
        (Trainer(parameters(values={"a": 1.0}), "adam"), "is about b, which the trainer does not hold"),
        (Trainer([wide, *parameters()[1:]], "adam"), r"the states of a are mean f32\[2,3\].*keeps mean f32\[4,3\]"),
        (Trainer(parameters(dtype="float64"), "adam"), r"the states of a are mean f32\[2,3\].*keeps mean f64\[2,3\]"),
        (Trainer(parameters(), type("Adam", (Counting,), {})()), "of another Adam, which has a formula"),
    ]


@pytest.mark.parametrize("number", range(5))
def test_what_does_not_fit_changes_nothing(number: int, tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "states")
    trained(parameters(), range(2), "adam").save_states(file)
    trainer, message = other_trainers()[number]
    with pytest.raises(FormatError, match=message):
        trainer.load_states(file)
    assert trainer.optimizer.num_update == 0 and not trainer.states


def test_damaged_files(tmp_path: pathlib.Path) -> None:
    """Each byte turned, and the file cut at each place: an error that changes nothing, or what was saved."""
    file = tmp_path / "states"
    trained(parameters(), range(2), "adam").save_states(str(file))
    data, rng = file.read_bytes(), np.random.default_rng(0)
    flipped = (data[:at] + bytes([byte ^ (1 << int(rng.integers(8)))]) + data[at + 1 :] for at, byte in enumerate(data))
    expected, _ = files.read(str(file))
    refused = 0
    for damaged in (*flipped, *(data[:at] for at in range(len(data)))):
        file.write_bytes(damaged)
        trainer = Trainer(parameters(), "adam")
        try:
            trainer.load_states(str(file))
        except FormatError:
            refused += 1
            assert trainer.optimizer.num_update == 0 and not trainer.states
        else:
            found, _ = files.read(str(file))
            assert trainer.optimizer.num_update == 2 and found.keys() == expected.keys()
            assert all((found[name] == array).all() for name, array in expected.items())
    assert refused > 2 * len(data) - 20


def test_other_files(tmp_path: pathlib.Path) -> None:
    trainer = Trainer(parameters(), "adam")
    text, plain, newer = (str(tmp_path / name) for name in ("text", "plain", "newer"))
    pathlib.Path(text).write_text("states")
    files.save(plain, {"a": np.zeros(1)})
    files.save(newer, {"a": np.zeros(1)}, {"trainer": json.dumps({"format": 99})})
    for file, message in (
        (text, "is n(ot|either) a"),
        (plain, "is not a file of trainer"),
        (newer, "format 99"),
    ):
        with pytest.raises(FormatError, match=message):
            trainer.load_states(file)
    with pytest.raises(FileNotFoundError):
        trainer.load_states(str(tmp_path / "none"))
