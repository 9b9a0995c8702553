"""What recurrent cells are: one step at a time, unrolled over a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gluongraph import nd, ops
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.gluon.block import Block
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.ndarray import NDArray, invoke

States = list[NDArray]
Sequences = NDArray | list[NDArray]  # all steps in one array, or one array a step
WEIGHTS = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")  # of a cell, in the order that formulas take them


class RecurrentCell(Block):
    """A cell: `output, states = cell(input, states)` is one step; `unroll` runs it over a sequence.

    Subclasses say what their states are in `state_info`.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import rnn
    >>> class Sum(rnn.RecurrentCell):
    ...     def state_info(self, batch_size=0):
    ...         return [{"shape": (batch_size, 1), "__layout__": "NC"}]
    ...     def forward(self, inputs, states):
    ...         total = states[0] + inputs
    ...         return total, [total]
    >>> outputs, states = Sum().unroll(3, nd.ones((1, 3, 1)), merge_outputs=True)
    >>> outputs.asnumpy().ravel().tolist()
    [1.0, 2.0, 3.0]
    """

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None):
        super().__init__(prefix, params)
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Forget what a sequence has left behind."""
        for cell in self._children.values():
            if isinstance(cell, RecurrentCell):
                cell.reset()

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """Shape and layout of each state.

        >>> from gluongraph.gluon import rnn
        >>> rnn.GRUCell(4).state_info(batch_size=2)
        [{'shape': (2, 4), '__layout__': 'NC'}]
        """
        raise NotImplementedError(f"{type(self).__name__} says what its states are in state_info(self, batch_size)")

    def begin_state(self, batch_size: int = 0, func: Callable[..., NDArray] = nd.zeros, **kwargs: Any) -> States:
        """States to begin with, each made by func(shape=..., **kwargs).

        Raises:
            AssertionError: a modifier cell owns this one, and is to be called instead.

        >>> from gluongraph.gluon import rnn
        >>> [state.shape for state in rnn.LSTMCell(4).begin_state(batch_size=2)]
        [(2, 4), (2, 4)]
        """
        self._check_unmodified()
        return [func(**{"shape": info["shape"], **kwargs}) for info in self.state_info(batch_size)]

    def _check_unmodified(self) -> None:
        if self._modified:
            raise AssertionError(
                with_user_location(
                    f"cell {self.name!r} belongs to a modifier cell (ZoneoutCell, ResidualCell, ...), which is to be "
                    "called in its place"
                )
            )

    def unroll(
        self,
        length: int,
        inputs: Sequences,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: NDArray | None = None,
    ) -> tuple[Sequences, States]:
        """The outputs of `length` steps, and the last states.

        `inputs` are one array in `layout`, or a list of one array (n, ...) a step. Outputs are one array with
        merge_outputs=True, a list with False; with None whatever the cell has. Sequences that end at their
        `valid_length` have outputs 0 behind it, and the states that they had there.

        Raises:
            ShapeError: the inputs have another length.

        >>> from gluongraph import init, nd
        >>> from gluongraph.gluon import rnn
        >>> cell = rnn.RNNCell(1, activation="relu")
        >>> cell.initialize(init.One())
        >>> outputs, states = cell.unroll(3, nd.ones((2, 3, 1)), merge_outputs=True, valid_length=nd.array([3, 2]))
        >>> outputs.asnumpy()[:, :, 0].tolist()
        [[1.0, 2.0, 3.0], [1.0, 2.0, 0.0]]
        >>> states[0].asnumpy().tolist()
        [[3.0], [2.0]]
        """
        self.reset()
        steps = listed(length, inputs, layout)
        states = begun(self, begin_state, steps[0], "NC")
        outputs = []
        for t, x in enumerate(steps):
            output, after = self(x, states)
            if valid_length is not None:
                output = invoke(_within, output, None, valid_length, t=t)
                after = [invoke(_within, new, old, valid_length, t=t) for new, old in zip(after, states, strict=True)]
            outputs.append(output)
            states = after
        return given_back(outputs, layout, merge_outputs, valid_length is not None), states

    def _get_activation(self, F: Any, inputs: Any, activation: Any, **kwargs: Any) -> Any:
        """The activation of that name, or a function or block, of the inputs."""
        return F.Activation(inputs, act_type=activation) if isinstance(activation, str) else activation(inputs)


