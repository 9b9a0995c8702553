"""Recurrent layers that run over whole sequences: RNN, LSTM, GRU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from gluongraph import nd
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.parameter import Parameter
from gluongraph.gluon.rnn.recurrent import WEIGHTS
from gluongraph.gluon.rnn.stack import HybridSequentialRNNCell
from gluongraph.gluon.rnn.unfused import CELLS, no_projection, unfused
from gluongraph.mxops import rnn as mxrnn
from gluongraph.nd.recurrent import clipping, stacked
from gluongraph.ndarray import NDArray
from gluongraph.ranges import BELOW_1, NUMBER, UNKNOWN, check_count, check_range


class _RecurrentLayer(HybridBlock):
    """What the layers share: parameters `{l,r}{layer}_{i2h,h2h}_{weight,bias}`, states, and the call.

    `layer(x)` gives the outputs, from states of 0; `layer(x, states)` also gives the last states, as a list.
    """

    _mode = ""  # of gluongraph.mxops.rnn
    _activation = "tanh"  # of RNN, which says

    def __init__(
        self,
        hidden_size: int,
        num_layers: int,
        layout: str,
        dropout: float,
        bidirectional: bool,
        input_size: int,
        initializers: Sequence[Any],
        dtype: Any,
        projection_size: int | None = None,
        use_sequence_length: bool = False,
        **kwargs: Any,
    ):
        if layout not in ("TNC", "NTC"):
            raise AssertionError(with_user_location(f"{type(self).__name__}: layout is TNC or NTC, not {layout!r}"))
        check_range(self, "dropout", dropout, BELOW_1)
        check_count(self, "hidden_size", hidden_size)
        check_count(self, "num_layers", num_layers)
        check_count(self, "input_size", input_size, UNKNOWN)
        if projection_size is not None:
            check_count(self, "projection_size", projection_size, 0)
        super().__init__(**kwargs)
        self._hidden_size, self._num_layers = hidden_size, num_layers
        self._layout, self._dropout, self._dtype = layout, dropout, dtype
        self._dir = 2 if bidirectional else 1
        self._projection_size = projection_size or None
        self._use_sequence_length = use_sequence_length
        self._kinds = WEIGHTS + ("h2r_weight",) * bool(self._projection_size)
        shapes = mxrnn.weight_shapes(self._mode, input_size, hidden_size, num_layers, self._dir, self._projection_size)
        inits = dict(zip(self._kinds, initializers, strict=False))
        for (name, kind), shape in zip(self._names(), shapes, strict=True):
            parameter = self.params.get(name, shape=shape, init=inits[kind], dtype=dtype, allow_deferred_init=True)
            setattr(self, name, parameter)

    def _names(self) -> Iterator[tuple[str, str]]:
        """The parameters in the order that the formulas take them, and which of its direction each one is."""
        for layer in range(self._num_layers):
            for direction in "lr"[: self._dir]:
                for kind in self._kinds:
                    yield f"{direction}{layer}_{kind}", kind

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Parameter]:
        """As MXNet's files name them: by the cells that the layer could be taken apart into."""
        dot = prefix + "." if prefix else ""
        found = {}
        for name, kind in self._names():
            cell = f"{name[0]}_cell." if self._dir == 2 else ""
            layer = name[1:].removesuffix("_" + kind)
            found[f"{dot}_unfused.{layer}.{cell}{kind}"] = self._reg_params[name]
        return found

    def _unfuse(self) -> HybridSequentialRNNCell:
        """The cells that the layer could be taken apart into, with the same parameters; MXNet's name of it."""
        if self._projection_size:
            raise no_projection(self.name)
        cell = CELLS[self._mode]
        if self._mode == "rnn":
            cell = partial(cell, activation=self._activation)
        how = (self._hidden_size, self._num_layers, self._dir, self._dropout)
        return unfused(cell, *how, self.prefix, self.params)

    def __repr__(self) -> str:
        shape = self._reg_params["l0_i2h_weight"].shape or (0, 0)
        text = f"{type(self).__name__}({shape[1] or None} -> {self._hidden_size}, {self._layout}"
        text += f", num_layers={self._num_layers}" if self._num_layers != 1 else ""
        text += f", dropout={self._dropout}" if self._dropout else ""
        return text + (", bidirectional)" if self._dir == 2 else ")")

    def cast(self, dtype: Any) -> None:
        """Change the element type of parameters and default states."""
        super().cast(dtype)
        self._dtype = dtype

    # -- states

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """Shape, layout and dtype of each state."""
        widths = [self._projection_size or self._hidden_size, self._hidden_size][: mxrnn.MODES[self._mode].states]
        layers = self._num_layers * self._dir
        return [{"shape": (layers, batch_size, n), "__layout__": "LNC", "dtype": self._dtype} for n in widths]

    def begin_state(self, batch_size: int = 0, func: Callable[..., NDArray] = nd.zeros, **kwargs: Any) -> list[NDArray]:
        """States to begin with, each made by func(shape=..., dtype=..., **kwargs)."""
        return [
            func(**{"shape": info["shape"], "dtype": info["dtype"], **kwargs}) for info in self.state_info(batch_size)
        ]

    def _checked(self, states: NDArray | Sequence[NDArray], batch_size: int) -> list[NDArray]:
        found = [states] if isinstance(states, NDArray) else list(states)
        wanted = [info["shape"] for info in self.state_info(batch_size)]
        if [tuple(s.shape) for s in found] != wanted:
            raise ShapeError(
                with_user_location(
                    f"{type(self).__name__} {self.name!r}: invalid recurrent state shape. Expecting "
                    f"{', '.join(map(str, wanted))}, got {', '.join(str(tuple(s.shape)) for s in found) or 'none'}",
                    help="begin_state(batch_size) makes states that fit",
                    scope=self.name,
                )
            )
        return found

    # -- the call

    def infer_shape(self, inputs: Any, *args: Any) -> None:
        self._check_inputs(inputs)
        for direction in "lr"[: self._dir]:
            weight = self._reg_params[f"{direction}0_i2h_weight"]
            assert weight.shape is not None
            weight.shape = (weight.shape[0], inputs.shape[2])

    def _check_inputs(self, inputs: Any) -> None:
        known = self._reg_params["l0_i2h_weight"].shape
        features = known[1] if known is not None else 0
        if inputs.ndim != 3 or (features > 0 and inputs.shape[2] != features):
            raise ShapeError(
                with_user_location(
                    f"{type(self).__name__} {self.name!r}: inputs of shape {tuple(inputs.shape)}",
                    help=f"the layout is {self._layout}" + (f" with C = {features}" if features > 0 else ""),
                    scope=self.name,
                )
            )

    def __call__(self, inputs: Any, states: Any = None, sequence_length: Any = None) -> Any:
        """The outputs, in the layout of the inputs; with `states` given, also the list of the last states."""
        given = (inputs, states, sequence_length)
        return super().__call__(*given[: 3 if sequence_length is not None else 2 if states is not None else 1])

    def forward(self, inputs: Any, states: Any = None, sequence_length: Any = None) -> Any:
        self._check_inputs(inputs)
        begin = [] if states is None else self._checked(states, inputs.shape[self._layout.index("N")])
        outputs, *lasts = stacked(
            nd.swapaxes(inputs, 0, 1) if self._layout == "NTC" else inputs,
            [self._reg_params[name].data() for name, _ in self._names()],
            begin,
            sequence_length if self._use_sequence_length else None,
            mode=self._mode,
            layers=self._num_layers,
            directions=self._dir,
            dropout=self._dropout,
            **self._how(),
        )
        outputs = nd.swapaxes(outputs, 0, 1) if self._layout == "NTC" else outputs
        return outputs if states is None else (outputs, lasts)

    def _how(self) -> dict[str, Any]:
        """What the recurrence takes besides arrays."""
        return {}


