"""What is compiled for: the processor, or GPUs."""

from __future__ import annotations

from gluongraph.host import nvidia


class Accelerator:
    """The base of all: what the devices of a Trainer are, by the name that `Trainer(accelerator=...)` takes."""

    _name = "auto"

    @classmethod
    def name(cls) -> str:
        """The text.

        >>> CUDAAccelerator.name()
        'cuda'
        """
        return cls._name

    @staticmethod
    def auto_device_count() -> int:
        """How many devices `devices="auto"` are."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Are there any?"""
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class CPUAccelerator(Accelerator):
    """The processor.

    >>> import gluongraph.lightning as L
    >>> isinstance(L.Trainer(max_epochs=1, accelerator="cpu", logger=False).accelerator, CPUAccelerator)
    True
    """

    _name = "cpu"


class CUDAAccelerator(Accelerator):
    """NVIDIA's GPUs."""

    _name = "cuda"

    @staticmethod
    def auto_device_count() -> int:
        """How many GPUs there are."""
        return nvidia.count()

    @staticmethod
    def is_available() -> bool:
        """Is there one?"""
        return nvidia.count() > 0


def accelerator_of(given: object, target: str) -> Accelerator:
    """The object that `Trainer.accelerator` is, for what a Trainer was given."""
    if isinstance(given, Accelerator):
        return given
    return CUDAAccelerator() if target == "cuda" else CPUAccelerator()
