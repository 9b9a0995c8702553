"""Recurrent layers in float64 numpy, step by step, and what is measured on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def step(mode: str, x: Any, states: Sequence[Any], w: Arrays, clip: tuple[float, float] | None = None) -> list[Any]:
    """The states after one step; the first is the output."""
    a = x @ w["i2h_weight"].T + w["i2h_bias"]
    b = states[0] @ w["h2h_weight"].T + w["h2h_bias"]
    if mode in ("relu", "tanh"):
        return [np.maximum(a + b, 0) if mode == "relu" else np.tanh(a + b)]
    if mode == "lstm":
        i, f, g, o = np.split(a + b, 4, -1)
        c = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(g)
        c = c if clip is None else np.clip(c, *clip)
        h = sigmoid(o) * np.tanh(c)
        return [h @ w["h2r_weight"].T if "h2r_weight" in w else h, c]
    (ar, az, an), (br, bz, bn) = np.split(a, 3, -1), np.split(b, 3, -1)
    z = sigmoid(az + bz)
    return [(1 - z) * np.tanh(an + sigmoid(ar + br) * bn) + z * states[0]]


def direction(
    mode: str, x: Any, states: Sequence[Any], w: Arrays, reverse: bool, lengths: Any = None, clip: Any = None
) -> tuple[Any, list[Any]]:
    """Outputs of all steps, and the last states; a sequence that has ended keeps its states, and gives 0."""
    states, outputs = list(states), [None] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        after = step(mode, x[t], states, w, clip)
        on = np.ones((x.shape[1], 1), bool) if lengths is None else (t < np.asarray(lengths))[:, None]
        outputs[t] = np.where(on, after[0], 0)
        states = [np.where(on, new, old) for new, old in zip(after, states, strict=True)]
    return np.stack(outputs), states


def layers(
    mode: str, x: Any, states: Sequence[Any], weights: Sequence[Sequence[Arrays]], lengths: Any = None, clip: Any = None
) -> tuple[Any, list[Any]]:
    """`weights[layer][direction]`; x of shape (steps, n, inputs), states of shape (layers * directions, n, width)."""
    lasts = []
    for k, both in enumerate(weights):
        runs = [
            direction(mode, x, [s[k * len(both) + d] for s in states], w, d == 1, lengths, clip)
            for d, w in enumerate(both)
        ]
        x = np.concatenate([y for y, _ in runs], -1)
        lasts += [last for _, last in runs]
    return x, [np.stack(column) for column in zip(*lasts, strict=True)]


def weights_of(layer: Any) -> list[list[dict[str, Any]]]:
    """The weights of a layer of gluon.rnn, in float64."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for name, parameter in layer._reg_params.items():
        at, kind = name.split("_", 1)
        found.setdefault((int(at[1:]), at[0]), {})[kind] = parameter.data().asnumpy().astype(np.float64)
    count = 1 + max(k for k, _ in found)
    return [[found[k, d] for d in "lr" if (k, d) in found] for k in range(count)]


def slope(f: Any, arrays: Sequence[Any], along: Sequence[Any], size: float = 1e-5) -> float:
    """The derivative of f at the arrays in a direction, by central differences."""

    def at(sign: int) -> Any:
        return f(*(a + sign * size * d for a, d in zip(arrays, along, strict=True)))

    return float((at(1) - at(-1)) / (2 * size))
