"""Folders that only this user can write to, since the code in them is run."""

from __future__ import annotations

import os
from pathlib import Path

OTHERS_MAY_WRITE = 0o022


def make(folder: Path) -> None:
    """Make a folder, and those above it that are missing, which only this user may enter, whatever the umask.

    Raises:
        OSError: it cannot be made; FileExistsError: a file has its name.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        try:
            os.mkdir(each, 0o700)
        except FileExistsError:
            if not each.is_dir():
                raise
        else:
            os.chmod(each, 0o700)


def fault(path: Path, found: os.stat_result, forbidden: int = OTHERS_MAY_WRITE, root: bool = False) -> str:
    """Why what lies at a path must not be believed, as a sentence's end; '' where only this user could have written it.

    `root`: what the superuser owns will do as well, who can write anything anyway.
    """
    if found.st_uid != os.getuid() and not (root and found.st_uid == 0):
        return f"{path} belongs to another user (number {found.st_uid})"
    if found.st_mode & forbidden:
        return f"{path} is open to others"
    return ""
