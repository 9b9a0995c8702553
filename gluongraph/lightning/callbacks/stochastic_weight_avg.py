"""StochasticWeightAveraging, under the name that Lightning's scripts import it by."""

from gluongraph.lightning.callbacks.stochastic_weight_averaging import StochasticWeightAveraging

__all__ = ["StochasticWeightAveraging"]
