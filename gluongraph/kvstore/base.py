"""What a Trainer asks of a key-value store, and the stores by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from gluongraph.errors import warn
from gluongraph.ndarray import NDArray
from gluongraph.ops.collective import allreduce_arrays

_Class = TypeVar("_Class", bound="type[KVStoreBase]")


class KVStoreBase(ABC):
    """A store of one's own: derive from this, `@KVStoreBase.register` it, and give the class's name to a Trainer.

    `broadcast` hands out first values, `pushpull` sums over devices (and over workers, where there are several).
    A store for which `is_capable("optimizer")` also updates: then `set_optimizer` comes first, and `pushpull(key,
    gradients, out=weights)` gives the new weights. Values are an NDArray, or a list of one per device.

    >>> from gluongraph import kvstore
    >>> isinstance(kvstore.create("teststore"), kvstore.KVStoreBase)
    True
    """

    OPTIMIZER: ClassVar[str] = "optimizer"
    kv_registry: ClassVar[dict[str, type[KVStoreBase]]] = {}

    @abstractmethod
    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Hand the first value of a key out to every `out`."""

    @abstractmethod
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum `value` over devices and workers into `out`, or without one into the values themselves."""

    @staticmethod
    @abstractmethod
    def is_capable(capability: str) -> bool:
        """Can the store do that? The one question is "optimizer": does it update weights itself?"""

    @property
    @abstractmethod
    def type(self) -> str:
        """The store's name."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of this worker."""

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """How many workers there are."""

    def set_optimizer(self, optimizer: Any) -> None:
        """Update by this optimizer from now on; only of stores that can."""
        raise NotImplementedError(f"{self} runs no optimizer: its is_capable('optimizer') should say so")

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Quantize gradients before they are summed; only of stores that can."""
        raise NotImplementedError(f"{self} has no gradient compression: leave compression_params out")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states to a file; only of stores that run one."""
        raise NotImplementedError(f"{self} saves no optimizer states")

    def load_optimizer_states(self, fname: str) -> None:
        """Read what `save_optimizer_states` wrote."""
        raise NotImplementedError(f"{self} loads no optimizer states")

    def __repr__(self) -> str:
        return f"kvstore {self.type!r}"

    @staticmethod
    def register(cls: _Class) -> _Class:
        """Class decorator: makes the store known to `create` by its class's name in lower case."""
        name = cls.__name__.lower()
        if KVStoreBase.kv_registry.get(name, cls) is not cls:
            warn(f"the kvstore {name!r} is registered anew, by {cls.__module__}")
        KVStoreBase.kv_registry[name] = cls
        return cls


@KVStoreBase.register
class TestStore(KVStoreBase):
    """The least that a store must do, as an example: sums over the devices of one process, nothing is kept.

    >>> from gluongraph import kvstore, nd
    >>> arrays = [nd.ones((2,)), nd.ones((2,))]
    >>> kvstore.create("teststore").pushpull("w", arrays)
    >>> arrays[0].asnumpy().tolist()
    [2.0, 2.0]
    """

    __test__ = False  # no test, whatever the name says: it is MXNet's

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        for array in listed(out):
            array[:] = listed(value)[0]

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        total = allreduce_arrays(*(array.storage.array for array in listed(value)))
        for array in listed(value if out is None else out):
            array[:] = NDArray(total, array.context)

    @staticmethod
    def is_capable(capability: str) -> bool:
        return asked(capability, False)

    @property
    def type(self) -> str:
        return "teststore"

    @property
    def rank(self) -> int:
        return 0

    @property
    def num_workers(self) -> int:
        return 1


def asked(capability: str, answer: bool) -> bool:
    """The answer to the one question there is.

    Raises:
        ValueError: another question.
    """
    if capability != KVStoreBase.OPTIMIZER:
        raise ValueError(f"unknown capability {capability!r}; there is {KVStoreBase.OPTIMIZER!r}")
    return answer


def listed(value: Any) -> list[NDArray]:
    """One array per device."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
