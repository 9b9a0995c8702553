"""Networks drawn by a number: layers, branches, a loss, an optimizer, a precision. The same number gives the same ones.

Each piece is drawn for the array that reaches it, and run on it at once, so that the next one knows its shape.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.errors import ShapeError
from gluongraph.gluon import nn, rnn

Array = Any
Chance = random.Random
LARGEST = 1500  # elements of an array between two pieces
ACTIVATIONS = ("relu", "sigmoid", "tanh", "softrelu", "softsign")


class Piece(gluon.HybridBlock):
    """A function of an array, and the layers that it calls."""

    def __init__(self, text: str, run: Callable[..., Array], *layers: gluon.HybridBlock):
        super().__init__()
        self.text, self.run = text, run
        for i, layer in enumerate(layers):
            setattr(self, f"layer{i}", layer)
        self.layers = layers

    def forward(self, x: Array) -> Array:
        return self.run(x, *self.layers)


class Net(gluon.HybridBlock):
    """Pieces one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[Piece] = []

    def add(self, piece: Piece) -> None:
        setattr(self, f"piece{len(self.pieces)}", piece)
        self.pieces.append(piece)

    def forward(self, x: Array) -> Array:
        for piece in self.pieces:
            x = piece(x)
        return x


@dataclass
class Drawn:
    """A network with a loss, a batch and an optimizer."""

    seed: int
    net: Net
    loss: gluon.loss.Loss
    x: np.ndarray[Any, Any]
    label: np.ndarray[Any, Any]
    optimizer: str
    settings: dict[str, Any]
    mixed: bool  # is it compiled in 16-bit precision too?
    fused: bool  # is the whole step compiled, or gradients and the update by themselves?
    texts: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        how = ", ".join(f"{k}={v}" for k, v in self.settings.items())
        mode = " bf16-mixed" * self.mixed + " step" * self.fused
        pieces = " > ".join(["x".join(map(str, self.x.shape)), *self.texts])
        return f"{self.seed}: {pieces} | {type(self.loss).__name__} | {self.optimizer} {how}{mode}"


# -- pieces, by the kind of array that they take


def _layer(layer: gluon.HybridBlock, text: str) -> Piece:
    return Piece(text, lambda x, f: f(x), layer)


def _dense(c: Chance, x: Array) -> Piece:
    units, act = c.randint(1, 12), c.choice((None, None, *ACTIVATIONS))
    bias, flat = c.random() < 0.8, x.ndim == 2 or c.random() < 0.3
    return _layer(nn.Dense(units, activation=act, use_bias=bias, flatten=flat), f"dense {units} {act or ''}")


def _activation(c: Chance, x: Array) -> Piece:
    makers: list[Callable[[], gluon.HybridBlock]] = [
        *(lambda name=name: nn.Activation(name) for name in ACTIVATIONS),
        nn.GELU, nn.SELU, nn.ELU, nn.SiLU, nn.PReLU, lambda: nn.LeakyReLU(0.2),
    ]  # fmt: skip
    layer = c.choice(makers)()
    return _layer(layer, type(layer).__name__.lower())


def _norm(c: Chance, x: Array) -> Piece:
    layers: list[gluon.HybridBlock] = [nn.LayerNorm(axis=c.randrange(1, x.ndim))]
    if x.shape[0] > 1 or x.ndim > 2:
        layers.append(nn.BatchNorm(axis=c.choice((1, x.ndim - 1)), scale=c.random() < 0.8, center=c.random() < 0.8))
    if x.ndim > 2:
        layers += [nn.InstanceNorm(), nn.GroupNorm(c.choice([g for g in (1, 2, 3) if x.shape[1] % g == 0]))]
    layer = c.choice(layers)
    return _layer(layer, type(layer).__name__.lower())


def _dropout(c: Chance, x: Array) -> Piece:
    return _layer(nn.Dropout(c.choice((0.2, 0.5))), "dropout")


