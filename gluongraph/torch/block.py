"""A module of PyTorch's as a hybrid block: `from_torch`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from gluongraph.eager.tape import STATE
from gluongraph.host.progress import task
from gluongraph.ndarray import NDArray
from gluongraph.torch import export
from gluongraph.torch.dimension_names import dimension_names
from gluongraph.torch.module_block import ModuleBlock, elements
from gluongraph.torch.program import Program
from gluongraph.tracing.padding.free_axes import FreeAxes


def from_torch(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    train: bool = True,
    share: bool = False,
) -> TorchBlock:
    """A torch.nn.Module, or a function of tensors, as a block with the module's parameters, traced by torch.export.

    Parameters are called as in `module.state_dict()`; tied ones are one parameter; those with `requires_grad=False` get
    grad_req "null". Buffers are no parameters of a Trainer: statistics that the module moves in training are state,
    others constants. In training the block computes what the module does in `train()` mode, else what it does in
    `eval()` mode; random numbers are of `mx.random`. Outputs have the structure that the module returns; dataclasses
    come back as dicts with attributes.

    Args:
        module: the module, on the CPU. It is not changed.
        args, kwargs: example arguments, tensors or arrays in any structure; other values are part of the program.
        dynamic_shapes: the free axes, as `torch.export.export` takes them.
        train: False for a block that predicts only: also in training it computes what `module.eval()` does.
        share: parameters and buffers live in the module's own memory: `module` predicts with what is trained.

    Raises:
        ExportError: torch.export cannot trace the module, or it holds tensors that do not exist here.
        UnsupportedError: an operator that does not exist here; the message names it, the submodule and the line.
        TypeError: no module, no function; or `args` is no tuple.
        MXNetError: PyTorch is not installed.

    >>> import torch
    >>> import gluongraph as mx
    >>> from gluongraph import gluon, nd
    >>> net = mx.from_torch(torch.nn.Linear(3, 2), (torch.zeros(4, 3),))
    >>> step = mx.compile(net, gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), "adam"))
    >>> step(nd.ones((4, 3)), nd.zeros((4, 2))).shape
    (4,)
    """
    return TorchBlock(
        export.as_module(module), export.examples(args), export.as_tensors(kwargs or {}), dynamic_shapes, train, share
    )


class TorchBlock(ModuleBlock):
    """A module of PyTorch's that was traced: `from_torch` makes it. Called as the module is, with arrays or tensors.

    >>> import torch
    >>> import gluongraph as mx
    >>> from gluongraph import nd
    >>> net = mx.from_torch(torch.nn.Linear(3, 2), (torch.zeros(4, 3),))
    >>> net(nd.ones((4, 3))).shape
    (4, 2)
    >>> sorted(net.state_dict())
    ['bias', 'weight']
    """

    def __init__(
        self,
        module: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        dynamic_shapes: Any,
        train: bool,
        share: bool,
    ):
        super().__init__(module, share)
        export.check_examples(args, kwargs)
        self._example, self._trains = (args, dict(kwargs), dynamic_shapes), train
        self._programs: dict[bool, Program] = {}
        self._hold(self._program(train).moved.values())

    def _program(self, key: Hashable) -> Program:
        """The program of a mode, exported at its first use."""
        training = bool(key)
        if training not in self._programs:
            args, kwargs, dynamic_shapes = self._example
            with task(0, f"tracing {self._what}"), export.mode(self._module, training):
                exported = export.export(self._module, args, kwargs, dynamic_shapes)
            names = dimension_names(self._module, args, kwargs, dynamic_shapes)
            self._programs[training] = Program(exported, self._canonical, names)
        return self._programs[training]

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the module takes: name, element type and shape of each array, as 'x' f32[4,3].

        >>> import torch
        >>> import gluongraph as mx
        >>> mx.from_torch(torch.nn.Linear(3, 2), (torch.zeros(4, 3),)).inputs
        ("'input' f32[4,3]",)
        """
        return tuple(map(str, self._program(self._trains).inputs))

    @property
    def free_axes(self) -> FreeAxes:
        """The axes that `dynamic_shapes` leaves free, by the names of its `Dim`s; others by the symbols in `inputs`.

        >>> import torch
        >>> import gluongraph as mx
        >>> rows = torch.export.Dim("rows", max=64)
        >>> net = mx.from_torch(torch.nn.Linear(3, 2), (torch.zeros(4, 3),), dynamic_shapes=({0: rows},))
        >>> net.free_axes.ranges
        {'rows': (0, 64)}
        """
        return self._program(self._trains).free_axes

    def __repr__(self) -> str:
        trained = sum(p.grad_req != "null" for p in self._reg_params.values())
        counts = f"{trained} parameters, {len(self._reg_params) - trained} fixed"
        return f"TorchBlock({self._what}: {', '.join(self.inputs)}; {counts})"

    # -- running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._program(self._trains).leaves(args, kwargs, self._what)
        return super().__call__(*(v if isinstance(v, NDArray) else NDArray(elements(v)) for v in given))

    def forward(self, *args: Any) -> Any:
        """The results for arrays, in the order of `inputs`."""
        return self._run_program(bool(STATE.training) and self._trains, args)
