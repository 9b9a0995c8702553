"""Where MXNet's names live here, and what to do instead of those that do not: the tables of `gluongraph.mxnet`."""

from __future__ import annotations

VERSION = "1.9.1"  # what scripts that ask are told

# MXNet's module -> the module here that has its names; what is not listed is looked for under its own name.
MODULES: dict[str, str] = {
    "": "gluongraph",
    "autograd": "gluongraph.autograd",
    "context": "gluongraph.context",
    "attribute": "gluongraph.attribute",
    "contrib.amp": "gluongraph.amp",
    "contrib.amp.amp": "gluongraph.amp",
    "contrib.autograd": "gluongraph.contrib.autograd",
    "contrib.io": "gluongraph.io",
    "contrib.nd": "gluongraph.nd.contrib",
    "contrib.ndarray": "gluongraph.nd.contrib",
    "contrib.text": "gluongraph.contrib.text",
    "contrib.text.embedding": "gluongraph.contrib.embedding",
    "contrib.text.utils": "gluongraph.contrib.text",
    "contrib.text.vocab": "gluongraph.contrib.text",
    "engine": "gluongraph.mxnet.engine",
    "gluon": "gluongraph.gluon",
    "gluon.contrib.data.sampler": "gluongraph.gluon.contrib.data",
    "gluon.nn.activations": "gluongraph.gluon.nn",
    "gluon.nn.basic_layers": "gluongraph.gluon.nn",
    "gluon.nn.conv_layers": "gluongraph.gluon.nn",
    "gluon.rnn.rnn_cell": "gluongraph.gluon.rnn",
    "gluon.rnn.rnn_layer": "gluongraph.gluon.rnn",
    "gluon.contrib.nn.basic_layers": "gluongraph.gluon.contrib.nn",
    "image.image": "gluongraph.image",
    "img": "gluongraph.image",
    "img.image": "gluongraph.image",
    "init": "gluongraph.initializer",
    "io.io": "gluongraph.io",
    "kv": "gluongraph.kvstore",
    "log": "gluongraph.mxnet.log",
    "misc": "gluongraph.lr_scheduler",
    "name": "gluongraph.name",
    "nd": "gluongraph.nd",
    "nd.op": "gluongraph.nd",
    "nd.random": "gluongraph.random",
    "nd.sparse": "gluongraph.nd.sparse",
    "ndarray": "gluongraph.nd",
    "ndarray._internal": "gluongraph.nd._internal",
    "ndarray.contrib": "gluongraph.nd.contrib",
    "ndarray.image": "gluongraph.nd.image",
    "ndarray.linalg": "gluongraph.nd.linalg",
    "ndarray.ndarray": "gluongraph.nd",
    "ndarray.op": "gluongraph.nd",
    "ndarray.random": "gluongraph.random",
    "ndarray.sparse": "gluongraph.nd.sparse",
    "optimizer.optimizer": "gluongraph.optimizer",
    "registry": "gluongraph.mxnet.registry",
    "rnd": "gluongraph.random",
    "runtime": "gluongraph.mxnet.runtime",
    "sym": "gluongraph.symbol",
    "symbol": "gluongraph.symbol",
}

# Attributes of MXNet's modules that are something else here: (module, attribute) -> what it is, as module:attribute.
ATTRIBUTES: dict[tuple[str, str], str] = {
    ("", "nd"): "gluongraph:nd",  # no facades: what `hybrid_forward` gets as F is to be mx.nd and mx.ndarray
    ("", "ndarray"): "gluongraph:nd",
    ("gluon.block", "SymbolBlock"): "gluongraph.gluon:SymbolBlock",
    ("gluon.block", "DeferredInitializationError"): "gluongraph.gluon:DeferredInitializationError",
    ("gluon.parameter", "DeferredInitializationError"): "gluongraph.gluon:DeferredInitializationError",
    ("gluon.trainer", "Trainer"): "gluongraph.gluon:Trainer",
    ("metric", "ndarray"): "gluongraph:nd",
    ("test_utils", "mx"): "mxnet:",
    **{
        (module, name): f"gluongraph.mxnet.internals:{name}"
        for module, names in {
            **dict.fromkeys(("gluon", "gluon.parameter"), ("tensor_types",)),
            "gluon.block": ("_flatten", "_regroup", "_indent"),
            "gluon.model_zoo.vision.resnet": ("_conv3x3",),
            "gluon.utils": ("_brief_print_list", "_get_repo_file_url", "_get_repo_url", "_indent", "replace_file"),
            "image": ("_get_interp_method",),
            "image.image": ("_get_interp_method",),
            "ndarray.ndarray": (
                *("_DTYPE_MX_TO_NP", "_DTYPE_NP_TO_MX", "_GRAD_REQ_MAP"),
                *("_STORAGE_TYPE_ID_TO_STR", "_STORAGE_TYPE_STR_TO_ID", "py_slice"),
            ),
        }.items()
        for name in names
    },
    **{
        ("gluon.data.dataloader", name): f"gluongraph.mxnet.dataloader:{name}"
        for name in (
            *("ForkingPickler", "_MultiWorkerIter", "_as_in_context", "_worker_fn", "_worker_initializer"),
            *("default_batchify_fn", "default_mp_batchify_fn"),
        )
    },
}

