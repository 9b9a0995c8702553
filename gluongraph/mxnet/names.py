"""Where MXNet's names live here, and what to do instead of those that do not: the tables of `gluongraph.mxnet`."""

from __future__ import annotations

VERSION = "1.9.1"  # what scripts that ask are told

# MXNet's module -> the module here that has its names; what is not listed is looked for under its own name.
MODULES: dict[str, str] = {
    "": "gluongraph",
    "autograd": "gluongraph.autograd",
    "base": "gluongraph.mxnet.base",
    "context": "gluongraph.context",
    "contrib.amp": "gluongraph.amp",
    "contrib.autograd": "gluongraph.autograd",
    "contrib.io": "gluongraph.io",
    "contrib.nd": "gluongraph.nd.contrib",
    "contrib.ndarray": "gluongraph.nd.contrib",
    "contrib.text": "gluongraph.text",
    "contrib.text.utils": "gluongraph.text",
    "contrib.text.vocab": "gluongraph.text",
    "engine": "gluongraph.mxnet.engine",
    "gluon": "gluongraph.gluon",
    "gluon.contrib.data.sampler": "gluongraph.gluon.contrib.data",
    "gluon.nn.activations": "gluongraph.gluon.nn",
    "gluon.nn.basic_layers": "gluongraph.gluon.nn",
    "gluon.nn.conv_layers": "gluongraph.gluon.nn",
    "gluon.rnn.rnn_cell": "gluongraph.gluon.rnn",
    "gluon.rnn.rnn_layer": "gluongraph.gluon.rnn",
    "gluon.contrib.nn.basic_layers": "gluongraph.gluon.contrib.nn",
    "img": "gluongraph.image",
    "init": "gluongraph.initializer",
    "io.io": "gluongraph.io",
    "kv": "gluongraph.kvstore",
    "misc": "gluongraph.lr_scheduler",
    "model": "gluongraph.mxnet.model",
    "nd": "gluongraph.nd",
    "nd.op": "gluongraph.nd",
    "nd.random": "gluongraph.random",
    "ndarray": "gluongraph.nd",
    "ndarray._internal": "gluongraph.nd._internal",
    "ndarray.contrib": "gluongraph.nd.contrib",
    "ndarray.image": "gluongraph.nd.image",
    "ndarray.linalg": "gluongraph.nd.linalg",
    "ndarray.ndarray": "gluongraph.nd",
    "ndarray.op": "gluongraph.nd",
    "ndarray.random": "gluongraph.random",
    "optimizer.optimizer": "gluongraph.optimizer",
    "rnd": "gluongraph.random",
    "sym": "gluongraph.symbol",
    "symbol": "gluongraph.symbol",
    "util": "gluongraph.mxnet.util",
}

# Attributes of MXNet's modules that are something else here: (module, attribute) -> what it is, as module:attribute.
ATTRIBUTES: dict[tuple[str, str], str] = {
    ("", "cpu_pinned"): "gluongraph.context:cpu",
    ("context", "cpu_pinned"): "gluongraph.context:cpu",
    ("gluon.block", "SymbolBlock"): "gluongraph.gluon:SymbolBlock",
    ("gluon.nn", "SymbolBlock"): "gluongraph.gluon:SymbolBlock",
    ("gluon.block", "DeferredInitializationError"): "gluongraph.gluon:DeferredInitializationError",
    ("gluon.parameter", "DeferredInitializationError"): "gluongraph.gluon:DeferredInitializationError",
    ("gluon.trainer", "Trainer"): "gluongraph.gluon:Trainer",
}

# Modules that scripts try whether they are there: importing them fails. Other missing ones fail when they are used.
TRIED = ("contrib.onnx", "contrib.tensorboard", "np", "npx", "numpy", "numpy_extension", "onnx", "th", "torch")

# What does not exist, by the beginning of its name, and what to do instead.
INSTEAD: dict[str, str] = {
    "mod": "train with gluon.Trainer, or compile the step with gluongraph.compile(net, loss, trainer)",
    "module": "train with gluon.Trainer, or compile the step with gluongraph.compile(net, loss, trainer)",
    "model.FeedForward": "train with gluon.Trainer",
    "np": "mx.nd has MXNet's classic arrays; numpy's own functions take what asnumpy() gives",
    "npx": "mx.nd has MXNet's classic operators; numpy semantics cannot be switched on",
    "numpy": "mx.nd has MXNet's classic arrays; numpy's own functions take what asnumpy() gives",
    "numpy_extension": "mx.nd has MXNet's classic operators",
    "operator": "write an operator in Python as autograd.Function, with forward and backward",
    "callback": "log from the training loop; save with save_parameters",
    "name": "Block.name_scope and the argument prefix name what blocks hold",
    "attribute": "parameters have lr_mult, wd_mult and init",
    "AttrScope": "parameters have lr_mult, wd_mult and init",
    "rnn": "gluon.rnn has the layers and cells",
    "rtc": "gluongraph.compile generates the kernels, on CUDA too",
    "executor": "call the block; SymbolBlock.imports runs a symbol file",
    "monitor": "Block.register_forward_hook sees every output; GG_CHECK=nan names the op that makes a NaN",
    "mon": "Block.register_forward_hook sees every output; GG_CHECK=nan names the op that makes a NaN",
    "profiler": "step.profile(x, y) of a compiled step gives time and bandwidth per kernel; GG_DEBUG=1 prints totals",
    "sym": "build the network as a gluon.HybridBlock; gluon.SymbolBlock.imports runs a symbol file",
    "symbol": "build the network as a gluon.HybridBlock; gluon.SymbolBlock.imports runs a symbol file",
    "viz": "Block.summary(x) prints the layers; gluongraph.printer.show(step.graph) the whole graph",
    "visualization": "Block.summary(x) prints the layers; gluongraph.printer.show(step.graph) the whole graph",
    "contrib.onnx": "export the network with HybridBlock.export",
    "onnx": "export the network with HybridBlock.export",
    "contrib.quantization": "networks run in float32, bfloat16 or float16",
    "contrib.tensorboard": "log from the training loop",
    "library": "operators of libraries cannot be loaded; write autograd.Function",
    "th": "nd.from_dlpack(tensor) and torch.from_dlpack(array) share memory with PyTorch",
    "torch": "nd.from_dlpack(tensor) and torch.from_dlpack(array) share memory with PyTorch",
    "gluon.contrib.estimator": "write the loop: autograd.record, backward, Trainer.step",
    "autograd.get_symbol": "gluongraph.trace.trace(fn, args).graph is the graph of a function",
}
