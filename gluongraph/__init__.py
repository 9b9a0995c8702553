"""gluongraph: a compiler for the whole training step, with MXNet Gluon's API.

>>> import gluongraph as mx
>>> from gluongraph import autograd, gluon, nd
"""

from typing import Any

import gluongraph.process  # noqa: F401 - before anything that loads numpy
from gluongraph import (
    autograd,
    context,
    engine,
    gluon,
    image,
    initializer,
    io,
    kvstore,
    lr_scheduler,
    metric,
    nd,
    ndarray,
    optimizer,
    random,
    recordio,
    test_utils,
)
from gluongraph import image as img
from gluongraph import initializer as init
from gluongraph import kvstore as kv
from gluongraph.context import Context, cpu, current_context, gpu, num_gpus
from gluongraph.errors import MXNetError

__version__ = "0.1.0"


def compile(*args: Any, **kwargs: Any) -> Any:
    """The whole training step as one compiled call: compile(net, loss, trainer); see `gluongraph.compiler.compile`.

    The compiler, and with it TVM, is imported by the first call.
    """
    return engine.get("compile")(*args, **kwargs)


__all__ = [
    "Context",
    "MXNetError",
    "autograd",
    "compile",
    "context",
    "cpu",
    "current_context",
    "gluon",
    "gpu",
    "image",
    "img",
    "init",
    "initializer",
    "io",
    "kv",
    "kvstore",
    "lr_scheduler",
    "metric",
    "nd",
    "ndarray",
    "num_gpus",
    "optimizer",
    "random",
    "recordio",
    "test_utils",
]
