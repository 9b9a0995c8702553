"""How many times an operator draws random numbers, by its arguments: as often as its builder calls `OpContext.draw`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Once, whatever the arguments are.
ONCE = frozenset(
    {"rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "uniform", "normal",
     "normal_functional", "bernoulli", "exponential", "cauchy", "geometric", "log_normal", "multinomial"}
)  # fmt: skip
# Once in training, with a probability between 0 and 1: where that and the flag stand.
DROPOUT = frozenset({"dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})
PROBABILITY, TRAINING = 1, 2
LAYERS = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def draws_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """How many times one call draws; `name` is that of the operator without its overload, "dropout"."""
    if name in ONCE:
        return 1
    if name in DROPOUT:
        return int(bool(args[TRAINING]) and 0.0 < args[PROBABILITY] < 1.0)
    if name == "rrelu":
        return int(bool(args[3] if len(args) > 3 else kwargs.get("training", False)))
    if name == "scaled_dot_product_attention":
        return int((args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)) > 0.0)
    if name in LAYERS and len(args) > 6:
        layers, dropout, train = args[4:7]
        return int(layers) - 1 if train and dropout > 0.0 else 0
    return 0
