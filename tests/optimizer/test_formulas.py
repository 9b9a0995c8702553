"""Every optimizer in eager mode against float64 numpy: one update, and five in a row."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import reference
from variants import (
    BATCH,
    CLIP,
    DECAY,
    RATE,
    TOLERANCE,
    TORCH,
    VARIANTS,
    Expected,
    give,
    gradients,
    named,
    near,
    parameters,
    settings,
    types,
    updates,
)

import gluongraph as mx
from gluongraph import gluon, lr_scheduler, nd, optimizer
from gluongraph.gluon import Parameter

HALVES = ("float16", "bfloat16")


def trainer_of(params: list[Parameter], name: str, clip: float | None, **extra: Any) -> gluon.Trainer:
    return gluon.Trainer(params, name, {**settings(name, clip), **extra})


def steps(trainer: gluon.Trainer, params: list[Parameter], grads: list[Any]) -> None:
    for p, g in zip(params, grads, strict=True):
        give(p, g)
    trainer.step(BATCH)


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize(("name", "extra"), VARIANTS, ids=named)
def test_formula(name: str, extra: dict[str, Any], clip: float | None) -> None:
    params = parameters(np.random.default_rng(7), types(name))
    trainer = trainer_of(params, name, clip, **extra)
    for grads, expected in updates(name, extra, clip, params):
        steps(trainer, params, grads)
        if expected.t in (1, 5):
            expected.check(trainer, params)


def test_clip_is_active_in_the_cases_above() -> None:
    assert np.abs(np.random.default_rng(7).normal(size=50) / BATCH).max() > CLIP


@pytest.mark.parametrize(("name", "extra"), VARIANTS, ids=named)
def test_master_weights(name: str, extra: dict[str, Any]) -> None:
    params = parameters(np.random.default_rng(7), types(name, *HALVES))
    trainer = trainer_of(params, name, CLIP, **extra, multi_precision=True)
    for grads, expected in updates(name, extra, CLIP, params):
        steps(trainer, params, grads)
        if expected.t in (1, 5):
            expected.check(trainer, params)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("name", "extra"), VARIANTS, ids=named)
def test_half_weights_without_a_master(name: str, extra: dict[str, Any], dtype: str) -> None:
    """States are of the weight's dtype; one update from zero states is right up to rounding of what is stored."""
    (p,) = params = parameters(np.random.default_rng(7), [((3, 5), dtype)])
    trainer, expected = trainer_of(params, name, CLIP, **extra), Expected(params)
    grads = gradients(np.random.default_rng(1), params)
    expected.update(name, grads, CLIP, **extra)
    with pytest.warns(UserWarning, match=r"multi_precision=True updates a float32 copy"):
        steps(trainer, params, grads)
    digits = {"float16": 11, "bfloat16": 8}[dtype]
    error = np.abs(p.data().astype("float64").asnumpy() - expected.weights[0]).max()
    assert p.data().dtype == p.dtype and error <= 2.0**-digits * np.abs(expected.weights[0]).max()
    assert all(a.dtype == p.dtype for a in trainer.state_arrays(["p0"]).values())


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "sgld"])
def test_double_precision_weights(name: str) -> None:
    """The formula runs in float64; the numbers that it is given are float32, as MXNet's kernels have them."""
    params = parameters(np.random.default_rng(7), [((3, 5), "float64")])
    trainer, expected = trainer_of(params, name, None), Expected(params)
    grads = gradients(np.random.default_rng(1), params)
    mx.random.seed(5)
    noise = {"noise": nd.random.normal(shape=(3, 5), dtype="float64").asnumpy()} if name == "sgld" else {}
    mx.random.seed(5)
    expected.update(name, grads, None, **noise)
    steps(trainer, params, grads)
    expected.check(trainer, params)


