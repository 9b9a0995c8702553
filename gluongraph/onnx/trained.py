"""Which arrays of a file are trained: what PyTorch's exporter says of them, what the user names, else all with an axis.

An exporter that optimizes computes with parameters ahead: BatchNorm goes into a convolution's weight, a weight that two
layers share is stored a second time transposed, parameters that are equal at first become one. To train what is left is
to train another model, so such a file is refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from gluongraph.dtypes import dtype_name, is_float
from gluongraph.errors import ArgumentError, UnsupportedError, with_user_location
from gluongraph.onnx.format.model import Model
from gluongraph.onnx.format.torch_metadata import PARAMETER, PRODUCER, TorchMetadata
from gluongraph.storage import Array

SHOWN = 3  # of the changes, in a message
CALL = "torch.onnx.export(model, args, file, dynamo=True, optimize=False)"

Trained = str | Collection[str]
COMPUTED = "onnx::"  # how PyTorch's older exporter begins the names of arrays that no module has
MERGED = re.compile(r"Identity_\d+")  # and how it calls the nodes that give an array a second name


def trained_arrays(model: Model, names: Mapping[str, str], trained: Trained | None) -> set[str]:
    """The names of the arrays that are trained; `names` are the float arrays, with the names they have as parameters.

    Raises:
        ArgumentError: `trained` names what the file does not hold.
        UnsupportedError: the file is of an exporter that has changed what there is to train, and `trained` is None.
    """
    if trained is not None:
        return _named(model, names, trained)
    if changes := list(_changes(model)):
        more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        message = f"{model.what} does not hold the parameters of the model that was exported: "
        help = f"{CALL} keeps them; mx.onnx.load(file, trained=()) loads this file for predictions"
        raise UnsupportedError(with_user_location(message + "; ".join(changes[:SHOWN]) + more, help=help))
    if model.torch is not None and model.torch.kinds:
        return {name for name in names if model.torch.kinds.get(name) == PARAMETER}
    return {name for name in names if model.graph.constants[name].ndim > 0}


def _named(model: Model, names: Mapping[str, str], trained: Trained) -> set[str]:
    """Those that a regular expression matches, or whose names stand in a list."""
    if isinstance(trained, str):
        pattern = matcher("trained", trained)
        found = {name for name, called in names.items() if pattern.fullmatch(called)}
        unknown = [] if found else [trained]
    else:
        known = {**{called: name for name, called in names.items()}, **{name: name for name in names}}
        unknown = [str(each) for each in trained if each not in known]
        found = {known[each] for each in trained if each in known}
    if unknown:
        help = f"the float arrays of {model.what} are: {listed(list(names.values()))}"
        raise ArgumentError(with_user_location(f"trained: {unknown[0]!r} matches no float array", help=help))
    return found


def matcher(argument: str, pattern: str) -> re.Pattern[str]:
    """The regular expression of an argument.

    Raises:
        ArgumentError: it is none.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        message = f"{argument}={pattern!r} is no regular expression: {error}"
        raise ArgumentError(with_user_location(message, help="points of names are written \\.")) from None


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first names as text."""
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "") or "none"


# -- what exporters change


def _changes(model: Model) -> Iterator[str]:
    """What an exporter has done to parameters, for messages."""
    if model.torch is not None:
        yield from _optimized(model.torch, model.graph.constants)
    elif model.producer == PRODUCER:
        yield from _optimized_by_older(model)


def _optimized(torch: TorchMetadata, arrays: Mapping[str, Array]) -> Iterator[str]:
    """What onnxscript's optimizer has done, which `torch.onnx.export(dynamo=True)` runs by default."""
    for node, rule in torch.fused.items():
        if "BatchNorm" in rule:
            yield f"BatchNorm was fused into {node!r} ({rule})"
    parameters = {*torch.parameters.values(), *(n for n, kind in torch.kinds.items() if kind == PARAMETER)}
    derived: dict[str, list[str]] = defaultdict(list)
    for name, sources in torch.folded.items():
        for parameter in parameters.intersection(sources):
            derived[parameter].append(name)
    for parameter, found in sorted(derived.items()):
        if parameter in arrays:
            yield f"{parameter!r} was untied: it is there, and {found[0]!r} that was computed from it"
        elif len(found) > 1:
            yield f"{parameter!r} was untied: {found[0]!r} and {found[1]!r} were both computed from it"
        else:
            yield f"{parameter!r} is there only as {found[0]!r}, which was computed from it"
    lost = {n: p for n, p in torch.parameters.items() if p not in arrays and p not in derived}
    for name, parameter in lost.items():
        if name in torch.mentioned:
            yield f"{parameter!r} is used and is not in the file: it was merged with an equal array, or computed with"
        elif torch.removed:  # it is not used by what is left, and may have been by what was removed
            yield f"{parameter!r} is not in the file, whose optimizer has removed {min(torch.removed)!r} and others"


def _optimized_by_older(model: Model) -> Iterator[str]:
    """What the exporter with `dynamo=False` has done, as far as names tell it."""
    arrays = model.graph.constants
    floats = {name: a for name, a in arrays.items() if is_float(dtype_name(a.dtype)) and a.ndim and a.size}
    for node in model.graph.nodes:
        weights = [name for name in node.inputs[1:] if name in floats]
        if node.op in ("Conv", "ConvTranspose") and weights and weights[0].startswith(COMPUTED):
            yield f"BatchNorm was fused into {node.name!r}: its weight is {weights[0]!r}"
        if node.op == "Identity" and MERGED.fullmatch(node.name) and node.inputs[0] in floats:
            yield f"{node.outputs[0]!r} was merged with {node.inputs[0]!r}, which was equal"
    matrices = {name: a for name, a in floats.items() if a.ndim == 2 and a.min() != a.max()}  # zeros are no copies
    for name, array in matrices.items():
        for other, source in matrices.items() if name.startswith(COMPUTED) else ():
            if other != name and _transposed(array, source):
                yield f"{other!r} was untied: {name!r} is the same array, transposed"


def _transposed(a: Array, b: Array) -> bool:
    """Is a matrix the other one, transposed? The first row tells most that are not."""
    return a.shape == b.shape[::-1] and np.array_equal(a[0], b[:, 0]) and np.array_equal(a, b.T)
