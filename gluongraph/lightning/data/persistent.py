"""Worker processes of PyTorch's loaders that stay from pass to pass (persistent_workers=True).

They make what a pass draws depend on the passes before: the seed of the workers is drawn when they are started, which
is within the first pass, and in no later one.
"""

from __future__ import annotations

from typing import Any

from gluongraph.lightning.data.loaders import is_torch_loader


def keeps_workers(loader: Any) -> bool:
    """Do the workers of this loader stay, once they are there?"""
    return is_torch_loader(loader) and loader.persistent_workers and loader.num_workers > 0


def has_workers(loader: Any) -> bool:
    """Are there workers that stay?"""
    return keeps_workers(loader) and loader._iterator is not None


def start_workers(loader: Any) -> None:
    """Let them be there before the next pass, as they were after the first one. It draws from the generators."""
    if keeps_workers(loader) and not has_workers(loader):
        iter(loader)


def adopt_workers(loader: Any, iterator: Any) -> None:
    """Let the workers of a pass over a copy of the loader be those of its next passes."""
    if keeps_workers(loader):
        loader._iterator = iterator


def end_workers(loader: Any) -> None:
    """End them; the next pass starts others."""
    if has_workers(loader):
        loader._iterator._shutdown_workers()
        loader._iterator = None
