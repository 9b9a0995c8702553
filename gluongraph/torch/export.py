"""A module of PyTorch's as an exported program: torch.export, keeping regions of no_grad, and errors in a sentence."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluongraph.errors import MXNetError, Origin, UnsupportedError, with_user_location
from gluongraph.host.interrupts import import_whole
from gluongraph.ir.graph import TensorType
from gluongraph.ndarray import NDArray
from gluongraph.torch.assigned_buffers import written
from gluongraph.torch.aten.context import DTYPE_NAMES
from gluongraph.torch.traceable import is_users_file, traceable

# What an operator raises of arguments that do not fit, not torch.export of a module that is no graph.
_OF_THE_MODULE = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
_FRAME = re.compile(r'\s*File "(.+)", line (\d+)')
_TRACERS = ("export", "proxy_tensor", "symbolic_shapes")  # in names of files of torch.export's


class ExportError(UnsupportedError):
    """A module that torch.export cannot trace, or that holds what does not exist here."""


@dataclass(frozen=True)
class Exported:
    """An exported program of functional ATen operators, and the user's line for each node of it. `otherwise` is what a
    user can do where operators do not exist here."""

    program: Any  # torch.export.ExportedProgram
    origins: Mapping[str, Origin]  # by the names of nodes
    otherwise: str = ""


def torch() -> Any:
    """The package torch.

    Raises:
        MXNetError: it is not installed.
    """
    try:
        return import_whole("torch")
    except ImportError as error:
        raise MXNetError(with_user_location("PyTorch is not installed", help="pip install torch")) from error


def _distinct(args: Any, kwargs: Any) -> Any:
    """The arguments, those that are one tensor apart: torch.export takes arguments that are one for one input, and the
    program would read the first of two arrays for both."""
    seen: set[int] = set()

    def apart(value: Any) -> Any:
        if id(value) in seen and isinstance(value, torch().Tensor):
            return value.clone()
        seen.add(id(value))
        return value

    return torch().utils._pytree.tree_map(apart, (args, kwargs))


def export(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any, otherwise: str = ""
) -> Exported:
    """The program of a module for arguments like these, in the mode that the module is in.

    `otherwise` is what a user can do where it cannot be traced, which the error says.

    Raises:
        ExportError: torch.export cannot trace it.
    """
    with quiet(), _silent(), traceable(torch()), written(module):
        try:
            how = {"strict": False, "prefer_deferred_runtime_asserts_over_guards": True}
            args, named = _distinct(args, dict(kwargs))
            traced = torch().export.export(module, args, named, dynamic_shapes=dynamic_shapes, **how)
            lines = dict(_lines(traced.graph_module))
            _detach_no_grad(traced.graph_module)
            program = traced.run_decompositions({})
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of torch.export, of the module itself, of sympy: of any type
            raise _explained(module, error, (args, kwargs), dynamic_shapes is not None, otherwise) from error
    origins = {}
    for node in program.graph.nodes:
        sources = node.meta.get("from_node") or ()
        origin = lines.get(sources[0].name if sources else node.name)
        if origin is not None:
            origins[node.name] = Origin(origin.file, origin.line, module_path(node) or origin.scope)
    return Exported(program, origins, otherwise)


@contextmanager
def quiet() -> Iterator[None]:
    """Within: warnings of PyTorch's own parts about each other are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _Others(io.TextIOBase):
    """A stream that takes what other threads than this one write, as the line of progress."""

    def __init__(self, stream: Any):
        self._stream, self._silent = stream, threading.get_ident()

    def write(self, text: str) -> int:
        """Write it, unless this thread does."""
        return len(text) if threading.get_ident() == self._silent else int(self._stream.write(text))

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def fileno(self) -> int:
        """The descriptor of the stream."""
        return int(self._stream.fileno())

    def isatty(self) -> bool:
        """Is the stream a terminal?"""
        return bool(self._stream.isatty())


@contextmanager
def _silent() -> Iterator[None]:
    """Within: torch.export does not print graphs and log its guesses. What it raises says the same."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(_Others(sys.stderr)):
            yield
    finally:
        logger.setLevel(level)


def module_path(node: Any) -> str:
    """The name of the submodule that a node comes from; "" for the module itself."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def _lines(graph_module: Any) -> Iterator[tuple[str, Origin]]:
    """The user's line for each node, by the name of the node."""
    for graph in (m for m in graph_module.modules() if hasattr(m, "graph")):
        for node in graph.graph.nodes:
            if (origin := _line_of(node.meta.get("stack_trace") or "", module_path(node))) is not None:
                yield node.name, origin


