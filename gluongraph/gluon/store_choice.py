"""Which store a Trainer uses, and whether the store updates the weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gluongraph import kvstore as kvstores
from gluongraph.context import Context
from gluongraph.errors import warn, with_user_location
from gluongraph.gluon.parameter import Parameter
from gluongraph.kvstore import KVStore, KVStoreBase
from gluongraph.kvstore.asynchronous import NAMES, AsynchronousStore
from gluongraph.runtime.communicator.base import CommunicationError
from gluongraph.runtime.communicator.environment import launch

LARGE = 16 << 20  # elements: a parameter above it makes MXNet's store "local" leave the update to the devices


def check_kvstore(wanted: Any, update_on_kvstore: bool | None = None) -> None:
    """Refuse what no trainer can use as a store. On a server of a store this does not return: it serves.

    Raises:
        TypeError: neither a name, nor a store, nor None.
        ValueError: servers update, and `update_on_kvstore` is False.
        MXNetError: there is no store of several processes with that name.
    """
    if update_on_kvstore is False and _has_servers(wanted):
        message = f"update_on_kvstore=False with a kvstore {getattr(wanted, 'type', wanted)!r}, whose servers update"
        raise ValueError(with_user_location(message, help='leave it out, or use kvstore="dist_sync"'))
    if isinstance(wanted, str):
        if "dist" in wanted and wanted not in kvstores.KVStoreBase.kv_registry:
            kvstores.create(wanted)  # raises now what the first step would
    elif wanted is not None and not isinstance(wanted, KVStoreBase):
        raise TypeError(with_user_location(f"kvstore is a name, a KVStoreBase or None, not {type(wanted).__name__}"))


def _has_servers(wanted: Any) -> bool:
    """Is it a store on whose servers weights are updated, or the name of one?"""
    if isinstance(wanted, str):
        return wanted.lower() in NAMES and wanted not in kvstores.KVStoreBase.kv_registry
    return isinstance(wanted, AsynchronousStore)


def chosen_store(wanted: str | KVStoreBase | None, contexts: Sequence[Context]) -> KVStoreBase | None:
    """The store itself. One context of one process needs none, unless it is given as an object."""
    if not isinstance(wanted, str):
        return wanted
    if "dist" not in wanted and (count := _processes()) > 1:
        warn(
            f"this process is one of {count}, and kvstore={wanted!r} exchanges no gradients with the others: each"
            ' trains a model of its own. kvstore="dist_sync" trains one, kvstore=None says that this is meant'
        )
    return None if len(contexts) == 1 and "dist" not in wanted else kvstores.create(wanted)


def _processes() -> int:
    """How many processes a launcher has started for this program, as far as the environment tells."""
    try:
        return launch(os.environ).size
    except CommunicationError:
        return 1


def updates_on(
    store: KVStoreBase | None, wanted: bool | None, params: Sequence[Parameter], contexts: Sequence[Context]
) -> bool:
    """Does the store update? `wanted` decides; None is yes where it can.

    Three exceptions to the yes are MXNet's: parameters of more than LARGE elements in a store "local", gradients that
    are kept by rows, and MXNET_UPDATE_ON_KVSTORE=0 in the environment. Servers update always.

    Raises:
        ValueError: it is wanted, and the store cannot, or there is none for several contexts; or gradients that are
            kept by rows in a store that is neither a KVStore nor one with servers.
    """
    if isinstance(store, AsynchronousStore):
        return True
    by_rows = [p.name for p in params if p.grad_stype == "row_sparse"]
    if by_rows and store is not None and not isinstance(store, KVStore):
        message = f"{store} sums whole arrays, and the gradient of {', '.join(by_rows)} is kept by rows"
        raise ValueError(with_user_location(message, help='use kvstore="device", or sparse_grad=False'))
    capable = store is not None and store.is_capable(KVStoreBase.OPTIMIZER)
    if wanted and not capable:
        if store is None and len(contexts) == 1:
            return False  # there is one place where it can happen
        what = "there is no kvstore" if store is None else f"{store} runs no optimizer"
        help = 'update_on_kvstore=None chooses what is possible; kvstore="device" can'
        raise ValueError(with_user_location(f"update_on_kvstore=True, and {what}", help=help))
    if wanted is not None or not capable:
        return bool(wanted)
    large = store is not None and store.type == "local" and any(p.list_data()[0].size > LARGE for p in params)
    return not large and not by_rows and os.environ.get("MXNET_UPDATE_ON_KVSTORE", "1") != "0"
