"""Control flow of PyTorch's whose bodies read a module's parameters: traced, and trained as by PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon

torch = pytest.importorskip("torch")
nn = torch.nn
associative_scan = pytest.importorskip("torch._higher_order_ops.associative_scan").associative_scan
torch_map = pytest.importorskip("torch._higher_order_ops.map").map
scan = pytest.importorskip("torch._higher_order_ops.scan").scan


class Body(nn.Module):
    """A linear layer and a scale, which the bodies read."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.tensor(0.7))


class Branch(Body):
    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: x * self.scale, (x,))


class Scan(Body):
    def forward(self, x: Any) -> Any:
        def turn(carry: Any, row: Any) -> Any:
            new = torch.tanh(self.layer(carry) + row)
            return new, new * self.scale

        return scan(turn, x.new_zeros(3), x)[1]


class Map(Body):
    def forward(self, x: Any) -> Any:
        return torch_map(lambda row: self.layer(row) * self.scale, x)


class Products(Body):
    def forward(self, x: Any) -> Any:
        return self.layer(associative_scan(lambda a, b: a * b, x * self.scale, 0, combine_mode="generic"))


class Checkpoint(Body):
    def forward(self, x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda v: self.layer(v).tanh() * self.scale, x, use_reentrant=False)


@pytest.mark.parametrize("kind", [Branch, Scan, Map, Products, Checkpoint])
def test_bodies_with_parameters(kind: Any) -> None:
    torch.manual_seed(0)
    model = kind()
    other, loss = copy.deepcopy(model), nn.MSELoss()
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    net = mx.from_torch(model, (x,))
    step = mx.compile(net, loss, gluon.Trainer.from_torch(torch.optim.SGD(model.parameters(), lr=0.1)))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for sign in (1, -1, 1):
        optimizer.zero_grad()
        expected = loss(other(sign * x), y)
        expected.backward()
        optimizer.step()
        np.testing.assert_allclose(step(sign * x, y).asnumpy(), expected.item(), rtol=1e-5)
    for name, tensor in net.state_dict().items():
        np.testing.assert_allclose(tensor.numpy(), other.state_dict()[name].numpy(), rtol=1e-5, atol=1e-6)
