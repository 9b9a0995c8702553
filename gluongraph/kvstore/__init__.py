"""Key-value stores, by which values on several devices are kept equal: mx.kvstore."""

from __future__ import annotations

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.kvstore.base import KVStoreBase, TestStore
from gluongraph.kvstore.local import KVStore

_ABSENT = ("nccl", "horovod", "byteps", "p3")  # MXNet's names for stores that span GPUs


def create(name: str = "local") -> KVStoreBase:
    """A store by name: a registered class; for names with "dist" one of several processes (docs/distributed.md); or a
    `KVStore`, which 'local', 'device' and any other name is.

    Raises:
        TypeError: the name is no string.
        MXNetError: there is no such store of several processes or GPUs.

    >>> from gluongraph import kvstore
    >>> kvstore.create("device").type
    'device'
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a kvstore is a string, not {name!r}")
    if (registered := KVStoreBase.kv_registry.get(name.lower())) is not None:
        return registered()
    if "dist" in name:
        return _of_workers(name.lower())
    if name in _ABSENT:
        raise MXNetError(
            with_user_location(
                f"kvstore {name!r} spans several devices, and there is none here that does",
                help="within one process use 'device' or 'local', with several 'dist_sync'",
            )
        )
    return KVStore(name.lower())


def _of_workers(name: str) -> KVStoreBase:
    """The store of several processes with that name."""
    from gluongraph.kvstore import asynchronous, distributed  # only here: a process alone needs no communicator

    if name in asynchronous.NAMES:
        return asynchronous.AsynchronousStore(name)
    if name in distributed.NAMES:
        return distributed.DistributedStore(name)
    known = ", ".join((*distributed.NAMES, *asynchronous.NAMES))
    raise MXNetError(with_user_location(f"there is no kvstore {name!r}", help=f"stores of several workers: {known}"))


__all__ = ["KVStore", "KVStoreBase", "TestStore", "create"]
