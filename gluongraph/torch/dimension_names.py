"""Names of free axes: those of the `torch.export.Dim` that stand in `dynamic_shapes`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gluongraph.torch.export import tensors_in, torch


def dimension_names(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[Mapping[int, str]]:
    """The names that `dynamic_shapes` gives to axes of each tensor among the arguments, in the order of the tensors.

    Axes that it leaves to PyTorch (`Dim.AUTO`, `Dim.DYNAMIC`) or computes from others (`2 * length`) have none.
    `torch.export.export` has taken it for these arguments.
    """
    if hasattr(dynamic_shapes, "dynamic_shapes"):  # torch.export.ShapesCollection
        dynamic_shapes = dynamic_shapes.dynamic_shapes(module, args, dict(kwargs))
    found: dict[int, Mapping[int, str]] = {}
    if dynamic_shapes:
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        values: Any = given if isinstance(dynamic_shapes, Mapping) else tuple(given.values())
        found = {id(tensor): dict(_named(axes)) for tensor, axes in _pairs(values, dynamic_shapes)}
    return [found.get(id(tensor), {}) for tensor in tensors_in((args, dict(kwargs)))]


def _pairs(value: Any, shapes: Any) -> Iterator[tuple[Any, Any]]:
    """The tensors in a structure, each with what `shapes` says of its axes."""
    if shapes is None:
        return
    if isinstance(value, torch().Tensor):
        yield value, shapes
    elif isinstance(value, Mapping) and isinstance(shapes, Mapping):
        for key in value:
            yield from _pairs(value[key], shapes.get(key))
    else:
        for one, other in zip(_children(value), _children(shapes), strict=False):
            yield from _pairs(one, other)


def _children(value: Any) -> Sequence[Any]:
    """The parts of a list, a tuple, or an object of a registered class."""
    if isinstance(value, (list, tuple)):
        return value
    registered = torch().utils._pytree.SUPPORTED_NODES.get(type(value))
    return registered.flatten_fn(value)[0] if registered is not None else ()


def _named(axes: Any) -> Iterator[tuple[int, str]]:
    """The axes of a tensor that have a name."""
    if not isinstance(axes, (Mapping, list, tuple)):
        return
    for axis, dim in axes.items() if isinstance(axes, Mapping) else enumerate(axes):
        if isinstance(dim, torch().export.Dim):
            yield axis, dim.__name__
