"""Checkpoints on disk: folders that exist only when they are whole, and the run's folder that they are in.

    run/
      step-00001200/                        as the optimizer counts updates; saved twice: step-00001200-v1
        params-00000-of-00001.safetensors   arrays, a file for each group of them
        trainer.json                        everything that is no array
        MANIFEST.json                       written last: format, number, metrics, every file's size and digest
      last -> step-00001200                 the newest
      best -> step-00001000                 the best, where `Keep` says by what

All is written and synchronized under another name, and becomes a checkpoint by one rename. What a process that was
killed leaves behind begins with `.tmp-step-`, is never read, and goes when the next checkpoint is written.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from gluongraph.errors import FormatError, warn, with_user_location
from gluongraph.host import disk, json_text
from gluongraph.runtime import tensorfile
from gluongraph.storage import Array

FORMAT, VERSION = "gluongraph-checkpoint", 1
MANIFEST, ABOUT = "MANIFEST.json", "trainer.json"
CHUNK = 4 << 20  # bytes that are hashed while they are in the cache, and then written
_TEMPORARY = ".tmp-"
_NAME = re.compile(r"step-\d{8,}(-v\d+)?")
_LEFT = re.compile(r"\.tmp-(step-\d{8,}|last|best)-")


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint: arrays in groups, JSON metadata, and metrics by which the best is chosen."""

    step: int
    groups: Mapping[str, Mapping[str, Array]]
    about: Mapping[str, Any]
    metrics: Mapping[str, float] = field(default_factory=dict)
    writer: Mapping[str, str] = field(default_factory=dict)  # what wrote it, and which version of that


@dataclass(frozen=True)
class Keep:
    """Which checkpoints of a run stay: the `last` so many, and the `best` so many by a metric.

    `monitor` names one of the `metrics` given to `save`, of which the least (mode="min") or the largest ("max") is the
    best; equal ones rank by age, the elder first, and NaN comes last. `last=None` keeps all.

    >>> Keep(last=2, best=1, monitor="val_loss")
    Keep(last=2, best=1, monitor='val_loss', mode='min')

    Raises:
        ValueError: less than one to keep, or a mode that is neither.
    """

    last: int | None = None
    best: int = 1
    monitor: str | None = None
    mode: str = "min"

    def __post_init__(self) -> None:
        if self.last is not None and (not isinstance(self.last, int) or self.last < 1):
            raise ValueError(f"keep: the number of checkpoints is at least 1, or None for all, not {self.last!r}")
        if self.best < 1 or self.mode not in ("min", "max"):
            raise ValueError(f"keep: best={self.best!r} is at least 1, and mode={self.mode!r} is 'min' or 'max'")

    def ranked(self, saved: Iterable[Saved]) -> list[Saved]:
        """Return those that have the metric, best first."""
        sign = 1.0 if self.mode == "min" else -1.0
        having = [each for each in saved if self.monitor in each.metrics]
        values = {each: each.metrics[str(self.monitor)] for each in having}
        return sorted(having, key=lambda s: (math.isnan(values[s]), sign * values[s], s.number))


@dataclass(frozen=True, eq=False)
class Saved:
    """An existing checkpoint, by its manifest: its number in the run, and the metrics with which it was saved."""

    path: Path
    number: int
    step: int
    metrics: Mapping[str, float]
    files: Mapping[str, Mapping[str, Any]]


class Damaged(FormatError):
    """A checkpoint that differs from what was written."""


# -- writing


def place_for(folder: Path, step: int) -> Path:
    """Return the folder for a checkpoint of this step: `step-00000012`, or if that exists `step-00000012-v1`, ..."""
    names = (f"step-{step:08d}" + (f"-v{version}" if version else "") for version in count())
    return next(path for name in names if not os.path.lexists(path := folder / name))