@pytest.mark.parametrize(("name", "extra"), VARIANTS, ids=named)
def test_update_of_one_parameter(name: str, extra: dict[str, Any]) -> None:
    """`create_state` and `update` as MXNet's Updater calls them are the Trainer's update."""
    (p,) = params = parameters(np.random.default_rng(7), [((3, 5), "float32")])
    w, trainer = p.data().copy(), trainer_of(params, name, CLIP, **extra)
    one = optimizer.create(name, **settings(name, CLIP), **extra, rescale_grad=1 / BATCH)
    state = one.create_state(0, w)
    for grads, _ in updates(name, extra, CLIP, params):
        steps(trainer, params, grads)
        one.update(0, w, nd.array(grads[0]), state)
    assert (w == p.data()).asnumpy().all() and one.t(0) == 5
    made = state if isinstance(state, tuple) else () if state is None else (state,)
    assert [a.asnumpy().tolist() for a in made] == [a.asnumpy().tolist() for a in trainer.state_arrays(["p0"]).values()]


@pytest.mark.parametrize(("name", "extra"), [v for v in VARIANTS if v[0] not in ("test", "adadelta")], ids=named)
def test_multipliers_and_late_parameters(name: str, extra: dict[str, Any]) -> None:
    """Each parameter has its rate, its decay, and its own number of updates."""
    params = parameters(np.random.default_rng(7), [((3, 5), "float32")] * 3)
    params[1].lr_mult, params[2].wd_mult = 0.5, 0.0
    trainer, wd = trainer_of(params, name, CLIP, **extra), settings(name, CLIP)["wd"]
    own = [Expected([p]) for p in params]
    rng = np.random.default_rng(1)
    for step in range(4):
        rates = [RATE * (2 if step == 3 else 1), RATE / 2, RATE]
        params[0].lr_mult = rates[0] / RATE
        for i, (p, expected) in enumerate(zip(params, own, strict=True)):
            if (i, step) == (2, 0):
                continue  # joins late
            (g,) = gradients(rng, [p])
            give(p, g)
            if name == "lars":
                expected.states[0]["_lr"] = rates[i]  # the correction is for changes of the optimizer's own rate
            expected.update(name, [g], CLIP, **extra, lr=rates[i], wd=0.0 if i == 2 else wd)
        trainer.step(BATCH, ignore_stale_grad=True)
    assert [trainer.optimizer.t(i) for i in range(3)] == [4, 4, 3] and trainer.optimizer.num_update == 4
    for p, expected in zip(params, own, strict=True):
        near(p.data(), expected.weights[0], p.name)


# -- what single optimizers have of their own


def test_sgld_draws_from_the_generator_of_the_program() -> None:
    params = parameters(np.random.default_rng(7), [((3, 5), "float32"), ((7,), "float32")])
    trainer, expected = trainer_of(params, "sgld", CLIP), Expected(params)
    mx.random.seed(3)
    noise = [nd.random.normal(shape=p.shape).asnumpy() for p in params for _ in range(1)]
    mx.random.seed(3)
    grads = gradients(np.random.default_rng(1), params)
    steps(trainer, params, grads)
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        want = reference.sgld(expected.weights[i], g, {}, 1, lr=RATE, wd=DECAY, r=0.5, clip=CLIP, noise=noise[i])
        near(p.data(), want, p.name)
    before = params[0].data().asnumpy()
    steps(trainer, params, [0 * g for g in grads])
    moved = params[0].data().asnumpy() - before * (1 - RATE / 2 * DECAY)
    assert np.abs(moved / np.sqrt(RATE) - noise[0]).max() > 0.1  # every update draws anew


def test_sgld_spreads_by_the_rate() -> None:
    (p,) = params = parameters(np.random.default_rng(7), [((200, 100), "float32")])
    before = p.data().asnumpy()
    mx.random.seed(1)
    steps(gluon.Trainer(params, "sgld", {"learning_rate": 0.04}), params, [np.zeros(p.shape)])
    moved = p.data().asnumpy() - before
    assert moved.std() == pytest.approx(0.2, rel=0.02) and abs(moved.mean()) < 0.01


@pytest.mark.parametrize("on_store", [False, True])
def test_sgld_keeps_replicas_equal(on_store: bool) -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    p = Parameter("p", shape=(3, 5))
    p.initialize(ctx=contexts)
    trainer = gluon.Trainer([p], "sgld", {"learning_rate": 0.1}, update_on_kvstore=on_store)
    for _ in range(2):
        for w in p.list_data():
            w._fresh_grad = True
        trainer.step(1)
    first, second = (w.asnumpy() for w in p.list_data())
    assert (first == second).all() and np.abs(first).max() > 0.1


