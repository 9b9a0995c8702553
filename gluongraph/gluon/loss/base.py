"""What losses share: weights, and the reduction to one number per sample.

A loss says its elements by a builder on nodes, of the predictions, the labels and its settings. `Loss._loss` puts it
under the weights and the mean, in one call for all modes.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

from gluongraph import ops
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.ir.graph import Node
from gluongraph.mxops.ops import axes_of
from gluongraph.mxops.shapes import reshape_like
from gluongraph.ndarray import invoke
from gluongraph.ranges import check_range


class Loss(HybridBlock):
    """Base class: a number per sample, scaled by `weight`; `batch_axis` is the axis of the samples.

    A subclass computes it in `forward(pred, label, ...)`, or in `hybrid_forward(F, pred, label, ...)`.

    `sample_weight`, of the losses that take one, scales the elements before their mean is taken: it does not
    renormalize. It is broadcast to the shape of the elements, which are those of the prediction unless the loss says
    else. One that does not broadcast, such as a number per sample, counts for the first axes.

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.L1Loss(weight=2)
    >>> loss
    L1Loss(batch_axis=0, w=2)
    >>> loss(nd.zeros((2, 3)), nd.ones((2, 3)), nd.array([1, 0])).asnumpy()  # the last is sample_weight
    array([2., 0.], dtype=float32)

    Raises:
        AssertionError: `weight` is no number.
        ValueError: `weight` is NaN or infinite.
    """

    def __init__(self, weight: float | None, batch_axis: int, **kwargs: Any):
        super().__init__(**kwargs)
        _check_weight(type(self).__name__, weight)
        if weight is not None:
            check_range(self, "weight", weight)
        self._weight, self._batch_axis = weight, batch_axis

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_axis={self._batch_axis}, w={self._weight})"

    def _loss(
        self,
        elements: Callable[..., Node],
        *arrays: Any,
        sample_weight: Any = None,
        reduce: str = "mean",
        **settings: Any,
    ) -> Any:
        """elements(*arrays, **settings), weighted, and reduced to a number per sample, by "mean" or "sum".

        reduce="none" keeps all elements, "all" takes the mean of all samples as well.
        """
        return invoke(reduced, elements, reduce, self._weight, self._batch_axis, sample_weight, *arrays, **settings)


def reduced(
    elements: Callable[..., Node],
    reduce: str,
    weight: float | None,
    batch_axis: int,
    sample_weight: Node | None,
    *arrays: Node | None,
    **settings: Any,
) -> Node:
    """`Loss._loss` on nodes.

    >>> from gluongraph import ops
    >>> x, y = ops.full((2, 3), 1.0), ops.full((2, 3), 2.0)
    >>> reduced(ops.mul, "mean", None, 0, None, x, y).shape
    (2,)
    >>> reduced(ops.mul, "all", None, 0, None, x, y).shape
    (1,)
    """
    losses = _weighted(elements(*arrays, **settings), weight, sample_weight)
    if reduce == "none":
        return losses
    if reduce == "all":
        return ops.reshape(ops.mean(losses), (1,))
    return over_samples(ops.sum if reduce == "sum" else ops.mean, losses, batch_axis)


def over_samples(reduce: Callable[..., Node], losses: Node, batch_axis: int) -> Node:
    """The losses, of shape (N,), reduced over all axes but the batch's.

    >>> from gluongraph import ops
    >>> over_samples(ops.mean, ops.full((2, 3, 4), 1.0), 1).shape
    (3,)
    """
    axes = axes_of(losses, batch_axis, exclude=True)
    if all(losses.shape[axis] == 1 for axis in axes):
        return ops.reshape(losses, (losses.ty.size,))
    return reduce(losses, axis=axes)


def _weighted(losses: Node, weight: float | None, sample_weight: Node | None) -> Node:
    if sample_weight is not None:
        losses = ops.mul(losses, ops.cast(fitted(sample_weight, losses), losses.dtype))
    return losses if weight is None or weight == 1 else ops.mul(losses, float(weight))


def fitted(weight: Node, losses: Node) -> Node:
    """The sample weight in a shape that broadcasts with that of the losses.

    One that does not, or that has an element for each sample of losses (N, 1), counts for their first axes: nothing is
    multiplied out there.

    >>> from gluongraph import ops
    >>> fitted(ops.full((2,), 1.0), ops.full((2, 3), 1.0)).shape
    (2, 1)

    Raises:
        ShapeError: it neither broadcasts nor counts for the first axes.
    """
    rank, shape = losses.ty.rank, weight.shape
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    leading = len(shape) < rank and shape == losses.shape[: len(shape)]
    if leading and shape and all(n == 1 for n in losses.shape[len(shape) :]):
        return ops.reshape(weight, shape + (1,) * (rank - len(shape)))
    if _broadcast(weight.shape, losses.shape):
        return weight
    if not leading:
        raise ShapeError(
            with_user_location(
                f"the sample weight {weight.ty} does not fit losses {losses.ty}",
                help="it has a shape that broadcasts with that of the losses, or is one number for each sample",
            )
        )
    return ops.reshape(weight, shape + (1,) * (rank - len(shape)))


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(1 in (m, n) or m == n for m, n in zip(a[::-1], b[::-1], strict=False))


def like(name: str, pred: Node, label: Node) -> Node:
    """The label in shape and type of the prediction.

    >>> from gluongraph import ops
    >>> print(like("L2Loss", ops.full((2, 1), 1.0), ops.full((2,), 1, "i32")).ty)
    f32[2,1]

    Raises:
        ShapeError: they have not as many elements.
    """
    if label.ty.size != pred.ty.size:
        raise ShapeError(
            with_user_location(f"{name}: the label {label.ty} has not as many elements as the prediction {pred.ty}")
        )
    return ops.cast(ops.reshape(label, pred.shape), pred.dtype)


def _check_weight(name: str, weight: Any) -> None:
    if weight is not None and not isinstance(weight, Real):
        raise AssertionError(with_user_location(f"{name}: weight must be a number, not {weight!r}"))


# -- what losses of other packages, written for MXNet, import


def _apply_weighting(F: Any, loss: Any, weight: float | None = None, sample_weight: Any = None) -> Any:
    """The loss times `sample_weight`, broadcast, and times `weight`."""
    _check_weight("_apply_weighting", weight)
    return invoke(_weighted, loss, weight, sample_weight)


def _reshape_like(F: Any, x: Any, y: Any) -> Any:
    """x in the shape of y."""
    return invoke(reshape_like, x, y)
