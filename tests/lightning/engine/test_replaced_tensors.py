"""What hooks do to parameters and to the optimizer's state between batches: compiled steps go on as PyTorch's do."""

from __future__ import annotations

import copy
import pathlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import gluongraph.lightning as L
from gluongraph.errors import FormatError, MXNetError
from gluongraph.lightning.errors import MisconfigurationException

torch = pytest.importorskip("torch")
BATCHES, AT, BACK = 8, 3, 5
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
}
Change = Callable[["Model"], Any]


class Model(L.LightningModule):
    """Two layers; `change` is called after update `AT`, and `back` after update `BACK`."""

    def __init__(self, change: Change, back: Change, optimizer: Any, tied: bool = False):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        if tied:
            self.last.weight = self.first.weight
        self.register_buffer("scale", torch.ones(4))
        vars(self).update(change=change, back=back, make=optimizer, kept={})

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return ((self.last(torch.tanh(self.first(batch[0]))) * self.scale - batch[1]) ** 2).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters())

    def on_train_batch_end(self, *args: Any) -> None:
        if self.global_step in (AT, BACK):
            (self.change if self.global_step == AT else self.back)(self)

    @property
    def state(self) -> Any:
        return self.optimizers().state


class Staged(Model):
    """The same, trained in the staged mode."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Nothing."""


def _loader() -> Any:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(4 * BATCHES, 4), torch.randn(4 * BATCHES, 4))
    return torch.utils.data.DataLoader(data, 4)


def _adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.05)


def _nothing(module: Model) -> None:
    """Change nothing."""


def fitted(
    mode: str, change: Change, back: Change = _nothing, optimizer: Any = _adam, tied: bool = False
) -> tuple[Model, Any]:
    module = (Staged if mode == "staged" else Model)(change, back, optimizer, tied)
    trainer = L.Trainer(max_epochs=1, eager=mode == "eager", val_check_interval=4, num_sanity_val_steps=0, **QUIET)
    trainer.fit(module, _loader(), _loader())
    return module, trainer


def _zero(module: Model) -> None:
    module.state[module.first.weight]["exp_avg"].zero_()


def _other_dictionary(module: Model) -> None:
    module.optimizers().optimizer.state = defaultdict(dict)


def _halved(module: Model) -> None:
    told = copy.deepcopy(module.optimizers().state_dict())
    for state in told["state"].values():
        state["exp_avg"] /= 2
    module.optimizers().optimizer.load_state_dict(told)


def _replaced(module: Model) -> None:
    module.first.weight = torch.nn.Parameter(torch.full((4, 4), 0.1))


def _swapped(module: Model) -> None:
    module.kept["weight"], module.kept["scale"] = module.first.weight, module.scale
    module.first.weight = torch.nn.Parameter(torch.full((4, 4), 0.1))
    module.scale = torch.full((4,), 2.0)


def _swapped_back(module: Model) -> None:
    module.first.weight, module.scale = module.kept["weight"], module.kept["scale"]


CHANGES: dict[str, tuple[Change, Change]] = {
    "state.clear()": (lambda m: m.state.clear(), _nothing),
    "state.clear(), twice": (lambda m: m.state.clear(), lambda m: m.state.clear()),
    "state.pop(p)": (lambda m: m.state.pop(m.first.weight), _nothing),
    "state[p][name].zero_()": (_zero, _nothing),
    "state = {}": (_other_dictionary, _nothing),
    "load_state_dict": (_halved, _nothing),
    "a parameter is replaced": (_replaced, _nothing),
    "a parameter and a buffer are replaced, and put back": (_swapped, _swapped_back),
    "a replaced parameter is frozen": (_replaced, lambda m: m.first.weight.requires_grad_(False)),
}


@pytest.mark.filterwarnings("ignore:self.first.weight has been replaced")
@pytest.mark.parametrize("mode", ["fused", "staged"])
@pytest.mark.parametrize("what", CHANGES)
def test_training_goes_on_as_in_pytorch(what: str, mode: str) -> None:
    change, back = CHANGES[what]
    (module, trainer), (wanted, by_torch) = fitted(mode, change, back), fitted("eager", change, back)
    assert (trainer.engines.mode, by_torch.engines.mode) == (mode, "eager")
    for name, tensor in wanted.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, atol=2e-6, rtol=2e-5, msg=name)
    ours, its = (float(each.callback_metrics["val_loss"]) for each in (trainer, by_torch))
    assert ours == pytest.approx(its, rel=1e-5)
    untouched, _ = fitted(mode, _nothing)
    assert not torch.equal(untouched.last.weight, module.last.weight)  # the change has had an effect


OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": _adam,
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_tells_the_states_of_now(name: str) -> None:
    told: list[Any] = []

    def look(module: Model) -> None:
        told.append(copy.deepcopy(module.optimizers().state_dict()))

    (module, trainer), (_, by_torch) = (fitted(mode, look, look, OPTIMIZERS[name]) for mode in ("fused", "eager"))
    told += [each.optimizers[0].state_dict() for each in (trainer, by_torch)]
    pairs = [(told[0], told[2]), (told[1], told[3]), (told[4], told[5])]
    for ours, wanted in pairs:
        assert ours["state"].keys() == wanted["state"].keys() == {0, 1, 2, 3}
        for number, state in wanted["state"].items():
            assert ours["state"][number].keys() >= {k for k, v in state.items() if v is not None and k != "mu"}
            for key, value in ours["state"][number].items():
                torch.testing.assert_close(value, state[key].to(value.dtype), atol=1e-5, rtol=1e-4)
    state = trainer.optimizers[0].state
    assert len(state) == 4 and module.first.weight in state and set(state) == set(module.parameters())
    assert copy.copy(state) == dict(state) == copy.deepcopy(state).__class__(dict, state)


def test_a_checkpoint_has_the_states_that_were_written(tmp_path: pathlib.Path) -> None:
    def clear_and_save(module: Model) -> None:
        module.state.clear()
        module.trainer.save_checkpoint(tmp_path / "cleared")

    module, _ = fitted("fused", clear_and_save)
    again = Model(_nothing, _nothing, _adam)
    trainer = L.Trainer(max_epochs=1, **QUIET)
    trainer.fit(again, _loader(), ckpt_path=tmp_path / "cleared")
    assert all(map(torch.equal, module.state_dict().values(), again.state_dict().values()))


def test_reading_states_changes_nothing() -> None:
    untouched, _ = fitted("fused", _nothing)
    read, _ = fitted("fused", lambda m: m.optimizers().state_dict(), lambda m: list(m.state.items()))
    assert all(map(torch.equal, untouched.state_dict().values(), read.state_dict().values()))


def test_a_state_that_is_none_is_refused() -> None:
    def wrong(module: Model) -> None:
        module.state[module.first.weight] = {"step": torch.tensor(1.0), "mean": torch.zeros(4, 4)}

    with pytest.raises(FormatError, match=r"first\.weight has mean, step, and .* needs exp_avg"):
        fitted("fused", wrong)


def test_a_parameter_that_no_optimizer_has_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"self\.first\.weight has been replaced by another parameter") as told:
        module, _ = fitted("fused", _replaced)
    assert len([each for each in told if "first.weight" in str(each.message)]) == 1
    assert torch.equal(module.first.weight, torch.full((4, 4), 0.1))


def test_a_tied_parameter_is_replaced_in_both_layers() -> None:
    def both(module: Model) -> None:
        module.first.weight = module.last.weight = torch.nn.Parameter(torch.full((4, 4), 0.1))

    with pytest.warns(UserWarning, match="has been replaced"):
        module, _ = fitted("fused", both, tied=True)
    wanted, _ = fitted("eager", both, tied=True)
    assert module.first.weight is module.last.weight
    torch.testing.assert_close(module.state_dict(), wanted.state_dict(), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("layer", ["first", "last"])
def test_a_tied_parameter_that_is_replaced_in_one_layer_is_refused(layer: str) -> None:
    def one(module: Model) -> None:
        getattr(module, layer).weight = torch.nn.Parameter(torch.full((4, 4), 0.1))

    with pytest.raises(MXNetError, match=r"self\.first\.weight and self\.last\.weight were one tensor") as error:
        fitted("fused", one, tied=True)
    assert "eager=True" in str(error.value)


def test_an_update_in_a_hook_of_a_compiled_training_is_refused() -> None:
    with pytest.raises(MisconfigurationException, match=r"Adam\.step\(\) in a hook") as error:
        fitted("fused", lambda m: m.optimizers().step())
    assert "automatic_optimization" in str(error.value)


@pytest.mark.parametrize("mode", ["fused", "staged", "eager"])
def test_optimizers_are_wrapped_in_each_mode(mode: str) -> None:
    seen: list[Any] = []
    fitted(mode, lambda m: seen.extend([m.optimizers(), m.optimizers(), m.optimizers(use_pl_optimizer=False)]))
    wrapped, again, own = seen
    assert wrapped is again and wrapped.optimizer is own and isinstance(wrapped, torch.optim.Adam)
    torch.optim.lr_scheduler.StepLR(wrapped, 1)  # it asks for an optimizer
