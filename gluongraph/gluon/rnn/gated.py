"""Cells with weights: RNNCell, LSTMCell, GRUCell."""

from __future__ import annotations

from typing import Any

from gluongraph import nd
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.gluon import trace_guards
from gluongraph.gluon.block import Block
from gluongraph.gluon.nn.activations import ACTIVATIONS
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.gluon.rnn.recurrent import HybridRecurrentCell, Sequences, States, begun, given_back, merged
from gluongraph.mxops import rnn as mxrnn
from gluongraph.ndarray import NDArray, invoke
from gluongraph.ranges import UNKNOWN, check_count
from gluongraph.tracing import tracer


class GatedCell(HybridRecurrentCell):
    """What the cells with weights share: parameters {i2h,h2h}_{weight,bias}, one step, and the unrolled sequence.

    >>> from gluongraph.gluon import rnn
    >>> cell = rnn.GRUCell(4, input_size=3)
    >>> isinstance(cell, GatedCell), cell.i2h_weight.shape, cell.h2h_weight.shape
    (True, (12, 3), (12, 4))
    """

    _mode = ""  # of gluongraph.mxops.rnn
    _projection_size: int | None = None  # of LSTMPCell, which adds h2r_weight

    def __init__(
        self,
        hidden_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ):
        super().__init__(prefix, params)
        check_count(self, "hidden_size", hidden_size)
        check_count(self, "input_size", input_size, UNKNOWN)
        self._hidden_size = hidden_size
        shapes = mxrnn.weight_shapes(self._mode, input_size, hidden_size, 1, 1, self._projection_size)
        initializers = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        self._add_weights(shapes[: len(initializers)], initializers)

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        widths = [self._projection_size or self._hidden_size, self._hidden_size][: mxrnn.MODES[self._mode].states]
        return [{"shape": (batch_size, n), "__layout__": "NC"} for n in widths]

    def infer_shape(self, inputs: Any, *args: Any) -> None:
        weight = self._reg_params["i2h_weight"]
        assert weight.shape is not None
        weight.shape = (weight.shape[0], inputs.shape[-1])

    def _how(self) -> dict[str, Any]:
        """What the formula takes besides arrays."""
        return {}

    def _weights(self) -> list[NDArray]:
        return [parameter.data() for parameter in self._reg_params.values()]

    def forward(self, inputs: Any, states: Any) -> Any:
        count = mxrnn.MODES[self._mode].states
        if len(states) != count:
            raise ShapeError(
                with_user_location(f"{type(self).__name__} {self.name!r} has {count} states, not {len(states)}")
            )
        return self._handed_on(invoke(mxrnn.cell, inputs, *states, *self._weights(), mode=self._mode, **self._how()))

    def _handed_on(self, after: States) -> tuple[NDArray, States]:
        """Output and states, from the states after a step."""
        return after[0], after

    def unroll(
        self,
        length: int,
        inputs: Sequences,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: NDArray | None = None,
    ) -> tuple[Sequences, States]:
        """As `RecurrentCell.unroll`, as one loop: it is not written out step by step, also where it is compiled."""
        if not self._is_plain():
            return super().unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        x = merged(length, inputs, layout)
        states = begun(self, begin_state, x, layout)
        with x.context, tracer.scope(self._name, self):
            outputs, last = self._loop(nd.swapaxes(x, 0, 1) if layout == "NTC" else x, states, valid_length)
        trace_guards.note(self)
        outputs = nd.swapaxes(outputs, 0, 1) if layout == "NTC" else outputs
        return given_back(outputs, layout, merge_outputs, valid_length is not None), last

    def _loop(self, x: NDArray, states: States, valid_length: NDArray | None) -> tuple[NDArray, States]:
        """Outputs and last states for x of shape (steps, n, inputs)."""
        if any(p.deferred for p in self._reg_params.values()):
            self._settle((x,))
        outputs, *lasts = invoke(
            mxrnn.layer,
            x,
            *self._weights(),
            mode=self._mode,
            sequence_length=valid_length,
            **dict(zip(("state", "state_cell"), (nd.expand_dims(s, 0) for s in states), strict=False)),
            **self._how(),
        )
        return outputs, [nd.squeeze(s, axis=0) for s in lasts]

    def _is_plain(self) -> bool:
        """Is a step what this class says it is, and does nobody look at single steps?"""
        own = type(self).forward is GatedCell.forward and type(self).__call__ is Block.__call__
        return own and not self._forward_hooks and not self._forward_pre_hooks

    def __repr__(self) -> str:
        rows, inputs = self._reg_params["i2h_weight"].shape or (0, 0)
        return f"{type(self).__name__}({inputs or None} -> {rows}{self._details()})"

    def _details(self) -> str:
        return ""