def _arithmetic(c: Chance, x: Array) -> Piece:
    """What is made of an array without parameters."""
    axis, last = c.randrange(1, x.ndim), x.ndim - 1
    choices: dict[str, Callable[[Array], Array]] = {
        "softmax": lambda x: nd.softmax(x, axis=axis),
        "log_softmax": lambda x: nd.log_softmax(x, axis=axis),
        "less its largest": lambda x: x - nd.max(x, axis=axis, keepdims=True),
        "less its mean": lambda x: nd.broadcast_sub(x, nd.mean(x, axis=axis, keepdims=True)),
        "by its norm": lambda x: nd.broadcast_div(x, nd.sqrt(nd.sum(x * x, axis=axis, keepdims=True) + 0.1)),
        "square": lambda x: x * x * 0.5,
        "sine": lambda x: nd.sin(x) + 0.1 * x,
        "exp": lambda x: nd.exp(-nd.abs(x)),
        "root": lambda x: nd.sqrt(nd.relu(x) + 0.3),
        "quotient": lambda x: x / (1.0 + x * x),
        "clip": lambda x: nd.clip(x, -0.7, 0.9),
        "where": lambda x: nd.where(x > 0.1, x * 0.5, nd.tanh(x)),
        "maximum": lambda x: nd.maximum(x, 0.3 * x - 0.1),
        "flip": lambda x: nd.flip(x, axis=axis) * 0.7 + 0.2 * x,
        "cumsum": lambda x: nd.cumsum(x, axis=axis) * 0.3,
        "swap": lambda x: nd.swapaxes(x, axis, last),
        "slice": lambda x: nd.slice_axis(x, axis=axis, begin=0, end=max(1, x.shape[axis] - 1)),
        "pad by itself": lambda x: nd.concat(x, nd.slice_axis(x, axis=axis, begin=0, end=1), dim=axis),
        "repeat": lambda x: nd.repeat(x, repeats=2, axis=axis),
        "stacked halves": lambda x: nd.concat(0.5 * x, nd.relu(x), dim=axis),
        "stop_gradient": lambda x: x * nd.BlockGrad(nd.sigmoid(x)),
    }
    name = c.choice(list(choices))
    return Piece(f"{name} {axis}", choices[name])


def _branches(c: Chance, x: Array) -> Piece:
    """A residual, a gate or a concatenation of pieces that keep the shape."""
    kind = c.choice(("residual", "gate", "concat", "twice"))
    axis = c.randrange(1, x.ndim)
    inner = _sequence([_keeping(c, x) for _ in range(c.randint(1, 2))])
    combine: dict[str, Callable[[Array, Any], Array]] = {
        "residual": lambda x, f: x + f(x),
        "gate": lambda x, f: x * nd.sigmoid(f(x)),
        "concat": lambda x, f: nd.concat(x, f(x), dim=axis),
        "twice": lambda x, f: f(f(x) * 0.5),
    }
    return Piece(f"{kind}({inner.text})", combine[kind], inner)


def _sequence(pieces: Sequence[Piece]) -> Piece:
    def run(x: Array, *pieces: Piece) -> Array:
        for piece in pieces:
            x = piece(x)
        return x

    return Piece(" > ".join(piece.text for piece in pieces), run, *pieces)


def _keeping(c: Chance, x: Array) -> Piece:
    """A piece that keeps the shape."""
    makers: list[Callable[[Chance, Array], Piece]] = [_activation, _norm]
    if x.ndim == 4:
        makers += [_same_conv] * 2
    else:
        makers += [_same_dense] * 2
    return c.choice(makers)(c, x)


def _same_dense(c: Chance, x: Array) -> Piece:
    return _layer(nn.Dense(x.shape[-1], flatten=False, activation=c.choice((None, "tanh", "relu"))), "dense same")


