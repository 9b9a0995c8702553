"""Cells that change what others do: dropout, zoneout, residual connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gluongraph import nd
from gluongraph.errors import with_user_location
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.gluon.rnn.recurrent import (
    HybridRecurrentCell,
    RecurrentCell,
    Sequences,
    States,
    begun,
    given_back,
    merged,
)
from gluongraph.gluon.rnn.stack import runs_backwards
from gluongraph.ndarray import NDArray
from gluongraph.ranges import FRACTION, check_range


class DropoutCell(HybridRecurrentCell):
    """In training, each element of the input is 0 with probability `rate`, else divided by 1 - rate. No states.

    Raises:
        ValueError: `rate` is not from 0 to 1.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import rnn
    >>> output, states = rnn.DropoutCell(rate=0.5)(nd.ones((2, 3)), [])  # not in training
    >>> output.asnumpy().tolist(), states
    ([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [])
    """

    def __init__(
        self, rate: float, axes: Sequence[int] = (), prefix: str | None = None, params: ParameterDict | None = None
    ):
        check_range(self, "rate", rate, FRACTION)
        super().__init__(prefix, params)
        self._rate, self._axes = rate, tuple(axes)

    def _alias(self) -> str:
        return "dropout"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return []

    def forward(self, inputs: Any, states: Any) -> tuple[NDArray, Any]:
        return nd.Dropout(inputs, p=self._rate, axes=self._axes), states

    def unroll(
        self,
        length: int,
        inputs: Sequences,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: NDArray | None = None,
    ) -> tuple[Sequences, States]:
        """Dropout of the whole sequence at once where it is one array, else of each step."""
        self.reset()
        if isinstance(inputs, NDArray) if merge_outputs is None else merge_outputs:
            return self.forward(merged(length, inputs, layout), begin_state or [])
        return super().unroll(length, inputs, begin_state or [], layout, merge_outputs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rate={self._rate}, axes={self._axes})"


class ModifierCell(HybridRecurrentCell):
    """A cell that changes what another one does, and is called in its place; the parameters are the other one's.

    Raises:
        AssertionError: the base cell has been modified already.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import rnn
    >>> class Doubled(rnn.ModifierCell):
    ...     def forward(self, inputs, states):
    ...         output, after = self.base_cell(inputs, states)
    ...         return 2 * output, after
    >>> cell = Doubled(rnn.RNNCell(1, activation="relu"))
    >>> cell.initialize(init.One())
    >>> output, states = cell(nd.ones((2, 1)), cell.begin_state(batch_size=2))
    >>> output.asnumpy().tolist(), states[0].asnumpy().tolist()
    ([[2.0], [2.0]], [[1.0], [1.0]])
    """

    def __init__(self, base_cell: RecurrentCell):
        base_cell._check_unmodified()
        super().__init__(prefix=base_cell.prefix + self._alias())
        base_cell._modified = True
        self.base_cell = base_cell

    @property
    def params(self) -> ParameterDict:
        """The base cell's."""
        return self.base_cell.params

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return self.base_cell.state_info(batch_size)

    def begin_state(self, batch_size: int = 0, func: Callable[..., NDArray] = nd.zeros, **kwargs: Any) -> States:
        """The base cell's begin states."""
        self._check_unmodified()
        self.base_cell._modified = False
        try:
            return self.base_cell.begin_state(batch_size=batch_size, func=func, **kwargs)
        finally:
            self.base_cell._modified = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_cell})"


class ZoneoutCell(ModifierCell):
    """In training, each element of output or state keeps its value of the step before with that probability.

    Krueger et al. 2016, "Zoneout". The output before the first step counts as 0.

    Raises:
        AssertionError: the base cell is bidirectional, or has been modified already.
        ValueError: a probability is not from 0 to 1.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import rnn
    >>> cell = rnn.ZoneoutCell(rnn.RNNCell(1, activation="relu"), zoneout_states=0.5)
    >>> cell.initialize(init.One())
    >>> output, states = cell(nd.ones((2, 1)), cell.begin_state(batch_size=2))  # not in training
    >>> output.asnumpy().tolist()
    [[1.0], [1.0]]
    """

    def __init__(self, base_cell: RecurrentCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0):
        if runs_backwards(base_cell):
            raise AssertionError(
                with_user_location("a bidirectional cell has no single steps; put ZoneoutCell around the cells within")
            )
        check_range(self, "zoneout_outputs", zoneout_outputs, FRACTION)
        check_range(self, "zoneout_states", zoneout_states, FRACTION)
        super().__init__(base_cell)
        self.zoneout_outputs, self.zoneout_states = zoneout_outputs, zoneout_states

    def _alias(self) -> str:
        return "zoneout"

    def reset(self) -> None:
        """Forget the output of the last step."""
        super().reset()
        self.__dict__["_before"] = None  # what a sequence leaves behind is no setting that a trace depends on

    def forward(self, inputs: Any, states: Any) -> Any:
        output, after = self.base_cell(inputs, states)
        before = self.__dict__["_before"]
        output = _zoned(output, nd.zeros_like(output) if before is None else before, self.zoneout_outputs)
        self.__dict__["_before"] = output
        return output, [_zoned(new, old, self.zoneout_states) for new, old in zip(after, states, strict=True)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out={self.zoneout_outputs}, p_state={self.zoneout_states}, {self.base_cell})"


def _zoned(new: NDArray, old: NDArray, p: float) -> NDArray:
    """old with probability p, else new; outside of training new"""
    return nd.where(nd.Dropout(nd.ones_like(new), p=p), new, old) if p else new


class ResidualCell(ModifierCell):
    """The output is the base cell's plus the input (Wu et al. 2016).

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import rnn
    >>> cell = rnn.ResidualCell(rnn.RNNCell(1, activation="relu"))
    >>> cell.initialize(init.One())
    >>> output, states = cell(nd.ones((2, 1)), cell.begin_state(batch_size=2))
    >>> output.asnumpy().tolist()
    [[2.0], [2.0]]
    """

    def forward(self, inputs: Any, states: Any) -> Any:
        output, after = self.base_cell(inputs, states)
        return output + inputs, after

    def unroll(
        self,
        length: int,
        inputs: Sequences,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: NDArray | None = None,
    ) -> tuple[Sequences, States]:
        """The base cell unrolled, plus the inputs; behind their valid length both are 0."""
        self.reset()
        x = merged(length, inputs, layout)
        states = begun(self, begin_state, x, layout)
        outputs, last = self.base_cell.unroll(length, inputs, states, layout, merge_outputs, valid_length)
        if valid_length is not None:
            x = nd.SequenceMask(x, valid_length, use_sequence_length=True, axis=layout.index("T"))
        total = merged(length, outputs, layout) + x
        return given_back(total, layout, isinstance(outputs, NDArray), False), last