def write(place: Path, content: Content, keep: Keep) -> Path:
    """Write a checkpoint; then point `last` and `best` to the right ones, and remove those not to be kept.

    Where somebody else has taken the place meanwhile, it gets another name.

    Raises:
        OSError: it cannot be written; what was there before is whole.
    """
    folder = place.parent
    failing = f"the checkpoint of step {content.step} could not be saved in {folder}"
    with _explaining(failing):
        folder.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder) as exclusive:
        with _explaining(failing):
            if exclusive:
                _clean(folder)
            saved = [each for each in survey(folder) if isinstance(each, Saved)]
            temporary = folder / f"{_TEMPORARY}{place.name}-{os.getpid()}"
            temporary.mkdir()
            try:
                _fill(temporary, content, number=1 + max((each.number for each in saved), default=0))
                place = _commit(temporary, place, content.step)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        with _explaining(f"{place} is saved, but the folder could not be put in order"):
            _order(folder, [*saved, _manifest(place)], keep)
    return place


def write_alone(place: Path, content: Content) -> Path:
    """Write a checkpoint under a name of its own, outside of a run's numbering. One that was there is replaced when
    the new one is whole.

    Raises:
        OSError: it cannot be written; what was there before is whole.
    """
    failing = f"the checkpoint {place} could not be saved"
    with _explaining(failing):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.parent / f"{_TEMPORARY}{place.name}-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            _fill(temporary, content, number=1)
            _replace(temporary, place)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return place


def _replace(temporary: Path, place: Path) -> None:
    """Rename a folder to a name that another one may have, which is removed. Where the process is killed between the
    two renames, the old one is whole under its other name."""
    gone = place.parent / f"{_TEMPORARY}{place.name}-gone-{os.getpid()}"
    if place.is_symlink():
        place.unlink()
    elif os.path.lexists(place):
        os.rename(place, gone)
    os.rename(temporary, place)
    disk.synchronize(place.parent)
    shutil.rmtree(gone, ignore_errors=True)


def _fill(folder: Path, content: Content, number: int) -> None:
    """Write all files, the manifest last, and flush them to disk."""
    files: dict[str, Any] = {}
    for group, arrays in content.groups.items():
        name = f"{group}-00000-of-00001.safetensors"
        files[name] = _written(folder / name, tensorfile.pieces(arrays))
    files[ABOUT] = _written(folder / ABOUT, [_text(content.about, indent=None)])
    told = {
        "format": FORMAT,
        "format_version": VERSION,
        "writer": dict(content.writer),
        "number": number,
        "step": content.step,
        "metrics": dict(content.metrics),
        "files": files,
    }
    _written(folder / MANIFEST, [_text({**told, "sha256": _digest(told)})])
    disk.synchronize(folder)


def _text(told: Any, indent: int | None = 1) -> Array:
    return np.frombuffer(json.dumps(told, indent=indent).encode(), np.uint8)


def _digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of a manifest without its own digest."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _written(path: Path, pieces: Iterable[Array]) -> dict[str, Any]:
    """Write a new file and flush it to disk; return its size and digest."""
    digest, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for piece in pieces:
            for at in range(0, piece.nbytes, CHUNK):
                chunk = piece[at : at + CHUNK].data
                digest.update(chunk)
                file.write(chunk)
            size += piece.nbytes
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _commit(temporary: Path, place: Path, step: int) -> Path:
    while True:
        try:
            os.rename(temporary, place)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            place = place_for(place.parent, step)
        else:
            disk.synchronize(place.parent)
            return place


def _order(folder: Path, saved: Sequence[Saved], keep: Keep) -> None:
    """Update the links to the newest and the best checkpoint, and remove those that are not to be kept."""
    stay = [saved[-1]]
    _link(folder / "last", saved[-1])
    if keep.monitor is not None:
        best = keep.ranked(saved)[: keep.best]
        _link(folder / "best", best[0])
        stay += best
    if keep.last is not None:
        stay += sorted(saved, key=lambda s: s.number)[-keep.last :]
        for each in saved:
            if each not in stay:
                gone = folder / f"{_TEMPORARY}{each.path.name}-gone-{os.getpid()}"
                os.rename(each.path, gone)  # a part of it is never taken for a checkpoint
                shutil.rmtree(gone)


