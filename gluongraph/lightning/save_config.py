"""The configuration of a run, in a file beside its logs."""

from __future__ import annotations

import os
from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.lightning.argument_parser import LightningArgumentParser
from gluongraph.lightning.callbacks.callback import Callback


class SaveConfigCallback(Callback):
    """Writes the configuration of a run into its `log_dir`, as YAML that `--config` reads.

    Subclasses may save it elsewhere by `save_config(trainer, pl_module, stage)`, which rank 0 alone calls. With
    `beside_logs` nothing is written where there is no logger, whose runs have folders of their own.

    Raises:
        RuntimeError: the file is there already, and `overwrite` does not allow for that.
        ValueError: not `save_to_log_dir`, and `save_config` is not overridden.
    """

    def __init__(
        self,
        parser: LightningArgumentParser,
        config: Any,
        config_filename: str = "config.yaml",
        overwrite: bool = False,
        multifile: bool = False,
        save_to_log_dir: bool = True,
        beside_logs: bool = False,
    ):
        if not save_to_log_dir and type(self).save_config is SaveConfigCallback.save_config:
            message = f"{type(self).__name__}(save_to_log_dir=False) would save nothing"
            raise ValueError(with_user_location(message, help="override save_config, or save_config_callback=None"))
        self.parser, self.config, self.config_filename = parser, config, config_filename
        self.overwrite, self.multifile, self.save_to_log_dir = overwrite, multifile, save_to_log_dir
        self.beside_logs, self.already_saved = beside_logs, False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.already_saved:
            return
        self.already_saved = True
        folder = trainer.log_dir if trainer.loggers or not self.beside_logs else None
        if self.save_to_log_dir and folder is not None:
            path = os.path.join(folder, self.config_filename)
            there = trainer.broadcast("there" if os.path.isfile(path) else "")
            if there and not self.overwrite:
                help = 'LightningCLI(save_config_kwargs={"overwrite": True}), or save_config_callback=None'
                raise RuntimeError(with_user_location(f"{path} is there already, of another run", help=help))
            if trainer.is_global_zero:
                os.makedirs(folder, exist_ok=True)
                self.parser.save(
                    self.config, path, skip_unset=False, overwrite=self.overwrite, multifile=self.multifile
                )
        if trainer.is_global_zero:
            self.save_config(trainer, pl_module, stage)

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Save `self.config` in another place. Does nothing by default."""
