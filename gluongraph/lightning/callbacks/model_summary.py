"""A table of the layers of a model and their parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gluongraph.gluon.block import Block
from gluongraph.host.interrupts import import_whole
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.lightning.batch import cast_floats
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.callbacks.progress.rich_progress import require_rich
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.utilities.rank_zero import rank_zero_info

_UNITS = (" ", "K", "M", "B", "T")
UNKNOWN = "?"
Column = tuple[str, list[str]]


class Measured(NamedTuple):
    """What running a layer shows: its operations, and the shapes of what it takes and gives."""

    flops: int = 0
    in_size: Any = UNKNOWN
    out_size: Any = UNKNOWN


@dataclass(frozen=True)
class Layer:
    """A row of the table."""

    name: str
    kind: str
    parameters: int
    training: bool
    shapes_known: bool = True
    flops: int = 0
    in_size: Any = UNKNOWN
    out_size: Any = UNKNOWN


@dataclass(frozen=True)
class Summary:
    """What a model consists of: `str()` of it is the table. Of a torch module with an `example_input_array` it tells
    the operations of its products of matrices, too, and the shapes of what layers take and give.

    >>> from gluongraph import gluon
    >>> net = gluon.nn.HybridSequential()
    >>> net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.Dense(2, in_units=4))
    >>> print(summarize(net))
      | Name | Type  | Params | Mode
    ---------------------------------------
    0 | 0    | Dense | 16     | train
    1 | 1    | Dense | 10     | train
    ---------------------------------------
    26        Trainable params
    0         Non-trainable params
    26        Total params
    0.000     Total estimated model params size (MB)
    2         Modules in train mode
    0         Modules in eval mode
    """

    layers: tuple[Layer, ...]
    total_parameters: int
    trainable_parameters: int
    nbytes: int
    training_modes: tuple[int, int]  # modules in training mode, and in prediction mode
    other_parameters: int = 0  # those of no layer
    total_flops: int | None = None  # None: there was no example to count them by

    @property
    def model_size(self) -> float:
        """The size of the parameters in MB."""
        return self.nbytes / 1e6

    def columns(self) -> list[Column]:
        """The columns of the table: their heads, and a text for each layer."""
        heads = [" ", "Name", "Type", "Params", "Mode"]
        rows = [
            [str(number), each.name, each.kind, _count(each), "train" if each.training else "eval"]
            for number, each in enumerate(self.layers)
        ]
        if self.total_flops is not None:
            heads += ["FLOPs", "In sizes", "Out sizes"]
            for row, each in zip(rows, self.layers, strict=True):
                row += [human_readable_count(each.flops), str(each.in_size), str(each.out_size)]
        if self.other_parameters > 0:
            known = [" ", "other params", "n/a", human_readable_count(self.other_parameters)]
            rows.append(known + ["n/a"] * (len(heads) - len(known)))
        return [(head, [row[i] for row in rows]) for i, head in enumerate(heads)]

    def totals(self) -> list[tuple[str, str]]:
        """What stands below the table: numbers, and what they are of."""
        rest = self.total_parameters - self.trainable_parameters
        flops = [] if self.total_flops is None else [(human_readable_count(self.total_flops), "Total Flops")]
        return [
            (human_readable_count(self.trainable_parameters), "Trainable params"),
            (human_readable_count(rest), "Non-trainable params"),
            (human_readable_count(self.total_parameters), "Total params"),
            (f"{self.model_size:,.3f}", "Total estimated model params size (MB)"),
            (str(self.training_modes[0]), "Modules in train mode"),
            (str(self.training_modes[1]), "Modules in eval mode"),
            *flops,
        ]

    def __str__(self) -> str:
        columns = self.columns()
        widths = [max([len(head), *map(len, texts)]) for head, texts in columns]
        line = "-" * (sum(widths) + 3 * (len(widths) + 1))

        def row(cells: Sequence[str]) -> str:
            return " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

        rows = [row(cells) for cells in zip(*(texts for _, texts in columns), strict=True)]
        totals = [f"{number:<10}{what}" for number, what in self.totals()]
        return "\n".join([row([head for head, _ in columns]), line, *rows, line, *totals])


class ModelSummary(Callback):
    """Say, when `fit` begins, of which layers the model consists, how many parameters they have, and their mode.

    `max_depth` is how deep layers within layers are shown: -1: all of them; 0: nothing is said.

    >>> summary = ModelSummary(max_depth=2)
    >>> ModelSummary(max_depth=-2)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    MisconfigurationException: ModelSummary(max_depth=-2)

    Raises:
        MisconfigurationException: a depth below -1.
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any):
        if not isinstance(max_depth, int) or max_depth < -1:
            raise misconfigured(f"ModelSummary(max_depth={max_depth!r})", help="-1: all, 0: none, or a number")
        self._max_depth, self._how = max_depth, summarize_kwargs

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Show the table, on the first rank."""
        if self._max_depth and trainer.is_global_zero:
            self.show(summarize(pl_module, self._max_depth))

    def show(self, summary: Summary) -> None:
        """Write the table. Override to put it elsewhere."""
        rank_zero_info(f"\n{summary}")


class RichModelSummary(ModelSummary):
    """A `ModelSummary` that is drawn with rich, where that is installed.

    >>> import pytest
    >>> _ = pytest.importorskip("rich")
    >>> summary = RichModelSummary(max_depth=2)

    Raises:
        ModuleNotFoundError: rich is not installed.
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any):
        require_rich("RichModelSummary")
        super().__init__(max_depth, **summarize_kwargs)

    def show(self, summary: Summary) -> None:
        """Draw the table."""
        import_whole("rich.console")
        from rich.console import Console

        import_whole("rich.table")
        from rich.table import Table

        table = Table(header_style=self._how.get("header_style", "bold magenta"))
        columns = summary.columns()
        for head, _ in columns:
            table.add_column(head, justify="right" if head in ("Params", "FLOPs") else "left", no_wrap=head == "Name")
        for cells in zip(*(texts for _, texts in columns), strict=True):
            table.add_row(*cells)
        console = Console()
        console.print(table)
        for number, what in summary.totals():
            console.print(f"[bold]{what}[/]: {number}")


