"""What is written on the command line beside plain options: names with settings, shapes, files of arrays."""

from __future__ import annotations

import argparse
import ast
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluongraph.cli import Refused
from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.errors import FormatError
from gluongraph.ir.graph import TensorType
from gluongraph.storage import Array

_SHAPE = re.compile(r"(?:([^=:]+)=)?(?:(\w+):)?(\d+(?:,\d+)*)")
_COMMA = re.compile(r",(?![^(\[]*[)\]])")  # one that stands in no brackets


@dataclass(frozen=True)
class Named:
    """A name and its settings: adam,learning_rate=1e-3."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """The type of one array, and the name of the input that it is for, if it was said."""

    name: str
    type: TensorType


def settings(text: str) -> dict[str, Any]:
    """What 'key=value,key=value' says: Python's literals, and anything else as text.

    >>> settings("clip_norm=1.0,remat=auto,betas=(0.9,0.99)")
    {'clip_norm': 1.0, 'remat': 'auto', 'betas': (0.9, 0.99)}
    """
    found = {}
    for part in filter(None, _COMMA.split(text)):
        key, equals, value = part.partition("=")
        if not equals or not key.strip().isidentifier():
            raise argparse.ArgumentTypeError(f"{part!r} is no setting: write name=value")
        try:
            found[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            found[key.strip()] = value.strip()
    return found


def named(text: str) -> Named:
    """What 'name,key=value' says.

    >>> named("sgd,momentum=0.9")
    Named(name='sgd', settings={'momentum': 0.9})
    """
    name, _, rest = text.partition(",")
    return Named(name.strip(), settings(rest))


def shape(text: str) -> Shape:
    """What '[name=][dtype:]extents' says.

    >>> str(shape("tokens=i32:8,64").type), shape("8,3").name
    ('i32[8,64]', '')
    """
    found = _SHAPE.fullmatch(text.replace(" ", ""))
    if found is None or (found[2] or "f32") not in DTYPES:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: write 32,3,224,224 or x=32,3,8,8 or tokens=i32:8,64")
    extents = tuple(map(int, found[3].split(",")))
    if not all(extents):
        raise argparse.ArgumentTypeError(f"{text!r} has no elements")
    return Shape(found[1] or "", TensorType(extents, found[2] or "f32"))


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def arrays(files: Sequence[Path], wanted: Sequence[str] | None = None) -> dict[str, Array]:
    """The arrays of .npz, .npy and .safetensors files, as long as one another, in the order of a batch.

    `wanted` names some of them in another order; arrays of a .safetensors have no order of their own.

    Raises:
        Refused: a file is none of these, or damaged; no such array; there is no telling their order.
    """
    found: dict[str, Array] = {}
    for file in files:
        some = _read(file)
        if file.suffix == ".safetensors" and len(some) > 1 and wanted is None:
            raise Refused(f"{file} holds {', '.join(sorted(some))} in no order: say --arrays with those of a batch")
        if twice := found.keys() & some.keys():
            raise Refused(f"{file} holds {min(twice)} once more")
        found |= some
    if unknown := [name for name in wanted or () if name not in found]:
        raise Refused(f"there is no array {unknown[0]}; there are {', '.join(found)}")
    if files and not found:
        raise Refused(f"{files[0]} holds no array")
    found = {name: found[name] for name in wanted or found}
    lengths = {name: array.shape[0] if array.ndim else 0 for name, array in found.items()}
    if len(set(lengths.values())) > 1 or not all(lengths.values()):
        told = ", ".join(f"{name} {list(found[name].shape)}" for name in found)
        raise Refused(
            f"the arrays of a data set have as many rows as one another, along their first axis; here: {told}"
        )
    return found


def _read(file: Path) -> dict[str, Array]:
    readers = {".npz": _npz, ".npy": _npy, ".safetensors": _safetensors}
    if file.suffix not in readers:
        raise Refused(f"{file}: data is an .npz, .npy or .safetensors file")
    try:
        return readers[file.suffix](file)
    except FileNotFoundError:
        raise Refused(f"there is no file {file}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, FormatError) as error:
        raise Refused(f"{file} cannot be read: {sentence(error)}") from None


def _npz(file: Path) -> dict[str, Array]:
    with file.open("rb") as bytes_, np.load(bytes_) as opened:
        return {name: opened[name] for name in opened.files}


def _npy(file: Path) -> dict[str, Array]:
    return {file.stem: np.load(file, mmap_mode="r")}


def _safetensors(file: Path) -> dict[str, Array]:
    from gluongraph.runtime import tensorfile

    return tensorfile.parse(np.fromfile(file, np.uint8), str(file))


def sentence(error: BaseException) -> str:
    """An error in one line: what it says, and the way out."""
    first, *others = str(error).splitlines() or [type(error).__name__]
    helps = [line.strip().removeprefix("help: ") for line in others if line.strip().startswith("help: ")]
    return "; ".join([first.rstrip(":"), *helps])


def random_array(ty: TensorType, number: int, allowed: range | None = None) -> Array:
    """An array for somebody who looks at times and memory: normal numbers, or 0 and 1; repeatable.

    Whole numbers are labels and token ids, which steps check: where nobody says what is `allowed`, there are two.
    """
    draw = np.random.default_rng(number)
    if allowed:
        return draw.integers(allowed.start, allowed.stop, ty.shape).astype(numpy_dtype(ty.dtype))
    family = DTYPES[ty.dtype].family
    if family == "float":
        return draw.standard_normal(ty.shape, np.float32).astype(numpy_dtype(ty.dtype))
    return draw.integers(0, 2, ty.shape).astype(numpy_dtype(ty.dtype))
