"""LightningDataModule: the loaders of a training, with how their data are prepared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gluongraph import gluon
from gluongraph.host.file_names import check_name
from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.hooks import DataHooks
from gluongraph.lightning.hparams import HyperparametersMixin


class LightningDataModule(DataHooks, HyperparametersMixin):
    """Loaders for training, validation, test and prediction; `prepare_data` and `setup` are called before.

    >>> import gluongraph.lightning as L
    >>> class Data(L.LightningDataModule):
    ...     def __init__(self, count: int = 3):
    ...         super().__init__()
    ...         self.save_hyperparameters()
    ...     def setup(self, stage):
    ...         self.batches = list(range(self.hparams.count))
    ...     def train_dataloader(self):
    ...         return self.batches
    >>> data = Data(2)
    >>> data.setup("fit")
    >>> data.train_dataloader()
    [0, 1]
    """

    def __init__(self) -> None:
        self.trainer: Any = None

    def state_dict(self) -> dict[str, Any]:
        """What of it is saved in a checkpoint: JSON."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called with what a checkpoint will hold."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called with what a checkpoint holds."""

    def on_exception(self, exception: BaseException) -> None:
        """Called when an error ends the loop."""

    @classmethod
    def from_loaders(cls, **loaders: Callable[[], Any]) -> LightningDataModule:
        """A data module of functions: train, val, test, predict.

        >>> LightningDataModule.from_loaders(train=lambda: [1, 2]).train_dataloader()
        [1, 2]
        """
        made = cls()
        for name, loader in loaders.items():
            setattr(made, f"{name}_dataloader", loader)
        return made

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **datamodule_kwargs: Any,
    ) -> LightningDataModule:
        """A data module of data sets, PyTorch's or Gluon's, or lists or dicts of them; that for training is shuffled.

        `batch_size` and `num_workers` go to `__init__`, too, where it takes them.

        >>> from gluongraph import gluon
        >>> data = LightningDataModule.from_datasets(gluon.data.SimpleDataset([1, 2, 3]), batch_size=2)
        >>> len(data.train_dataloader())
        2
        """
        sizes = {"batch_size": batch_size, "num_workers": num_workers}
        takes = inspect.signature(cls.__init__).parameters
        all_of_them = any(each.kind is each.VAR_KEYWORD for each in takes.values())
        made = cls(**datamodule_kwargs, **{name: n for name, n in sizes.items() if all_of_them or name in takes})
        given = {"train": train_dataset, "val": val_dataset, "test": test_dataset, "predict": predict_dataset}
        for stage, datasets in given.items():
            if datasets is not None:
                read = partial(_loaders, datasets, shuffle=stage == "train", **sizes)
                setattr(made, f"{stage}_dataloader", read)
        return made

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: Any, map_location: Any = None, hparams_file: Any = None, **kwargs: Any
    ) -> Any:
        """The data module of a checkpoint: made with the hyperparameters saved there and `kwargs`, with its state.

        `hparams_file`, in YAML, has the hyperparameters in place of those of the checkpoint.

        Raises:
            FileNotFoundError, FormatError: there is none, or it is damaged.
            TypeError: `__init__` needs arguments that were not saved.
        """
        check_name("load_from_checkpoint", hparams_file, "Data.load_from_checkpoint(path, hparams_file='hparams.yaml')")
        import_whole("gluongraph.lightning.checkpoints")
        from gluongraph.lightning.checkpoints import data_module_from_checkpoint

        return data_module_from_checkpoint(cls, checkpoint_path, hparams_file, kwargs)


def _loaders(datasets: Any, shuffle: bool, batch_size: int, num_workers: int) -> Any:
    """A loader of a data set; of lists and dicts of data sets, those of loaders."""
    how = {"batch_size": batch_size, "num_workers": num_workers}
    if isinstance(datasets, Mapping):
        return {name: _loaders(each, shuffle, **how) for name, each in datasets.items()}
    if isinstance(datasets, (list, tuple)):
        return [_loaders(each, shuffle, **how) for each in datasets]
    if isinstance(datasets, gluon.data.Dataset):
        return gluon.data.DataLoader(datasets, batch_size, shuffle, num_workers=num_workers)
    import_whole("torch.utils.data")
    from torch.utils.data import DataLoader, IterableDataset

    shuffle = shuffle and not isinstance(datasets, IterableDataset)
    return DataLoader(datasets, batch_size, shuffle, num_workers=num_workers)
