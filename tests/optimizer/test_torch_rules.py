"""Every optimizer of mx.optimizer.torch against torch.optim, and Lion against its paper's formula."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch_cases import CASES, UPDATES, WAYS, Array, gradients, named, near, parameters, shapes_of

from gluongraph import gluon, optimizer
from gluongraph.gluon import Parameter

torch = pytest.importorskip("torch", reason="no torch")
TOLERANCES = {"float32": 1e-6, "float64": 1e-12}
# Muon's products are rounded to bfloat16 in both dtypes. Where two orders of a sum are rounded to different sides, an
# element of the update differs by 1/256: at torch's default rate that is within 1e-6 of the weight.
RATES, MUON = {"Muon": 1e-3}, 1e-6
IGNORED = {"params", "foreach", "fused", "capturable", "differentiable"}


@pytest.fixture
def wide() -> Iterator[None]:
    """Torch keeps counts, and products of them, in its default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def tensors_of(params: list[Parameter]) -> list[Any]:
    return [torch.tensor(p.data().asnumpy(), requires_grad=True) for p in params]


def step(given: Any, tensors: list[Any], grads: list[Array]) -> None:
    for tensor, g in zip(tensors, grads, strict=True):
        tensor.grad = torch.from_numpy(g.copy())
    given.step()


def check(name: str, options: dict[str, Any], way: str, dtype: str) -> None:
    options = {"lr": RATES.get(name, 0.02), **options}
    params = parameters(shapes_of(name), dtype)
    tensors = tensors_of(params)
    theirs = getattr(torch.optim, name)(tensors, **options)
    trainer = gluon.Trainer(params, f"torch.{name.lower()}", options)
    update = WAYS[way](params, trainer)
    for grads in gradients(shapes_of(name), dtype):
        step(theirs, tensors, grads)
        update(grads)
    near(params, tensors, MUON if name == "Muon" else TOLERANCES[dtype])
    for p, tensor in zip(params, tensors, strict=True):
        states = {key.partition("/")[2]: a.asnumpy() for key, a in trainer.state_arrays([p.name]).items()}
        kept = {k: v for k, v in theirs.state[tensor].items() if torch.is_tensor(v) and k in states}
        assert states.keys() == kept.keys()
        for key, value in kept.items():
            np.testing.assert_allclose(states[key], value.numpy(), rtol=0, atol=1e-6 * float(value.abs().max()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "options"), CASES, ids=named)
def test_formula(name: str, options: dict[str, Any], way: str) -> None:
    check(name, options, way, "float32")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "options"), CASES, ids=named)
def test_formula_in_float64(name: str, options: dict[str, Any], way: str, wide: None) -> None:
    check(name, options, way, "float64")


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_arguments_and_defaults_are_those_of_torch(name: str) -> None:
    def arguments(cls: type) -> dict[str, Any]:
        found = inspect.signature(cls).parameters.values()
        return {p.name: p.default for p in found if p.name not in IGNORED and p.kind is not p.VAR_KEYWORD}

    ours = getattr(optimizer.torch, name)
    assert arguments(ours) == {**arguments(getattr(torch.optim, name)), "lr": None}
    shape = (2, 2)
    defaults = getattr(torch.optim, name)([torch.zeros(shape)]).defaults
    rule = ours()
    assert {k: rule.option(k) for k in (*rule.options, *rule.flags) if k in defaults} == {
        k: v for k, v in defaults.items() if k not in IGNORED
    }
    assert rule.wd == 0.0 or "weight_decay" in defaults


def test_all_options_are_in_the_table() -> None:
    """Each but lr is given another value than its default in some case."""
    for name in sorted({name for name, _ in CASES}):
        rule = getattr(optimizer.torch, name)
        options = {option for other, given in CASES if other == name for option in given}
        own = {*inspect.signature(rule).parameters} - {"lr", "kwargs"}
        assert own <= options, name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "betas": (0.5, 0.9), "maximize": True}], ids=named)
def test_lion(options: dict[str, Any], way: str) -> None:
    """torch.optim has none: a few lines of torch are the paper's program 1."""
    params = parameters(shapes_of("Lion"), "float32")
    weights = [torch.tensor(p.data().asnumpy()) for p in params]
    means = [torch.zeros_like(w) for w in weights]
    update = WAYS[way](params, gluon.Trainer(params, "torch.lion", {"lr": 0.01, **options}))
    (b1, b2), decay = options.get("betas", (0.9, 0.99)), options.get("weight_decay", 0.0)
    for grads in gradients(shapes_of("Lion"), "float32"):
        for w, m, g in zip(weights, means, grads, strict=True):
            g = -torch.from_numpy(g) if options.get("maximize") else torch.from_numpy(g)
            c = b1 * m + (1 - b1) * g
            w -= 0.01 * (torch.sign(c) + decay * w)
            m.copy_(b2 * m + (1 - b2) * g)
        update(grads)
    near(params, weights, 1e-6)