def _link(link: Path, to: Saved) -> None:
    temporary = link.with_name(f"{_TEMPORARY}{link.name}-{os.getpid()}")
    os.symlink(to.path.name, temporary)
    os.replace(temporary, link)


@contextmanager
def _exclusive(folder: Path) -> Iterator[bool]:
    """Try to lock a folder; yields whether no other process writes in it, False if files cannot be locked."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough: a forked process may have the file open too
    finally:
        os.close(handle)


def _clean(folder: Path) -> None:
    """Remove temporary files of processes that ended during a save."""
    for path in folder.iterdir():
        if not _LEFT.match(path.name):
            continue
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)


@contextmanager
def _explaining(what: str) -> Iterator[None]:
    """Let system errors within this context say what has failed and what to do."""
    try:
        yield
    except OSError as error:
        help = "what was saved before is whole; make room, or give a folder that can be written, and save again"
        why = error.strerror or str(error)
        raise OSError(error.errno, f"{what}: {why}\n  help: {help}") from error


# -- reading


def survey(folder: Path) -> list[Saved | FormatError]:
    """Return the checkpoints of a run, newest first, preceded by the errors of those that cannot be read."""
    if not folder.is_dir():
        return []
    saved: list[Saved] = []
    errors: list[FormatError] = []
    for path in sorted(folder.iterdir()):
        if _NAME.fullmatch(path.name):
            try:
                saved.append(_manifest(path))
            except FormatError as error:
                errors.append(error)
    return [*errors, *sorted(saved, key=lambda each: -each.number)]


def load(place: Path) -> Content:
    """Read a checkpoint from its own folder, or the newest complete one in a run's folder.

    Raises:
        FileNotFoundError: there is none.
        Damaged: it, or every one of the run, has been changed or is not complete. (Where only newer ones are, a warning
            says so.)
        FormatError: a newer version of the format.
    """
    if place.is_symlink():
        place = place.resolve()  # what a message then names
    if (place / MANIFEST).exists() or _NAME.fullmatch(place.name):
        if not place.is_dir():
            message = with_user_location("there is no such checkpoint", help=_others(place))
            raise FileNotFoundError(errno.ENOENT, message, str(place))
        try:
            return _read(_manifest(place))
        except Damaged as error:
            raise Damaged(with_user_location(str(error), help=_others(place))) from None
    damaged: list[str] = []
    for each in survey(place):
        try:
            if isinstance(each, FormatError):
                raise each
            content = _read(each)
        except Damaged as error:
            damaged.append(str(error))
            continue
        if damaged:
            warn(f"{'; '.join(damaged)}. {each.path.name} is loaded instead")
        return content
    if damaged:
        message = f"{place} has no whole checkpoint: {'; '.join(damaged)}"
        raise Damaged(with_user_location(message, help="restore the folder from a copy, or begin anew in another one"))
    help = "give the folder that save(dir) was given, or one checkpoint in it"
    raise FileNotFoundError(errno.ENOENT, with_user_location("there is no checkpoint here", help=help), str(place))


def _others(place: Path) -> str:
    whole = [each.path.name for each in survey(place.parent) if isinstance(each, Saved) and each.path != place]
    return f"others in this folder: {', '.join(whole)}" if whole else "no other checkpoint lies beside it"


def _manifest(path: Path) -> Saved:
    """Read a manifest, and verify it."""
    told = _parsed(_bytes(path, MANIFEST), path, MANIFEST)
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise Damaged(f"{path} is damaged: its {MANIFEST} is not that of a checkpoint")
    if told.get("sha256") != _digest(told):
        raise Damaged(f"{path} is damaged: its {MANIFEST} has been changed")
    version, writer = told.get("format_version"), told.get("writer")
    if not isinstance(version, int) or not isinstance(writer, dict):
        raise Damaged(f"{path} is damaged: its {MANIFEST} does not say what wrote it")
    if version > VERSION:
        message = f"{path} has format {version}, and this version of gluongraph reads up to {VERSION}"
        help = f"it was written by {', '.join(f'{name} {each}' for name, each in writer.items())}: load it with that"
        raise FormatError(with_user_location(message, help=help))
    match told:
        case {"number": int(number), "step": int(step), "metrics": dict(metrics), "files": dict(files)}:
            if not all(isinstance(value, int | float) for value in metrics.values()):
                raise Damaged(f"{path} is damaged: metrics in its {MANIFEST} are no numbers")
            for name, row in files.items():
                _check_row(path, name, row)
            return Saved(path, number, step, metrics, files)
    raise Damaged(f"{path} is damaged: its {MANIFEST} is not that of a checkpoint")


def _check_row(folder: Path, name: str, row: Any) -> None:
    """Raise Damaged unless this may be a file of a checkpoint. The digest of a manifest says that it is whole, not who
    wrote it: no name in it leads out of the folder."""
    if "/" in name or not disk.stays_within(name):
        raise Damaged(f"{folder} is damaged: its {MANIFEST} names {name!r}, which is no file in it")
    match row:
        case {"bytes": int(size), "sha256": str()} if size >= 0:
            return
    raise Damaged(f"{folder} is damaged: its {MANIFEST} does not say what {name} is")


def _read(saved: Saved) -> Content:
    """Read the content, after verifying every file's size and digest."""
    data = {name: _checked(saved.path, name, row) for name, row in saved.files.items()}
    if ABOUT not in data:
        raise Damaged(f"{saved.path} is damaged: it has no {ABOUT}")
    about = _parsed(data.pop(ABOUT).tobytes(), saved.path, ABOUT)
    groups = {name.partition("-")[0]: tensorfile.parse(bytes, f"{saved.path}/{name}") for name, bytes in data.items()}
    return Content(saved.step, groups, about, saved.metrics)


