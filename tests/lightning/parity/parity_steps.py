"""Compared runs: what a training step does besides layers and losses."""

from __future__ import annotations

from typing import Any

import torch
from parity_models import FEATURES, linear, loader, trainer
from parity_recording import told
from parity_table import case
from torch import distributions, nn
from torch.nn import functional

Result = dict[str, Any]


def fitted(L: Any, module: Any, **how: Any) -> Result:
    runner = trainer(L, max_epochs=2, **how)
    runner.fit(module, loader(3), loader(2, seed=1))
    buffers = {name: held.double().tolist() for name, held in module.named_buffers()}
    return told(runner, module) | {"buffers": buffers}


@case
def a_buffer_that_the_step_assigns(L: Any) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(FEATURES))
            self.register_buffer("before", torch.ones(FEATURES))
            self.register_buffer("count", torch.tensor(0))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            self.mean, self.before = 0.9 * self.mean + 0.1 * x.mean(0), self.mean
            self.count = self.count + 1
            self.log("count", self.count.float())
            return functional.mse_loss(self(x - self.mean + 0.1 * self.before), y)

    return fitted(L, Model())


def recurrent(L: Any, layer: Any) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.head = layer(1, 5, batch_first=True), nn.Linear(5, 1)

        def forward(self, x: Any) -> Any:
            return self.head(self.layer(x.unsqueeze(2))[0][:, -1])

    return fitted(L, Model(), gradient_clip_val=0.5)


@case
def an_lstm(L: Any) -> Result:
    return recurrent(L, lambda *args, **how: nn.LSTM(*args, num_layers=2, **how))


@case
def a_gru(L: Any) -> Result:
    return recurrent(L, nn.GRU)


@case
def distributions_of_pytorch(L: Any) -> Result:
    """Which ask whether their arguments are in the domain, by default."""

    Linear: Any = linear(L)

    class Model(Linear):
        def loss(self, batch: Any) -> Any:
            x, y = batch
            made = distributions.Normal(self(x), functional.softplus(self(x)) + 0.1)
            prior = distributions.Normal(torch.zeros_like(y), torch.ones_like(y))
            chosen = distributions.Categorical(logits=self.layer.weight * x).log_prob((y[:, 0] > 0).long())
            return distributions.kl_divergence(made, prior).mean() - made.log_prob(y).mean() - chosen.mean()

    return fitted(L, Model())
