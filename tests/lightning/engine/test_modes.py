"""Fused, staged and eager steps are one training; what cannot be compiled is refused, or computed by PyTorch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from nets import QUIET, GluonModel, data, loader, weights

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph.errors import IndexRangeError, MXNetError, TraceError


class Plain(GluonModel):
    """Without dropout, whose numbers eager and compiled steps draw in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.net[2]._rate = 0.0


class Staged(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.norms: list[float] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        trained = [p for p in self.collect_params().values() if p.grad_req != "null"]
        self.norms.append(float(sum((p.grad() ** 2).sum().asscalar() for p in trained)))


class Manual(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(super().training_step(batch, batch_idx))
        self.optimizers().step(1)


def fit(model: Any, **how: Any) -> Any:
    mx.random.seed(1)
    trainer = L.Trainer(**{"max_epochs": 2, **QUIET, **how})
    trainer.fit(model, loader(), loader(16))
    return trainer


@pytest.mark.parametrize("how", [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.05}])
def test_gluon_modes_agree(how: dict[str, Any]) -> None:
    fused, staged = fit(model := Plain(), **how), fit(other := Staged(), **how)
    assert (fused.engines.mode, staged.engines.mode) == ("fused", "staged")
    for left, right in zip(weights(model), weights(other), strict=True):
        assert np.allclose(left, right, atol=2e-6)
    assert len(other.norms) == fused.global_step and min(other.norms) > 0
    fit(by_itself := Plain(), eager=True, **how)
    for left, right in zip(weights(model), weights(by_itself), strict=True):
        assert np.allclose(left, right, atol=2e-6)
    if not how:
        eager = fit(third := Manual())
        assert eager.engines.mode == "eager"
        for left, right in zip(weights(model), weights(third), strict=True):
            assert np.allclose(left, right, atol=2e-6)


def test_gradients_may_be_changed() -> None:
    class Halved(Staged):
        def on_after_backward(self) -> None:
            for parameter in self.collect_params().values():
                if parameter.grad_req != "null":
                    parameter.grad()[:] = parameter.grad() * 0

    before = weights(model := Halved())
    fit(model)
    assert not any(model.norms)
    trained = [i for i, p in enumerate(model.collect_params().values()) if p.grad_req != "null"]
    assert all(np.array_equal(before[i], weights(model)[i]) for i in trained)


@pytest.mark.parametrize("use", ["batch_idx % 2 == 0", "float(batch_idx)", "f'{batch_idx}'", "[0, 1][batch_idx]"])
def test_the_number_of_a_batch_has_no_value(use: str) -> None:
    class Asks(GluonModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            eval(use)
            return super().training_step(batch, batch_idx)

    with pytest.raises(TraceError, match=r"asks for the value of batch_idx"):
        fit(Asks())


@pytest.mark.parametrize(
    ("result", "said"),
    [("1.0", "gave float"), ("{'los': 1}", "without the key 'loss'"), ("'loss'", "gave str"), ("[]", "gave list")],
)
def test_training_step_gives_a_loss(result: str, said: str) -> None:
    class Wrong(GluonModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return eval(result)

    with pytest.raises(L.MisconfigurationException, match=said):
        fit(Wrong())


def test_a_step_that_gives_none_is_counted() -> None:
    class Nothing(GluonModel):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            return None

    before = weights(model := Nothing())
    trainer = fit(model)
    assert trainer.global_step == 10 and trainer.counters.steps_skipped == 10
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(model), strict=True))


@pytest.mark.parametrize("how", ["detached", "blocked", "other", "frozen", "integral"])
@pytest.mark.parametrize("kind", [Plain, Staged])
def test_a_loss_that_trains_nothing_is_refused(how: str, kind: Any) -> None:
    class Model(kind):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            if how == "integral":
                return (self.net(batch[0]).argmax(axis=1) == batch[1]).mean()
            return {
                "detached": lambda: loss.detach(),
                "blocked": lambda: {"loss": mx.nd.BlockGrad(loss)},
                "other": lambda: batch[0].mean(),
            }.get(how, lambda: loss)()

    before = weights(model := Model())
    if how == "frozen":
        model.collect_params().setattr("grad_req", "null")
    with pytest.raises(L.MisconfigurationException, match=r"depends on no parameter that is trained\n[\s\S]*grad_req"):
        fit(model)
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_a_loss_that_trains_a_part() -> None:
    class Part(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            hidden = self.net[2](self.net[1](self.net[0](batch[0]))).detach()
            return self.loss(self.net[3](hidden), batch[1]).mean()

    before = weights(model := Part())
    fit(model)
    changed = [not np.array_equal(a, b) for a, b in zip(before, weights(model), strict=True)]
    assert changed[:2] == [False, False] and changed[-2:] == [True, True]


def test_a_vector_cannot_be_logged() -> None:
    class Vector(GluonModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("losses", self.loss(self.net(batch[0]), batch[1]))
            return super().training_step(batch, batch_idx)

    with pytest.raises(L.MisconfigurationException, match=r"'losses'.*has one element, not \(8,\)"):
        fit(Vector())


def test_numbers_of_pythons_are_logged_as_the_step_reads_them() -> None:
    """Those of attributes and of the Trainer are followed; of others a warning says that they are constants."""
    calls = []

    class Number(GluonModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            calls.append(0)
            self.log("epoch_now", float(self.current_epoch))
            self.log("calls", len(calls))
            return super().training_step(batch, batch_idx)

    with pytest.warns(UserWarning, match="constant of"):
        trainer = fit(Number(), max_epochs=3)
    assert float(trainer.callback_metrics["epoch_now"]) == 2.0
    assert float(trainer.callback_metrics["calls"]) == len(calls) == 3


def test_torch_steps_that_keep_arrays_are_refused_and_put_back() -> None:
    torch = pytest.importorskip("torch")

    class Keeps(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.kept = torch.nn.Linear(6, 3), [1]

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.layer(batch[0]).sum()
            self.kept.append(loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.kept.append(self.layer(batch[0]).sum())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    x, y = map(torch.from_numpy, data())
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y.long()), batch_size=8)
    model = Keeps()
    with pytest.raises(MXNetError, match=r"training_step keeps arrays in self\.kept"):
        L.Trainer(max_epochs=1, **QUIET).fit(model, batches)
    assert model.kept == [1]
    with pytest.warns(UserWarning, match="validation_step is not compiled, and runs in PyTorch"):
        L.Trainer(**QUIET).validate(model, batches, verbose=False)
    assert len(model.kept) == 6 and isinstance(float(model.kept[1]), float)
    model = Keeps()
    L.Trainer(max_epochs=1, eager=True, **QUIET).fit(model, batches)
    assert len(model.kept) == 6


def test_a_buffer_that_is_none_is_no_place_for_arrays() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        self.hidden = self.layer(batch[0]).detach() + (0 if self.hidden is None else self.hidden)
        return (self.layer(batch[0]) - self.hidden).pow(2).mean()

    model = linear(torch, training_step=training_step)()
    model.register_buffer("hidden", None)
    with pytest.raises(MXNetError, match=r"training_step keeps arrays in self\.hidden"):
        L.Trainer(max_epochs=1, **QUIET).fit(model, [(torch.ones(4, 6),)] * 2)
    assert model.hidden is None


def linear(torch: Any, **methods: Any) -> Any:
    """A module of one layer, with these methods."""

    class Linear(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 3)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    for name, method in methods.items():
        setattr(Linear, name, method)
    return Linear


def test_a_torch_loss_that_trains_nothing_is_refused() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.layer(batch[0]).detach().mean()}

    batches = [(torch.ones(4, 6),)] * 2
    with pytest.raises(L.MisconfigurationException, match="depends on no parameter that is trained"):
        L.Trainer(max_epochs=1, **QUIET).fit(linear(torch, training_step=training_step)(), batches)


def test_the_number_of_a_batch_is_no_result() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.layer(batch[0]).mean(), "number": batch_idx}

    batches = [(torch.ones(4, 6),)] * 2
    with pytest.raises(MXNetError, match=r"(?s)the value of batch_idx.*help: do that in on_train_batch_start"):
        L.Trainer(max_epochs=1, **QUIET).fit(linear(torch, training_step=training_step)(), batches)


def test_torch_branches_are_refused_with_the_line() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(batch[0]).sum()
        return loss if loss > 0 else -loss  # the line

    batches = [(torch.ones(4, 6),)] * 2
    with pytest.raises(
        MXNetError, match=r"(?s)training_step.*asks for the elements.*test_modes.py:\d+ in training_step"
    ):
        L.Trainer(max_epochs=1, **QUIET).fit(linear(torch, training_step=training_step)(), batches)


def test_gradients_within_a_torch_step_are_refused_with_the_line() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        x = batch[0].clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(self.layer(x).pow(2).sum(), x, create_graph=True)
        return slope.pow(2).mean()

    batches, model = [(torch.ones(4, 6),)] * 2, linear(torch, training_step=training_step)()
    with pytest.raises(
        MXNetError,
        match=r"(?s)autograd\.grad within it.*test_modes.py:\d+ in training_step.*Trainer\(\.\.\., eager=True",
    ):
        L.Trainer(max_epochs=1, **QUIET).fit(model, batches)
    before = model.layer.weight.detach().clone()
    L.Trainer(max_epochs=1, eager=True, **QUIET).fit(model, batches)
    assert not torch.equal(before, model.layer.weight)


@pytest.mark.parametrize("name", ["masked_select", "unique_consecutive", "_sample_dirichlet"])
def test_operators_that_do_not_exist_are_refused_with_the_line(name: str) -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        scores = self.layer(batch[0])
        values = scores.exp() if name == "_sample_dirichlet" else scores
        return getattr(torch, name)(*[values, scores > 0][: 2 if name == "masked_select" else 1]).sum()

    batches, model = [(torch.ones(4, 6),)] * 2, linear(torch, training_step=training_step)()
    with pytest.raises(MXNetError, match=rf"(?s){name}.*test_modes\.py:\d+.*or L\.Trainer\(\.\.\., eager=True\)"):
        L.Trainer(max_epochs=1, **QUIET).fit(model, batches)


def test_generators_of_pytorch_are_refused_with_the_line() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).sum() * torch.rand((), generator=self.draws)

    model = linear(torch, training_step=training_step)()
    model.draws = torch.Generator()
    with pytest.raises(MXNetError, match=r"(?s)torch\.Generator.*test_modes\.py:\d+.*leave generator=.*eager=True"):
        L.Trainer(max_epochs=1, **QUIET).fit(model, [(torch.ones(4, 6),)] * 2)


@pytest.mark.parametrize("draw", ["random.random()", "numpy.random.rand()", "self.draws.random()"])
def test_random_numbers_of_python_are_refused_with_the_line(draw: str) -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        share = {"random": random.random, "numpy": np.random.rand, "self": self.draws.random}[draw.split(".")[0]]
        return self.layer(batch[0]).sum() * share()  # the line

    def validation_step(self: Any, batch: Any, batch_idx: int) -> None:
        self.log("drawn", np.random.rand())

    methods = {"training_step": training_step, "validation_step": validation_step}
    batches, model = [(torch.ones(4, 6),)] * 2, linear(torch, **methods)()
    model.draws = np.random.default_rng(0)
    line = training_step.__code__.co_firstlineno + (0 if draw.startswith("self") else 2)
    said = rf"(?s)draws random numbers.*test_modes\.py:{line} in training_step.*on_train_batch_start"
    with pytest.raises(MXNetError, match=said):
        L.Trainer(max_epochs=1, **QUIET).fit(model, batches)
    np.random.seed(3)
    with pytest.warns(UserWarning, match="validation_step is not compiled, and runs in PyTorch"):
        found = L.Trainer(**QUIET).validate(model, batches, verbose=False)
    np.random.seed(3)
    assert found[0]["drawn"] == pytest.approx(np.mean([np.random.rand(), np.random.rand()]), rel=1e-6)


@pytest.mark.parametrize("seed", ["torch.manual_seed", "torch.seed"])
def test_seeds_in_a_step_are_refused_with_the_line(seed: str) -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        torch.manual_seed(7) if seed == "torch.manual_seed" else torch.seed()
        return self.layer(batch[0]).sum() * torch.rand(())

    torch.manual_seed(3)
    before, line = torch.get_rng_state(), training_step.__code__.co_firstlineno + 1
    model = linear(torch, training_step=training_step)()
    torch.set_rng_state(before)
    with pytest.raises(MXNetError, match=rf"(?s)sets a seed.*test_modes\.py:{line} in training_step.*eager=True"):
        L.Trainer(max_epochs=1, **QUIET).fit(model, [(torch.ones(4, 6),)] * 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_elements_of_a_torch_step_may_be_logged() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        scores = self.layer(batch[0])
        loss = scores.pow(2).mean()
        self.log("loss", loss.item(), on_step=False, on_epoch=True)
        self.log("hits", (scores.argmax(1) == 0).sum().item() / len(scores), on_step=False, on_epoch=True)
        return {"loss": loss, "value": 2 * loss.item()}

    def on_train_batch_end(self: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen = float(outputs["value"])

    found = []
    for eager in (False, True):
        torch.manual_seed(0)
        model = linear(torch, training_step=training_step, on_train_batch_end=on_train_batch_end)()
        trainer = L.Trainer(max_epochs=2, eager=eager, **QUIET)
        trainer.fit(model, [(torch.linspace(-1, 1, 24).reshape(4, 6),)] * 2)
        found.append([model.seen, *(float(trainer.callback_metrics[name]) for name in ("loss", "hits"))])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_weights_that_hooks_of_layers_compute() -> None:
    torch = pytest.importorskip("torch")
    prune, utils, found = pytest.importorskip("torch.nn.utils.prune"), torch.nn.utils, []

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return (self.layer(batch[0]) - 1).pow(2).mean()

    for eager in (False, True):
        torch.manual_seed(0)
        model = linear(torch, training_step=training_step)()
        first, second, third = (torch.nn.Linear(6, 6) for _ in range(3))
        prune.l1_unstructured(third, "weight", 0.5)
        model.layer = torch.nn.Sequential(utils.weight_norm(first), utils.spectral_norm(second), third)
        L.Trainer(max_epochs=2, eager=eager, **QUIET).fit(model, [(torch.linspace(0, 1, 24).reshape(4, 6),)] * 2)
        found.append(model.state_dict())
    for name, value in found[1].items():
        assert np.allclose(found[0][name], value, atol=1e-5), name


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # as PyTorch imports its own parts
def test_a_module_that_torch_compile_was_given() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).pow(2).mean()

    model = linear(torch, training_step=training_step)()
    trainer = L.Trainer(max_epochs=1, **QUIET)
    trainer.fit(torch.compile(model), [(torch.ones(4, 6),)] * 2)
    assert trainer.lightning_module is model and trainer.global_step == 2


def test_attributes_may_have_any_name() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return self.blocks(self.layer(batch[0])).pow(2).mean()

    model = linear(torch, training_step=training_step)()
    model.blocks = torch.nn.Sequential(torch.nn.Linear(3, 3))
    L.Trainer(max_epochs=1, **QUIET).fit(model, [(torch.ones(4, 6),)] * 2)
    model.freeze()
    assert not model.blocks[0].weight.requires_grad


def test_classes_out_of_range_are_refused_with_the_line() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])  # the line

    line = training_step.__code__.co_firstlineno + 1
    model = linear(torch, training_step=training_step)()
    with pytest.raises(IndexRangeError, match=rf"3 at 0 is not.*\n.*test_modes\.py:{line}"):
        L.Trainer(max_epochs=1, **QUIET).fit(model, [(torch.ones(2, 6), torch.tensor([3, 0]))] * 2)


