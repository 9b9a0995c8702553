"""Blocks that call their children one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from gluongraph.errors import warn
from gluongraph.gluon.block import Block
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.parameter_dict import ParameterDict

_Container = TypeVar("_Container", bound="_Stacked")


class _Stacked(Block):
    """What Sequential and HybridSequential share."""

    def add(self, *blocks: Block) -> None:
        """Append blocks.

        >>> from gluongraph.gluon import nn
        >>> net = nn.HybridSequential()
        >>> net.add(nn.Flatten(), nn.Activation("relu"))
        >>> len(net)
        2
        """
        for block in blocks:
            self.register_child(block)

    def forward(self, *args: Any) -> Any:
        """Each child on what the one before it gives; several results are passed on as several arguments."""
        for child in self._children.values():
            out = child(*args)
            args = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        return args[0] if len(args) == 1 else args

    def __getitem__(self: _Container, key: Any) -> Any:
        layers = list(self._children.values())[key]
        if not isinstance(layers, list):
            return layers
        net = type(self)(prefix=self._prefix)
        net.add(*layers)
        return net

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._children.values())


class Sequential(_Stacked):
    """Blocks one after another.

    >>> from gluongraph.gluon import nn
    >>> net = Sequential()
    >>> net.add(nn.Dense(3, in_units=2), nn.Activation("relu"))
    >>> net
    Sequential(
      (0): Dense(2 -> 3, linear)
      (1): Activation(relu)
    )
    """

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None):
        super().__init__(prefix, params)

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Compile each hybrid block among the children for itself."""
        if active and self._children and all(isinstance(child, HybridBlock) for child in self._children.values()):
            advice = "each of them is compiled for itself; a HybridSequential is compiled as one"
            warn(f"all children of the Sequential {self.name!r} are hybrid blocks: {advice}")
        super().hybridize(active, **kwargs)


class HybridSequential(_Stacked, HybridBlock):
    """Hybrid blocks one after another; `hybridize()` compiles the whole.

    A slice is a HybridSequential of the same layers, which share their parameters.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import nn
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Flatten(), nn.Activation("relu"), nn.Dropout(0.5))
    >>> net[1]
    Activation(relu)
    >>> net[:2](nd.array([[[-1], [2]]])).asnumpy()
    array([[0., 2.]], dtype=float32)
    """

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None):
        HybridBlock.__init__(self, prefix, params)