def test_lars_corrects_the_momentum_for_a_new_rate() -> None:
    params = parameters(np.random.default_rng(7), [((3, 5), "float32")] * 6)  # more than MXNet's chunk of four
    schedule = lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.4)
    trainer = gluon.Trainer(params, "lars", {"momentum": 0.9, "eta": 0.1, "lr_scheduler": schedule})
    one_by_one = optimizer.create("lars", momentum=0.9, eta=0.1, lr_scheduler=schedule, rescale_grad=1 / BATCH)
    updater, copies = optimizer.get_updater(one_by_one), [p.data().copy() for p in params]
    expected, rng = Expected(params), np.random.default_rng(1)
    for t in (1, 2, 3):
        grads = gradients(rng, params)
        expected.update("lars", grads, None, momentum=0.9, eta=0.1, lr=schedule(t), wd=0.0)
        steps(trainer, params, grads)
        updater(list(range(6)), [nd.array(g) for g in grads], copies)
    expected.check(trainer, params)
    assert all((p.data() == c).asnumpy().all() for p, c in zip(params, copies, strict=True))


def test_lars_by_names() -> None:
    """Where names are known, gamma, beta and bias have the plain rate, and only weights decay."""
    names = {0: "dense_weight", 1: "dense_bias", 2: "norm_gamma"}
    one = optimizer.LARS(eta=0.1, learning_rate=RATE, wd=DECAY, param_idx2name=names)
    g = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    for i in names:
        w = nd.ones((3, 5))
        one.update(i, w, nd.array(g), one.create_state(i, w))
        formula = reference.lars if i == 0 else reference.sgd
        extra = {"eta": 0.1} if i == 0 else {}
        wd = DECAY if i == 0 else 0.0
        near(w, formula(np.ones((3, 5)), g.astype(float), {}, 1, lr=RATE, wd=wd, r=1.0, clip=None, **extra), names[i])


@pytest.mark.parametrize("name", ["lars", "lamb", "lans", "lbsgd"])
@pytest.mark.parametrize("zero", ["weight", "gradient", "both"])
def test_norms_of_zero(name: str, zero: str) -> None:
    extra = {"warmup_strategy": "lars"} if name == "lbsgd" else {}
    (p,) = params = parameters(np.random.default_rng(7), [((3, 5), "float32")])
    if zero != "gradient":
        p.set_data(nd.zeros((3, 5)))
    g = np.zeros((3, 5)) if zero != "weight" else np.ones((3, 5))
    trainer, expected = gluon.Trainer(params, name, {"learning_rate": RATE, **extra}), Expected(params)
    expected.update(name, [g], None, **extra, wd=0.0)
    steps(trainer, params, [g])
    assert np.abs(p.data().asnumpy() - expected.weights[0]).max() <= TOLERANCE


def test_adamax_of_a_gradient_of_zero() -> None:
    (p,) = params = parameters(np.random.default_rng(7), [((3, 5), "float32")])
    before = p.data().asnumpy()
    steps(gluon.Trainer(params, "adamax"), params, [np.zeros((3, 5))])
    assert (p.data().asnumpy() == before).all()


def test_nadam_does_not_depend_on_the_other_parameters() -> None:
    results = []
    for count in (1, 3):
        params = parameters(np.random.default_rng(7), [((3, 5), "float32")] * count)
        params[-1].set_data(nd.ones((3, 5)))
        trainer = gluon.Trainer(params, "nadam")
        for _ in range(4):
            steps(trainer, params, [np.ones((3, 5))] * count)
        results.append(params[-1].data().asnumpy())
    assert (results[0] == results[1]).all()


def test_nadam_counts_from_where_it_begins() -> None:
    one, other = optimizer.Nadam(), optimizer.Nadam(begin_num_update=1000)
    one.count((0,))
    other.count((0,))
    mu, ahead = other._mu(1001), other._mu(1002)
    assert other.scalars(0)["of_mean"] == pytest.approx(ahead / (1 - mu * ahead))
    for _ in range(20000):  # the product of all mu becomes nothing, and the table of it ends there
        one.count((0,))
    assert one.scalars(0)["of_g"] == pytest.approx(1 - one._mu(20001)) and max(map(len, one._products.values())) < 100