def test_what_is_wrong_in_a_torch_step_is_said_as_in_gluons() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        self.log("output", self.layer(batch[0]))
        return self.layer(batch[0]).sum()

    model = linear(torch, training_step=training_step)()
    with pytest.raises(MXNetError, match=r"(?s)has one element, not \(4, 3\).*help: value.mean\(\)"):
        L.Trainer(max_epochs=1, **QUIET).fit(model, [(torch.ones(4, 6),)] * 2)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("layers", ["gluon", "torch"])
def test_a_loss_is_one_number(layers: str, eager: bool) -> None:
    class Gluon(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(self.net(batch[0]), batch[1])

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).sum(1)

    if layers == "gluon":
        model: Any = Gluon()
    else:
        model = linear(pytest.importorskip("torch"), training_step=training_step)()
    said = r"(?s)loss of shape \(8,\).*test_modes.py.*return loss.mean\(\)"
    with pytest.raises(L.MisconfigurationException, match=said):
        L.Trainer(max_epochs=1, eager=eager, **QUIET).fit(model, loader(8))


def test_arrays_are_tensors_for_torch_modules_that_run_eagerly() -> None:
    torch = pytest.importorskip("torch")

    def training_step(self: Any, batch: Any, batch_idx: int) -> None:
        self.seen = batch
        self.optimizers().zero_grad()
        self.manual_backward(torch.nn.functional.cross_entropy(self.layer(batch["x"]), batch["y"].long()))
        self.optimizers().step()

    x, y = data()
    model, own = linear(torch, training_step=training_step)(), torch.ones(8)
    model.automatic_optimization = False
    batch = {"x": x[:8], "y": y[:8], "own": own, "name": "first", "scale": np.float32(2)}
    L.Trainer(max_epochs=1, **QUIET).fit(model, [batch])
    seen = model.seen
    assert torch.is_tensor(seen["x"]) and np.array_equal(seen["y"], y[:8]) and seen["scale"].shape == ()
    assert seen["own"] is own and seen["name"] == "first"


