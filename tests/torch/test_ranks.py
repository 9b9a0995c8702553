"""A module of PyTorch's on two ranks: the mean of their losses is that of one batch, as in DistributedDataParallel."""

from __future__ import annotations

import pytest
from ranks import needs_mpi, run_ranks

pytest.importorskip("torch")

PROGRAM = """
import numpy as np
import torch
import gluongraph as mx

def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

x, y = np.random.default_rng(0).standard_normal((8, 8), np.float32), np.arange(8) % 4
ours, theirs = module(), module()
net = mx.from_torch(ours, (torch.zeros(4, 8),), share=True)
trainer = mx.Trainer.from_torch(torch.optim.AdamW(ours.parameters(), lr=1e-2), kvstore="dist_sync")
step = mx.compile(net, torch.nn.CrossEntropyLoss(), trainer)
rank = mx.kv.create("dist_sync").rank
for _ in range(10):
    step(x[4 * rank : 4 * rank + 4], y[4 * rank : 4 * rank + 4])
optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
for _ in range(10):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    optimizer.step()
print(max((a - b).abs().max().item() for a, b in zip(ours.parameters(), theirs.parameters())) < 1e-6)
"""


@needs_mpi
def test_two_ranks() -> None:
    assert run_ranks(2, PROGRAM, timeout=200) == ["True\n", "True\n"]