def summarize(model: Any, max_depth: int = 1) -> Summary:
    """What a Gluon block, a torch module or a LightningModule of either consists of, down to a depth.

    >>> from gluongraph import gluon
    >>> summarize(gluon.nn.Dense(4, in_units=3)).total_parameters
    16

    Raises:
        MisconfigurationException: a depth below -1.
    """
    if not isinstance(max_depth, int) or max_depth < -1:
        raise misconfigured(f"summarize(max_depth={max_depth!r})", help="-1: all, 0: none, or a number")
    total_flops, measured = _measured(model)
    below = list(_below(model, measured))
    layers = [layer for layer in below if max_depth == -1 or layer.name.count(".") < max_depth]
    everything = _parameters(model)
    modes = [layer.training for layer in below]
    own = sum(layer.parameters for layer in below if "." not in layer.name)
    return Summary(
        tuple(layers),
        sum(size for _, size, _, _ in everything),
        sum(size for _, size, _, trained in everything if trained),
        sum(size * width for _, size, width, _ in everything),
        (modes.count(True), modes.count(False)),
        max(0, sum(size for _, size, _, _ in everything) - own),
        total_flops,
    )


def _measured(model: Any) -> tuple[int | None, Mapping[int, Measured]]:
    """The operations of a torch module for its `example_input_array`, and what is known of each layer by that; None
    without one."""
    example = getattr(model, "example_input_array", None)
    if example is None or not is_torch_loaded() or not isinstance(model, import_whole("torch").nn.Module):
        return None, {}
    torch = import_whole("torch")
    found: dict[int, Measured] = {}
    counter = import_whole("torch.utils.flop_counter").FlopCounterMode(display=False)
    begun: dict[int, int] = {}

    def begin(layer: Any, *_: Any) -> None:
        begun[id(layer)] = counter.get_total_flops()

    def end(layer: Any, args: Any, kwargs: Any, result: Any) -> None:
        flops = counter.get_total_flops() - begun[id(layer)]
        if id(layer) in found:  # called more than once
            before = found[id(layer)]
            found[id(layer)] = Measured(before.flops + flops, before.in_size, before.out_size)
            return
        taken = (*args, *kwargs.values())
        found[id(layer)] = Measured(flops, _shape(taken[0] if len(taken) == 1 else taken), _shape(result))

    hooks, modes = [], [(each, each.training) for each in model.modules()]
    try:
        for each, _ in modes[1:]:
            hooks += [
                each.register_forward_pre_hook(begin, prepend=True),
                each.register_forward_hook(end, with_kwargs=True),
            ]
        model.eval()
        with torch.no_grad(), counter:
            args, kwargs = _arguments(model, example)
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
        for each, training in modes:
            each.training = training
    return int(counter.get_total_flops()), found


