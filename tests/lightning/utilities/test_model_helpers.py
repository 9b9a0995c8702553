"""What scripts import of Lightning's utilities."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

import gluongraph.lightning as L
from gluongraph.lightning.utilities.grads import grad_norm
from gluongraph.lightning.utilities.model_helpers import is_overridden


class Mine(L.Callback):
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None: ...


def test_is_overridden() -> None:
    assert is_overridden("on_fit_start", Mine()) and not is_overridden("on_fit_end", Mine())
    assert not is_overridden("on_fit_start", None)
    assert is_overridden("on_fit_start", Mine(), parent=L.Callback)
    with pytest.raises(ValueError, match="no module, data module or callback"):
        is_overridden("f", 3)
    with pytest.raises(ValueError, match="Callback has no on_nothing"):
        is_overridden("on_nothing", Mine())


@pytest.mark.parametrize("order", [1, 2, 3.5, "inf"])
def test_grad_norm(order: Any) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    net(torch.randn(4, 3)).pow(2).sum().backward()
    found, p = grad_norm(net, order), float(order)
    norms = {name: float(parameter.grad.norm(p)) for name, parameter in net.named_parameters()}
    assert found[f"grad_{p}_norm_total"] == pytest.approx(float(torch.tensor(list(norms.values())).norm(p)))
    assert {name: found[f"grad_{p}_norm/{name}"] for name in norms} == pytest.approx(norms)
    assert len(found) == len(norms) + 1


def test_grad_norm_of_large_and_of_no_gradients() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(2, 1)
    assert grad_norm(layer, 2) == {}
    layer.weight.grad = torch.full((1, 2), 1e30, dtype=torch.float64).float()
    layer.bias.grad = torch.zeros(1)
    assert math.isfinite(grad_norm(layer, 20)["grad_20.0_norm_total"])
    with pytest.raises(L.MisconfigurationException, match=r"norm_type=0"):
        grad_norm(layer, 0)


NAMES = {
    "core": ["LightningModule", "LightningDataModule"],
    "utilities.types": ["STEP_OUTPUT", "EVAL_DATALOADERS", "TRAIN_DATALOADERS", "OptimizerLRScheduler"],
    "utilities.exceptions": ["MisconfigurationException"],
    "utilities.combined_loader": ["CombinedLoader"],
    "utilities.rank_zero": ["rank_zero_only"],
    "callbacks.finetuning": ["BaseFinetuning"],
    "strategies": ["DDPStrategy", "FSDPStrategy", "DeepSpeedStrategy"],
}


@pytest.mark.parametrize("module", NAMES)
def test_scripts_find_their_names(module: str) -> None:
    found = importlib.import_module(f"gluongraph.lightning.{module}")
    assert all(hasattr(found, name) for name in NAMES[module])
