"""Datasets, samplers and loaders: mx.gluon.data."""

from gluongraph.gluon.data import batchify, vision
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

__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "FilterSampler",
    "IntervalSampler",
    "RandomSampler",
    "RecordFileDataset",
    "Sampler",
    "SequentialSampler",
    "SimpleDataset",
    "batchify",
    "default_batchify_fn",
    "vision",
]