class RNNCell(GatedCell):
    """h = act(x W_iᵀ + b_i + h W_hᵀ + b_h); `activation` is a name, or a function or block.

    `inputs` have shape (n, input_size), each state and the output (n, hidden_size).

    Raises:
        ValueError: there is no activation of that name, or `hidden_size` is less than 1.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import rnn
    >>> cell = rnn.RNNCell(1, activation="relu")
    >>> cell.initialize(init.One())
    >>> output, states = cell(nd.ones((2, 1)), [nd.ones((2, 1))])
    >>> output.asnumpy().tolist()
    [[2.0], [2.0]]
    """

    _mode = "rnn"

    def __init__(
        self,
        hidden_size: int,
        activation: Any = "tanh",
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ):
        if not callable(activation):
            _check_activation("RNNCell", activation)
        initializers = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(hidden_size, *initializers, input_size, prefix, params)
        self._activation = activation if isinstance(activation, str) else None
        self._function = (activation,)  # not as it is: a block would become a child, and children have states

    def _alias(self) -> str:
        return "rnn"

    def _how(self) -> dict[str, Any]:
        return {"act": self._activation}

    def _handed_on(self, after: States) -> tuple[NDArray, States]:
        if self._activation is None:
            after = [self._function[0](after[0])]
        return after[0], after

    def _is_plain(self) -> bool:
        return super()._is_plain() and self._activation is not None

    def _details(self) -> str:
        return f", {self._function[0]}"


class LSTMCell(GatedCell):
    """i, f, g, o = σ, σ, tanh, σ of (x W_iᵀ + b_i + h W_hᵀ + b_h); c = f c + i g; h = o tanh(c); the states are h, c.

    `activation` stands in the place of tanh, `recurrent_activation` in that of σ.

    `inputs` have shape (n, input_size), each state and the output (n, hidden_size).

    Raises:
        ValueError: there is no activation of one of these names, or `hidden_size` is less than 1.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import rnn
    >>> cell = rnn.LSTMCell(4)
    >>> cell.initialize()
    >>> output, (h, c) = cell(nd.ones((2, 3)), cell.begin_state(batch_size=2))
    >>> output.shape, h.shape, c.shape
    ((2, 4), (2, 4), (2, 4))
    """

    _mode = "lstm"

    def __init__(
        self,
        hidden_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
        activation: str = "tanh",
        recurrent_activation: str = "sigmoid",
    ):
        _check_activation("LSTMCell", activation)
        _check_activation("LSTMCell", recurrent_activation)
        initializers = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(hidden_size, *initializers, input_size, prefix, params)
        self._activation, self._recurrent_activation = activation, recurrent_activation

    def _alias(self) -> str:
        return "lstm"

    def _how(self) -> dict[str, Any]:
        return {"act": self._activation, "gate": self._recurrent_activation}


class GRUCell(GatedCell):
    """r, z = σ(x W_iᵀ + b_i + h W_hᵀ + b_h); n = tanh(x_n + r h_n); h = (1 - z) n + z h.

    x_n and h_n are the last thirds of x W_iᵀ + b_i and h W_hᵀ + b_h.
    `inputs` have shape (n, input_size), each state and the output (n, hidden_size).

    Raises:
        ValueError: `hidden_size` is less than 1.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import rnn
    >>> cell = rnn.GRUCell(4)
    >>> cell.initialize()
    >>> output, states = cell(nd.ones((2, 3)), cell.begin_state(batch_size=2))
    >>> output.shape, len(states)
    ((2, 4), 1)
    """

    _mode = "gru"

    def _alias(self) -> str:
        return "gru"


def _check_activation(cell: str, activation: Any) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(
            with_user_location(f"{cell}: no activation {activation!r}; there are {', '.join(ACTIVATIONS)}")
        )