def _same_conv(c: Chance, x: Array) -> Piece:
    size = c.choice((1, 3))
    groups = c.choice((1, x.shape[1]))
    return _layer(nn.Conv2D(x.shape[1], size, padding=size // 2, groups=groups), f"conv same {size} /{groups}")


def _conv(c: Chance, x: Array) -> Piece:
    channels, height = x.shape[1:3]
    size = c.choice([n for n in (1, 2, 3, 5) if n <= height + 2])
    groups = c.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    made, stride, dilation = groups * c.randint(1, 4), c.choice((1, 1, 2)), c.choice((1, 1, 2))
    if (size - 1) * dilation + 1 > height + 2:
        dilation = 1
    layer = nn.Conv2D(
        made, size, strides=stride, padding=1, dilation=dilation, groups=groups, use_bias=c.random() < 0.7,
        activation=c.choice((None, "relu", "tanh")),
    )  # fmt: skip
    return _layer(layer, f"conv {made} k{size} s{stride} d{dilation} /{groups}")


def _deconv(c: Chance, x: Array) -> Piece:
    made, size, stride = c.randint(1, 4), c.choice((2, 3)), c.choice((1, 2))
    return _layer(nn.Conv2DTranspose(made, size, strides=stride), f"deconv {made} k{size} s{stride}")


def _pool(c: Chance, x: Array) -> Piece:
    size, stride, padding = c.choice(((2, 2, 0), (3, 2, 1), (2, 1, 0), (3, 1, 1)))
    layer: gluon.HybridBlock = c.choice((nn.MaxPool2D, nn.AvgPool2D))(size, stride, padding)
    if c.random() < 0.3:
        layer = c.choice((nn.GlobalAvgPool2D, nn.GlobalMaxPool2D))()
    return _layer(layer, f"{type(layer).__name__.lower()} {size} {stride}")


def _to_sequence(c: Chance, x: Array) -> Piece:
    return Piece("pixels in a row", lambda x: nd.transpose(nd.reshape(x, shape=(0, 0, -1)), axes=(0, 2, 1)))


def _recurrent(c: Chance, x: Array) -> Piece:
    hidden, both = c.randint(2, 6), c.random() < 0.3
    kind = c.choice((rnn.LSTM, rnn.GRU, rnn.RNN))
    layer = kind(hidden, num_layers=c.choice((1, 1, 2)), layout="NTC", bidirectional=both)
    return _layer(layer, f"{kind.__name__.lower()} {hidden}{' both ways' * both}")


def _attention(c: Chance, x: Array) -> Piece:
    heads, each, causal = c.choice((1, 2)), c.randint(2, 5), c.random() < 0.5
    width = heads * each

    def split(x: Array) -> Array:
        return nd.transpose(nd.reshape(x, shape=(0, 0, heads, each)), axes=(0, 2, 1, 3))

    def run(x: Array, queries: Any, keys: Any, values: Any, last: Any) -> Array:
        q, k, v = (split(f(x)) for f in (queries, keys, values))
        y = nd.attention(q, k, v, causal=causal) if fused else plain(q, k, v)
        return x + last(nd.reshape(nd.transpose(y, axes=(0, 2, 1, 3)), shape=(0, 0, -3)))

    def plain(q: Array, k: Array, v: Array) -> Array:
        scores = nd.batch_dot(nd.reshape(q, shape=(-3, 0, 0)), nd.reshape(k, shape=(-3, 0, 0)), transpose_b=True)
        found = nd.batch_dot(nd.softmax(scores / each**0.5), nd.reshape(v, shape=(-3, 0, 0)))
        return nd.reshape(found, shape=(-4, -1, heads, 0, 0))

    fused = c.random() < 0.6
    layers = [nn.Dense(width, flatten=False, use_bias=c.random() < 0.5) for _ in range(3)]
    text = f"attention {heads}x{each}{' causal' * (causal and fused)}{' by products' * (not fused)}"
    return Piece(text, run, *layers, nn.Dense(x.shape[-1], flatten=False))


def _conv1d(c: Chance, x: Array) -> Piece:
    layer = nn.Conv1D(c.randint(1, 5), 3, padding=1, strides=c.choice((1, 2)), activation=c.choice((None, "tanh")))
    return Piece("conv1d", lambda x, f: nd.swapaxes(f(nd.swapaxes(x, 1, 2)), 1, 2), layer)


def _over_time(c: Chance, x: Array) -> Piece:
    ways: dict[str, Callable[[Array], Array]] = {
        "mean of steps": lambda x: nd.mean(x, axis=1),
        "last step": lambda x: nd.reshape(nd.slice_axis(x, axis=1, begin=-1, end=None), shape=(0, -1)),
        "largest of steps": lambda x: nd.max(x, axis=1),
        "all steps": lambda x: nd.reshape(x, shape=(0, -1)),
    }
    name = c.choice(list(ways))
    return Piece(name, ways[name])


def _flatten(c: Chance, x: Array) -> Piece:
    return _layer(nn.Flatten(), "flatten")


def _folded(c: Chance, x: Array) -> Piece:
    """Rows as a sequence or as an image."""
    width = x.shape[1]
    sides = [n for n in (2, 3, 4) if width % n == 0] or [1]
    side = c.choice(sides)
    if c.random() < 0.5 and side * side > 1 and width % (side * side) == 0:
        return Piece(f"as an image {side}", lambda x: nd.reshape(x, shape=(0, -1, side, side)))
    return Piece(f"as a sequence {side}", lambda x: nd.reshape(x, shape=(0, side, -1)))


PIECES: dict[int, list[tuple[int, Callable[[Chance, Array], Piece]]]] = {
    2: [(4, _dense), (2, _activation), (2, _norm), (1, _dropout), (3, _arithmetic), (1, _folded)],
    3: [
        (2, _recurrent), (2, _attention), (1, _conv1d), (2, _norm), (1, _activation), (2, _arithmetic), (2, _dense),
        (1, _over_time), (1, _dropout),
    ],
    4: [
        (5, _conv), (1, _deconv), (2, _pool), (2, _norm), (2, _activation), (2, _arithmetic), (1, _to_sequence),
        (1, _flatten), (1, _dropout),
    ],
}  # fmt: skip


def _piece(c: Chance, x: Array) -> Piece:
    if c.random() < 0.2:
        return _branches(c, x)
    weights, makers = zip(*PIECES[x.ndim], strict=True)
    return c.choices(makers, weights)[0](c, x)


# -- the whole


def _start(c: Chance, rng: np.random.Generator, net: Net) -> tuple[np.ndarray[Any, Any], Array]:
    """A batch, and what reaches the first piece of it."""
    n = c.choice((1, 2, 3, 4, 8, 17))
    kind = c.choice(("rows", "image", "image", "sequence", "words"))
    if kind == "rows":
        x = rng.standard_normal((n, c.randint(1, 16)))
    elif kind == "image":
        side = c.randint(3, 8)
        x = rng.standard_normal((min(n, 8), c.randint(1, 5), side, c.choice((side, side + 1))))
    elif kind == "sequence":
        x = rng.standard_normal((min(n, 4), c.randint(1, 6), c.randint(1, 7)))
    else:
        words, width = c.randint(2, 9), c.randint(1, 6)
        x = rng.integers(0, words, (min(n, 4), c.randint(1, 7))).astype("float64")
        net.add(_layer(nn.Embedding(words, width, dtype="float64"), f"embedding {words}x{width}"))
    return x, nd.array(x, dtype="float64")


def _settle(piece: Piece, x: Array, rng: np.random.Generator) -> Array:
    """Weights of the piece, and what it makes of x."""
    piece.initialize(mx.init.Normal(0.5))
    piece.cast("float64")
    piece(x)
    for p in piece.collect_params().values():
        if p.grad_req != "null":
            value = p.data().asnumpy()
            fan = max(1, value.size // max(1, value.shape[0])) if value.ndim > 1 else 4
            drawn = rng.standard_normal(value.shape) / fan**0.5 + 0.5 * (value == 1)  # scales of norms are about 1
            p.set_data(nd.array(drawn, dtype="float64"))
    return piece(x)


LOSSES: dict[str, Callable[[], gluon.loss.Loss]] = {
    "softmax": gluon.loss.SoftmaxCrossEntropyLoss,
    "dense softmax": lambda: gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False),
    "l2": gluon.loss.L2Loss,
    "l1": gluon.loss.L1Loss,
    "huber": gluon.loss.HuberLoss,
    "sigmoid": gluon.loss.SigmoidBinaryCrossEntropyLoss,
    "logistic": gluon.loss.LogisticLoss,
    "hinge": gluon.loss.HingeLoss,
    "squared hinge": gluon.loss.SquaredHingeLoss,
    "kl": lambda: gluon.loss.KLDivLoss(from_logits=False),
    "poisson": gluon.loss.PoissonNLLLoss,
}


def _loss(c: Chance, rng: np.random.Generator, y: Array) -> tuple[gluon.loss.Loss, np.ndarray[Any, Any]]:
    name = c.choice(list(LOSSES))
    shape = y.shape
    label = rng.standard_normal(shape)
    if name == "softmax":
        label = rng.integers(0, shape[-1], shape[:-1]).astype("float64")
    elif name in ("dense softmax", "kl"):
        label = rng.dirichlet(np.ones(shape[-1]), shape[:-1])
    elif name in ("logistic", "hinge", "squared hinge"):
        label = np.sign(label)
    elif name in ("sigmoid", "poisson"):
        label = rng.integers(0, 2, shape).astype("float64")
    return LOSSES[name](), label


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}), ("sgd", {"momentum": 0.9}), ("nag", {"momentum": 0.9}), ("signum", {"wd_lh": 0.01}),
    ("dcasgd", {"momentum": 0.9}), ("adam", {}), ("adamw", {}), ("adabelief", {}), ("adamax", {}), ("nadam", {}),
    ("adagrad", {}), ("rmsprop", {}), ("rmsprop", {"centered": True}), ("adadelta", {}), ("ftrl", {}), ("ftml", {}),
    ("lars", {"momentum": 0.9}), ("lamb", {}), ("lans", {}),
]  # fmt: skip


