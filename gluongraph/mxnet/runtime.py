"""`mxnet.runtime`: what scripts ask a build of MXNet for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gluongraph.context import num_gpus

# How MXNet may be built, and gluongraph is not.
_NEVER = (
    *("CUDNN", "NCCL", "CUDA_RTC", "TENSORRT", "CPU_SSE", "CPU_SSE2", "CPU_SSE3", "CPU_SSE4_1", "CPU_SSE4_2"),
    *("CPU_SSE4A", "CPU_AVX", "CPU_AVX2", "OPENMP", "SSE", "JEMALLOC", "BLAS_OPEN", "BLAS_ATLAS", "BLAS_MKL"),
    *("BLAS_APPLE", "LAPACK", "MKLDNN", "OPENCV", "CAFFE", "PROFILER", "CXX14", "SIGNAL_HANDLER", "DEBUG", "TVM_OP"),
)


@dataclass(frozen=True)
class Feature:
    """Something that can be there or not."""

    name: str
    enabled: bool


class Features(dict[str, Feature]):
    """The features by name; there is one object of it."""

    _only: ClassVar[Features | None] = None

    def __new__(cls) -> Features:
        if cls._only is None:
            cls._only = super().__new__(cls)
            cls._only.update({feature.name: feature for feature in feature_list()})
        return cls._only

    def __init__(self) -> None:
        """Nothing: it is filled already."""

    def is_enabled(self, feature_name: str) -> bool:
        """Is it there? In any case of letters. Raises RuntimeError for a name that is not known."""
        if feature_name.upper() not in self:
            raise RuntimeError(f"there is no feature {feature_name!r}; there are {', '.join(self)}")
        return self[feature_name.upper()].enabled


def feature_list() -> list[Feature]:
    """CUDA is there if a device is; the others always are, or never."""
    there = {"CUDA": num_gpus() > 0, "F16C": True, "DIST_KVSTORE": True, "INT64_TENSOR_SIZE": True}
    return [Feature(name, enabled) for name, enabled in (there | dict.fromkeys(_NEVER, False)).items()]
