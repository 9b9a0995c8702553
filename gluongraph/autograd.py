"""Gradients of what was recorded: `with autograd.record(): loss = ...`, then `loss.backward()`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gluongraph import debug
from gluongraph.eager import row_sparse as rows
from gluongraph.eager.tape import STATE, Entry, Leaf, Source, mark, no_value, pull_arrays, reverse, source_of, write
from gluongraph.errors import HostCallError, MXNetError, ShapeError, TraceError, with_user_location
from gluongraph.mxops.ops import zeros_like
from gluongraph.ndarray import NDArray, invoke
from gluongraph.storage import Array


class _Mode:
    """Sets the flags within a block; None leaves one as it is."""

    __slots__ = ("before", "recording", "training")

    def __init__(self, recording: bool | None, training: bool | None):
        self.recording, self.training = recording, training
        self.before: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self.before.append((STATE.recording, STATE.training))
        if self.recording is not None:
            STATE.recording = self.recording
        if self.training is not None:
            STATE.training = self.training

    def __exit__(self, *exc: object) -> None:
        STATE.recording, STATE.training = self.before.pop()


def record(train_mode: bool = True) -> _Mode:
    """Within: ops are recorded, and layers are in training mode.

    >>> from gluongraph import autograd, nd
    >>> x = nd.array([1.0, 2.0])
    >>> x.attach_grad()
    >>> with autograd.record():
    ...     y = (x * x).sum()
    >>> y.backward()
    >>> x.grad.asnumpy().tolist()
    [2.0, 4.0]
    """
    return _Mode(True, train_mode)


def pause(train_mode: bool = False) -> _Mode:
    """Within: nothing is recorded.

    >>> from gluongraph import autograd
    >>> with autograd.record(), autograd.pause():
    ...     autograd.is_recording()
    False
    """
    return _Mode(False, train_mode)


def detect_anomaly() -> AbstractContextManager[object]:
    """Within: the first op that makes a NaN or an infinity is named, with its layer and the line that called it.

    Eager ops, their gradients and updates are looked at, and hybridized blocks and compiled steps run node by node in
    numpy, far slower: GG_CHECK=nan does this for a whole process. What an error ends has changed no weight. A compiled
    step stays fast with `mx.compile(..., detect_anomaly=True)`.

    Raises, within:
        NotFiniteError: a result, a gradient or an update is not finite.

    >>> from gluongraph import autograd, nd
    >>> with autograd.detect_anomaly():
    ...     y = nd.log(nd.array([1.0, 0.0]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gluongraph.errors.NotFiniteError: log(f32[2]) made an infinity
    ...
    """
    return debug.override(check="nan")


def train_mode() -> _Mode:
    """Within: layers are in training mode; recording stays as it is.

    >>> from gluongraph import autograd
    >>> with autograd.train_mode():
    ...     autograd.is_training()
    True
    """
    return _Mode(None, True)


def predict_mode() -> _Mode:
    """Within: layers are in prediction mode; recording stays as it is.

    >>> from gluongraph import autograd
    >>> with autograd.record(), autograd.predict_mode():
    ...     autograd.is_recording(), autograd.is_training()
    (True, False)
    """
    return _Mode(None, False)


def is_recording() -> bool:
    """Are ops being recorded?

    >>> from gluongraph import autograd
    >>> with autograd.record():
    ...     autograd.is_recording()
    True
    """
    return STATE.recording


def is_training() -> bool:
    """Are layers in training mode?

    >>> from gluongraph import autograd
    >>> with autograd.record(train_mode=False):
    ...     autograd.is_training()
    False
    """
    return STATE.training


def set_recording(is_recording: bool) -> bool:
    """Switch recording; gives what it was before.

    >>> from gluongraph import autograd
    >>> before = autograd.set_recording(True)
    >>> autograd.set_recording(before)
    True
    """
    before, STATE.recording = STATE.recording, bool(is_recording)
    return before


def set_training(train_mode: bool) -> bool:
    """Switch training mode; gives what it was before.

    >>> from gluongraph import autograd
    >>> before = autograd.set_training(True)
    >>> autograd.set_training(before)
    True
    """
    before, STATE.training = STATE.training, bool(train_mode)
    return before


def mark_variables(
    variables: NDArray | Sequence[NDArray],
    gradients: NDArray | Sequence[NDArray],
    grad_reqs: str | Sequence[str] = "write",
) -> None:
    """Bind a gradient buffer to each array; `grad_reqs` is write, add or null, for all or for each.

    Raises:
        ShapeError: a gradient whose shape or type is not that of its array.

    >>> from gluongraph import autograd, nd
    >>> x, dx = nd.array([3.0]), nd.zeros((1,))
    >>> autograd.mark_variables(x, dx)
    >>> with autograd.record():
    ...     y = x * x
    >>> y.backward()
    >>> dx.asnumpy().tolist()
    [6.0]
    """
    arrays, buffers = _listed(variables), _listed(gradients)
    reqs = [grad_reqs] * len(arrays) if isinstance(grad_reqs, str) else list(grad_reqs)
    for array, buffer, req in zip(arrays, buffers, reqs, strict=True):
        if array.type != buffer.type:
            raise ShapeError(
                with_user_location(f"mark_variables: a gradient {buffer.type} does not fit its array {array.type}")
            )
        mark(array, buffer, req)


def backward(
    heads: NDArray | Sequence[NDArray],
    head_grads: NDArray | Sequence[NDArray | None] | None = None,
    retain_graph: bool = False,
    train_mode: bool = True,
) -> None:
    """Gradients of the sum of <head_grads, heads> into the marked arrays that they depend on.

    Head gradients are all ones by default. Marked arrays that the heads do not depend on keep what they have. Those
    that no gradient flows to, as through floor, get zeros. Those of integers are cut off. The record is used up unless
    `retain_graph`. `train_mode` changes nothing: layers decided on it in the forward.

    Raises:
        MXNetError: a head was not recorded, nothing marked is behind it, or its record has been used up.

    >>> from gluongraph import autograd, nd
    >>> x = nd.array([1.0, 2.0])
    >>> x.attach_grad()
    >>> with autograd.record():
    ...     y = x * x
    >>> autograd.backward(y, nd.array([1.0, 10.0]))
    >>> x.grad.asnumpy().tolist()
    [2.0, 40.0]
    """
    if STATE.tracer is not None:
        raise TraceError(no_value("backward()"))
    starts = _starts(_listed(heads), head_grads)
    with np.errstate(all="ignore"):
        write(reverse(starts, _is_leaf, pull_arrays, rows.add, retain_graph))


def grad(
    heads: NDArray | Sequence[NDArray],
    variables: NDArray | Sequence[NDArray],
    head_grads: NDArray | Sequence[NDArray | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,
) -> list[NDArray]:
    """The gradients of the heads by `variables`, as a list; `.grad` is not touched.

    With `create_graph` they are recorded themselves, so that they can be differentiated again. Where no gradient
    flows, as through floor, it is zeros.

    Raises:
        MXNetError: a head does not depend on one of the variables, was not recorded, or its record has been used up.

    >>> from gluongraph import autograd, nd
    >>> x = nd.array([2.0])
    >>> x.attach_grad()
    >>> with autograd.record():
    ...     (dx,) = autograd.grad(x**3, [x], create_graph=True)
    >>> dx.backward()
    >>> dx.asscalar().item(), x.grad.asscalar().item()
    (12.0, 12.0)
    """
    arrays = _listed(variables)
    if STATE.tracer is not None:
        return STATE.tracer.grad(_listed(heads), arrays, head_grads)
    sources = [source for source in map(source_of, arrays) if source is not None]
    if len(sources) < len(arrays):
        raise MXNetError(with_user_location(_UNREACHED, help="call attach_grad() on it, before the record begins"))
    starts = _starts(_listed(heads), head_grads)
    retain = create_graph if retain_graph is None else retain_graph
    wanted = set(sources)
    if create_graph:
        with _Mode(True, train_mode):
            again = [(source, NDArray(g)) for source, g in starts]
            recorded = reverse(again, wanted.__contains__, _pull_recorded, lambda a, b: a + b, retain)
            _check_reached(recorded, sources)
            found = zip(map(recorded.__getitem__, sources), arrays, strict=True)
            return [invoke(zeros_like, a) if g is None else g for g, a in found]
    with np.errstate(all="ignore"):
        begin: list[tuple[Source, Array | rows.Rows]] = list(starts)
        plain = reverse(begin, wanted.__contains__, pull_arrays, rows.add, retain)
    _check_reached(plain, sources)
    return [NDArray(_own(a, plain[source]), a.context) for source, a in zip(sources, arrays, strict=True)]


def _check_reached(found: Container[Source], sources: Iterable[Source]) -> None:
    if any(source not in found for source in sources):
        raise MXNetError(
            with_user_location(_UNREACHED, help="the heads have to be computed from it, under autograd.record()")
        )


_UNREACHED = "grad: a variable that the heads do not depend on"


def _own(array: NDArray, g: Array | rows.Rows | None) -> Array:
    """A gradient of the array in memory of its own; None stands for zeros."""
    return np.zeros(array.shape, array.dtype) if g is None else np.array(rows.dense(g), order="C")


def _is_leaf(source: Source) -> bool:
    return isinstance(source, Leaf)


def _listed(arrays: Any) -> list[Any]:
    return [arrays] if isinstance(arrays, NDArray) else list(arrays)


def _starts(heads: list[NDArray], head_grads: Any) -> list[tuple[Source, Array]]:
    """Where the walk back begins, and with what."""
    grads = [None] * len(heads) if head_grads is None else _listed(head_grads)
    if len(grads) != len(heads):
        raise MXNetError(with_user_location(f"{len(heads)} heads and {len(grads)} head gradients"))
    starts = []
    for head, g in zip(heads, grads, strict=True):
        source = source_of(head)
        if source is None:
            raise MXNetError(
                with_user_location(
                    "backward: this array is not in a computational graph: it was not computed under"
                    " autograd.record() from an array with attach_grad(), or it was detached from that",
                    help="put the computation under `with autograd.record():`, and attach_grad() before it",
                )
            )
        if g is None:
            start = np.ones(head.shape, head.storage.array.dtype)
        else:
            if g.type != head.type:
                raise ShapeError(
                    with_user_location(f"backward: a head gradient {g.type} does not fit its head {head.type}")
                )
            start = g.storage.array
        starts.append((source, start))
    return starts


def _pull_recorded(entry: Entry, heads: list[NDArray | None]) -> Sequence[NDArray | None]:
    """The gradient of an entry once more, as recorded ops on its arguments."""
    gradient: Any = entry.gradient
    if not entry.args or not hasattr(gradient, "again"):
        raise MXNetError(with_user_location("grad: a custom Function has no gradient of its gradient"))
    filled = [NDArray(np.zeros(*zero)) if g is None else g for g, zero in zip(heads, gradient.zeros, strict=True)]
    made = invoke(gradient.again, *entry.args, *filled)
    return made if isinstance(made, list) else [made]


class _Custom:
    """A gradient that a Python function gives."""

    def __init__(self, pull: Callable[..., Sequence[Array | None]], outputs: Sequence[NDArray]):
        self.backward = pull
        self.zeros = tuple((o.shape, o.storage.array.dtype) for o in outputs)


def attach(outputs: Sequence[NDArray], inputs: Sequence[NDArray], pull: Callable[..., Sequence[Array | None]]) -> None:
    """Record that `outputs` came from `inputs` by something that is no op of ours, such as a compiled function.

    `pull(*heads)` gets one numpy array per output and gives one (or None) per input. Nothing happens outside of a
    record, or if no gradient flows to the inputs.

    >>> from gluongraph import autograd, nd
    >>> x = nd.array([3.0])
    >>> x.attach_grad()
    >>> with autograd.record():
    ...     y = nd.array(2 * x.asnumpy())  # computed outside of the record
    ...     autograd.attach([y], [x], lambda head: [2 * head])
    >>> y.backward()
    >>> x.grad.asnumpy().tolist()
    [2.0]
    """
    if not STATE.recording:
        return
    sources = [source_of(i) for i in inputs]
    keep = [i for i, source in enumerate(sources) if source is not None]
    if not keep:
        return

    def chosen(*heads: Array) -> list[Array | None]:
        gradients = pull(*heads)
        return [gradients[i] for i in keep]

    entry = Entry(_Custom(chosen, outputs), (), [s for s in sources if s is not None])
    for index, output in enumerate(outputs):
        output._source = (entry, index)


class Function:
    """A function with a gradient of its own: subclasses say `forward(self, *inputs)` and `backward(self, *heads)`.

    One instance is one call. `save_for_backward` keeps arrays for `saved_tensors`.

    >>> from gluongraph import autograd, nd
    >>> class Straight(autograd.Function):  # rounds; the gradient goes through unchanged
    ...     def forward(self, x):
    ...         return nd.round(x)
    ...
    ...     def backward(self, head):
    ...         return head
    >>> x = nd.array([1.25])
    >>> x.attach_grad()
    >>> with autograd.record():
    ...     y = Straight()(x)
    >>> y.backward()
    >>> y.asnumpy().tolist(), x.grad.asnumpy().tolist()
    ([1.0], [1.0])

    Source: `mxnet.autograd.Function` (MXNet 1.9).
    """

    _used = False

    def __init__(self) -> None:
        self._saved: tuple[NDArray, ...] = ()

    def save_for_backward(self, *arrays: NDArray) -> None:
        """Keep arrays until backward."""
        self._saved = arrays

    @property
    def saved_tensors(self) -> tuple[NDArray, ...]:
        """What `save_for_backward` kept."""
        return self._saved

    def forward(self, *inputs: NDArray) -> Any:
        """The results; subclasses say."""
        raise NotImplementedError(f"{type(self).__name__} says forward(self, *inputs)")

    def backward(self, *heads: NDArray) -> Any:
        """The gradients of the inputs from those of the results; subclasses say."""
        raise NotImplementedError(f"{type(self).__name__} says backward(self, *heads)")

    def __call__(self, *inputs: NDArray) -> Any:
        if STATE.tracer is not None:
            raise HostCallError(
                with_user_location(
                    f"{type(self).__name__}, an autograd.Function, is Python, which cannot be part of a compiled graph",
                    help="call it in eager mode, outside of mx.compile; a hybridized block with it runs in eager mode"
                    " by itself; or write it with operators of nd",
                )
            )
        if self._used:
            raise AssertionError(f"{type(self).__name__}: an instance is for one call; make another")
        self._used = True
        with pause():
            made = self.forward(*inputs)
        outputs = [made] if isinstance(made, NDArray) else list(made)
        outputs = [o.detach() if any(o is i for i in inputs) else o for o in outputs]

        def pull(*heads: Array) -> list[Array | None]:
            with pause():
                found = self.backward(*(NDArray(np.array(h, order="C")) for h in heads))
            listed: Iterable[Any] = [found] if isinstance(found, NDArray) else found
            return [None if g is None else g.storage.array for g in listed]

        attach(outputs, inputs, pull)
        return outputs[0] if isinstance(made, NDArray) else outputs
