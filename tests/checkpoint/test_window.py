"""Checkpoints in the middle of an accumulation, with averages, a scaled loss and dropout."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from training import LOSS, X, Y, network, seed

import gluongraph as mx
from gluongraph import debug, gluon


class Accumulating:
    """Three batches to an update."""

    def __init__(self, precision: str, contexts: Any = None, grad_req: str = "write"):
        self.net = network()
        if contexts:
            self.net.collect_params().reset_ctx(contexts)
        self.net[0].weight.grad_req = grad_req
        self.trainer = gluon.Trainer(self.net.collect_params(), "adam", {"learning_rate": 0.01})
        self.step = mx.compile(self.net, LOSS, self.trainer, precision=precision, ema=0.9, clip_norm=1.0)
        self.batches, self.scaled = 0, precision == "16-mixed"

    def go(self, batches: int) -> list[Any]:
        losses = []
        for _ in range(batches):
            at = self.batches * 4 % 24
            huge = 1e38 if self.scaled and self.batches % 5 == 4 else 1.0  # left out
            losses.append(self.step.accumulate(X[at : at + 4] * huge, Y[at : at + 4]).asnumpy().tolist())
            self.batches += 1
            if self.batches % 3 == 0:
                self.step.apply()
                self.net[0].weight.zero_grad()
        return losses

    def state(self) -> dict[str, Any]:
        """The arrays by names that do not depend on how many nets there were before."""
        found = {}
        averages, sums = self.step.averages, self.step.accumulator.live
        for i, (name, p) in enumerate(self.net.collect_params().items()):
            found |= {f"{i} on {context}": array for context, array in zip(p.list_ctx(), p.list_data(), strict=True)}
            found |= {f"average of {i}": averages[name]} if name in averages else {}
            found |= {key.replace(name, f"sum of {i}"): each for key, each in sums.items() if key.split("@")[0] == name}
        return {name: array.asnumpy() for name, array in found.items()}

    def counts(self) -> tuple[Any, ...]:
        window = self.step.accumulator
        return window.batches, window.samples, self.step.grad_norm


@pytest.mark.parametrize("precision", ["32", "16-mixed"])
@pytest.mark.parametrize("contexts", [None, [mx.cpu(0), mx.cpu(1)]])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_resume_within_a_window(precision: str, contexts: Any, grad_req: str, tmp_path: pathlib.Path) -> None:
    def make() -> Accumulating:
        return Accumulating(precision, contexts, grad_req)

    with debug.override(backend="reference"):
        seed(1)
        straight = make()
        straight.go(7)
        straight.step.save(tmp_path, extra={"batches": straight.batches})
        losses, state, counts = straight.go(8), straight.state(), straight.counts()
        seed(2)
        again = make()
        again.batches = again.step.load(tmp_path)["batches"]
        assert again.step.accumulator.batches == 1
        assert repr(again.go(8)) == repr(losses)  # NaN where a batch overflows
        for name, array in again.state().items():
            np.testing.assert_array_equal(array, state[name], err_msg=name)
        assert again.counts() == counts