class RNN(_RecurrentLayer):
    """h = act(x W_iᵀ + b_i + h W_hᵀ + b_h), with act one of relu and tanh.

    `inputs` have shape (steps, n, features), or (n, steps, features) with layout "NTC"; states have shape
    (num_layers · directions, n, hidden_size). Dropout acts on the outputs of all layers but the last, in training.
    With `use_sequence_length` the call takes the lengths of the sequences: outputs behind them are 0, and states stay.

    Raises:
        AssertionError: a `layout` other than TNC and NTC.
        ValueError: `dropout` is not from 0 to below 1, or `hidden_size` or `num_layers` is less than 1.
        KeyError: an `activation` other than relu and tanh.
        ShapeError: in the call, inputs or states of another shape.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import rnn
    >>> layer = rnn.RNN(1, layout="NTC")
    >>> layer.initialize(init.One())
    >>> layer(nd.ones((1, 3, 1))).asnumpy().ravel().tolist()
    [1.0, 2.0, 3.0]
    """

    _mode = "rnn"

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        activation: str = "relu",
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        dtype: Any = "float32",
        **kwargs: Any,
    ):
        if activation not in ("relu", "tanh"):
            raise KeyError(f"the activation of RNN is 'relu' or 'tanh', not {activation!r}")
        self._activation = activation
        initializers = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(
            hidden_size, num_layers, layout, dropout, bidirectional, input_size, initializers, dtype, **kwargs
        )

    def _how(self) -> dict[str, Any]:
        return {"act": self._activation}


