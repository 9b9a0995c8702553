"""A module of PyTorch and its optimizer, trained here and there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon

torch = pytest.importorskip("torch", reason="no torch")


def model() -> Any:
    torch.manual_seed(3)
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).double()


def optimizer_of(module: Any) -> Any:
    """Weight decay for matrices alone, and another rate for the last layer."""
    last = list(module[-1].parameters())
    decayed = [p for p in module[:-1].parameters() if p.ndim == 2]
    others = [p for p in module[:-1].parameters() if p.ndim != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others}, {"params": last, "lr": 0.05}]
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)


def schedule_of(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.01, 0.02, 0.05], total_steps=9)


def test_a_step_of_a_module_of_its_loss_and_of_its_optimizer() -> None:
    theirs, ours = model(), model()
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(4, 6)), rng.integers(0, 3, 4)) for _ in range(8)]
    loss = torch.nn.CrossEntropyLoss()
    net = mx.from_torch(ours, (torch.zeros(4, 6, dtype=torch.float64),))
    optimizer = optimizer_of(ours)
    trainer = gluon.Trainer(net, optimizer)
    schedule = schedule_of(optimizer)
    step = mx.compile(net, loss, trainer)
    other = optimizer_of(theirs)
    other_schedule = schedule_of(other)
    for x, y in batches:
        other.zero_grad()
        value = loss(theirs(torch.from_numpy(x)), torch.from_numpy(y))
        value.backward()
        other.step()
        other_schedule.step()
        found = step(mx.nd.array(x, dtype="float64"), mx.nd.array(y, dtype="int64"))
        schedule.step()
        assert abs(float(found.asnumpy().mean()) - float(value.detach())) <= 1e-9
    trained = net.state_dict()
    for name, tensor in theirs.state_dict().items():
        assert float((trained[name] - tensor).abs().max()) <= 1e-9, name
    optimizer.load_state_dict(trainer.torch_state_dict())
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        for key, value in other.state[q].items():
            assert float((optimizer.state[p][key] - value).abs().max()) <= 1e-9, key