def _line_of(stack: str, scope: str) -> Origin | None:
    """The innermost line of a stack trace that is the user's; else the innermost."""
    found = [match.groups() for line in stack.splitlines() if (match := _FRAME.match(line))]
    own = [each for each in found if is_users_file(each[0])] or found
    return Origin(own[-1][0], int(own[-1][1]), scope) if own else None


def _detach_no_grad(graph_module: Any) -> None:
    """Detach the results of regions of no_grad, which run_decompositions would make parts of the graph like others."""
    aten = torch().ops.aten
    for module in [m for m in graph_module.modules() if hasattr(m, "graph")]:
        graph = module.graph
        for node in list(graph.nodes):
            if node.op != "call_function" or getattr(node.target, "__name__", "") != "wrap_with_set_grad_enabled":
                continue
            if node.args[0]:
                continue
            for user in list(node.users):  # getitem, one for each result
                value = user.meta.get("val")
                if value is None or not value.dtype.is_floating_point:
                    continue
                with graph.inserting_after(user):
                    detached = graph.call_function(aten.detach.default, (user,))
                detached.meta = dict(user.meta)
                user.replace_all_uses_with(detached, delete_user_cb=lambda n, new=detached: n is not new)
        module.recompile()


def _explained(module: Any, error: Exception, given: Any, dynamic: bool, otherwise: str) -> ExportError:
    """The error of torch.export in a sentence, with the line of the module where it arose. Are there `dynamic` shapes?
    `otherwise` is a way out."""
    name = type(module).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if is_users_file(f.filename) and "sympy" not in f.filename]
    text = str(error).strip()
    said = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    help = "the module has to be a graph for all data: no Python branch on elements, no .item(), no numpy on the way"
    if own_help := re.search(r"^  help: (.+)", text, re.MULTILINE):  # an error of ours
        help = own_help[1]
    elif "data-dependent" in text.lower() or "DataDependent" in type(error).__name__:
        said = "its Python code asks for the elements of an array, " + said
        help = "torch.cond for a branch, torch.where for a choice of elements; .item() is not traced"
    elif "expected dtype int" in text.lower() or "expected scalar type long" in text.lower():
        help = 'classes and indices are integers: y.astype("int64")'
    elif type(error) in _OF_THE_MODULE and not _is_tracer(frames[-1].filename):
        help, otherwise = f"the module itself raises this, given {_types(given)}", ""
    elif dynamic and ("constraint" in text.lower() or "dynamic" in text.lower()):
        help = "give dynamic_shapes as the message says, or leave the axis out of it"
    if otherwise and otherwise not in help:
        help = f"{help}; or {otherwise}"
    where = f"\n  at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""
    if not own and (line := _line_of(text, "")) is not None and is_users_file(line.file):  # of a decomposition
        where = f"\n  at {line.file}:{line.line}"
    return ExportError(with_user_location(f"torch.export cannot trace {name}: {said[:500]}{where}", help=help))


def tensors_in(given: Any) -> list[Any]:
    """The tensors in a structure, in the order of torch.export's inputs."""
    return [each for each in torch().utils._pytree.tree_leaves(given) if isinstance(each, torch().Tensor)]


def _types(given: Any) -> str:
    """The tensors among arguments, by their types."""
    found = [(tuple(each.shape), str(each.dtype)) for each in tensors_in(given)]
    told = [str(TensorType(shape, DTYPE_NAMES.get(dtype, dtype))) for shape, dtype in found]
    return ", ".join(told) or "no tensor"


def _is_tracer(name: str) -> bool:
    """Is this a file of torch.export's?"""
    return not is_users_file(name) and any(part in name for part in _TRACERS)


@contextmanager
def mode(module: Any, training: bool) -> Iterator[None]:
    """Within: the module trains, or predicts. Training keeps the flags of submodules that the user has set, unless the
    whole module is in the other mode."""
    flags = [(m, m.training) for m in module.modules()]
    if not training or not module.training:
        module.train(training)
    try:
        yield
    finally:
        for each, flag in flags:
            each.training = flag