def _arguments(model: Any, example: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What a module is called with for an example, which is cast to the Trainer's precision."""
    trainer = getattr(model, "_trainer", None)
    if trainer is not None and trainer.cast is not None:
        example = cast_floats(example, trainer.cast)
    if isinstance(example, dict):
        return (), example
    return (example if isinstance(example, (list, tuple)) else (example,)), {}


def _shape(value: Any) -> Any:
    if hasattr(value, "shape"):
        return list(value.shape)
    return [_shape(each) for each in value] if isinstance(value, (list, tuple)) else UNKNOWN


def human_readable_count(number: int) -> str:
    """A number with three digits or fewer, and K, M, B, T for thousands, millions, ...

    >>> [human_readable_count(n) for n in (123, 1234, 2_000_000, 400 * 10**12, 5 * 10**15)]
    ['123  ', '1.2 K', '2.0 M', '400 T', '5,000 T']
    """
    group = min((len(str(number)) - 1) // 3, len(_UNITS) - 1)
    value = number * 10.0 ** (-3 * group)
    return f"{int(value):,d} {_UNITS[group]}" if group < 1 or value >= 100 else f"{value:,.1f} {_UNITS[group]}"


def _count(layer: Layer) -> str:
    known = human_readable_count(layer.parameters)
    return known if layer.shapes_known else f"{known.strip()} + ?"


def _children(model: Any) -> Iterator[tuple[str, Any]]:
    """The layers directly within a module, by name: blocks among the attributes of a module come after its own."""
    if isinstance(model, Block):
        yield from model._children.items()
        return
    if hasattr(model, "named_children"):
        yield from model.named_children()
    yield from ((name, value) for name, value in vars(model).items() if isinstance(value, Block))


def _below(
    model: Any, measured: Mapping[int, Measured], prefix: str = "", seen: set[int] | None = None
) -> Iterator[Layer]:
    """All layers within a module, each once."""
    seen = set() if seen is None else seen
    for name, child in _children(model):
        if id(child) in seen:
            continue
        seen.add(id(child))
        found = _parameters(child)
        sizes = sum(size for _, size, _, _ in found)
        training = bool(getattr(child, "training", True))
        known = all(size for _, size, _, _ in found)
        run = measured.get(id(child), Measured())
        yield Layer(prefix + name, type(child).__name__, sizes, training, known, run.flops, run.in_size, run.out_size)
        yield from _below(child, measured, f"{prefix}{name}.", seen)


def _parameters(model: Any) -> list[tuple[int, int, int, bool]]:
    """Each parameter once: what it is told from others by, its size (0: not known yet), the bytes of a number, and
    whether it is trained. Running statistics are none."""
    found: dict[int, tuple[int, int, int, bool]] = {}
    for each in _gluon_parameters(model):
        size = math.prod(each.shape) if each.shape is not None and min(each.shape, default=1) > 0 else 0
        found[id(each)] = (id(each), size, np.dtype(each.dtype).itemsize, each.grad_req != "null")
    if hasattr(model, "named_children"):
        for each in model.parameters():
            size = each.numel() if hasattr(each, "element_size") and not _lazy(each) else 0
            found[id(each)] = (id(each), size, each.element_size(), bool(each.requires_grad))
    return list(found.values())


def _gluon_parameters(model: Any) -> Iterator[Any]:
    blocks = [model] if isinstance(model, Block) else [v for v in vars(model).values() if isinstance(v, Block)]
    for block in blocks:
        yield from (each for each in block.collect_params().values() if each._differentiable)


def _lazy(parameter: Any) -> bool:
    """Is it a parameter of PyTorch's whose shape is not known yet?"""
    return type(parameter).__name__.startswith("Uninitialized")
