"""Trainers made of optimizers of torch.optim: parameter groups, schedulers, and states both ways."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from torch_cases import CASES, UPDATES, WAYS, Array, gradients, named, near, parameters, shapes_of

import gluongraph as mx
from gluongraph import gluon, nd, optimizer
from gluongraph.errors import FormatError, MXNetError

torch = pytest.importorskip("torch", reason="no torch")
from gluongraph.torch.optimizers import RULES  # noqa: E402
from gluongraph.torch.parameters import remember  # noqa: E402

CUT = 5


class Both:
    """Parameters here, and the tensors that they are of."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtype: str = "float32"):
        self.params = parameters(shapes, dtype)
        self.tensors = [torch.tensor(p.data().asnumpy(), requires_grad=True) for p in self.params]
        for tensor, p in zip(self.tensors, self.params, strict=True):
            remember(tensor, p)
        self.twins = [tensor.detach().clone().requires_grad_() for tensor in self.tensors]  # which torch updates

    def twin(self, given: Any, **extra: Any) -> Any:
        """An optimizer of the twins with the same groups."""
        at = {id(t): i for i, t in enumerate(self.tensors)}
        groups = [{**g, "params": [self.twins[at[id(p)]] for p in g["params"]]} for g in given.param_groups]
        return type(given)(groups, **extra)

    def step_twins(self, given: Any, grads: Sequence[Array]) -> None:
        """An update by torch."""
        for tensor, g in zip(self.twins, grads, strict=True):
            tensor.grad = torch.from_numpy(g.copy()) if tensor.requires_grad else None
        given.step()

    def check(self, tolerance: float = 1e-6) -> None:
        """The parameters are what the twins are."""
        near(self.params, self.twins, tolerance)


def plain(name: str, tensors: Any, options: dict[str, Any]) -> Any:
    return getattr(torch.optim, name)(tensors, **{"lr": 1e-3 if name == "Muon" else 0.02, **options})


