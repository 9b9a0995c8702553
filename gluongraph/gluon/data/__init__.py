"""Datasets, samplers and loaders: mx.gluon.data."""

from gluongraph.gluon.data.dataloader import DataLoader, default_batchify_fn
from gluongraph.gluon.data.dataset import ArrayDataset, Dataset, SimpleDataset
from gluongraph.gluon.data.sampler import BatchSampler, FilterSampler, RandomSampler, Sampler, SequentialSampler

__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "FilterSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SimpleDataset",
    "default_batchify_fn",
]
