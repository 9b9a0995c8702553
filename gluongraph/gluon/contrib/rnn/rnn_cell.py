"""An LSTM cell with projection, dropout that is the same in all steps, and unrolling by a loop."""

from __future__ import annotations

from typing import Any

from gluongraph import nd
from gluongraph.errors import with_user_location
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.gluon.rnn.gated import GatedCell
from gluongraph.gluon.rnn.modifiers import ModifierCell
from gluongraph.gluon.rnn.recurrent import RecurrentCell, Sequences, States, begun, given_back, merged
from gluongraph.gluon.rnn.stack import runs_backwards
from gluongraph.ndarray import NDArray
from gluongraph.ranges import FRACTION, check_count, check_range


class LSTMPCell(GatedCell):
    """An LSTM cell whose output and first state are a projection of width `projection_size` (Sak et al. 2014).

    i, f, g, o = σ, σ, tanh, σ of (x W_iᵀ + b_i + r W_hᵀ + b_h); c = f c + i g; r = (o tanh(c)) W_rᵀ
    """

    _mode = "lstm"

    def __init__(
        self,
        hidden_size: int,
        projection_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        h2r_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ):
        check_count(self, "projection_size", projection_size)
        self._projection_size = projection_size
        initializers = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(hidden_size, *initializers, input_size, prefix, params)
        shape = (projection_size, hidden_size)
        self.h2r_weight = self.params.get(
            "h2r_weight", shape=shape, init=h2r_weight_initializer, allow_deferred_init=True
        )

    def _alias(self) -> str:
        return "lstmp"

    def _details(self) -> str:
        return f" -> {self._projection_size}"


class VariationalDropoutCell(ModifierCell):
    """Dropout of inputs, first state and outputs of a cell, with masks that all steps share (Gal, Ghahramani 2016).

    The masks are drawn at the first step after `reset()`.
    """

    def __init__(
        self, base_cell: RecurrentCell, drop_inputs: float = 0.0, drop_states: float = 0.0, drop_outputs: float = 0.0
    ):
        if drop_states and runs_backwards(base_cell):
            raise AssertionError(
                with_user_location(
                    "a bidirectional cell has no single steps; put VariationalDropoutCell around the cells within"
                )
            )
        check_range(self, "drop_inputs", drop_inputs, FRACTION)
        check_range(self, "drop_states", drop_states, FRACTION)
        check_range(self, "drop_outputs", drop_outputs, FRACTION)
        super().__init__(base_cell)
        self.drop_inputs, self.drop_states, self.drop_outputs = drop_inputs, drop_states, drop_outputs

    def _alias(self) -> str:
        return "vardrop"

    def reset(self) -> None:
        """Forget the masks."""
        super().reset()
        self.__dict__["_masks"] = {}  # what a sequence leaves behind is no setting that a trace depends on

    def _dropped(self, which: str, x: NDArray, p: float) -> NDArray:
        if not p:
            return x
        masks: dict[str, NDArray] = self.__dict__["_masks"]
        if which not in masks:
            masks[which] = nd.Dropout(nd.ones_like(x), p=p)
        return x * masks[which]

    def forward(self, inputs: Any, states: Any) -> Any:
        first, *others = states
        first = self._dropped("states", first, self.drop_states)
        output, after = self.base_cell(self._dropped("inputs", inputs, self.drop_inputs), [first, *others])
        return self._dropped("outputs", output, self.drop_outputs), after

    def unroll(
        self,
        length: int,
        inputs: Sequences,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: NDArray | None = None,
    ) -> tuple[Sequences, States]:
        """As `RecurrentCell.unroll`; without dropout of states, inputs and outputs are dropped as whole sequences."""
        if self.drop_states:
            return super().unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        self.reset()
        axes = (layout.index("T"),)
        x = merged(length, inputs, layout)
        states = begun(self, begin_state, x, layout)
        x = nd.Dropout(x, p=self.drop_inputs, axes=axes)
        outputs, last = self.base_cell.unroll(length, x, states, layout, True, valid_length)
        assert isinstance(outputs, NDArray)
        return given_back(nd.Dropout(outputs, p=self.drop_outputs, axes=axes), layout, merge_outputs, True), last

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out = {self.drop_outputs}, p_state = {self.drop_states})"


def dynamic_unroll(
    cell: RecurrentCell,
    inputs: NDArray,
    begin_state: Any,
    drop_inputs: float = 0,
    drop_outputs: float = 0,
    layout: str = "TNC",
    valid_length: NDArray | None = None,
) -> tuple[NDArray, Any]:
    """Outputs and last states of any cell over a sequence, by `nd.contrib.foreach`: one loop where it is compiled.

    Sequences that end at their `valid_length` have outputs 0 behind it, and the states that they had there.
    """
    axis = layout.index("T")
    x = nd.Dropout(inputs, p=drop_inputs, axes=(axis,))
    states = [begin_state] if isinstance(begin_state, NDArray) else list(begin_state)

    def step(slices: list[NDArray], before: list[NDArray]) -> Any:
        output, after = cell(slices[0], before)
        if valid_length is None:
            return output, list(after)
        within = slices[1] < valid_length
        return output, [_chosen(within, new, old) for new, old in zip(after, before, strict=True)]

    steps = nd.arange(x.shape[axis], ctx=x.context, dtype="float32" if valid_length is None else valid_length.dtype)
    outputs, last = nd.contrib.foreach(step, [x if axis == 0 else nd.swapaxes(x, 0, axis), steps], states)
    outputs = nd.Dropout(outputs, p=drop_outputs, axes=(0,))
    if valid_length is not None:
        outputs = nd.SequenceMask(outputs, valid_length, use_sequence_length=True)
    return outputs if axis == 0 else nd.swapaxes(outputs, 0, axis), last


def _chosen(within: NDArray, new: NDArray, old: NDArray) -> NDArray:
    """new in the sequences that go on, old in the others"""
    each = nd.broadcast_to(within.reshape((-1,) + (1,) * (new.ndim - 1)), new.shape)
    return nd.where(each, new, old)
