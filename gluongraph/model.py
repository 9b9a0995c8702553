"""`mx.model`: checkpoints of a symbol and its parameters."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping

from gluongraph import nd, symbol
from gluongraph.host.file_names import check_name
from gluongraph.ndarray import NDArray

BatchEndParam = namedtuple("BatchEndParam", ["epoch", "nbatch", "eval_metric", "locals"])
Arrays = dict[str, NDArray]


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: symbol.Symbol | None,
    arg_params: Mapping[str, NDArray],
    aux_params: Mapping[str, NDArray],
    remove_amp_cast: bool = True,
) -> None:
    """Write prefix-symbol.json, if there is a symbol, and prefix-<epoch>.params.

    Raises:
        ArgumentError: the name of the file is empty.
    """
    check_name("save_checkpoint", prefix, "mx.model.save_checkpoint('net', 1, symbol, arg_params, aux_params)")
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json")
    named = {f"{kind}:{n}": a for kind, arrays in (("arg", arg_params), ("aux", aux_params)) for n, a in arrays.items()}
    nd.save(f"{prefix}-{epoch:04d}.params", named)


def load_params(prefix: str, epoch: int) -> tuple[Arrays, Arrays]:
    """The parameters and the auxiliary states of prefix-<epoch>.params, by name.

    Raises:
        ArgumentError: the name of the file is empty.
        ValueError: the arrays have no names that say which they are.
    """
    check_name("load_params", prefix, "mx.model.load_params('net', 1)")
    file = f"{prefix}-{epoch:04d}.params"
    loaded = nd.load(file)
    found: dict[str, Arrays] = {"arg": {}, "aux": {}}
    for name, array in loaded.items() if isinstance(loaded, dict) else [("", None)]:
        kind, _, rest = name.partition(":")
        if array is None or kind not in found:
            raise ValueError(f"{file}: the names of a checkpoint's arrays begin with arg: or aux:, not {name!r}")
        found[kind][rest] = array
    return found["arg"], found["aux"]


def load_checkpoint(prefix: str, epoch: int) -> tuple[symbol.Symbol, Arrays, Arrays]:
    """The symbol, the parameters and the auxiliary states that `save_checkpoint` wrote, or MXNet's.

    Raises:
        ArgumentError: the name of the file is empty.
    """
    check_name("load_checkpoint", prefix, "mx.model.load_checkpoint('net', 1)")
    return symbol.load(f"{prefix}-symbol.json"), *load_params(prefix, epoch)
