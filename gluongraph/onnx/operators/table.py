"""The table of operators: for each domain, name and version the builder that makes it of nodes.

A builder takes a `NodeContext`, then the inputs in ONNX's order (None where one is left out), then the attributes as
keywords of ONNX's names and defaults. Those that several operators share may be the fields of a class, of which the
builder takes one (`@attributes`). An attribute that a builder does not name is refused, so none is overlooked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

from gluongraph.onnx.format.model import DEFAULT, TRAINING, GraphDef, Reference

Builder = Callable[..., Any]
B = TypeVar("B", bound=Builder)
C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Row:
    """One operator from the version `since` of its domain on, up to the next row of that name.

    `static` names the inputs whose numbers decide shapes, so that they must be known when the graph is built.
    """

    domain: str
    name: str
    since: int
    build: Builder
    static: tuple[str, ...] = ()

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs; a last one with a * stands for any number."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        given = [p for p in inspect.signature(self.build).parameters.values() if p.kind in kinds][1:]
        return tuple("*" + p.name if p.kind is p.VAR_POSITIONAL else p.name for p in given)

    @cached_property
    def least(self) -> int:
        """How many inputs there must be."""
        parameters = list(inspect.signature(self.build).parameters.values())[1:]
        return sum(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)

    @cached_property
    def keywords(self) -> dict[str, str]:
        """What the builder takes by keyword, and how that is annotated."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """What each attribute is: a word of KINDS, or Any."""
        found: dict[str, str] = {}
        for name, annotation in self.keywords.items():
            shared = SHARED.get(annotation)
            found |= {name: annotation} if shared is None else {f.name: str(f.type) for f in fields(shared)}
        return {name: annotation.removesuffix(" | None") for name, annotation in found.items()}

    def misfit(self, attrs: Mapping[str, Any]) -> str:
        """The name of an attribute that is of another type than the builder takes; "" if there is none."""
        for name, value in attrs.items():
            kind = KINDS.get(self.kinds.get(name, ""))
            if kind is not None and not isinstance(value, Reference) and not kind.fits(value):
                return name
        return ""

    def made(self, site: Any, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """What the builder makes of these inputs and attributes."""
        given = dict(attrs)
        for keyword, annotation in self.keywords.items():
            if (shared := SHARED.get(annotation)) is not None:
                given[keyword] = shared(**{f.name: given.pop(f.name) for f in fields(shared) if f.name in given})
        return self.build(site, *inputs, **given)

    def is_static(self, position: int) -> bool:
        """Must this input be known?"""
        return position < len(self.inputs) and self.inputs[position].lstrip("*") in self.static


@dataclass(frozen=True)
class Kind:
    """What an attribute is, in words for messages, and by the types of its value or of the elements of it."""

    words: str
    types: tuple[type, ...]
    several: bool = False

    def fits(self, value: Any) -> bool:
        """Is a value of this kind?"""
        if not self.several:
            return isinstance(value, self.types)
        return isinstance(value, tuple) and all(isinstance(v, self.types) for v in value)


# By the words that builders annotate attributes with.
KINDS: dict[str, Kind] = {
    "int": Kind("integer", (int,)),
    "float": Kind("number", (int, float)),
    "str": Kind("text", (str,)),
    "GraphDef": Kind("graph", (GraphDef,)),
    **dict.fromkeys(("Axes", "Ints", "Sequence[int]", "tuple[int, ...]"), Kind("list of integers", (int,), True)),
    **dict.fromkeys(("Floats", "tuple[float, ...]"), Kind("list of numbers", (int, float), True)),
    **dict.fromkeys(("Texts", "Sequence[str]"), Kind("list of texts", (str,), True)),
}
SHARED: dict[str, Any] = {}  # classes of attributes, by the names that builders annotate with
TABLE: dict[tuple[str, str], list[Row]] = {}


def attributes(cls: C) -> C:
    """The decorated dataclass as attributes that several operators share: its fields, with their defaults."""
    SHARED[cls.__name__] = cls
    return cls


def row(name: str, build: Builder, since: int = 1, domain: str = DEFAULT, static: tuple[str, ...] = ()) -> None:
    """Add a row."""
    rows = TABLE.setdefault((domain, name), [])
    rows.append(Row(domain, name, since, build, static))
    rows.sort(key=lambda r: r.since)


def operator(*names: str, since: int = 1, domain: str = DEFAULT, static: tuple[str, ...] = ()) -> Callable[[B], B]:
    """The decorated builder as the row of an operator, or of several that are alike."""

    def add(build: B) -> B:
        for name in names:
            row(name, build, since, domain, static)
        return build

    return add


def training(name: str) -> Callable[[B], B]:
    """The decorated builder as an operator of ai.onnx.preview.training."""
    return operator(name, domain=TRAINING)


def find(domain: str, name: str, version: int) -> Row | None:
    """The row that holds in this version of the domain."""
    fitting = [r for r in TABLE.get((domain, name), ()) if r.since <= version]
    return fitting[-1] if fitting else None


def rows() -> Iterator[Row]:
    """All rows, by domain, name and version."""
    for key in sorted(TABLE):
        yield from TABLE[key]
