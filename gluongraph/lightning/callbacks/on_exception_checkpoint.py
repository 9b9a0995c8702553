"""Saves a checkpoint when a training ends by an exception."""

from __future__ import annotations

import os
from typing import Any

from gluongraph.errors import ArgumentError, with_user_location
from gluongraph.lightning import checkpoints
from gluongraph.lightning.callbacks.checkpoint import Checkpoint


class OnExceptionCheckpoint(Checkpoint):
    """Save a checkpoint into `dirpath` when an exception or an interrupt ends the training.

    It is removed when a later training with this callback has ended well.

    >>> OnExceptionCheckpoint("runs").ckpt_path
    'runs/on_exception.ckpt'

    Raises:
        ArgumentError: an empty file name.
    """

    FILE_EXTENSION = ".ckpt"

    def __init__(self, dirpath: str | os.PathLike[str], filename: str = "on_exception"):
        if not filename:
            message = "OnExceptionCheckpoint: the filename is empty"
            raise ArgumentError(with_user_location(message, help="filename='on_exception'"))
        self.dirpath, self.filename = dirpath, filename
        self._raised = False

    @property
    def ckpt_path(self) -> str:
        """Where the checkpoint is saved.

        >>> OnExceptionCheckpoint("runs", "crash").ckpt_path
        'runs/crash.ckpt'
        """
        return os.path.join(self.dirpath, self.filename + self.FILE_EXTENSION)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """A training begins, which has not failed yet."""
        self._raised = False

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save the checkpoint."""
        self._raised = True
        trainer.save_checkpoint(self.ckpt_path)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remove the checkpoint of an earlier training, since this one has ended well."""
        if not self._raised and trainer.is_global_zero and checkpoints.exists(self.ckpt_path):
            checkpoints.remove(self.ckpt_path)
