"""Block.register_op_hook: every operator of a hybridized block is shown to a function, by MXNet's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gluongraph import autograd
from gluongraph.ndarray import NDArray
from gluongraph.symbol import VARIABLE, SymbolNode, output_name
from gluongraph.symbol.operators import apply
from gluongraph.symbol.recording import record

if TYPE_CHECKING:
    from gluongraph.gluon.hybrid_block import HybridBlock

Callback = Callable[[str, str, NDArray], Any]
# Operators whose inputs have names in MXNet; those of others are called input0, input1, ...
_INPUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("FullyConnected", "Convolution", "Deconvolution"), ("data", "weight", "bias")),
    **dict.fromkeys(("LayerNorm", "GroupNorm", "InstanceNorm"), ("data", "gamma", "beta")),
    **dict.fromkeys(("Pooling", "Dropout", "LRN"), ("data",)),
    "BatchNorm": ("data", "gamma", "beta", "moving_mean", "moving_var"),
    "Embedding": ("data", "weight"),
    "LeakyReLU": ("data", "gamma"),
}


def show(block: HybridBlock, args: Sequence[Any], callback: Callback, monitor_all: bool) -> None:
    """callback(name, operator, array) for every output, and with `monitor_all` every input, of the operators that the
    block runs on these arguments.

    They are those of prediction mode, computed one by one.
    """
    with autograd.pause(train_mode=False):
        symbol, made = record(block._computed, args)
        given = {n.attrs["name"]: array for n, array in zip(made.arguments.values(), _arrays(args), strict=True)}
        names = list(made.arguments)
        known = {("data" if len(names) == 1 else n): given[n] for n in names}
        known |= made.captured | {n: NDArray(value) for n, value in made.constants.items()}
        values: dict[int, list[NDArray]] = {}
        for number in symbol.used():
            node = symbol.nodes[number]
            if node.op == VARIABLE:
                values[number] = [known[node.name]]
                continue
            inputs = [values[n][k] for n, k in node.inputs]
            for k, array in enumerate(inputs if monitor_all else ()):
                callback(f"{node.name}_{_input(node, k)}", node.op, array)
            values[number] = apply(node.op, node.name, node.attrs, inputs)
            for k, array in enumerate(values[number]):
                callback(output_name(node, k), node.op, array)


def _input(node: SymbolNode, which: int) -> str:
    names = _INPUTS.get(node.op, ())
    return names[which] if which < len(names) else f"input{which}"


def _arrays(part: Any) -> list[NDArray]:
    if isinstance(part, NDArray):
        return [part]
    return [a for each in part for a in _arrays(each)] if isinstance(part, (list, tuple)) else []
