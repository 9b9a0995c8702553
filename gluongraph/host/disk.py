"""Atomic writes of files and folders, synced to disk; and removal of the temporary files that killed processes leave.

A draft has a name of its own, `.saving-<process>-<random>`, until all of it is on disk; then it is renamed. Its writer
holds a lock (flock) on it, which the system takes back when the process ends in any way: a draft without a lock is one
that nobody will finish, and the next writer in that folder removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO

DRAFT = ".saving-"
TEMPORARY = ".gluongraph-"  # in the system's folder for temporary files, where others have drafts of theirs
_NOT_SUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # what file systems say that cannot synchronize folders


def whole(path: Path, write: Callable[[IO[bytes]], object], mode: int = 0o666, replace: bool = True) -> None:
    """Write a file: `write` gets a draft of it, which takes its name once it is on disk. `mode`: its rights, of which
    the umask takes some away.

    Raises:
        OSError: it cannot be written; what was there before is as it was.
        FileExistsError: something has its name, and is not to be replaced.
    """
    sweep(path.parent)
    handle, draft = _begun(path.parent, lambda draft: os.open(draft, _NEW_FILE, mode))
    try:
        with open(handle, "wb", buffering=1 << 16) as file:  # locked until it has its name
            write(file)
            file.flush()
            os.fsync(handle)  # or the name could be on disk before what it names
            if replace:
                os.replace(draft, path)
            else:
                os.link(draft, path)
        synchronize(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def draft_folder(base: Path, prefix: str = DRAFT) -> Iterator[Path]:
    """Within: a new folder that only this user may enter, to be filled and renamed; removed if it has not been."""
    handle, draft = begun_folder(base, prefix)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        os.close(handle)


def temporary_folder() -> AbstractContextManager[Path]:
    """Within: a new temporary folder. Those of killed processes are removed."""
    return draft_folder(Path(tempfile.gettempdir()), TEMPORARY)


def begun_folder(base: Path, prefix: str) -> tuple[int, Path]:
    """A new draft of a folder, and the handle that keeps it from being swept for as long as it is open."""
    sweep(base, prefix)
    return _begun(base, _new_folder, prefix)


PATIENCE, POLL = 60.0, 0.01  # seconds


@contextmanager
def turn(folder: Path, name: str, patience: float = PATIENCE) -> Iterator[None]:
    """Within: the turn of this process to make what has this name; others that want to make it wait until the block
    ends, or the process in any way.

    Whoever has waited longer than `patience` seconds (the other process may have been stopped) goes on all the same, as
    where files cannot be locked: the name may be made twice then, which costs time only.
    """
    path, until = folder / f"{DRAFT}turn-{name}", time.monotonic() + patience
    handle = None
    try:
        while (handle := _turn(path)) is None and time.monotonic() < until:
            time.sleep(POLL)
    except OSError:
        pass  # no folder, or one without locks
    try:
        yield
    finally:
        if handle is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            fcntl.flock(handle, fcntl.LOCK_UN)  # also for processes that were forked meanwhile
            os.close(handle)


def _turn(path: Path) -> int | None:
    """The locked file of a turn; None while another process has it. Raises OSError: there are no such files."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass  # it is another's, or was until now
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def put(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a new file of a draft folder, with exactly these rights."""
    handle = os.open(path, _NEW_FILE, mode)
    with open(handle, "wb") as file:
        os.fchmod(handle, mode)
        file.write(data)
        file.flush()
        os.fsync(handle)


def synchronize(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    finally:
        os.close(handle)


def name_of_draft(prefix: str = DRAFT) -> str:
    """A name that no other draft has."""
    return f"{prefix}{os.getpid()}-{os.urandom(8).hex()}"


def stays_within(name: str) -> bool:
    """Does a name that a file tells lead to something in the folder it is meant for, and not elsewhere?

    >>> [stays_within(name) for name in ("lib/step.so", "../step.so", "/step.so", "a/../../b", "", ".")]
    [True, False, False, False, False, False]
    """
    parts = name.split("/")
    return not {"", ".", ".."} & set(parts) and "\0" not in name


def sweep(folder: Path, prefix: str = DRAFT) -> None:
    """Remove the drafts in a folder whose writers have ended. What cannot be looked at or locked is left alone."""
    with suppress(OSError), os.scandir(folder) as entries:
        for path in [Path(entry.path) for entry in entries if entry.name.startswith(prefix)]:
            with suppress(OSError):
                _remove_abandoned(path)


def _remove_abandoned(path: Path) -> None:
    """Remove a draft, if nobody holds its lock. Raises OSError: somebody does, or nobody can tell."""
    is_folder = path.is_dir() and not path.is_symlink()
    how = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR  # NFS locks what is open for writing alone
    handle = os.open(path, how | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_folder:
            shutil.rmtree(path)
        else:
            path.unlink()
    finally:
        os.close(handle)


_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _new_folder(path: Path) -> int | None:
    os.mkdir(path, 0o700)
    try:
        os.chmod(path, 0o700)  # whatever the umask
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _begun(folder: Path, make: Callable[[Path], int | None], prefix: str = DRAFT) -> tuple[int, Path]:
    """A new draft, open and locked. `make` gives None where another process has swept it away already."""
    while True:
        draft = folder / name_of_draft(prefix)
        if (handle := make(draft)) is None:
            continue
        try:
            if _locked(handle) and os.path.samestat(os.fstat(handle), os.stat(draft)):
                return handle, draft
        except FileNotFoundError:
            pass  # another process has swept it away before it was locked
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _locked(handle: int) -> bool:
    """Take the lock of a draft; False where another process has it, which sweeps the draft away."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks, where nobody sweeps
    return True
