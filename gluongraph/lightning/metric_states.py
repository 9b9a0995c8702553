"""The states of torchmetrics' objects: saved in checkpoints, and reduced over ranks when they compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from gluongraph.lightning.metric_objects import is_collection, metrics_of
from gluongraph.lightning.ranks import Ranks


def _metrics(module: Any) -> dict[str, Any]:
    """The metrics of a module that have states of their own."""
    return {name: each for name, each in metrics_of(module).items() if not is_collection(each) and _states(each)}


def _states(metric: Any) -> tuple[str, ...]:
    return tuple(getattr(metric, "_defaults", ()))


def metric_states(module: Any) -> dict[str, Any]:
    """What the metrics of a module have seen: for each by its name the number of updates, and its states, which are
    tensors or lists of them. On several ranks it is what all have seen; all ranks call this."""
    told = {}
    for name, metric in _metrics(module).items():
        with metric.sync_context(dist_sync_fn=metric.dist_sync_fn):
            states = {state: _kept(getattr(metric, state)) for state in _states(metric)}
        told[name] = {"updates": int(metric._update_count), "states": states}
    return told


def _kept(state: Any) -> Any:
    if isinstance(state, (list, tuple)):
        return [each.detach().clone() for each in state]
    return state.detach().clone()


def put_metric_states(module: Any, told: Mapping[str, Any], rank: int) -> None:
    """Let the metrics of a module go on from these states. Of several ranks the first one has seen it all."""
    for name, metric in _metrics(module).items():
        metric.reset()
        if name not in told or rank > 0:
            continue
        for state, value in told[name]["states"].items():
            if isinstance(metric._defaults[state], list) and not isinstance(value, list):
                value = [value]  # the parts of several ranks have been joined
            setattr(metric, state, value)
        metric._update_count = told[name]["updates"]


@contextmanager
def computed_of_all_ranks(module: Any, ranks: Ranks) -> Iterator[None]:
    """Within: the metrics of a module compute what the batches of all ranks give. All ranks ask for it together."""
    if ranks.size == 1:
        yield
        return
    from gluongraph.torch.export import torch

    def gathered(tensor: Any, group: Any = None) -> list[Any]:
        host = tensor.detach().contiguous().numpy()
        return [torch().from_numpy(np.ascontiguousarray(each)) for each in ranks.gather_unequal(host)]

    metrics = [each for each in metrics_of(module).values() if hasattr(each, "dist_sync_fn")]
    before = [(each.dist_sync_fn, each.distributed_available_fn) for each in metrics]
    for each in metrics:
        if each.dist_sync_fn is None:
            each.dist_sync_fn, each.distributed_available_fn = gathered, lambda: True
    try:
        yield
    finally:
        for each, (gather, available) in zip(metrics, before, strict=True):
            each.dist_sync_fn, each.distributed_available_fn = gather, available