SHAPES = [(7,), (8, 5), (4, 9), (3,)]
GROUPS: list[tuple[str, list[dict[str, Any]]]] = [
    ("SGD", [{"lr": 0.1, "momentum": 0.9}, {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.1, "maximize": True}]),
    ("SGD", [{"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"lr": 0.05, "momentum": 0.5, "dampening": 0.2}]),
    ("Adam", [{"lr": 0.1, "betas": (0.5, 0.9)}, {"lr": 0.01, "amsgrad": True, "eps": 1e-3, "weight_decay": 0.1}]),
    ("AdamW", [{"lr": 0.1, "weight_decay": 0.0}, {"lr": 0.01, "weight_decay": 0.3}]),
    ("RMSprop", [{"lr": 0.1, "centered": True}, {"lr": 0.01, "alpha": 0.5, "momentum": 0.9}]),
    ("NAdam", [{"lr": 0.1}, {"lr": 0.01, "momentum_decay": 0.1, "decoupled_weight_decay": True, "weight_decay": 0.1}]),
    ("Rprop", [{"lr": 0.1, "etas": (0.2, 1.1)}, {"lr": 0.01, "step_sizes": (0.001, 0.02)}]),
]


def grouped(both: Both, name: str, options: Sequence[dict[str, Any]]) -> Any:
    """An optimizer with these groups, which the parameters are dealt to in turn."""
    dealt = [both.tensors[i :: len(options)] for i in range(len(options))]
    return getattr(torch.optim, name)([{"params": p, **o} for p, o in zip(dealt, options, strict=True)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "options"), GROUPS, ids=named)
def test_groups_have_options_of_their_own(name: str, options: list[dict[str, Any]], way: str) -> None:
    both = Both(SHAPES)
    given = grouped(both, name, options)
    theirs = both.twin(given)
    update = WAYS[way](both.params, gluon.Trainer.from_torch(given))
    for grads in gradients(SHAPES, "float32"):
        both.step_twins(theirs, grads)
        update(grads)
    both.check()


def one_cycle(given: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(given, max_lr=[0.2, 0.05], total_steps=UPDATES + 1)


def cyclic(given: Any) -> Any:
    return torch.optim.lr_scheduler.CyclicLR(given, base_lr=0.01, max_lr=0.1, step_size_up=3)


def warm_cosine(given: Any) -> Any:
    schedulers = torch.optim.lr_scheduler
    warm = schedulers.LinearLR(given, start_factor=0.1, total_iters=4)
    return schedulers.SequentialLR(given, [warm, schedulers.CosineAnnealingLR(given, 6)], milestones=[4])


def plateau(given: Any) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(given, patience=1)


SCHEDULES = [(make, name) for make in (one_cycle, cyclic, warm_cosine, plateau) for name in ("SGD", "AdamW", "NAdam")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("make", "name"), SCHEDULES, ids=lambda value: getattr(value, "__name__", value))
def test_schedulers_of_torch_go_on_working(make: Callable[[Any], Any], name: str, way: str) -> None:
    """Rates of groups, and what OneCycleLR and CyclicLR make of momentum or betas; and none warns that optimizer.step()
    has not been called."""
    momentum = {"momentum": 0.9} if name == "SGD" else {}
    both = Both(SHAPES)
    given = grouped(both, name, [{"lr": 0.1, **momentum}, {"lr": 0.01, "weight_decay": 0.1, **momentum}])
    theirs = both.twin(given)
    trainer = gluon.Trainer.from_torch(given)
    update, ours, other = WAYS[way](both.params, trainer), make(given), make(theirs)
    for grads in gradients(SHAPES, "float32"):
        both.step_twins(theirs, grads)
        update(grads)
        assert trainer.learning_rate == given.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
        for schedule in (ours, other):
            schedule.step(*([1.0] if make is plateau else []))
    both.check()


def test_asgd_takes_the_rate_of_the_update_before() -> None:
    both = Both(SHAPES)
    given = torch.optim.ASGD(both.tensors, lr=0.1, lambd=0.1)
    theirs, update = both.twin(given), WAYS["eager"](both.params, gluon.Trainer.from_torch(given))
    for i, grads in enumerate(gradients(SHAPES, "float32")):
        both.step_twins(theirs, grads)
        update(grads)
        for each in (given, theirs):
            each.param_groups[0]["lr"] = 0.1 / (i + 2)
    both.check()


@pytest.mark.parametrize(("name", "options"), CASES, ids=named)
def test_states_go_to_torch(name: str, options: dict[str, Any]) -> None:
    both = Both(shapes_of(name))
    given = plain(name, both.tensors, options)
    theirs = both.twin(given)
    trainer = gluon.Trainer.from_torch(given)
    update = WAYS["eager"](both.params, trainer)
    grads = gradients(shapes_of(name), "float32")
    for each in grads[:CUT]:
        update(each)
    theirs.load_state_dict(trainer.torch_state_dict())
    with torch.no_grad():
        for twin, p in zip(both.twins, both.params, strict=True):
            twin.copy_(torch.from_numpy(p.data().asnumpy()))
    for each in grads[CUT:]:
        both.step_twins(theirs, each)
        update(each)
    both.check()


@pytest.mark.parametrize(("name", "options"), CASES, ids=named)
def test_states_come_from_torch(name: str, options: dict[str, Any]) -> None:
    """An optimizer that has stepped is taken over with its states; or its state_dict() by a trainer that is there."""
    for late in (False, True):
        both = Both(shapes_of(name))
        given = plain(name, both.twins, options)
        grads = gradients(shapes_of(name), "float32")
        for each in grads[:CUT]:
            both.step_twins(given, each)
        for p, twin in zip(both.params, both.twins, strict=True):
            p.set_data(nd.array(twin.detach().numpy()))
        ours = plain(name, both.tensors, options)
        if late:
            trainer = gluon.Trainer(both.params, ours)
            trainer.load_torch_state_dict(given.state_dict())
        else:
            ours.load_state_dict(copy.deepcopy(given.state_dict()))  # it keeps the tensors, which `given` writes to
            trainer = gluon.Trainer.from_torch(ours)
        update = WAYS["eager"](both.params, trainer)
        for each in grads[CUT:]:
            both.step_twins(given, each)
            update(each)
        both.check()


def test_a_trainer_without_torch_has_a_state_dict_for_it() -> None:
    both = Both(SHAPES)
    trainer = gluon.Trainer(both.params, "torch.adamw", {"lr": 0.02})
    update, grads = WAYS["eager"](both.params, trainer), gradients(SHAPES, "float32")
    theirs = torch.optim.AdamW(both.twins, lr=0.5)
    for each in grads[:CUT]:
        update(each)
    theirs.load_state_dict(trainer.torch_state_dict())
    with torch.no_grad():
        for twin, p in zip(both.twins, both.params, strict=True):
            twin.copy_(torch.from_numpy(p.data().asnumpy()))
    for each in grads[CUT:]:
        both.step_twins(theirs, each)
        update(each)
    both.check()


def test_two_optimizers_are_one_trainer() -> None:
    """Muon for matrices and AdamW for the rest, as Muon's documentation has it."""
    both = Both(SHAPES)

    def made(tensors: list[Any]) -> list[Any]:
        matrices = [t for t in tensors if t.ndim == 2]
        return [torch.optim.Muon(matrices), torch.optim.AdamW([t for t in tensors if t.ndim != 2], lr=0.01)]

    given, theirs = made(both.tensors), made(both.twins)
    trainer = gluon.Trainer.from_torch(given)
    update = WAYS["compiled"](both.params, trainer)
    for grads in gradients(SHAPES, "float32"):
        for tensor, g in zip(both.twins, grads, strict=True):
            tensor.grad = torch.from_numpy(g.copy())
        for each in theirs:
            each.step()
        update(grads)
    both.check()
    muon, adamw = trainer.torch_state_dict()
    assert set(muon["state"][0]) == {"momentum_buffer"} and float(adamw["state"][1]["step"]) == UPDATES


def test_a_rate_that_is_set_is_that_of_torch_too() -> None:
    both = Both(SHAPES)
    given = grouped(both, "SGD", [{"lr": 0.1}, {"lr": 0.01}])
    trainer = gluon.Trainer.from_torch(given)
    trainer.set_learning_rate(0.5)
    assert [group["lr"] for group in given.param_groups] == [0.5, 0.5]
    given.param_groups[0]["lr"] = torch.tensor(0.25)
    assert trainer.learning_rate == 0.25


def test_frozen_parameters_and_parameters_without_a_group_stay() -> None:
    both = Both(SHAPES)
    both.params[0].grad_req = "null"
    trainer = gluon.Trainer(both.params, torch.optim.SGD(both.tensors[:2], lr=0.1))
    before = [p.data().asnumpy() for p in both.params]
    WAYS["eager"](both.params[1:2], trainer)([np.ones(SHAPES[1], np.float32)])
    changed = [not np.array_equal(p.data().asnumpy(), b) for p, b in zip(both.params, before, strict=True)]
    assert changed == [False, True, False, False] and len(trainer.params) == 2


def test_a_checkpoint_holds_the_options_of_all_groups(tmp_path: Any) -> None:
    """A resumed step goes on with them, and the optimizer of torch has them."""
    results, rates = [], []
    grads = gradients(SHAPES, "float32")
    for cut in (None, CUT):
        both = Both(SHAPES)
        given = grouped(both, "NAdam", [{"lr": 0.1}, {"lr": 0.01, "betas": (0.5, 0.9)}])
        step = compiled_step(both, given)
        for i, each in enumerate(grads):
            if i == cut:
                step.save(str(tmp_path / "checkpoint"))
                both = Both(SHAPES)
                given = grouped(both, "NAdam", [{"lr": 1.0}, {"lr": 1.0}])
                step = compiled_step(both, given)
                step.load(str(tmp_path / "checkpoint"))
                assert [group["lr"] for group in given.param_groups] == rates[-1]
                assert given.param_groups[1]["betas"] == (0.5, 0.9)
            step(*(nd.array(g) for g in each), batch_size=1)
            for group in given.param_groups:
                group["lr"] *= 0.9
            rates.append([group["lr"] for group in given.param_groups])
        results.append([p.data().asnumpy() for p in both.params])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def compiled_step(both: Both, given: Any) -> Any:
    def loss(*gradients: nd.NDArray) -> nd.NDArray:
        return nd.add_n(*((p.data() * g).sum() for p, g in zip(both.params, gradients, strict=True)))

    return mx.compile(loss, trainer=gluon.Trainer.from_torch(given))


def test_an_exported_step_has_the_rates_of_all_groups(tmp_path: Any) -> None:
    both = Both(SHAPES, "float64")
    given = grouped(both, "RAdam", [{"lr": 0.1}, {"lr": 0.01, "betas": (0.5, 0.9), "weight_decay": 0.1}])
    theirs, step = both.twin(given), compiled_step(both, given)
    grads = gradients(SHAPES, "float64")
    for each in grads[:CUT]:
        both.step_twins(theirs, each)
        step(*(nd.array(g, dtype="float64") for g in each), batch_size=1)
    step.export(str(tmp_path / "step.gga"))
    loaded = mx.load(str(tmp_path / "step.gga"))
    for each in grads[CUT:]:
        both.step_twins(theirs, each)
        loaded(*(nd.array(g, dtype="float64") for g in each), batch_size=1)
    found = {p.name: p for p in loaded.trainer.params}
    for p, twin in zip((found[f"p{i}"] for i in range(len(both.twins))), both.twins, strict=True):
        want = twin.detach().numpy()
        assert np.abs(p.data().asnumpy() - want).max() <= 1e-6 * np.abs(want).max()


# -- what cannot be


def test_a_tensor_of_no_net() -> None:
    with pytest.raises(MXNetError, match=r"tensor 0 of the optimizer, of shape \(3,\).*(.|\n)*mx.from_torch\(model"):
        gluon.Trainer.from_torch(torch.optim.SGD([torch.zeros(3, requires_grad=True)]))


def test_a_closure_cannot_be() -> None:
    both = Both(SHAPES)
    with pytest.raises(MXNetError, match=r"torch.optim.lbfgs.LBFGS: it evaluates the loss several times") as error:
        gluon.Trainer.from_torch(torch.optim.LBFGS(both.tensors))
    assert "Adadelta, Adagrad, Adam, AdamW" in str(error.value)


def test_an_optimizer_of_somebody_else_cannot_be() -> None:
    class Adam(torch.optim.Adam):  # type: ignore[misc, name-defined]
        """May step in another way."""

    both = Both(SHAPES)
    with pytest.raises(MXNetError, match=r"Adam: its formula is not known here"):
        gluon.Trainer.from_torch(Adam(both.tensors))


def test_parameters_of_another_net() -> None:
    both = Both(SHAPES)
    with pytest.raises(ValueError, match="updates p1, p2, p3, and the parameters given do not hold that"):
        gluon.Trainer(both.params[:1], torch.optim.SGD(both.tensors))


def test_options_beside_an_optimizer_that_has_them() -> None:
    both = Both(SHAPES)
    with pytest.raises(AssertionError, match="optimizer_params beside an optimizer of torch: lr"):
        gluon.Trainer(both.params, torch.optim.SGD(both.tensors), {"lr": 0.1})


def test_what_is_no_optimizer_of_torch() -> None:
    with pytest.raises(TypeError, match=r"from_torch takes an optimizer of torch.optim, not str"):
        gluon.Trainer.from_torch("sgd")


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_rate_changes_nothing(way: str) -> None:
    both = Both(SHAPES)
    given = torch.optim.Adam(both.tensors, lr=0.1)
    trainer = gluon.Trainer.from_torch(given)
    update, grads = WAYS[way](both.params, trainer), gradients(SHAPES, "float32")
    update(grads[0])
    before = [p.data().asnumpy() for p in both.params], trainer.optimizer.counts()
    given.param_groups[0]["lr"] = -0.1
    with pytest.raises(ValueError, match=r"Adam: lr must be finite and at least 0, not -0.1"):
        update(grads[1])
    given.param_groups[0]["lr"] = 0.1
    assert trainer.optimizer.counts() == before[1]
    for p, weight in zip(both.params, before[0], strict=True):
        np.testing.assert_array_equal(p.data().asnumpy(), weight)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["SGD", "Adam", "NAdam", "RMSprop", "ASGD"])
def test_groups_that_come_later(name: str, way: str) -> None:
    """Their updates are counted from when they came, and their options are their own."""
    both = Both(SHAPES)
    given = plain(name, both.tensors[:2], {})
    theirs, trainer = both.twin(given), gluon.Trainer(both.params, given)
    update = WAYS[way](both.params, trainer)
    for i, grads in enumerate(gradients(SHAPES, "float32")):
        if i == 3:
            given.add_param_group({"params": both.tensors[2:], "lr": 0.05, "weight_decay": 0.1})
            theirs.add_param_group({"params": both.twins[2:], "lr": 0.05, "weight_decay": 0.1})
            assert trainer.learning_rate == given.param_groups[0]["lr"]
        if i == 5:
            given.param_groups[1]["lr"] = theirs.param_groups[1]["lr"] = 0.03
        both.step_twins(theirs, grads)
        update(grads)
    both.check()
    assert len(trainer.params) == 4
    assert trainer.torch_state_dict()["state"].keys() == theirs.state_dict()["state"].keys()


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_tensors_that_are_frozen_for_a_while(name: str) -> None:
    """Compiled steps follow. They keep their values and states meanwhile, without decay."""
    both = Both(SHAPES)
    given = plain(name, both.tensors, {"weight_decay": 0.1})
    theirs, update = both.twin(given), WAYS["compiled"](both.params, gluon.Trainer(both.params, given))
    for i, grads in enumerate(gradients(SHAPES, "float32")):
        if i in (2, 5):
            for tensor in (*both.tensors[:2], *both.twins[:2]):
                tensor.requires_grad_(i == 5)
        both.step_twins(theirs, grads)
        for twin in both.twins:
            twin.grad = None
        update(grads)
    both.check()


def test_parameters_that_come_in_another_way() -> None:
    both = Both(SHAPES)
    given = torch.optim.Adam(both.tensors[:2])
    trainer = gluon.Trainer(both.params, given)
    given.param_groups[0]["params"].append(both.tensors[2])
    with pytest.raises(MXNetError, match="parameters in the groups of the optimizer of torch were changed"):
        _ = trainer.learning_rate


def test_states_of_other_options() -> None:
    both = Both(SHAPES)
    given = torch.optim.Adam(both.twins)
    both.step_twins(given, gradients(SHAPES, "float32")[0])
    trainer = gluon.Trainer.from_torch(torch.optim.Adam(both.tensors, amsgrad=True))
    state = copy.deepcopy(given.state_dict())
    state["param_groups"][0]["amsgrad"] = True
    with pytest.raises(FormatError, match=r"has exp_avg, exp_avg_sq, step, and .* needs max_exp_avg_sq"):
        trainer.load_torch_state_dict(state)
    assert trainer.optimizer.counts() == {}


def test_every_optimizer_of_torch_is_known_but_three() -> None:
    classes = {name for name, cls in vars(torch.optim).items() if isinstance(cls, type)}
    assert classes - set(RULES) == {"Optimizer", "LBFGS", "Adafactor", "SparseAdam"}


def test_members_of_other_optimizers() -> None:
    """Groups are no matter of torch: SGD for one parameter, LAMB for another; LARS carries numbers of its own."""
    params = parameters([(3,), (4, 2)], "float32")
    alone = parameters([(3,), (4, 2)], "float32")
    rules = [optimizer.SGD(learning_rate=0.5, momentum=0.5), optimizer.LAMB(learning_rate=0.25, wd=0.1)]
    trainers = [gluon.Trainer([p], copy.copy(rule)) for p, rule in zip(alone, rules, strict=True)]
    both = gluon.Trainer(params, optimizer.ParameterGroups(rules, {0: 0, 1: 1}))
    for grads in gradients([(3,), (4, 2)], "float32", 3):
        WAYS["eager"](params, both)(grads)
        for p, trainer, g in zip(alone, trainers, grads, strict=True):
            WAYS["eager"]([p], trainer)([g])
    for p, q in zip(params, alone, strict=True):
        np.testing.assert_array_equal(p.data().asnumpy(), q.data().asnumpy())
    with pytest.raises(MXNetError, match="LARS keeps numbers between updates of all parameters"):
        optimizer.ParameterGroups([optimizer.LARS()], {})
    with pytest.raises(ValueError, match="parameter 3 belongs to group 1, and there are 1"):
        optimizer.ParameterGroups([optimizer.SGD()], {3: 1})
