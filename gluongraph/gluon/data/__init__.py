"""Datasets, samplers and loaders: mx.gluon.data."""

from typing import TYPE_CHECKING

from gluongraph.gluon.data import batchify
from gluongraph.gluon.data.batchify import default_batchify_fn
from gluongraph.gluon.data.dataloader import DataLoader
from gluongraph.gluon.data.dataset import ArrayDataset, Dataset, RecordFileDataset, SimpleDataset
from gluongraph.gluon.data.sampler import (
    BatchSampler,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from gluongraph.gluon.data.split import DistributedSampler, SplitSampler
from gluongraph.host.lazy import imported_later

if TYPE_CHECKING:
    from gluongraph.gluon.data import vision

__getattr__ = imported_later(__name__, ("vision",))  # it stands on the datasets


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "FilterSampler",
    "IntervalSampler",
    "RandomSampler",
    "RecordFileDataset",
    "Sampler",
    "SequentialSampler",
    "SimpleDataset",
    "SplitSampler",
    "batchify",
    "default_batchify_fn",
    "vision",
]
