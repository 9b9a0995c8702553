"""Batches on devices."""

from __future__ import annotations

from typing import Any

from gluongraph.lightning.batch import map_leaves


def move_data_to_device(batch: Any, device: Any) -> Any:
    """A batch in which everything with a method `to(device)`, as tensors of PyTorch's have, is what that gives.

    What has none stays as it is, as do arrays: compiled steps take them to their device.

    >>> move_data_to_device({"x": [1, "text"]}, "cpu")
    {'x': [1, 'text']}
    """

    def moved(leaf: Any) -> Any:
        if not callable(getattr(leaf, "to", None)):
            return leaf
        made = leaf.to(device)
        return leaf if made is None else made

    return moved(batch) if callable(getattr(batch, "to", None)) else map_leaves(moved, batch)
