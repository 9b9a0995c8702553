"""Block.save and Block.load: the tree of blocks as MXNet 1.9.1 writes it, beside the parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gluongraph.errors import FormatError, with_user_location
from gluongraph.host import json_text

if TYPE_CHECKING:
    from gluongraph.gluon.block import Block

CHILDREN = "children"  # in the description of a block: its children's names -> what their parent calls them


def described(block: Block) -> dict[str, Any]:
    """{"dense0": {"orig_name": ..., "children": {...}, "dense1": {...}}}: blocks by class and number, as they lie."""
    whole: dict[str, Any] = {}
    _describe(block, iter(range(2**31)), whole)
    return whole


def _describe(block: Block, numbers: Iterator[int], into: dict[str, Any]) -> None:
    own = into[f"{type(block).__name__.lower()}{next(numbers)}"] = {"orig_name": block.name, "hybridized": False}
    children = own[CHILDREN] = {child.name: key for key, child in block._children.items()}
    if len(children) < len(block._children):
        raise FormatError(
            with_user_location(
                f"save of {block.name!r}: several of its children are called {_twice(block)!r}",
                help="make them within its name_scope(), or use save_parameters",
            )
        )
    for child in block._children.values():
        _describe(child, numbers, own)


def _twice(block: Block) -> str:
    names = [child.name for child in block._children.values()]
    return next(name for name in names if names.count(name) > 1)


def take_keys(block: Block, text: str, where: str) -> None:
    """Give all children of the tree the keys that they had when `text` was written; an error changes nothing.

    Raises:
        FormatError: the text is no such description, or one of another tree.
    """
    try:
        told = json_text.parse(text)
        renamed = list(_renamed(block, told, iter(range(2**31))))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"{where} does not describe the blocks of {block.name!r}: {error}"
        raise FormatError(
            with_user_location(message, help="make the same blocks in the same order as for save")
        ) from None
    for owner, keys in renamed:
        children = list(owner._children.values())
        owner._children.clear()
        owner._children.update(zip(keys, children, strict=True))


def _renamed(block: Block, told: Mapping[str, Any], numbers: Iterator[int]) -> Iterator[tuple[Block, list[str]]]:
    own = told[f"{type(block).__name__.lower()}{next(numbers)}"]
    keys = [str(key) for key in own[CHILDREN].values()]
    if len(keys) != len(block._children):
        raise ValueError(f"{block.name!r} has {len(block._children)} children, and {len(keys)} there")
    yield block, keys
    for child in block._children.values():
        yield from _renamed(child, own, numbers)
