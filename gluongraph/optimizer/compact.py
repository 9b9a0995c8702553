"""Optimizer states in 16 bits: half the memory, stochastically rounded so that small changes are not lost.

A running mean moves by a thousandth of itself at a step; rounded to the nearest of bfloat16's numbers, which are 1/128
apart, it would stay where it is. Stochastically rounded it moves as it should on average.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gluongraph import ops
from gluongraph.errors import with_user_location
from gluongraph.ir.graph import Node, TensorType

FORMS = ("bf16",)
_BITS = "bits:"  # the name of a state's random bits among the scalars of an update, before the state's own


def form_of(name: str | None) -> str | None:
    """The form of that name.

    >>> from gluongraph.optimizer.compact import form_of
    >>> form_of("bf16")
    'bf16'

    Raises:
        ValueError: there is none.
    """
    if name is not None and name not in FORMS:
        raise ValueError(
            with_user_location(f"optimizer_state is None or {' or '.join(map(repr, FORMS))}, not {name!r}")
        )
    return name


def compacted(states: Mapping[str, TensorType], form: str | None, whole: Collection[str]) -> dict[str, TensorType]:
    """The types in which states are kept: float32 ones in the form, but for those named in `whole`.

    >>> from gluongraph.ir.graph import TensorType
    >>> from gluongraph.optimizer.compact import compacted
    >>> states = {"mean": TensorType((2,), "f32"), "previous": TensorType((2,), "f32")}
    >>> [kept.dtype for kept in compacted(states, "bf16", whole={"previous"}).values()]
    ['bf16', 'f32']
    """
    if form is None:
        return dict(states)
    return {k: TensorType(t.shape, form) if t.dtype == "f32" and k not in whole else t for k, t in states.items()}


def bits_of(states: Mapping[str, TensorType], rng: Node, draw: int) -> dict[str, Node]:
    """Random bits for each 16-bit state, from number `draw` on; two states of one shape share a draw, by halves.

    >>> from gluongraph.ir.graph import TensorType
    >>> from gluongraph.optimizer.compact import bits_of
    >>> from gluongraph import nd
    >>> from gluongraph.ndarray import invoke
    >>> states = {"mean": TensorType((2,), "bf16"), "var": TensorType((2,), "bf16")}
    >>> bits = invoke(lambda rng: tuple(bits_of(states, rng, 0).values()), nd.zeros((4,), dtype="uint32"))
    >>> [array.shape for array in bits]
    [(2,), (2,)]
    """
    found: dict[str, Node] = {}
    open: dict[tuple[int, ...], Node] = {}  # draws of which the upper half is left
    for name, type in states.items():
        if type.dtype not in FORMS:
            continue
        if (drawn := open.pop(type.shape, None)) is not None:
            found[_BITS + name] = ops.floordiv(drawn, 1 << 16)
        else:
            found[_BITS + name] = open[type.shape] = ops.random_bits(rng, type.shape, draw)
            draw += 1
    return found


def stored(value: Node, old: Node, name: str, s: Mapping[str, Node]) -> Node:
    """A new state as what it is written over.

    >>> from gluongraph.optimizer.compact import stored
    >>> from gluongraph import nd
    >>> from gluongraph.ndarray import invoke
    >>> old, new = nd.zeros((2,), dtype="float16"), nd.ones((2,))
    >>> invoke(lambda value, old: stored(value, old, "mean", {}), new, old).dtype.__name__
    'float16'
    """
    bits = s.get(_BITS + name)
    return ops.cast(value, old.dtype) if bits is None else ops.round_by_chance(value, bits)