WRONG: dict[str, tuple[Any, str]] = {
    "vector": (lambda m, loss, x: m.log("x", x), "one element, not"),
    "twice": (lambda m, loss, x: (m.log("x", loss), m.log("x", loss, prog_bar=True)), "called twice"),
    "reduction": (lambda m, loss, x: m.log("x", loss, reduce_fx="median"), "reduce_fx='median'"),
    "dict": (lambda m, loss, x: m.log("x", {"a": loss}), "a dict was given"),
    "text": (lambda m, loss, x: m.log("x", "text"), "one element, not str"),
    "nowhere": (lambda m, loss, x: m.log_dict({"x": loss}, on_step=False, on_epoch=False), "nobody would see it"),
}


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("what", WRONG)
def test_what_is_logged_wrongly_in_a_torch_step_is_the_users_mistake(what: str, eager: bool) -> None:
    """The error is that of self.log, in each mode, and does not advise another one."""
    torch = pytest.importorskip("torch")
    log, message = WRONG[what]

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(6, 3)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.net(batch[0]).mean()
            log(self, loss, batch[0])
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    with pytest.raises(L.MisconfigurationException, match=message) as error:
        L.Trainer(max_epochs=1, eager=eager, **QUIET).fit(Model(), loader())
    assert "test_modes.py" in str(error.value) and "eager=True" not in str(error.value)
