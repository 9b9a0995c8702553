"""The twins of nets.py and transformers.py in JAX, as pure functions: (parameters, forward).

Images are NHWC, which XLA's CPU code prefers. Running statistics of batch norms are left out, which is in JAX's favour
by a little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from gluongraph.bench.workloads import stages

Params = Any
Forward = Callable[..., jax.Array]
Model = tuple[Params, Forward]


class Maker:
    """Makes parameters with a running key."""

    def __init__(self) -> None:
        self.keys: Iterator[jax.Array] = iter(jax.random.split(jax.random.key(0), 1000))

    def normal(self, *shape: int, fan: int) -> jax.Array:
        return jax.random.normal(next(self.keys), shape) * fan**-0.5

    def dense(self, inputs: int, outputs: int) -> tuple[jax.Array, jax.Array]:
        return self.normal(inputs, outputs, fan=inputs), jnp.zeros(outputs)

    def layers(self, inputs: int, widths: tuple[int, ...]) -> list[tuple[jax.Array, jax.Array]]:
        return [self.dense(i, o) for i, o in pairwise((inputs, *widths))]

    def conv(self, size: int, inputs: int, outputs: int) -> jax.Array:
        return self.normal(size, size, inputs, outputs, fan=size * size * inputs)

    def normed(self, size: int, inputs: int, outputs: int) -> Params:
        return self.conv(size, inputs, outputs), self.norm(outputs)

    def norm(self, width: int) -> tuple[jax.Array, jax.Array]:
        return jnp.ones(width), jnp.zeros(width)


def dense(p: Params, x: jax.Array) -> jax.Array:
    return x @ p[0] + p[1]


def through(params: Params, x: jax.Array) -> jax.Array:
    """Dense layers, each with relu."""
    for p in params:
        x = jax.nn.relu(dense(p, x))
    return x


def conv(w: jax.Array, x: jax.Array, stride: int = 1, padding: int = 0, groups: int = 1) -> jax.Array:
    pads, layout = [(padding, padding)] * 2, ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), pads, dimension_numbers=layout, feature_group_count=groups
    )


def normed(p: Params, x: jax.Array, stride: int = 1, groups: int = 1, relu: bool = True) -> jax.Array:
    """A convolution that keeps the size (by its stride), its batch norm and relu."""
    y = batch_norm(p[1], conv(p[0], x, stride, p[0].shape[0] // 2, groups))
    return jax.nn.relu(y) if relu else y


def max_pool(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def batch_norm(p: Params, x: jax.Array) -> jax.Array:
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p[0] + p[1]


def layer_norm(p: Params, x: jax.Array) -> jax.Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p[0] + p[1]


def mlp(make: Maker, features: int, hidden: tuple[int, ...], classes: int) -> Model:
    params = make.layers(features, (*hidden, classes))
    return params, lambda params, x: dense(params[-1], through(params[:-1], x))


def lenet(make: Maker, pixels: int, channels: tuple[int, int], hidden: int, classes: int) -> Model:
    first, second = channels
    side = ((pixels - 4) // 2 - 4) // 2
    params = {
        "c1": (make.conv(5, 1, first), jnp.zeros(first)),
        "c2": (make.conv(5, first, second), jnp.zeros(second)),
        "d1": make.dense(second * side * side, hidden),
        "d2": make.dense(hidden, classes),
    }

    def forward(p: Params, x: jax.Array) -> jax.Array:
        for name in ("c1", "c2"):
            x = max_pool(jax.nn.relu(conv(p[name][0], x) + p[name][1]))
        return dense(p["d2"], jax.nn.relu(dense(p["d1"], x.reshape(x.shape[0], -1))))

    return params, forward


def digits(make: Maker, pixels: int, channels: tuple[int, ...], hidden: int, classes: int) -> Model:
    side = pixels >> len(channels)
    params = {
        "convs": [
            (make.conv(3, i, o), jnp.zeros(o), make.norm(o)) for i, o in zip((1, *channels), channels, strict=False)
        ],
        "d1": make.dense(channels[-1] * side * side, hidden),
        "d2": make.dense(hidden, classes),
    }

    def forward(p: Params, x: jax.Array) -> jax.Array:
        for weight, bias, norm in p["convs"]:
            x = max_pool(jax.nn.relu(batch_norm(norm, conv(weight, x, 1, 1) + bias)))
        return dense(p["d2"], jax.nn.relu(dense(p["d1"], x.reshape(x.shape[0], -1))))

    return params, forward


def resnet18(make: Maker, classes: int) -> Model:
    return _residual(make, 32, (64, 128, 256, 512), (2, 2, 2, 2), classes)


def resnet20(make: Maker, pixels: int, widths: tuple[int, ...], blocks: int, classes: int) -> Model:
    return _residual(make, 32, widths, (blocks,) * len(widths), classes)


def resnet50(make: Maker, pixels: int, widths: tuple[int, ...], blocks: tuple[int, ...], classes: int) -> Model:
    return _residual(make, pixels, widths, blocks, classes, bottleneck=4)


def _residual(
    make: Maker, pixels: int, widths: tuple[int, ...], blocks: tuple[int, ...], classes: int, bottleneck: int = 0
) -> Model:
    inputs, strides, made = widths[0], [], []
    stem = make.normed(3, 3, inputs)
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(count):
            stride, outputs = 2 if stage and not block else 1, width * (bottleneck or 1)
            sizes = ((1, inputs, width), (3, width, width), (1, width, outputs))
            parts = sizes if bottleneck else ((3, inputs, width), (3, width, width))
            shortcut = make.normed(1, inputs, outputs) if stride != 1 or inputs != outputs else None
            made.append(([make.normed(*part) for part in parts], shortcut))
            strides.append(stride)
            inputs = outputs
    params = {"stem": stem, "blocks": made, "head": make.dense(inputs, classes)}

    def forward(p: Params, x: jax.Array) -> jax.Array:
        x = normed(p["stem"], x, pixels // 32)
        for (convs, shortcut), stride in zip(p["blocks"], strides, strict=True):
            y = x
            for i, each in enumerate(convs):
                strided = stride if i == (1 if bottleneck else 0) else 1
                y = normed(each, y, strided, relu=each is not convs[-1])
            x = jax.nn.relu(y + (x if shortcut is None else normed(shortcut, x, stride, relu=False)))
        return dense(p["head"], x.mean((1, 2)))

    return params, forward


def mobilenet(make: Maker, pixels: int, first: int, plan: str, classes: int) -> Model:
    inputs, blocks = first, stages(plan)
    stem, made = make.normed(3, 3, first), []
    for outputs, _ in blocks:
        made.append((make.normed(3, 1, inputs), make.normed(1, inputs, outputs)))
        inputs = outputs
    params = {"stem": stem, "blocks": made, "head": make.dense(inputs, classes)}

    def forward(p: Params, x: jax.Array) -> jax.Array:
        x = normed(p["stem"], x)
        for (deep, wide), (_, stride) in zip(p["blocks"], blocks, strict=True):
            x = normed(wide, normed(deep, x, stride, groups=x.shape[-1]))
        return dense(p["head"], x.mean((1, 2)))

    return params, forward


def gpt(make: Maker, layers: int, width: int, heads: int, length: int, vocabulary: int, encoder: bool = False) -> Model:
    params = {
        "token": make.normal(vocabulary, width, fan=width),
        "position": make.normal(length, width, fan=width),
        "layers": [
            {
                **{"n1": make.norm(width), "n2": make.norm(width)},
                **{"qkv": make.dense(width, 3 * width), "project": make.dense(width, width)},
                **{"up": make.dense(width, 4 * width), "down": make.dense(4 * width, width)},
            }
            for _ in range(layers)
        ],
        "norm": make.norm(width),
        "head": make.dense(width, vocabulary),
    }

    def attention(p: Params, x: jax.Array) -> jax.Array:
        n, t, d = x.shape
        qkv = dense(p["qkv"], x).reshape(n, t, 3, heads, d // heads)
        y = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=not encoder)
        return dense(p["project"], y.reshape(n, t, d))

    def mlp(p: Params, x: jax.Array) -> jax.Array:
        return dense(p["down"], jax.nn.gelu(dense(p["up"], x), approximate=False))

    def forward(p: Params, tokens: jax.Array) -> jax.Array:
        x = p["token"][tokens] + p["position"]
        if encoder:
            x = layer_norm(p["norm"], x)
            for layer in p["layers"]:
                x = layer_norm(layer["n1"], x + attention(layer, x))
                x = layer_norm(layer["n2"], x + mlp(layer, x))
            return dense(p["head"], x)
        for layer in p["layers"]:
            x = x + attention(layer, layer_norm(layer["n1"], x))
            x = x + mlp(layer, layer_norm(layer["n2"], x))
        return dense(p["head"], layer_norm(p["norm"], x))

    return params, forward


def bert(make: Maker, **size: Any) -> Model:
    return gpt(make, encoder=True, **size)


def lstm(make: Maker, layers: int, width: int, length: int, vocabulary: int) -> Model:
    params = {
        "token": make.normal(vocabulary, width, fan=width),
        "layers": [(make.dense(width, 4 * width), make.dense(width, 4 * width)) for _ in range(layers)],
        "head": make.dense(width, vocabulary),
    }

    def forward(p: Params, tokens: jax.Array) -> jax.Array:
        x = jnp.swapaxes(p["token"][tokens], 0, 1)
        for inner, outer in p["layers"]:

            def turn(carry: Params, gates: jax.Array, outer: Params = outer) -> tuple[Params, jax.Array]:
                h, c = carry
                i, f, g, o = jnp.split(gates + dense(outer, h), 4, -1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            zero = jnp.zeros((x.shape[1], width))
            x = jax.lax.scan(turn, (zero, zero), dense(inner, x))[1]
        return dense(p["head"], jnp.swapaxes(x, 0, 1))

    return params, forward


def dcgan(make: Maker, noise: int, widths: tuple[int, ...], colours: int) -> Model:
    """Padding as jax.lax.conv_transpose has it: "VALID" makes 1x1 into 4x4, "SAME" doubles."""
    sizes = list(pairwise((noise, *widths)))
    params = {"convs": [make.normed(4, i, o) for i, o in sizes], "last": make.conv(4, widths[-1], colours)}

    def up(w: jax.Array, x: jax.Array, first: bool) -> jax.Array:
        return jax.lax.conv_transpose(x, w, (1, 1) if first else (2, 2), "VALID" if first else "SAME")

    def forward(p: Params, x: jax.Array) -> jax.Array:
        for i, (weight, norm) in enumerate(p["convs"]):
            x = jax.nn.relu(batch_norm(norm, up(weight, x, i == 0)))
        return jnp.tanh(up(p["last"], x, False))

    return params, forward


def dlrm(
    make: Maker, tables: int, rows: int, width: int, dense: int, bottom: tuple[int, ...], top: tuple[int, ...]
) -> Model:
    params = {
        "bottom": make.layers(dense, (*bottom, width)),
        "table": make.normal(tables * rows, width, fan=width),
        "top": make.layers((tables + 1) ** 2 + width, (*top, 1)),
    }

    def forward(p: Params, numbers: jax.Array, categories: jax.Array) -> jax.Array:
        x = through(p["bottom"], numbers)
        features = jnp.concatenate([x[:, None], p["table"][categories]], 1)
        pairs = features @ features.swapaxes(1, 2)
        y = jnp.concatenate([x, pairs.reshape(len(x), -1)], 1)
        y = through(p["top"][:-1], y)
        return y @ p["top"][-1][0] + p["top"][-1][1]

    return params, forward


MODELS: dict[str, Callable[..., Model]] = {
    **{"mlp": mlp, "lenet": lenet, "digits": digits, "resnet18": resnet18, "resnet20": resnet20},
    **{"resnet50": resnet50, "mobilenet": mobilenet, "gpt": gpt, "bert": bert, "lstm": lstm},
    **{"dcgan": dcgan, "dlrm": dlrm},
}