def test_nadam_after_a_change_of_beta1() -> None:
    """Its product is that of the settings of now, whatever has been asked before: as a tape and a resumed one say."""
    changed, new = optimizer.Nadam(beta1=0.9), optimizer.Nadam(beta1=0.5)
    for one in (changed, new):
        for _ in range(3):
            one.count((0,))
    before = changed.scalars(0)
    changed.beta1 = 0.5
    assert changed.scalars(0) == new.scalars(0) != before


def test_lbsgd_asks_the_scheduler_for_the_update_before() -> None:
    seen: list[int] = []

    def schedule(n: int) -> float:
        seen.append(n)
        return 0.1

    one = optimizer.LBSGD(lr_scheduler=schedule)
    for t in range(3):
        one.count((0, 1))
        assert one.rate(0) == one.rate(1) == 0.1 and seen[-2:] == [t, t]


def test_lbsgd_of_an_unknown_strategy() -> None:
    with pytest.warns(UserWarning, match=r"no warmup_strategy 'lineal'.*linear, power2, sqrt, lars"):
        one = optimizer.LBSGD(warmup_strategy="lineal", batch_scale=4, warmup_epochs=1, updates_per_epoch=8)
    assert [one._factor(n) for n in (1, 7, 8)] == [1.0, 1.0, 4.0]


def test_other_names_of_arguments() -> None:
    centered = optimizer.create("rmsprop", rho=0.8, momentum=0.7, centered=True)
    assert (centered.gamma1, centered.gamma2) == (0.8, 0.7)
    for name in ("adagrad", "groupadagrad", "lars"):
        assert optimizer.create(name, epsilon=1e-3).eps == 1e-3
    assert optimizer.contrib.GroupAdaGrad is optimizer.GroupAdaGrad


def test_adadelta_has_no_rate() -> None:
    results = []
    for rate in (0.1, 10.0):
        params = parameters(np.random.default_rng(7), [((3, 5), "float32")])
        params[0].lr_mult = rate
        gradient = gradients(np.random.default_rng(1), params)
        steps(gluon.Trainer(params, "adadelta", {"learning_rate": rate, "wd": DECAY}), params, gradient)
        assert (params[0].grad().asnumpy() == gradient[0]).all()  # MXNet writes r g there
        results.append(params[0].data().asnumpy())
    assert (results[0] == results[1]).all()


def test_ftrl_forgets_a_weight_whose_first_gradient_is_zero() -> None:
    (p,) = params = parameters(np.random.default_rng(7), [((4,), "float32")])
    steps(gluon.Trainer(params, "ftrl"), params, [np.array([0, 1, 0, 1])])
    assert (p.data().asnumpy() == 0).tolist() == [True, False, True, False]


# -- what is refused


@pytest.mark.parametrize("name", ["ftrl", "ftml"])
@pytest.mark.parametrize("way", ["rate", "multiplier", "schedule"])
def test_a_formula_that_divides_by_the_rate_refuses_zero(name: str, way: str) -> None:
    params = parameters(np.random.default_rng(7), [((3, 5), "float32")] * 2)
    arguments: dict[str, Any] = {"learning_rate": 0.0} if way == "rate" else {}
    if way == "schedule":
        arguments["lr_scheduler"] = lr_scheduler.PolyScheduler(2, base_lr=0.1)  # 0 at update 2
    if way == "multiplier":
        params[1].lr_mult = 0.0
    trainer = gluon.Trainer(params, name, arguments)
    if way == "schedule":
        steps(trainer, params, gradients(np.random.default_rng(1), params))
    before, count = [p.data().asnumpy() for p in params], trainer.optimizer.num_update
    with pytest.raises(ZeroDivisionError, match=r"divides by the learning rate, which is 0 for parameter"):
        steps(trainer, params, gradients(np.random.default_rng(1), params))
    assert all((p.data().asnumpy() == w).all() for p, w in zip(params, before, strict=True))
    assert trainer.optimizer.num_update == count and set(trainer.optimizer.counts().values()) == (
        {1} if count else set()
    )