class LSTM(_RecurrentLayer):
    """i, f, g, o = σ, σ, tanh, σ of (x W_iᵀ + b_i + h W_hᵀ + b_h); c = f c + i g; h = o tanh(c).

    With `projection_size`, h is h W_rᵀ (h2r_weight) of that width. `state_clip_min` and `state_clip_max` bound c;
    with `state_clip_nan` a NaN in it becomes the lower bound. The rest is as in RNN; the states are h and c.

    Raises (besides the errors of RNN's other arguments):
        ValueError: only one of `state_clip_min` and `state_clip_max` is given, or one is NaN; `projection_size` is
            no whole number from 0 on.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import rnn
    >>> layer = rnn.LSTM(8, num_layers=2)
    >>> layer.initialize()
    >>> x = nd.ones((5, 3, 4))
    >>> layer(x).shape
    (5, 3, 8)
    >>> y, (h, c) = layer(x, layer.begin_state(3))
    >>> h.shape
    (2, 3, 8)
    """

    _mode = "lstm"

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        projection_size: int | None = None,
        h2r_weight_initializer: Any = None,
        state_clip_min: float | None = None,
        state_clip_max: float | None = None,
        state_clip_nan: bool = False,
        dtype: Any = "float32",
        **kwargs: Any,
    ):
        for name, bound in (("state_clip_min", state_clip_min), ("state_clip_max", state_clip_max)):
            if bound is not None:
                check_range(self, name, bound, NUMBER)
        self._clip = clipping(state_clip_min, state_clip_max, state_clip_nan)
        of_gates = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        initializers = (*of_gates, h2r_weight_initializer)
        how = (layout, dropout, bidirectional, input_size, initializers, dtype, projection_size)
        super().__init__(hidden_size, num_layers, *how, **kwargs)

    def _how(self) -> dict[str, Any]:
        return {"clip": self._clip}


class GRU(_RecurrentLayer):
    """r, z = σ(x W_iᵀ + b_i + h W_hᵀ + b_h); n = tanh(x_n + r h_n); h = (1 - z) n + z h.

    x_n and h_n are the last thirds of x W_iᵀ + b_i and h W_hᵀ + b_h. The rest, errors among it, is as in RNN.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import rnn
    >>> layer = rnn.GRU(8, bidirectional=True)
    >>> layer.initialize()
    >>> y, (h,) = layer(nd.ones((5, 3, 4)), layer.begin_state(batch_size=3))
    >>> y.shape, h.shape
    ((5, 3, 16), (2, 3, 8))
    """

    _mode = "gru"

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        dtype: Any = "float32",
        **kwargs: Any,
    ):
        initializers = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(
            hidden_size, num_layers, layout, dropout, bidirectional, input_size, initializers, dtype, **kwargs
        )
