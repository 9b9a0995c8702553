"""What is kept between processes, in one folder: compiled code, plans, what rules offer, what was measured, the runner.

An *entry* is a folder of files with `files.json`, which has the digest of each; a *note* is a text behind its own
digest. They are read whole and held against their digests before anything in them is used. What does not fit counts as
not there: it is removed, with a line at GG_DEBUG=1, and made again by whoever wanted it. What is written is a draft
until all of it is on disk.

`GG_CACHE` names the folder; `GG_CACHE=0` says that nothing is kept. Since code in it is run, it must be this user's (or
root's) and nobody else may write to it. Where it must not be used or cannot be written, a warning says so, once, and a
temporary folder of this process takes its place.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluongraph import debug
from gluongraph.errors import warn
from gluongraph.host import disk, private

LISTING = "files.json"
_TRIES = 5  # processes that remove and rename the same entry at once
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)  # errors that say nothing about a file


@dataclass(frozen=True)
class Entry:
    """The files of an entry, by their names in it, as they were when their digests were compared; and symbolic links.
    `path` is where it lies, None where it could not be kept."""

    path: Path | None
    files: Mapping[str, bytes]
    links: Mapping[str, str]


class _Damaged(Exception):
    """What lies in the cache is not what was written; the text says what is wrong with it."""


# -- the folder


def folder() -> Path | None:
    """Where things are kept: GG_CACHE, else gluongraph under the user's cache folder. It need not be there yet.

    A temporary folder where that must not be used; None where nothing is to be kept, or can be.
    """
    if os.environ.get("GG_CACHE", "") == "0":
        return None
    try:
        place = asked_for()
    except RuntimeError as error:  # a user without a home
        _tell(Path("~"), f"there is no folder for it: {error}")
        return _spare(Path("~"))
    if why := refusal(place):
        _tell(place, why)
        return _spare(place)
    return place


def asked_for() -> Path:
    """The folder that the environment names. Raises RuntimeError: this user has no home."""
    if text := os.environ.get("GG_CACHE", ""):
        return Path(text)
    base = os.environ.get("XDG_CACHE_HOME", "")  # a relative one is to be ignored, as freedesktop.org's text says
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "gluongraph"


def refusal(place: Path) -> str:
    """Why a folder must not be used; '' where it may, or is not there."""
    try:
        found = place.stat()
    except OSError:
        return ""  # whoever writes is told
    if not (why := private.fault(place, found, root=True)):
        return ""
    closed = found.st_uid == os.getuid()
    advice = f"chmod go-w {place} if all in it is yours, or remove it" if closed else "name one of your own in GG_CACHE"
    return f"{why}, who could have you run code of theirs\n  help: {advice}"


_temporary: Path | None = None
_spares: dict[Path, Path] = {}  # a folder that cannot be used -> the one that this process has in its place


def temporary() -> Path | None:
    """A private folder that goes when this process ends; None where none can be made."""
    global _temporary
    if _temporary is None or not _temporary.is_dir():
        try:
            # The handle stays open, so that nobody takes the folder for one that a killed process has left.
            _, _temporary = disk.begun_folder(Path(tempfile.gettempdir()), disk.TEMPORARY)
        except OSError:
            return None
        atexit.register(_remove, _temporary, os.getpid())
    return _temporary


def _spare(place: Path) -> Path | None:
    """What this process uses in place of a folder."""
    if place not in _spares and (base := temporary()) is not None:
        _spares[place] = base / f"cache{len(_spares)}"
    return _spares.get(place)


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # and not one that was forked from it
        shutil.rmtree(folder, ignore_errors=True)


_told: set[Path] = set()


def _tell(place: Path, why: str) -> None:
    """Warn once that nothing is kept in this folder."""
    if place not in _told:
        _told.add(place)
        warn(f"what is compiled is not kept: {why}")


def _places(path: Path) -> list[Path]:
    """Where something of this path may lie: there, or where it was put when it could not be written."""
    return [path, *([_spares[path.parent] / path.name] if path.parent in _spares else [])]


def _kept(path: Path, write: Callable[[Path], None]) -> Path | None:
    """`write(path)`; where that fails, which is warned of, the same in a temporary folder: where it lies."""
    try:
        private.make(path.parent)
        if why := refusal(path.parent):  # made by somebody else meanwhile
            raise PermissionError(errno.EPERM, why)
        write(path)
        return path
    except OSError as error:
        why = f"{path.parent} cannot be written ({error.strerror})"
        _tell(path.parent, f"{why}\n  help: name a folder that can be in GG_CACHE, or set GG_CACHE=0")
    with suppress(OSError):
        if path.parent not in _spares.values() and (spare := _spare(path.parent)) is not None:
            private.make(spare)
            write(spare / path.name)
            return spare / path.name
    return None


def _discard(path: Path, why: _Damaged) -> None:
    """Take away what is damaged."""
    debug.log("cache", f"{path} is removed, and made again if it is wanted: {why}")
    gone = path.with_name(disk.name_of_draft())  # should this process be killed now, the next writer removes it
    try:
        os.rename(path, gone)
        shutil.rmtree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink()
    except OSError as error:
        debug.log("cache", f"{path} cannot be removed: {error.strerror}")


@contextmanager
def turn(name: str) -> Iterator[None]:
    """Within, no other process that has this folder makes the entry of this name: they wait, and find it made."""
    base = folder()
    with disk.turn(base, name) if base is not None else nullcontext():
        yield


# -- notes


def note(path: Path, text: str) -> bool:
    """Write a small file of the cache, on disk, whole or not at all: is it there now?"""
    data = _sealed(path.name, text)
    return _kept(path, lambda place: disk.whole(place, lambda file: file.write(data), 0o600)) is not None


def noted(path: Path) -> str | None:
    """The text of a note; None where there is none, or a damaged one, which is removed."""
    for place in _places(path):
        with suppress(OSError):
            try:
                if os.path.lexists(place):
                    return _opened(path.name, _bytes(place))
            except _Damaged as why:
                _discard(place, why)
    return None


def _sealed(name: str, text: str) -> bytes:
    """A text behind a digest of itself and of the name that it is kept by: under another name it is something else."""
    return f"{_digest(f'{name} {text}'.encode())}\n{text}".encode()


def _opened(name: str, data: bytes) -> str:
    try:
        digest, text = data.decode().split("\n", 1)
    except ValueError:
        raise _Damaged("it is no note") from None
    if digest != _digest(f"{name} {text}".encode()):
        raise _Damaged("its digest is another")
    return text


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bytes(path: Path) -> bytes:
    """The content of a file of the cache.

    Raises:
        _Damaged: it cannot be read, is no file, or somebody else's.
        OSError: this process cannot read any for now.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb", buffering=0) as file:
            if why := private.fault(path, os.fstat(handle), root=True):
                raise _Damaged(why)
            return file.read()
    except OSError as error:
        if error.errno in _PASSING:
            raise
        raise _Damaged(f"{path.name}: {error.strerror}") from None


