"""The file of an artefact: a safetensors file whose tensor `artefact.json` describes all others.

docs/artefact.md says what is in it. It is read whole and held against its digests before anything in it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gluongraph.dtypes import dtype_name
from gluongraph.errors import FormatError, with_user_location
from gluongraph.host import json_text, params_file
from gluongraph.runtime import tensorfile
from gluongraph.storage import Array

FORMAT, VERSIONS = "gluongraph-artefact", ("1", "2", "3")
DESCRIPTOR = "artefact.json"
PARAMS, STATES, REST, CAPTURES, CONSTANTS, CODE, GRAPHS = (
    *("params/", "optim/", "extra/", "capture/", "const/", "code/", "graph/"),
)

WRITTEN = ("format", "format_version", "tensors")  # what `write` adds to a descriptor


@dataclass(frozen=True)
class Artefact:
    """What an artefact's file holds: its descriptor and its arrays, which lie in the memory that was read.

    `digest` is the SHA-256 of the descriptor's text, and with it of everything; `metadata` what is said about the file
    beside it, signatures for instance.
    """

    path: str
    told: Mapping[str, Any]
    arrays: Mapping[str, Array]
    digest: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def under(self, prefix: str) -> dict[str, Array]:
        """The arrays whose names begin so, by the rest of their names."""
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}


def version_of(told: Mapping[str, Any]) -> int:
    """The version of the format for this descriptor: 2 with sums over ranks, which programs that read version 1 alone
    would leave out; 3 with other collectives, or in micro-batches, whose sums over ranks are not in the code."""
    entries, options = told.get("entries"), told.get("options")
    if isinstance(options, dict) and options.get("micro_batches"):
        return 3
    rows = entries if isinstance(entries, list) else []  # a file that others have written may say anything
    if not any(isinstance(row, dict) and "collectives" in row for row in rows):
        return 1
    return 3 if is_for_its_ranks(told) else 2


def is_for_its_ranks(told: Mapping[str, Any]) -> bool:
    """Does it train on as many ranks as have exported it, and on no other number? Its code has collectives of parts, of
    which there are as many as ranks."""
    entries = told.get("entries")
    rows = [row.get("collectives") for row in entries if isinstance(row, dict)] if isinstance(entries, list) else []
    found = [each for row in rows if isinstance(row, list) for each in row]
    return any(isinstance(each, list) and each[:1] != ["all_reduce"] for each in found)


Sign = Callable[[str], Mapping[str, str]]  # the digest of a descriptor -> metadata that say who vouches for it


def unsigned(digest: str) -> Mapping[str, str]:
    """The signatures of a file that nobody vouches for: none."""
    return {}


def write(
    path: str | os.PathLike[str], told: Mapping[str, Any], arrays: Mapping[str, Array], sign: Sign = unsigned
) -> None:
    """Write an artefact: all of it under another name, which then becomes this one.

    Raises:
        OSError: it cannot be written; what was there before is as it was.
    """
    tensors = {name: [dtype_name(a.dtype), list(a.shape), _digest(a)] for name, a in sorted(arrays.items())}
    version = version_of(told)
    about = {"format": FORMAT, "format_version": version, **told, "tensors": tensors}
    text = np.frombuffer(json.dumps(about, allow_nan=False).encode(), np.uint8)
    digest = _digest(text)
    metadata = {"format": FORMAT, "format_version": str(version), "sha256": digest, **sign(digest)}
    pieces = tensorfile.pieces({**arrays, DESCRIPTOR: text}, metadata)
    params_file.whole(os.fspath(path), lambda file: file.writelines(piece.data for piece in pieces))


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def read(path: str | os.PathLike[str]) -> Artefact:
    """An artefact, every byte of which is what was written.

    Raises:
        OSError: the file cannot be read.
        FormatError: it is no artefact, is damaged, or is of a newer version.
    """
    what = os.fspath(path)
    if Path(path).is_dir():
        raise FormatError(_sentence(what, "is a folder; an artefact is one file"))
    try:
        arrays, metadata = tensorfile.parse_all(np.fromfile(path, np.uint8), what)
    except FormatError as error:
        raise FormatError(_sentence(what, f"is no artefact, or a damaged one: {error}")) from None
    if metadata.get("format") != FORMAT or DESCRIPTOR not in arrays:
        raise FormatError(_sentence(what, "is a safetensors file, but no artefact"))
    if (version := metadata.get("format_version")) not in VERSIONS:
        known = f"{', '.join(VERSIONS[:-1])} and {VERSIONS[-1]}"
        raise FormatError(_sentence(what, f"has format {version!r}, and this gluongraph reads {known}"))
    text = arrays.pop(DESCRIPTOR)
    digest = _digest(text)
    if digest != metadata.get("sha256"):
        raise FormatError(_damaged(what, DESCRIPTOR))
    try:
        told = json_text.parse(text.tobytes(), parse_constant=_refused)
        tensors = told["tensors"]
        if tensors.keys() != arrays.keys():
            raise FormatError(_damaged(what, next(iter(tensors.keys() ^ arrays.keys()))))
        for name, array in arrays.items():
            if tensors[name] != [dtype_name(array.dtype), list(array.shape), _digest(array)]:
                raise FormatError(_damaged(what, name))
        return Artefact(what, told, arrays, digest, metadata)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(_sentence(what, f"is no artefact: its {DESCRIPTOR} is not as one: {error!r}")) from None


def _refused(name: str) -> Any:
    raise ValueError(f"{name} in JSON")


def _sentence(what: str, fault: str) -> str:
    return with_user_location(f"{what} {fault}", help="step.export(path) writes artefacts")


def _damaged(what: str, name: str) -> str:
    return with_user_location(
        f"{what} is damaged: {name} is not what was written", help="get the file anew, or export it again"
    )
