"""What besides the generators of the process decides a pass: the states of a loader, its dataset and its samplers."""

from __future__ import annotations

import sys
from operator import attrgetter
from typing import Any

from gluongraph import gluon
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.lightning.data import plain
from gluongraph.lightning.data.generators import generator_bytes, generator_text
from gluongraph.lightning.data.loaders import is_gluon_loader, is_stateful
from gluongraph.lightning.data.persistent import has_workers, start_workers

Json = dict[str, Any]
_PLACES = (
    "dataset",
    "batch_sampler",
    "batch_sampler.sampler",
    "sampler",
    "generator",
    "batch_sampler.generator",
    "batch_sampler.sampler.generator",
    "sampler.generator",
)


def take(loader: Any) -> Json:
    """The state of a loader between two passes, as JSON: what the next pass depends on.

    That is the loader's own `state_dict` where it has one. Else it is that of its dataset and samplers, the epoch of
    those that have one, and where PyTorch's generators in them are.

    >>> from gluongraph.lightning.data import ArrayLoader, pieces
    >>> pieces.take(ArrayLoader([1, 2, 3]))
    {'loader': {'batches': 0, 'epoch': 0, 'seed': None, 'samples': 3}}
    """
    own = own_state(loader)
    if own is not None:
        return {"loader": own}
    found: Json = {"workers": True} if has_workers(loader) else {}
    for place, thing in _things(loader).items():
        if is_stateful(thing):
            try:
                name = type(thing).__name__
                found[place] = {"state": plain.to_json(thing.state_dict(), f"the state of {name}"), "class": name}
            except NotImplementedError:
                continue
        elif _is_generator(thing):
            found[place] = {"generator": generator_text(thing.get_state())}
        elif callable(getattr(thing, "set_epoch", None)) and type(getattr(thing, "epoch", None)) is int:
            found[place] = {"epoch": thing.epoch, "class": type(thing).__name__}
    return found


def own_state(loader: Any) -> Any:
    """A loader's own state as JSON; None where it does not say it."""
    if not is_stateful(loader):
        return None
    try:
        return plain.to_json(loader.state_dict(), f"the state of {type(loader).__name__}")
    except NotImplementedError:  # a gluon loader whose sampler does not
        return None


def put(loader: Any, told: Json, between: bool = False) -> None:
    """Let the next pass be the one that `take` was called before.

    `between`: the pass begins with numpy's generator as it will be then. Else a gluon sampler, in whose state that of
    numpy's generator is, uses the one that it was.
    """
    if "loader" in told:
        state = plain.from_json(told["loader"])
        if between and is_gluon_loader(loader):
            state = _without_numpy(state)
        loader.load_state_dict(state)
        return
    if told.get("workers"):
        start_workers(loader)
    things = _things(loader)
    for place, state in told.items():
        thing = things.get(place)
        if thing is None or ("sampler" in place and state.get("class") not in (None, type(thing).__name__)):
            continue  # another number of ranks has samplers of another class
        if "state" in state and is_stateful(thing):
            inner = plain.from_json(state["state"])
            thing.load_state_dict(_without_numpy(inner) if between and isinstance(thing, gluon.data.Sampler) else inner)
        elif "generator" in state and _is_generator(thing):
            thing.set_state(generator_bytes(state["generator"]))
        elif "epoch" in state and callable(getattr(thing, "set_epoch", None)):
            thing.set_epoch(state["epoch"])


def _things(loader: Any) -> dict[str, Any]:
    """The loader's parts by their places, each once."""
    found: dict[str, Any] = {}
    for place in _PLACES:
        try:
            thing = attrgetter(place)(loader)
        except AttributeError:
            continue
        if thing is not None and not any(thing is other for other in found.values()):
            found[place] = thing
    return found


def _is_generator(thing: Any) -> bool:
    return is_torch_loaded() and isinstance(thing, sys.modules["torch"].Generator)


def _without_numpy(state: Any) -> Any:
    """The state of a gluon sampler, which has that of numpy's generator in it, without that."""
    if not isinstance(state, dict):
        return state
    return {key: None if key == "numpy" else _without_numpy(value) for key, value in state.items()}
