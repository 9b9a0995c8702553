"""Layers run in eager mode and hybridized, all of a table in one block, so that their kernels are compiled together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gluongraph import autograd, nd
from gluongraph.gluon import HybridBlock


class Beside(HybridBlock):
    """Each layer on an input of its own; what they give, one after the other."""

    def __init__(self, layers: Mapping[str, Any]):
        super().__init__()
        self.layers = list(layers.values())
        for name, layer in layers.items():
            self.register_child(layer, name)

    def forward(self, *inputs: Any) -> Any:
        return [layer(x) for layer, x in zip(self.layers, inputs, strict=True)]


def eager_is_hybridized(table: Mapping[str, tuple[Any, tuple[int, ...]]], tolerance: float = 2e-5) -> None:
    """Results, and gradients of inputs and parameters, in train mode, for layers and the shapes of their inputs."""
    rng = np.random.default_rng(0)
    net = Beside({name: layer for name, (layer, _) in table.items()})
    net.initialize()
    arrays = [nd.array(rng.normal(size=shape)) for _, shape in table.values()]
    for x in arrays:
        x.attach_grad()
    heads: list[Any] = []
    found = []
    for hybrid in (False, True):
        net.hybridize(hybrid)
        with autograd.record():
            results = net(*arrays)
        heads = heads or [nd.array(rng.normal(size=y.shape)) for y in results]
        autograd.backward(results, heads)
        rows = {f"{name} result": y.asnumpy() for name, y in zip(table, results, strict=True)}
        rows.update({f"{name} input": x.grad.asnumpy() for name, x in zip(table, arrays, strict=True)})
        own = net._collect_params_with_prefix()
        rows.update({k: p.grad().asnumpy() for k, p in own.items() if p.grad_req != "null"})
        found.append(rows)
    for name, value in found[0].items():
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(found[1][name], value, rtol=tolerance, atol=tolerance * scale, err_msg=name)