def _checked(folder: Path, name: str, row: Mapping[str, Any]) -> Array:
    """Return a file's bytes, after verifying its size and digest."""
    digest = hashlib.sha256()
    with _reading(folder, name), open(_opened(folder / name), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != row["bytes"]:
            raise Damaged(f"{folder} is damaged: {name} has {size} bytes instead of {row['bytes']}")
        data = np.empty(size, np.uint8)
        for at in range(0, size, CHUNK):
            chunk = data[at : at + CHUNK].data
            file.readinto(chunk)
            digest.update(chunk)
    if digest.hexdigest() != row["sha256"]:
        raise Damaged(f"{folder} is damaged: the content of {name} has changed")
    return data


def _bytes(folder: Path, name: str) -> bytes:
    """Return the bytes of a small file."""
    with _reading(folder, name), open(_opened(folder / name), "rb") as file:
        return file.read()


def _opened(path: Path) -> int:
    """Open a regular file for reading; symbolic links are not followed, and pipes do not block."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no file")
    return handle


@contextmanager
def _reading(folder: Path, name: str) -> Iterator[None]:
    """Convert system errors within this context to an error that says that the checkpoint is damaged."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            why = "is missing"
        elif error.errno == errno.ELOOP:
            why = "is a link to another file"
        else:
            why = f"cannot be read: {error.strerror}"
        raise Damaged(f"{folder} is damaged: {name} {why}") from None


def _parsed(data: bytes, folder: Path, name: str) -> Any:
    """Parse JSON."""
    try:
        return json_text.parse(data)
    except ValueError as error:
        raise Damaged(f"{folder} is damaged: its {name} is no JSON: {error}") from None
