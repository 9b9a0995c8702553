"""What is measured: models by name and size, batches, optimizers, losses. All contenders share it; it needs numpy only.

The nets are in nets.py and transformers.py, their twins in torch_nets.py and jax_nets.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Workload:
    """One training step to be timed: a model of that size on batches of `batch` samples, a loss, an optimizer.

    `loss` is "cross-entropy" (classes along the last axis), "l2" (half the squared error), or "logistic" (of one
    output that is no probability yet).
    """

    name: str
    model: str
    batch: int
    size: Mapping[str, Any]
    optimizer: str
    hyper: Mapping[str, Any]
    loss: str = "cross-entropy"
    note: str = ""

    @property
    def inputs(self) -> int:
        """How many arrays of a batch go to the net; the last one goes to the loss."""
        return 2 if self.model == "dlrm" else 1


_MLP = {"features": 784, "hidden": (512, 256), "classes": 10}
_LENET = {"pixels": 28, "channels": (20, 50), "hidden": 500, "classes": 10}
_DIGITS = {"pixels": 8, "channels": (32, 64), "hidden": 128, "classes": 10}
_RESNET20 = {"widths": (16, 32, 64), "blocks": 3, "classes": 10}
_RESNET50 = {"widths": (64, 128, 256, 512), "blocks": (3, 4, 6, 3), "classes": 10}
_MOBILENET = {"pixels": 32, "first": 32, "plan": "64 128/2 128 256/2 256 512/2 512 512", "classes": 10}
_GPT = {"layers": 6, "width": 384, "heads": 6, "length": 256, "vocabulary": 96}
_GPT_SMALL = {"layers": 2, "width": 64, "heads": 4, "length": 64, "vocabulary": 96}
_BERT = {"layers": 4, "width": 256, "heads": 4, "length": 128, "vocabulary": 8000}
_LSTM = {"layers": 2, "width": 256, "length": 35, "vocabulary": 2000}
_DCGAN = {"noise": 100, "widths": (256, 128, 64), "colours": 3}
_DLRM = {"tables": 8, "rows": 20000, "width": 32, "dense": 13, "bottom": (64,), "top": (128, 64)}
_ADAM, _MOMENTUM = {"learning_rate": 1e-3}, {"learning_rate": 0.01, "momentum": 0.9}
_ADAMW, _DECAYED = {"learning_rate": 3e-4, "wd": 0.01}, _MOMENTUM | {"wd": 5e-4}

WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp-8", "mlp", 8, _MLP, "adam", _ADAM, note="three dense layers, batch 8"),
        Workload("mlp-128", "mlp", 128, _MLP, "adam", _ADAM, note="the same, batch 128"),
        Workload("mlp-256", "mlp", 256, _MLP, "adam", _ADAM, note="the same, batch 256"),
        Workload("lenet-128", "lenet", 128, _LENET, "sgd", _MOMENTUM, note="two convolutions, two dense layers"),
        Workload("digits-64", "digits", 64, _DIGITS, "adam", _ADAM, note="the net of examples/digits.py"),
        Workload("resnet18-32", "resnet18", 32, {"classes": 10}, "sgd", _DECAYED, note="basic blocks, 32x32"),
        Workload("resnet20-32px", "resnet20", 64, _RESNET20 | {"pixels": 32}, "sgd", _DECAYED, note="narrow, 32x32"),
        Workload("resnet20-64px", "resnet20", 32, _RESNET20 | {"pixels": 64}, "sgd", _DECAYED, note="the same, 64x64"),
        Workload("resnet50-32px", "resnet50", 8, _RESNET50 | {"pixels": 32}, "sgd", _DECAYED, note="1x1, 3x3, 1x1"),
        Workload("resnet50-64px", "resnet50", 8, _RESNET50 | {"pixels": 64}, "sgd", _DECAYED, note="the same, 64x64"),
        Workload("mobilenet", "mobilenet", 32, _MOBILENET, "sgd", _DECAYED, note="depthwise and 1x1, 32x32"),
        Workload("gpt", "gpt", 8, _GPT, "adamw", _ADAMW, note="6 layers of width 384, 256 tokens"),
        Workload("gpt-small", "gpt", 8, _GPT_SMALL, "adamw", _ADAMW, note="2 layers of width 64"),
        Workload("bert", "bert", 8, _BERT, "adamw", _ADAMW, note="encoder, 4 layers of width 256, 8000 words"),
        Workload("lstm", "lstm", 20, _LSTM, "sgd", {"learning_rate": 1.0}, note="2 layers of width 256, 35 turns"),
        Workload("dcgan", "dcgan", 32, _DCGAN, "adam", _ADAM, "l2", note="transposed convolutions up to 32x32"),
        Workload("dlrm", "dlrm", 256, _DLRM, "sgd", {"learning_rate": 0.1}, "logistic", note="embeddings, 160000 rows"),
        Workload("update", "update", 1, {}, "adam", _ADAM, note="Adam alone on ResNet-50's parameters"),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Update:
    """The update alone by one optimizer: how many arrays as large as the weights its formula reads and writes."""

    optimizer: str
    words: int
    hyper: Mapping[str, Any] = field(default_factory=dict)


_MOMENTUM_ONLY = {"momentum": 0.9}
# What takes norms of a whole parameter reads everything twice: for the norms, then for the update (LANS three times).
UPDATES: dict[str, Update] = {
    "sgd": Update("sgd", 2 + 1),
    "sgd-momentum": Update("sgd", 3 + 2, _MOMENTUM_ONLY),
    "nag": Update("nag", 3 + 2, _MOMENTUM_ONLY),
    "signum": Update("signum", 3 + 2),
    "signsgd": Update("signum", 2 + 1, {"momentum": 0.0}),
    "dcasgd": Update("dcasgd", 3 + 2),
    "sgld": Update("sgld", 2 + 1),
    "adam": Update("adam", 4 + 3),
    "adamw": Update("adamw", 4 + 3, {"wd": 0.01}),
    "adabelief": Update("adabelief", 4 + 3),
    "adamax": Update("adamax", 4 + 3),
    "nadam": Update("nadam", 4 + 3),
    "adagrad": Update("adagrad", 3 + 2),
    "groupadagrad": Update("groupadagrad", 2 + 1),
    "rmsprop": Update("rmsprop", 3 + 2),
    "rmsprop-centered": Update("rmsprop", 5 + 4, {"centered": True}),
    "adadelta": Update("adadelta", 4 + 3),
    "ftrl": Update("ftrl", 4 + 3),
    "ftml": Update("ftml", 5 + 4),
    "lars": Update("lars", 2 + 3 + 2, _MOMENTUM_ONLY),
    "lbsgd": Update("lbsgd", 2 + 3 + 2, {**_MOMENTUM_ONLY, "warmup_strategy": "lars"}),
    "lamb": Update("lamb", 4 + 4 + 3),
    "lans": Update("lans", 1 + 4 + 4 + 3),
}


def find(name: str) -> Workload:
    """A row of WORKLOADS; or of UPDATES with a size: update/adam/25e6 parameters, update/adam/160x64 in 160 arrays."""
    if not name.startswith("update/"):
        return WORKLOADS[name]
    _, key, size = name.split("/")
    row = UPDATES[key]
    return Workload(name, "update", 1, {"parameters": size}, row.optimizer, {"learning_rate": 1e-3, **row.hyper})


def batches(workload: Workload, count: int = 4, seed: int = 0) -> list[tuple[Array, ...]]:
    """Random inputs and labels, float32 and int32; images are NCHW. The update alone has none."""
    rng = np.random.default_rng(seed)
    if workload.model == "update":
        return []
    return [_SAMPLES[workload.model](rng, workload.batch, **workload.size) for _ in range(count)]


Rng = np.random.Generator


def _features(rng: Rng, n: int, features: int, classes: int, **_: Any) -> tuple[Array, ...]:
    return rng.standard_normal((n, features), np.float32), rng.integers(0, classes, n, np.int32)


def _images(rng: Rng, n: int, classes: int, pixels: int = 32, colours: int = 3, **_: Any) -> tuple[Array, ...]:
    return rng.standard_normal((n, colours, pixels, pixels), np.float32), rng.integers(0, classes, n, np.int32)


def _grey(rng: Rng, n: int, **size: Any) -> tuple[Array, ...]:
    return _images(rng, n, colours=1, **size)


def _tokens(rng: Rng, n: int, length: int, vocabulary: int, **_: Any) -> tuple[Array, ...]:
    """A sequence, and at each place the one that follows."""
    tokens = rng.integers(0, vocabulary, (n, length + 1), np.int32)
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def _noise(rng: Rng, n: int, noise: int, widths: tuple[int, ...], colours: int) -> tuple[Array, ...]:
    """Noise, and images of numbers between -1 and 1."""
    pixels = 4 << len(widths)
    images = rng.uniform(-1, 1, (n, colours, pixels, pixels)).astype(np.float32)
    return rng.standard_normal((n, noise, 1, 1), np.float32), images


def _clicks(rng: Rng, n: int, tables: int, rows: int, dense: int, **_: Any) -> tuple[Array, ...]:
    """Numbers; one row of each table, of which all lie one behind the other; was it clicked?"""
    chosen = rng.integers(0, rows, (n, tables), np.int32) + np.arange(tables, dtype=np.int32) * rows
    return rng.standard_normal((n, dense), np.float32), chosen, rng.integers(0, 2, (n, 1)).astype(np.float32)


_SAMPLES: dict[str, Callable[..., tuple[Array, ...]]] = {
    **{"mlp": _features, "lenet": _grey, "digits": _grey, "gpt": _tokens, "bert": _tokens, "lstm": _tokens},
    **{"resnet18": _images, "resnet20": _images, "resnet50": _images, "mobilenet": _images},
    **{"dcgan": _noise, "dlrm": _clicks},
}


def stages(plan: str) -> list[tuple[int, int]]:
    """Channels and stride of each block of a plan: '64 128/2' is [(64, 1), (128, 2)]."""
    return [(int(width), int(stride or 1)) for width, _, stride in (block.partition("/") for block in plan.split())]


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The 161 parameter shapes of ResNet-50: 25.6 million numbers."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convs = [(width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                convs.append((4 * width, channels, 1, 1))
            for conv in convs:
                shapes += [conv, (conv[0],), (conv[0],)]
            channels = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def update_shapes(workload: Workload) -> list[tuple[int, ...]]:
    """The arrays of an update: ResNet-50's, each so many times as large that the size is met, or small ones."""
    size = str(workload.size.get("parameters", "25e6"))
    if "x" in size:
        count, elements = map(int, size.split("x"))
        return [(8, elements // 8)] * count
    shapes = resnet50_shapes()
    times = max(1, round(float(size) / sum(map(math.prod, shapes))))
    shapes = [(times * first, *rest) for first, *rest in shapes]
    if workload.optimizer == "groupadagrad":  # of matrices only
        shapes = [(first, math.prod(rest)) for first, *rest in shapes]
    return shapes