@pytest.mark.parametrize("name", ["SGD", "Adam", "NAdam", "ASGD", "RAdam", "Rprop", "Adagrad"])
def test_saved_states_go_on_as_if_there_had_been_no_break(name: str, tmp_path: Any) -> None:
    options = {"SGD": {"momentum": 0.9, "dampening": 0.5}}.get(name, {})
    grads = gradients(shapes_of(name), "float32")
    results = []
    for cut in (None, 5):
        params = parameters(shapes_of(name), "float32")
        update = WAYS["eager"](
            params, trainer := gluon.Trainer(params, f"torch.{name.lower()}", {"lr": 0.02, **options})
        )
        for i, each in enumerate(grads):
            if i == cut:
                trainer.save_states(str(tmp_path / "states"))
                trainer = gluon.Trainer(params, f"torch.{name.lower()}", {"lr": 0.02, **options})
                trainer.load_states(str(tmp_path / "states"))
                update = WAYS["eager"](params, trainer)
            update(each)
        results.append([p.data().asnumpy() for p in params])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES} | {"Lion"}))
def test_master_weights_in_16_bits_mixed(name: str) -> None:
    """A bfloat16 weight with a float32 master, and float32 ones in a bf16-mixed step."""
    for dtype, how in (("bfloat16", {}), ("float32", {"precision": "bf16-mixed"})):
        params = parameters(shapes_of(name), dtype)
        trainer = gluon.Trainer(params, f"torch.{name.lower()}", {"lr": 0.02, "multi_precision": True})
        reference = parameters(shapes_of(name), "float32")
        for p, q in zip(params, reference, strict=True):
            q.set_data(p.data().astype("float32"))
        other = gluon.Trainer(reference, f"torch.{name.lower()}", {"lr": 0.02})
        update = WAYS["eager"](params, trainer) if not how else WAYS["compiled"](params, trainer, **how)
        updates = WAYS["eager"](reference, other)
        for grads in gradients(shapes_of(name), "float32", 3):
            grads = [torch.from_numpy(g).bfloat16().float().numpy() for g in grads]
            update(grads)
            updates(grads)
        for p, q in zip(params, reference, strict=True):
            error = np.abs(p.data().asnumpy().astype(np.float64) - q.data().asnumpy()).max()
            assert error <= 2.0**-8 * np.abs(q.data().asnumpy()).max(), p.name


def test_every_rule_is_in_the_table() -> None:
    registered = {name for name in optimizer.Optimizer.opt_registry if name.startswith("torch.")}
    assert registered == {f"torch.{name.lower()}" for name in optimizer.torch.__all__}
    assert {name for name, _ in CASES} == {*optimizer.torch.__all__} - {"Lion"}


def test_names_that_all_optimizers_have() -> None:
    rule = optimizer.create("torch.adamw", learning_rate=0.5, wd=0.25)
    assert (rule.option("lr"), rule.option("weight_decay")) == (0.5, 0.25)


def test_clipping_and_rescaling_come_before_the_formula() -> None:
    (p,) = parameters([(3,)], "float32")
    p.set_data(np.zeros(3))
    trainer = gluon.Trainer([p], "torch.sgd", {"lr": 1.0, "clip_gradient": 0.5, "maximize": True})
    WAYS["eager"]([p], trainer)([np.array([2.0, -0.25, -4.0], np.float32)])
    assert p.data().asnumpy().tolist() == [0.5, -0.25, -0.5]


WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("adam", {"lr": -1.0}, ValueError, "lr must be finite and at least 0, not -1"),
    ("adam", {"betas": (1.0, 0.9)}, ValueError, "beta1 must be from 0 to below 1, not 1"),
    ("sgd", {"nesterov": True}, ValueError, "nesterov takes a momentum above 0 and no dampening"),
    ("sgd", {"weight_decay": -0.1}, ValueError, "wd must be finite and at least 0"),
    ("rprop", {"etas": (1.5, 2.0)}, ValueError, "etaminus must be from above 0 to below 1"),
    ("muon", {"adjust_lr_fn": "no"}, ValueError, "adjust_lr_fn is None, 'original' or 'match_rms_adamw', not 'no'"),
    ("muon", {"ns_steps": 100}, ValueError, "ns_steps is below 100, not 100"),
]


@pytest.mark.parametrize(("name", "options", "error", "message"), WRONG, ids=named)
def test_wrong_options(name: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        optimizer.create(f"torch.{name}", **options)


def test_muon_updates_matrices_alone() -> None:
    (p,) = parameters([(3,)], "float32")
    update = WAYS["eager"]([p], gluon.Trainer([p], "torch.muon"))
    with pytest.raises(ValueError, match=r"torch.Muon updates matrices, and a weight is f32\[3\]"):
        update([np.ones(3, np.float32)])
    assert UPDATES > 5
