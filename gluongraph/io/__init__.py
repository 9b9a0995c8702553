"""Iterators of MXNet before Gluon, `mx.io`: batches of named data and labels, pass by pass with `reset()`."""

from gluongraph.io.arrays import NDArrayIter
from gluongraph.io.base import DataBatch, DataDesc, DataIter
from gluongraph.io.images import ImageRecordIter
from gluongraph.io.local import CSVIter, MNISTIter
from gluongraph.io.wrap import DataLoaderIter, PrefetchingIter, ResizeIter

__all__ = [
    "CSVIter",
    "DataBatch",
    "DataDesc",
    "DataIter",
    "DataLoaderIter",
    "ImageRecordIter",
    "MNISTIter",
    "NDArrayIter",
    "PrefetchingIter",
    "ResizeIter",
]
