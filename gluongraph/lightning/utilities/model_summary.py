"""Tables of layers, under the names that Lightning's scripts import them by."""

from __future__ import annotations

from typing import Any

from gluongraph.lightning.callbacks.model_summary import Layer, Summary, human_readable_count
from gluongraph.lightning.callbacks.model_summary import summarize as _summarized


class ModelSummary(Summary):
    """What a model consists of: `str()` of it is the table, and its attributes are the columns.

    >>> from gluongraph import gluon
    >>> summary = ModelSummary(gluon.nn.Dense(4, in_units=3), max_depth=-1)
    >>> summary.total_parameters, summary.layer_names
    (16, [])

    Raises:
        ValueError: a depth below -1.
    """

    def __init__(self, model: Any, max_depth: int = 1):
        vars(self).update(vars(_summarized(model, max_depth)))

    @property
    def layer_names(self) -> list[str]:
        """The names of the layers."""
        return [each.name for each in self.layers]

    @property
    def layer_types(self) -> list[str]:
        """The names of their classes."""
        return [each.kind for each in self.layers]

    @property
    def param_nums(self) -> list[int]:
        """How many parameters each has."""
        return [each.parameters for each in self.layers]

    @property
    def in_sizes(self) -> list[Any]:
        """The shapes of what each takes of `example_input_array`; "?" where it is not known."""
        return [each.in_size for each in self.layers]

    @property
    def out_sizes(self) -> list[Any]:
        """The shapes of what each gives."""
        return [each.out_size for each in self.layers]

    @property
    def total_training_modes(self) -> dict[str, int]:
        """How many layers train, and how many predict."""
        return dict(zip(("train", "eval"), self.training_modes, strict=True))

    @property
    def total_layer_params(self) -> int:
        """The parameters of all layers that are shown."""
        return sum(self.param_nums)


def summarize(lightning_module: Any, max_depth: int = 1) -> ModelSummary:
    """What a model consists of, down to a depth; -1: all layers.

    >>> from gluongraph import gluon
    >>> summarize(gluon.nn.Dense(4, in_units=3)).total_parameters
    16
    """
    return ModelSummary(lightning_module, max_depth)


def get_formatted_model_size(total_model_size: float) -> str:
    """A size in MB as tables show it.

    >>> get_formatted_model_size(1234.5)
    '1,234.500'
    """
    return f"{total_model_size:,.3f}"


LayerSummary = Layer
get_human_readable_count = human_readable_count

__all__ = [
    "LayerSummary",
    "ModelSummary",
    "get_formatted_model_size",
    "get_human_readable_count",
    "summarize",
]
