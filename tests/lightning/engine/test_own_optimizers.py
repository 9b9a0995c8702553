"""Optimizers of PyTorch's whose formulas are not known make the updates of eager steps, and checkpoints hold their
states."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from nets import QUIET

import gluongraph.lightning as L
from gluongraph.errors import FormatError, MXNetError

torch = pytest.importorskip("torch")


class Lion(torch.optim.Optimizer):
    """With a state of several kinds: tensors, numbers, tuples, a dict with numbers as keys."""

    def __init__(self, params: Any, lr: float = 0.02, name: Any = lambda: "lion"):
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "name": name})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            (first, second), name = group["betas"], group["name"]
            assert name() == "lion" and isinstance(group["betas"], tuple)
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(mean=torch.zeros_like(p), seen=(0, float("-inf")), by={1: torch.tensor(True)})
                count, most = state["seen"]
                state["seen"] = count + 1, max(most, float(p.grad.abs().max()))
                assert bool(state["by"][1])
                rate = group["lr"] / (1 + state["seen"][1] / (count + 1))
                p.sub_(torch.sign(first * state["mean"] + (1 - first) * p.grad), alpha=rate)
                state["mean"].mul_(second).add_(p.grad, alpha=1 - second)
        return loss


OPTIMIZERS = {
    "LBFGS": lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=3, history_size=4),
    "searching": lambda params: torch.optim.LBFGS(params, max_iter=3, line_search_fn="strong_wolfe"),
    "Adafactor": lambda params: torch.optim.Adafactor(params, lr=0.02),
    "Lion": Lion,
}


class Model(L.LightningModule):
    """Two layers, with automatic or manual optimization."""

    def __init__(self, optimizer: Any, manual: bool = False, dtype: Any = torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).to(dtype)
        self.made, self.automatic_optimization = optimizer, not manual

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.automatic_optimization:
            return self.loss(batch)

        def closure() -> Any:
            self.optimizers().zero_grad()
            loss = self.loss(batch)
            self.manual_backward(loss)
            return loss

        self.optimizers().step(closure)
        return None

    def loss(self, batch: Any) -> Any:
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return self.made(self.parameters())


def batches(dtype: Any = torch.float32) -> list[Any]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(40, 6, generator=draw, dtype=dtype)
    return [(part, part.sum(1, keepdim=True).sin()) for part in x.split(8)]


def fit(model: Any, path: Any = None, dtype: Any = torch.float32, **how: Any) -> L.Trainer:
    settings = {"eager": True, "max_epochs": 2, **QUIET, **how}
    trainer = L.Trainer(**settings)
    trainer.fit(model, batches(dtype), ckpt_path=path)
    return trainer


class Saving(L.Callback):
    """Saves a checkpoint in the middle of the second epoch."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (1, 1):
            trainer.save_checkpoint(self.path)


def equal(left: Any, right: Any) -> bool:
    """Have the states of two optimizers the same bits, types and structure?"""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(equal, left, right))
    return type(left) is type(right) and left == right


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_has_the_same_bits(name: str, dtype: Any, manual: bool, tmp_path: pathlib.Path) -> None:
    how = {"eager": not manual, "dtype": dtype}
    trainer = fit(whole := Model(OPTIMIZERS[name], manual, dtype), max_epochs=3, **how)
    assert trainer.engines.mode == "eager" and trainer.global_step == 15
    fit(Model(OPTIMIZERS[name], manual, dtype), callbacks=[Saving(tmp_path / "a.ckpt")], **how)
    resumed = fit(other := Model(OPTIMIZERS[name], manual, dtype), tmp_path / "a.ckpt", max_epochs=3, **how)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), other.parameters(), strict=True))
    left, right = trainer.optimizers[0].state_dict(), resumed.optimizers[0].state_dict()
    assert equal(left["state"], right["state"]) and resumed.global_step == 15
    resumed.save_checkpoint(tmp_path / "b.ckpt", weights_only=True)
    loaded = Model.load_from_checkpoint(tmp_path / "b.ckpt", optimizer=None, dtype=dtype)
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), loaded.parameters(), strict=True))


def test_tensors_are_safetensors_and_numbers_json(tmp_path: pathlib.Path) -> None:
    trainer = fit(Model(Lion))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    safetensors = pytest.importorskip("safetensors.torch")
    arrays = safetensors.load_file(tmp_path / "a.ckpt" / "optimizers-00000-of-00001.safetensors")
    mean = trainer.optimizers[0].state_dict()["state"][0]["mean"]
    assert any(array.shape == mean.shape and torch.equal(array, mean) for array in arrays.values())
    told = json.loads((tmp_path / "a.ckpt" / "trainer.json").read_text())
    assert told["extra"]["lightning"]["optimizer_states"][0]["optimizer"] == "Lion"


def test_a_state_that_a_checkpoint_does_not_hold(tmp_path: pathlib.Path) -> None:
    class Odd(Lion):
        def step(self, closure: Any = None) -> Any:
            made = super().step(closure)
            self.state[self.param_groups[0]["params"][0]]["draw"] = np.random.default_rng(0)
            return made

    trainer = fit(Model(Odd))
    with pytest.raises(MXNetError, match=r"state of Odd cannot be saved: .*/draw is Generator"):
        trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert not (tmp_path / "a.ckpt").exists()


def test_one_parameter_in_two_optimizers(tmp_path: pathlib.Path) -> None:
    class Two(Model):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.loss(batch))
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 0.01), torch.optim.SGD(self.net[2].parameters(), 0.1)

    fit(whole := Two(None, True), eager=False)
    fit(Two(None, True), eager=False, callbacks=[Saving(tmp_path / "a.ckpt")])
    fit(other := Two(None, True), tmp_path / "a.ckpt", eager=False)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_steps_refuse_them(name: str) -> None:
    with pytest.raises(L.MisconfigurationException, match=r"cannot update by [\s\S]*L\.Trainer\(eager=True\)"):
        fit(Model(OPTIMIZERS[name]), eager=False)


def test_checkpoints_of_other_optimizers_are_refused(tmp_path: pathlib.Path) -> None:
    def adam(params: Any) -> Any:
        return torch.optim.Adam(params, 0.01)

    for name, made in {"lion": Lion, "adam": adam}.items():
        fit(Model(made)).save_checkpoint(tmp_path / name)
    with pytest.raises(FormatError, match=r"of other optimizers: Lion; here there are Adam"):
        fit(Model(adam), tmp_path / "lion")
    with pytest.raises(FormatError, match=r"of other optimizers: others; here there are Lion"):
        fit(Model(Lion), tmp_path / "adam")
    fit(Model(adam), tmp_path / "adam", eager=False, max_epochs=3)  # of known ones any mode goes on
