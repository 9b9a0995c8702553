"""What the networks share: functions with a name and no weights of their own, and layers that come in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gluongraph.errors import with_user_location
from gluongraph.gluon import nn
from gluongraph.gluon.hybrid_block import HybridBlock

Net = TypeVar("Net", bound=HybridBlock)


def untrained(name: str, pretrained: bool, net: Net) -> Net:
    """The net, which has not been trained.

    Raises:
        NotImplementedError: `pretrained` is asked for.
    """
    if pretrained:
        raise NotImplementedError(
            with_user_location(
                f"{name}(pretrained=True): no weights come with gluongraph, and none are downloaded",
                help="make the net without it, then net.load_parameters(file); MXNet's .params files can be read",
            )
        )
    return net


def named(name: str, make: Callable[..., Net], *first: Any) -> Callable[..., Net]:
    """make(*first, **kwargs) as a function of that name."""

    def model(**kwargs: Any) -> Net:
        return make(*first, **kwargs)

    model.__name__ = model.__qualname__ = name
    model.__doc__ = f"`{make.__name__}({', '.join(map(repr, first))}, ...)`"
    return model


def normalized(conv: HybridBlock, epsilon: float = 1e-5, activation: HybridBlock | None = None) -> list[HybridBlock]:
    """A convolution, batch normalization and an activation, relu unless another is given."""
    return [conv, nn.BatchNorm(epsilon=epsilon), activation or nn.Activation("relu")]


def row(*blocks: HybridBlock, prefix: str = "") -> nn.HybridSequential:
    """Blocks one after another, by default without a name in those of their parameters."""
    made = nn.HybridSequential(prefix=prefix)
    made.add(*blocks)
    return made