def as_module(what: Any) -> Any:
    """A module as it is; a function as a module that calls it.

    Raises:
        TypeError: it is neither, or compiled by TorchScript.
    """
    nn = torch().nn
    if isinstance(what, torch().jit.ScriptModule):
        message = f"from_torch takes a module, not {type(what).__name__}, which TorchScript has compiled"
        raise TypeError(with_user_location(message, help="give the module that torch.jit.script was given"))
    if isinstance(what, nn.Module):
        return what
    if not callable(what) or isinstance(what, type):
        message = f"from_torch takes a torch.nn.Module or a function of tensors, not {what!r}"
        raise TypeError(with_user_location(message, help="from_torch(model, (example,))"))

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return what(*args, **kwargs)

    with contextlib.suppress(TypeError, ValueError):  # some that are built in tell no signature
        own = inspect.signature(what)
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        # `inspect` looks here first: torch.export names inputs by it, and finds their dynamic_shapes.
        vars(forward)["__signature__"] = own.replace(parameters=[first, *own.parameters.values()])
    return type(getattr(what, "__name__", type(what).__name__), (nn.Module,), {"forward": forward})()


def check_tensors(tensors: Mapping[str, Any]) -> None:
    """Raise ExportError for tensors that cannot become arrays: of other devices, layouts, element types, without a
    shape."""
    for name, tensor in tensors.items():
        if torch().nn.parameter.is_lazy(tensor):
            message = f"{name} has no shape yet, since its lazy layer has not been called"
            raise ExportError(with_user_location(message, help="call the model once: model(example)"))
        what = f"{name} is a tensor of {tensor.dtype} on {tensor.device}"
        if tensor.device.type != "cpu":
            help = '.cpu(), and mx.compile(..., target="cuda") where the step is to run on a GPU'
            raise ExportError(
                with_user_location(f"{what}: from_torch takes modules and arguments on the CPU", help=help)
            )
        if str(tensor.dtype) not in DTYPE_NAMES:
            help = f"there are {', '.join(n.removeprefix('torch.') for n in DTYPE_NAMES)}"
            raise ExportError(with_user_location(f"{what}: there is no such element type here", help=help))
        if str(tensor.layout) != "torch.strided":
            raise ExportError(with_user_location(f"{what}, {tensor.layout}: only dense tensors", help="to_dense()"))


def check_examples(args: Any, kwargs: Any) -> None:
    """Raise ExportError for example arguments that cannot become arrays."""
    check_tensors({f"argument {k}": tensor for k, tensor in enumerate(tensors_in((args, kwargs)))})


def check_memory(tensors: Mapping[str, Any]) -> None:
    """Raise ExportError where two of these tensors have the same memory, of which arrays would be two: a parameter that
    is to stay equal to another one would not. A tensor that stands there twice is one array."""
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        own = first.setdefault(tensor.data_ptr(), name) if tensor.numel() else name
        if tensors[own] is not tensor and any(each.requires_grad for each in (tensors[own], tensor)):
            message = f"{own} and {name} are two tensors in the same memory, which would be two arrays here"
            layer, _, attribute = name.rpartition(".")
            of = f"{layer}." if layer else ""
            help = f"let them be one parameter: model.{of}{attribute} = model.{own}; or give one a copy, .clone()"
            raise ExportError(with_user_location(message, help=help))


def examples(args: Any) -> tuple[Any, ...]:
    """The example arguments as a tuple, arrays among them as tensors.

    Raises:
        TypeError: they are no tuple.
    """
    if isinstance(args, Sequence) and not isinstance(args, str):
        return tuple(as_tensors(list(args)))
    message = f"args are the example arguments as a tuple, not {type(args).__name__}"
    raise TypeError(with_user_location(message, help="from_torch(model, (example,)), with the comma"))


def as_tensors(given: Any) -> Any:
    """Arguments in any structure, whose arrays of numpy's and gluongraph's are tensors."""

    def tensor(leaf: Any) -> Any:
        leaf = leaf.asnumpy() if isinstance(leaf, NDArray) else leaf
        return torch().tensor(leaf) if isinstance(leaf, np.ndarray) else leaf

    return torch().utils._pytree.tree_map(tensor, given)