def test_groupadagrad_refuses_other_shapes_than_matrices() -> None:
    params = parameters(np.random.default_rng(7), [((3, 5), "float32"), ((7,), "float32")])
    trainer = gluon.Trainer(params, "groupadagrad")
    with pytest.raises(AssertionError, match=re.escape("GroupAdaGrad updates matrices, and a weight is f32[7]")):
        steps(trainer, params, gradients(np.random.default_rng(1), params))
    assert trainer.optimizer.counts() == {}


def test_groupadagrad_refuses_weight_decay() -> None:
    params = parameters(np.random.default_rng(7), [((3, 5), "float32")] * 2)
    trainer = gluon.Trainer(params, "groupadagrad", {"wd": 0.1})
    params[0].wd_mult = 0.0
    with pytest.raises(AssertionError, match=r"has no weight decay, and parameter 'p1' has 0.1"):
        steps(trainer, params, gradients(np.random.default_rng(1), params))
    assert trainer.optimizer.counts() == {}
    params[1].wd_mult = 0.0
    steps(trainer, params, gradients(np.random.default_rng(1), params))


def test_signum_without_momentum_has_no_outer_decay() -> None:
    with pytest.raises(RuntimeError, match="Signum without momentum has no wd_lh"):
        optimizer.Signum(momentum=0.0, wd_lh=0.1)


def test_an_error_in_the_middle_of_an_update_takes_it_back() -> None:
    def schedule(n: int) -> float:
        if n == 2:
            raise KeyError("no rate for update 2")
        return 0.1

    params = parameters(np.random.default_rng(7), [((3, 5), "float32")])
    trainer = gluon.Trainer(params, "lars", {"lr_scheduler": schedule, "momentum": 0.9})
    steps(trainer, params, gradients(np.random.default_rng(1), params))
    before = params[0].data().asnumpy(), trainer.optimizer.progress()
    with pytest.raises(KeyError):
        steps(trainer, params, gradients(np.random.default_rng(1), params))
    assert (params[0].data().asnumpy() == before[0]).all() and trainer.optimizer.progress() == before[1]


OTHERS: list[tuple[str, dict[str, Any]]] = [("sgld", {}), ("ccsgd", {"momentum": 0.9})]


def first_updates(rule: optimizer.Optimizer) -> list[dict[str, float]]:
    """The scalars of its first five updates of one parameter."""
    told = []
    for _ in range(5):
        rule.count((0,))
        told.append(rule.scalars(0))
    return told


@pytest.mark.parametrize("name", sorted({name for name, _ in [*VARIANTS, *TORCH, *OTHERS]}))
def test_varying_scalars_are_those_that_change(name: str) -> None:
    """A class says which scalars change from update to update; where it does not, at least one does."""
    varies: set[str] = set()
    for extra in (extra for each, extra in [*VARIANTS, *TORCH, *OTHERS] if each == name):
        rule = optimizer.create(name, **{**settings(name, None), **extra})
        told = first_updates(rule)
        varies |= {key for key in told[0] if any(each[key] != told[0][key] for each in told)}
    assert rule.varying is not None or varies
    assert rule.varying is None or varies <= rule.varying
    constant = {key for key in told[0] if rule.is_constant(key)}
    assert constant == (set() if rule.varying is None else told[0].keys() - rule.varying)


def test_scalars_of_a_subclass_and_of_a_schedule_may_vary() -> None:
    class Warm(optimizer.SGD):
        def scalars(self, index: int | str) -> dict[str, float]:
            return {**super().scalars(index), "lr": self.lr * min(1.0, self.t(index) / 3)}

    assert optimizer.SGD().is_constant("lr") and not Warm().is_constant("lr")
    assert not optimizer.SGD(lr_scheduler=lambda n: 1.0 / n).is_constant("lr")
    assert [round(each["lr"], 3) for each in first_updates(Warm(learning_rate=0.3))] == [0.1, 0.2, 0.3, 0.3, 0.3]