class HybridRecurrentCell(RecurrentCell, HybridBlock):
    """A cell that can be hybridized.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import rnn
    >>> class Sum(rnn.HybridRecurrentCell):
    ...     def state_info(self, batch_size=0):
    ...         return [{"shape": (batch_size, 1), "__layout__": "NC"}]
    ...     def forward(self, inputs, states):
    ...         total = states[0] + inputs
    ...         return total, [total]
    >>> output, states = Sum()(nd.ones((2, 1)), [nd.ones((2, 1))])
    >>> output.asnumpy().tolist()
    [[2.0], [2.0]]
    """

    def _add_weights(self, shapes: Sequence[tuple[int, ...]], initializers: Sequence[Any]) -> None:
        """The parameters WEIGHTS; unknown extents in their shapes are 0."""
        for name, shape, init in zip(WEIGHTS, shapes, initializers, strict=True):
            setattr(self, name, self.params.get(name, shape=shape, init=init, allow_deferred_init=True))


# -- sequences


def listed(length: int | None, inputs: Sequences, layout: str) -> list[NDArray]:
    """One array a step.

    Raises:
        ShapeError: there are not `length` steps.

    >>> from gluongraph import nd
    >>> [x.shape for x in listed(3, nd.zeros((2, 3, 4)), "NTC")]
    [(2, 4), (2, 4), (2, 4)]
    """
    if isinstance(inputs, NDArray):
        axis = layout.index("T")
        _check_length(length, inputs.shape[axis])
        parts = nd.split(inputs, num_outputs=inputs.shape[axis], axis=axis, squeeze_axis=True)
        return list(parts) if isinstance(parts, list) else [parts]
    _check_length(length, len(inputs))
    return list(inputs)


def merged(length: int | None, inputs: Sequences, layout: str) -> NDArray:
    """All steps in one array.

    Raises:
        ShapeError: there are not `length` steps.

    >>> from gluongraph import nd
    >>> merged(3, [nd.zeros((2, 4))] * 3, "NTC").shape
    (2, 3, 4)
    """
    if isinstance(inputs, NDArray):
        _check_length(length, inputs.shape[layout.index("T")])
        return inputs
    _check_length(length, len(inputs))
    return nd.stack(*inputs, axis=layout.index("T"))


def _check_length(length: int | None, found: int) -> None:
    if length is not None and length != found:
        raise ShapeError(with_user_location(f"unroll: {length} steps are asked for, and the inputs have {found}"))


def given_back(outputs: Sequences, layout: str, merge: bool | None, merged_by_default: bool) -> Sequences:
    """The outputs as `merge_outputs` wants them.

    With None for `merge` they are one array where `merged_by_default`, else a list.

    >>> from gluongraph import nd
    >>> given_back([nd.zeros((2, 4))] * 3, "NTC", None, True).shape
    (2, 3, 4)
    """
    if merged_by_default if merge is None else merge:
        return merged(None, outputs, layout)
    return listed(None, outputs, layout)


def begun(cell: RecurrentCell, given: States | None, inputs: NDArray, layout: str) -> States:
    """The states that are given to begin with, else the cell's own, where and of what type the inputs are.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import rnn
    >>> [state.shape for state in begun(rnn.GRUCell(4), None, nd.zeros((2, 3, 5)), "NTC")]
    [(2, 4)]
    """
    if given is not None:
        return given
    batch_size = inputs.shape[layout.index("N")]
    return cell.begin_state(batch_size=batch_size, func=nd.zeros, ctx=inputs.context, dtype=inputs.dtype)


def _within(new: Any, old: Any, valid_length: Any, *, t: int) -> Any:
    """new in the sequences that are longer than t, else old, or 0 without old"""
    inside = ops.reshape(ops.greater(valid_length, t), (new.shape[0], *(1,) * (new.ty.rank - 1)))
    return ops.where(inside, new, 0.0 if old is None else old)
