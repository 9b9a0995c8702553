"""JAX's side of the benchmarks: the same models as pure functions, one jitted step with donated state.

Images are NHWC, which XLA's CPU code prefers; the optimizers are written by hand, so that nothing but JAX is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads import Workload, batches, resnet50_shapes

Params = Any
Forward = Callable[[Params, jax.Array], jax.Array]


class Maker:
    """Makes parameters with a running key."""

    def __init__(self) -> None:
        self.keys: Iterator[jax.Array] = iter(jax.random.split(jax.random.key(0), 1000))

    def normal(self, *shape: int, fan: int) -> jax.Array:
        return jax.random.normal(next(self.keys), shape) * fan**-0.5

    def dense(self, inputs: int, outputs: int) -> tuple[jax.Array, jax.Array]:
        return self.normal(inputs, outputs, fan=inputs), jnp.zeros(outputs)

    def conv(self, size: int, inputs: int, outputs: int) -> jax.Array:
        return self.normal(size, size, inputs, outputs, fan=size * size * inputs)

    def norm(self, width: int) -> tuple[jax.Array, jax.Array]:
        return jnp.ones(width), jnp.zeros(width)


def dense(p: Params, x: jax.Array) -> jax.Array:
    return x @ p[0] + p[1]


def conv(w: jax.Array, x: jax.Array, stride: int = 1, padding: int = 0) -> jax.Array:
    pads = [(padding, padding)] * 2
    return jax.lax.conv_general_dilated(x, w, (stride, stride), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def batch_norm(p: Params, x: jax.Array) -> jax.Array:
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p[0] + p[1]


def layer_norm(p: Params, x: jax.Array) -> jax.Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p[0] + p[1]


def mlp(make: Maker, features: int, hidden: tuple[int, ...], classes: int) -> tuple[Params, Forward]:
    sizes = (features, *hidden, classes)
    params = [make.dense(i, o) for i, o in pairwise(sizes)]

    def forward(params: Params, x: jax.Array) -> jax.Array:
        for p in params[:-1]:
            x = jax.nn.relu(dense(p, x))
        return dense(params[-1], x)

    return params, forward


def lenet(make: Maker, pixels: int, channels: tuple[int, int], hidden: int, classes: int) -> tuple[Params, Forward]:
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


def digits(make: Maker, pixels: int, channels: tuple[int, ...], hidden: int, classes: int) -> tuple[Params, Forward]:
    """Running statistics are left out, as in resnet18."""
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


def resnet18(make: Maker, classes: int) -> tuple[Params, Forward]:
    """Running statistics are left out, which is in JAX's favour by a little."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    plan = [(inputs, channels, 1 if inputs == channels else 2) for inputs, channels in pairwise(widths)]
    blocks = []
    for inputs, channels, stride in plan:
        block = {"c1": make.conv(3, inputs, channels), "n1": make.norm(channels)}
        block |= {"c2": make.conv(3, channels, channels), "n2": make.norm(channels)}
        if stride != 1:
            block |= {"c3": make.conv(1, inputs, channels), "n3": make.norm(channels)}
        blocks.append(block)
    params = {"stem": make.conv(3, 3, 64), "norm": make.norm(64), "blocks": blocks, "head": make.dense(512, classes)}

    def forward(p: Params, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(batch_norm(p["norm"], conv(p["stem"], x, 1, 1)))
        for b, (_, _, stride) in zip(p["blocks"], plan, strict=True):
            y = jax.nn.relu(batch_norm(b["n1"], conv(b["c1"], x, stride, 1)))
            y = batch_norm(b["n2"], conv(b["c2"], y, 1, 1))
            x = jax.nn.relu(y + (batch_norm(b["n3"], conv(b["c3"], x, stride)) if "c3" in b else x))
        return dense(p["head"], x.mean((1, 2)))

    return params, forward


def gpt(make: Maker, layers: int, width: int, heads: int, length: int, vocabulary: int) -> tuple[Params, Forward]:
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

    def forward(p: Params, tokens: jax.Array) -> jax.Array:
        x = p["token"][tokens] + p["position"]
        n, t, d = x.shape
        for layer in p["layers"]:
            qkv = dense(layer["qkv"], layer_norm(layer["n1"], x)).reshape(n, t, 3, heads, d // heads)
            y = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
            x = x + dense(layer["project"], y.reshape(n, t, d))
            y = jax.nn.gelu(dense(layer["up"], layer_norm(layer["n2"], x)), approximate=False)
            x = x + dense(layer["down"], y)
        return dense(p["head"], layer_norm(p["norm"], x))

    return params, forward


def lstm(make: Maker, layers: int, width: int, length: int, vocabulary: int) -> tuple[Params, Forward]:
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


MODELS: dict[str, Callable[..., tuple[Params, Forward]]] = {
    "mlp": mlp,
    "lenet": lenet,
    "digits": digits,
    "resnet18": resnet18,
    "gpt": gpt,
    "lstm": lstm,
}


def update_rule(workload: Workload) -> tuple[Callable[[Params], Params], Callable[..., tuple[Params, Params]]]:
    """(state from parameters, (parameters, gradients, state) -> parameters and state) of the workload's optimizer."""
    lr, wd = workload.hyper["learning_rate"], workload.hyper.get("wd", 0.0)
    momentum = workload.hyper.get("momentum", 0.0)
    tree = jax.tree.map

    def sgd(p: Params, g: Params, s: Params) -> tuple[Params, Params]:
        s = tree(lambda m, g, w: momentum * m + g + wd * w, s, g, p) if momentum else g
        return tree(lambda w, m: w - lr * m, p, s), s if momentum else 0.0

    def adam(p: Params, g: Params, s: Params) -> tuple[Params, Params]:
        m, v, t = s
        t = t + 1
        if wd and workload.optimizer == "adam":
            g = tree(lambda g, w: g + wd * w, g, p)
        m = tree(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = tree(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        rate, root = lr / (1 - 0.9**t), jnp.sqrt(1 - 0.999**t)
        decay = lr * wd if workload.optimizer == "adamw" else 0.0
        p = tree(lambda w, m, v: w * (1 - decay) - rate * m / (jnp.sqrt(v) / root + 1e-8), p, m, v)
        return p, (m, v, t)

    def zeros(p: Params) -> Params:
        return tree(jnp.zeros_like, p)

    if workload.optimizer == "sgd":
        return (zeros if momentum else lambda p: 0.0), sgd
    return (lambda p: (zeros(p), zeros(p), jnp.zeros(()))), adam


def contender(workload: Workload, threads: int) -> Callable[[], Any]:
    """A function that takes one training step and returns the loss; threads are set by affinity and NPROC."""
    init, rule = update_rule(workload)
    if workload.model == "update":
        return _update(init, rule)
    params, forward = MODELS[workload.model](Maker(), **workload.size)

    def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(forward(params, x))
        return -jnp.take_along_axis(logits, y[..., None], -1).mean()

    def whole(params: Params, state: Params, x: jax.Array, y: jax.Array) -> tuple[Params, Params, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return *rule(params, gradients, state), value

    compiled = jax.jit(whole, donate_argnums=(0, 1))
    state = init(params)
    images = workload.model in ("lenet", "digits", "resnet18")
    pairs = [(x.transpose(0, 2, 3, 1) if images else x, y) for x, y in batches(workload)]
    data = cycle([(jnp.asarray(x), jnp.asarray(y)) for x, y in pairs])

    def step() -> Any:
        nonlocal params, state
        params, state, value = compiled(params, state, *next(data))
        return value.block_until_ready()

    return step


def _update(init: Callable[[Params], Params], rule: Callable[..., tuple[Params, Params]]) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.standard_normal(s, dtype=np.float32)) for s in resnet50_shapes()]
    gradients = [jnp.asarray(rng.standard_normal(s, dtype=np.float32)) for s in resnet50_shapes()]
    state = init(params)
    compiled = jax.jit(rule, donate_argnums=(0, 2))

    def step() -> Any:
        nonlocal params, state
        params, state = compiled(params, gradients, state)
        return jax.block_until_ready(params)[-1]

    return step
