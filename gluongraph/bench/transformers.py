"""The nets that are measured and have attention, which MXNet 1.9.1 has no op for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluongraph import gluon, nd
from gluongraph.gluon import nn


class Layer(gluon.HybridBlock):
    """x + attention(norm(x)), then x + mlp(norm(x)); norms behind the sums for an encoder, whose attention sees all."""

    def __init__(self, width: int, heads: int, encoder: bool = False):
        super().__init__()
        self.heads, self.encoder = heads, encoder
        self.norm1, self.norm2 = nn.LayerNorm(in_channels=width), nn.LayerNorm(in_channels=width)
        self.qkv = nn.Dense(3 * width, flatten=False, in_units=width)
        self.project = nn.Dense(width, flatten=False, in_units=width)
        self.up = nn.Dense(4 * width, flatten=False, in_units=width)
        self.gelu = nn.GELU()
        self.down = nn.Dense(width, flatten=False, in_units=4 * width)

    def attention(self, x: Any) -> Any:
        n, t, d = x.shape
        qkv = self.qkv(x).reshape((n, t, 3, self.heads, d // self.heads)).transpose((2, 0, 3, 1, 4))
        y = nd.attention(qkv[0], qkv[1], qkv[2], causal=not self.encoder)
        return self.project(y.transpose((0, 2, 1, 3)).reshape((n, t, d)))

    def mlp(self, x: Any) -> Any:
        return self.down(self.gelu(self.up(x)))

    def forward(self, x: Any) -> Any:
        if self.encoder:
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(gluon.HybridBlock):
    """Token and position embedding, layers, one output per position; without dropout, so that losses can be compared.

    The norm comes last in a GPT, first in an encoder.
    """

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int, encoder: bool = False):
        super().__init__()
        self.encoder = encoder
        self.token = nn.Embedding(vocabulary, width)
        self.position = self.params.get("position", shape=(length, width))
        self.layers = nn.HybridSequential()
        self.layers.add(*(Layer(width, heads, encoder) for _ in range(layers)))
        self.norm = nn.LayerNorm(in_channels=width)
        self.head = nn.Dense(vocabulary, flatten=False, in_units=width)

    def forward(self, tokens: Any) -> Any:
        x = self.token(tokens) + self.position.data()
        return self.head(self.layers(self.norm(x)) if self.encoder else self.norm(self.layers(x)))


def bert(**size: Any) -> Transformer:
    """An encoder with norms behind the sums, as in Devlin et al. (2018)."""
    return Transformer(encoder=True, **size)


MODELS: dict[str, Callable[..., gluon.HybridBlock]] = {"gpt": Transformer, "bert": bert}
