"""Samplers that MXNet keeps apart: mx.gluon.contrib.data."""

from gluongraph.gluon.data.sampler import IntervalSampler

__all__ = ["IntervalSampler"]
