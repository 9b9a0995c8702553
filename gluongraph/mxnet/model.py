"""`mxnet.model`: checkpoints of a symbol and its parameters."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from gluongraph import nd

BatchEndParam = namedtuple("BatchEndParam", ["epoch", "nbatch", "eval_metric", "locals"])


def load_params(prefix: str, epoch: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters and the auxiliary states of prefix-<epoch>.params, by name."""
    found: dict[str, dict[str, Any]] = {"arg": {}, "aux": {}}
    loaded = nd.load(f"{prefix}-{epoch:04d}.params")
    if not isinstance(loaded, dict):
        raise ValueError(f"{prefix}-{epoch:04d}.params holds arrays without names")
    for name, array in loaded.items():
        kind, _, rest = name.partition(":")
        found[kind][rest] = array
    return found["arg"], found["aux"]
