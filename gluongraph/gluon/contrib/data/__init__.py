"""Samplers and texts that MXNet keeps apart: mx.gluon.contrib.data."""

from gluongraph.gluon.contrib.data import text
from gluongraph.gluon.contrib.data.text import WikiText2, WikiText103
from gluongraph.gluon.data.sampler import IntervalSampler

__all__ = ["IntervalSampler", "WikiText2", "WikiText103", "text"]