# Modules that scripts try whether they are there: importing them fails. Other missing ones fail when they are used.
TRIED = ("contrib.onnx", "contrib.tensorboard", "onnx", "th", "torch")

_NUMPY = "mx.nd has MXNet's classic arrays and operators"
# Of `mx.base`: what calls MXNet's C library, which code imports from there.
_C_LIBRARY = (
    *("_LIB", "c_array", "c_array_buf", "c_handle_array", "c_str", "c_str_array", "check_call", "ctypes2buffer"),
    *("ctypes2numpy_shared", "mx_float", "mx_uint", "NDArrayHandle", "SymbolHandle", "ExecutorHandle", "OpHandle"),
)

# What does not exist, by the beginning of its name, and what to do instead.
INSTEAD: dict[str, str] = {
    "mod": "train with gluon.Trainer, or compile the step with gluongraph.compile(net, loss, trainer)",
    "module": "train with gluon.Trainer, or compile the step with gluongraph.compile(net, loss, trainer)",
    "model.FeedForward": "train with gluon.Trainer",
    "nd.sparse": "arrays are dense; gluon.nn.Embedding(sparse_grad=True) has gradients by rows",
    "ndarray.sparse": "arrays are dense; gluon.nn.Embedding(sparse_grad=True) has gradients by rows",
    "np": "mx.nd has MXNet's classic arrays; numpy's own functions take what asnumpy() gives",
    "npx": "mx.nd has MXNet's classic operators; numpy semantics cannot be switched on",
    "numpy": "mx.nd has MXNet's classic arrays; numpy's own functions take what asnumpy() gives",
    "numpy_extension": "mx.nd has MXNet's classic operators",
    "_numpy_op_doc": _NUMPY,
    "numpy_dispatch_protocol": _NUMPY,
    "numpy_op_signature": _NUMPY,
    "contrib.svrg_optimization": "train with gluon.Trainer",
    **{f"base.{name}": "MXNet's C library is not there" for name in _C_LIBRARY},
    "callback": "log from the training loop; save with save_parameters",
    "rnn": "gluon.rnn has the layers and cells",
    "rtc": "gluongraph.compile generates the kernels, on CUDA too",
    "executor": "call the block; SymbolBlock.imports runs a symbol file",
    "monitor": "Block.register_forward_hook sees every output; GG_CHECK=nan names the op that makes a NaN",
    "mon": "Block.register_forward_hook sees every output; GG_CHECK=nan names the op that makes a NaN",
    "sym": "build the network as a gluon.HybridBlock; gluon.SymbolBlock.imports runs a symbol file",
    "symbol": "build the network as a gluon.HybridBlock; gluon.SymbolBlock.imports runs a symbol file",
    "viz": "Block.summary(x) prints the layers; gluongraph.ir.printer.show(step.graph) the whole graph",
    "visualization": "Block.summary(x) prints the layers; gluongraph.ir.printer.show(step.graph) the whole graph",
    "contrib.sym": "build the network as a gluon.HybridBlock",
    "contrib.symbol": "build the network as a gluon.HybridBlock",
    "contrib.onnx": "export the network with HybridBlock.export",
    "onnx": "export the network with HybridBlock.export",
    "contrib.quantization": "networks run in float32, bfloat16 or float16",
    "contrib.tensorboard": "log from the training loop",
    "library": "operators of libraries cannot be loaded; write autograd.Function",
    "th": "nd.from_dlpack(tensor) and torch.from_dlpack(array) share memory with PyTorch",
    "torch": "nd.from_dlpack(tensor) and torch.from_dlpack(array) share memory with PyTorch",
    "image.ImageDetIter": "a gluon.data.Dataset that gives images and boxes, and a DataLoader",
    "init.FusedRNN": "parameters of recurrent layers are separate arrays, each with an initializer of its own",
    "initializer.FusedRNN": "parameters of recurrent layers are separate arrays, each with an initializer of its own",
    "gluon.model_zoo.text": "gluon.rnn has the layers; weights come from local files, by load_parameters",
    "autograd.get_symbol": "gluongraph.tracing.tracer.trace(fn, args).graph is the graph of a function",
}