def draw(seed: int) -> Drawn:
    """The network of a number, with weights in float64."""
    c, rng = random.Random(seed), np.random.default_rng(seed)
    mx.random.seed(seed)
    net = Net()
    data, x = _start(c, rng, net)
    for piece in net.pieces:
        x = _settle(piece, x, rng)
    wanted = c.randint(1, 4)
    for _ in range(wanted + 8):
        piece = _piece(c, x)
        try:
            y = _settle(piece, x, rng)
        except ShapeError:  # a window that is larger than what is left of an image
            continue
        if 2 <= y.ndim <= 4 and y.size <= LARGEST and min(y.shape) and np.isfinite(y.asnumpy()).all():
            net.add(piece)
            x, wanted = y, wanted - 1
        if not wanted:
            break
    if not any(p.grad_req != "null" for p in net.collect_params().values()):
        net.add(_same_dense(c, x))
        x = _settle(net.pieces[-1], x, rng)
    loss, label = _loss(c, rng, x)
    optimizer, settings = c.choice(OPTIMIZERS)
    settings = {"learning_rate": 0.05, "wd": c.choice((0.0, 0.01)), **settings}
    if c.random() < 0.2 and optimizer not in ("lans",):
        settings["clip_gradient"] = 0.3
    texts = [piece.text for piece in net.pieces]
    return Drawn(seed, net, loss, data, label, optimizer, settings, c.random() < 0.1, c.random() < 0.3, texts)
