"""gluongraph: a compiler for the whole training step, with MXNet Gluon's API.

>>> import gluongraph as mx
>>> from gluongraph import autograd, gluon, nd
"""

import importlib
from typing import TYPE_CHECKING, Any

from gluongraph.host.process import collecting_later  # before anything that loads numpy

with collecting_later():
    from gluongraph import (
        amp,
        autograd,
        context,
        contrib,
        gluon,
        initializer,
        kvstore,
        lr_scheduler,
        metric,
        nd,
        optimizer,
        random,
    )
    from gluongraph import initializer as init
    from gluongraph import kvstore as kv
    from gluongraph import nd as ndarray  # one module by both names, as in MXNet: blocks ask whether F is it
    from gluongraph.attribute import AttrScope
    from gluongraph.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
    from gluongraph.errors import MXNetError
    from gluongraph.gluon import Trainer  # MXNet has it in gluon alone
    from gluongraph.host import services
    from gluongraph.host.lazy import imported_later
    from gluongraph.util import is_np_array, is_np_shape, np_array, np_shape, set_np_shape, use_np_shape

if TYPE_CHECKING:
    from gluongraph import image, io, name, operator, profiler, recordio, symbol, test_utils
    from gluongraph import image as img
    from gluongraph import symbol as sym

__version__ = "0.1.0"


def compile(*args: Any, **kwargs: Any) -> Any:
    """The whole training step as one compiled call: compile(net, loss, trainer); see `gluongraph.step.compile.compile`.

    The compiler, and with it TVM, is imported by the first call.

    >>> import gluongraph as mx
    >>> from gluongraph import gluon, nd
    >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
    >>> net.initialize(mx.init.One())
    >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
    >>> step(x, y).asnumpy().tolist()  # the loss of each sample; the weights are updated
    [2.0, 2.0, 2.0, 2.0]
    """
    return services.get("compile")(*args, **kwargs)


def load(path: Any, lr_scheduler: Any = None, trust: str = "keys", steps_per_call: int | None = None) -> Any:
    """The training step in the file that `step.export(path)` wrote; see `gluongraph.artefact.load`.

    Nothing is traced, and no Python of the program that it was made from is needed. The compiled code in the file runs
    only if this user has exported it here, if it is signed by a key that is trusted (`gluongraph key`, or `trust`, a
    public key), or with trust="file"; otherwise it is compiled again.

    >>> import tempfile
    >>> import gluongraph as mx
    >>> from gluongraph import gluon, nd
    >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
    >>> net.initialize(mx.init.One())
    >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     step.export(folder + "/step.gga", batches=[(x, y)], modes=["step"])
    ...     loaded = mx.load(folder + "/step.gga")
    ...     loaded(x, y).asnumpy().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    return importlib.import_module("gluongraph.artefact").load(path, lr_scheduler, trust, steps_per_call)


def from_torch(module: Any, args: Any, kwargs: Any = None, **how: Any) -> Any:
    """A torch.nn.Module as a hybrid block, traced by torch.export for example arguments; see `mx.torch.from_torch`,
    which has an example."""
    return importlib.import_module("gluongraph.torch").from_torch(module, args, kwargs, **how)


# `mx.checkpoint` knows the runtime, `mx.onnx` a format; the others most trainings do without.
__getattr__ = imported_later(
    __name__,
    (
        *("attribute", "base", "checkpoint", "image", "io", "model", "name", "onnx", "operator", "profiler"),
        *("recordio", "symbol", "test_utils", "torch", "util"),
    ),
    img="image",
    sym="symbol",
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "AttrScope",
    "Context",
    "MXNetError",
    "Trainer",
    "amp",
    "autograd",
    "checkpoint",
    "compile",
    "context",
    "contrib",
    "cpu",
    "cpu_pinned",
    "current_context",
    "from_torch",
    "gluon",
    "gpu",
    "image",
    "img",
    "init",
    "initializer",
    "io",
    "is_np_array",
    "is_np_shape",
    "kv",
    "kvstore",
    "load",
    "lr_scheduler",
    "metric",
    "name",
    "nd",
    "ndarray",
    "np_array",
    "np_shape",
    "num_gpus",
    "onnx",
    "operator",
    "optimizer",
    "profiler",
    "random",
    "recordio",
    "set_np_shape",
    "sym",
    "symbol",
    "test_utils",
    "torch",
    "use_np_shape",
]