# -- entries


def put(path: Path | None, made: Path) -> Entry:
    """Keep the files and links of the folder `made` as an entry, and give them. `path` None: nothing is kept."""
    links, files, programs = {}, {}, set[str]()
    for each in sorted(made.rglob("*")):
        name = str(each.relative_to(made))
        if each.is_symlink():
            links[name] = os.readlink(each)
        elif each.is_file():
            files[name] = each.read_bytes()
            programs |= {name} if os.access(each, os.X_OK) else set()
    entry = Entry(None, files, links)
    where = _kept(path, lambda place: _write(place, entry, programs)) if path is not None else None
    return Entry(where, files, links)


def _write(path: Path, entry: Entry, programs: set[str]) -> None:
    """Write an entry, on disk when this returns."""
    with disk.draft_folder(path.parent) as draft:
        for name in (*entry.files, *entry.links):
            private.make((draft / name).parent)
        for name, data in entry.files.items():
            disk.put(draft / name, data, 0o700 if name in programs else 0o600)
        for name, target in entry.links.items():
            os.symlink(target, draft / name)
        disk.put(draft / LISTING, _sealed(f"{path.name}/{LISTING}", _listing(entry)))
        for place in {draft, *((draft / name).parent for name in (*entry.files, *entry.links))}:
            disk.synchronize(place)
        _settle(draft, path, entry)
        disk.synchronize(path.parent)


def _settle(draft: Path, path: Path, entry: Entry) -> None:
    """Give a draft its name, which a broken entry may have, or a good one of a process that was faster."""
    for _ in range(_TRIES):
        try:
            os.rename(draft, path)
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        found = _read(path)
        if found is not None and (found.files, found.links) == (entry.files, entry.links):
            return
        if os.path.lexists(path):
            _discard(path, _Damaged("it holds other files than those just made for it"))
    raise OSError(errno.EEXIST, f"{path.name} cannot be replaced")


def _listing(entry: Entry) -> str:
    files = {name: [len(data), _digest(data)] for name, data in entry.files.items()}
    return json.dumps({"files": files, "links": dict(entry.links)})


def get(path: Path) -> Entry | None:
    """An entry, all of whose bytes are those that were written; None where there is none, or a damaged one, which is
    removed."""
    for place in _places(path):
        if (found := _read(place)) is not None:
            return found
    return None


def _read(path: Path) -> Entry | None:
    with suppress(OSError):
        try:
            return _checked(path) if os.path.lexists(path) else None
        except _Damaged as why:
            _discard(path, why)
    return None


def _checked(path: Path) -> Entry:
    """An entry that is there. Raises what `_bytes` does."""
    try:
        told: dict[str, Any] = json.loads(_opened(f"{path.name}/{LISTING}", _bytes(path / LISTING)))
        if not all(map(disk.stays_within, (*told["files"], *told["links"]))):
            raise _Damaged("it names files elsewhere")
        files = {name: _file(path / name, name, *row) for name, row in told["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _Damaged(f"its {LISTING} is not as one") from None
    for name, target in told["links"].items():
        if not (path / name).is_symlink() or os.readlink(path / name) != target:
            raise _Damaged(f"{name} is no link to {target}")
    return Entry(path, files, told["links"])


def _file(path: Path, name: str, size: int, digest: str) -> bytes:
    data = _bytes(path)
    if len(data) != size:
        raise _Damaged(f"{name} has {len(data)} bytes instead of {size}")
    if _digest(data) != digest:
        raise _Damaged(f"the content of {name} has changed")
    return data
