"""BatchNorm with the statistics of the batches of all ranks."""

from __future__ import annotations

from typing import Any

from gluongraph import autograd
from gluongraph.errors import pluralize, with_user_location
from gluongraph.gluon.nn import BatchNorm
from gluongraph.kvstore.distributed import JOINED
from gluongraph.mxops import layers as mxlayers
from gluongraph.ndarray import invoke
from gluongraph.ranges import check_count
from gluongraph.runtime.communicator.environment import world
from gluongraph.tracing.tracer import guard


class SyncBatchNorm(BatchNorm):
    """BatchNorm whose statistics in training are those of the batches of all ranks together.

    N ranks with batches of B then normalize as one does with a batch of N B, and their running statistics are equal.
    Mean and variance are two small sums over ranks, and so are their gradients. The ranks are those of a Trainer with
    kvstore="dist_sync", which is made before the first batch; without one this is `BatchNorm`. Contexts of one process
    have statistics of their own. `num_devices` is the number of ranks, or 1: then statistics are those of the rank
    alone.

    >>> from gluongraph import autograd, nd
    >>> from gluongraph.gluon.contrib.nn import SyncBatchNorm
    >>> layer = SyncBatchNorm()
    >>> layer.initialize()
    >>> with autograd.record():
    ...     y = layer(nd.array([[1, 20], [3, 40]]))  # one rank
    >>> y.round().asnumpy().tolist()
    [[-1.0, -1.0], [1.0, 1.0]]

    Raises:
        NotImplementedError: `num_devices` is neither 1 nor the number of ranks.
    """

    def __init__(self, in_channels: int = 0, num_devices: int | None = None, **kwargs: Any):
        if num_devices is not None:
            check_count(self, "num_devices", num_devices)
            if num_devices > 1 and num_devices != (ranks := world().size):
                message = f"SyncBatchNorm(num_devices={num_devices}) on {pluralize(ranks, 'rank')}: contexts of one "
                message += "process have statistics of their own"
                raise NotImplementedError(with_user_location(message, help="leave num_devices unset"))
        super().__init__(in_channels=in_channels, **kwargs)
        self._num_devices = num_devices

    def forward(self, x: Any) -> Any:
        ranks = 1 if self._num_devices == 1 else guard(JOINED, "size")
        if ranks == 1 or not autograd.is_training() or self._use_global_stats:
            return super().forward(x)
        how = {"axis": self._axis_of(x), "eps": self._epsilon, "fix_gamma": not self._scale, "ranks": ranks}
        y, mean, var = invoke(mxlayers.batch_norm_of_ranks, x, self.gamma.data(), self.beta.data(), **how)
        with autograd.pause(train_mode=True):
            for running, batch in ((self.running_mean.data(), mean), (self.running_var.data(), var)):
                running[:] = invoke(mxlayers.moved, running, batch.detach(), momentum=self._momentum)
        return y

    def __repr__(self) -> str:
        settings = f"{self._settings()}, ndev={self._num_devices or 1}, key='{self.prefix}'"
        return f"{type(self).__name__}({settings}, in_channels={self._elements() or None})"
