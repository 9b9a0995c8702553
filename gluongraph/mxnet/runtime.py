"""`mxnet.runtime`: what scripts ask a build of MXNet for."""

from __future__ import annotations

from dataclasses import dataclass

from gluongraph.context import num_gpus


@dataclass(frozen=True)
class Feature:
    """Something that can be there or not."""

    name: str
    enabled: bool


class Features(dict[str, Feature]):
    """The features by name."""

    def __init__(self) -> None:
        super().__init__({feature.name: feature for feature in feature_list()})

    def is_enabled(self, feature_name: str) -> bool:
        """Is it there? In any case of letters. Raises RuntimeError for a name that is not known."""
        if feature_name.upper() not in self:
            raise RuntimeError(f"there is no feature {feature_name!r}; there are {', '.join(self)}")
        return self[feature_name.upper()].enabled


def feature_list() -> list[Feature]:
    """CUDA is there if a device is; the others always are, or never."""
    there = {"CUDA": num_gpus() > 0, "CUDNN": False, "MKLDNN": False, "OPENCV": False, "F16C": True}
    there |= {"DIST_KVSTORE": True, "INT64_TENSOR_SIZE": True, "SIGNAL_HANDLER": False}
    return [Feature(name, enabled) for name, enabled in there.items()]
