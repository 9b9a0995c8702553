"""One seed for all random generators of a process."""

from __future__ import annotations

import os
import random as python_random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gluongraph import random
from gluongraph.errors import with_user_location
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.lightning.data import generators
from gluongraph.lightning.utilities.rank_zero import log, rank_zero_only, rank_zero_warn

_MOST = (1 << 32) - 1  # what numpy.random.seed takes


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed `mx.random`, numpy's global generator, Python's `random` and, once it is loaded, PyTorch; gives the seed.

    None takes the seed from PL_GLOBAL_SEED, or 0 with a warning. PL_GLOBAL_SEED is set, for processes that are started,
    and PL_SEED_WORKERS: with `workers` the trainer seeds the workers of PyTorch's loaders by worker and rank.

    >>> import numpy as np
    >>> from gluongraph.lightning.utilities import seed_everything
    >>> seed_everything(7, verbose=False)
    7
    >>> drawn = np.random.rand()
    >>> _ = seed_everything(7, verbose=False)
    >>> np.random.rand() == drawn
    True

    Raises:
        ValueError: no whole number from 0 to 2**32 - 1.
    """
    seed = _seed_of_environment(verbose) if seed is None else _whole(seed, "seed_everything: the seed")
    if not 0 <= seed <= _MOST:
        raise ValueError(with_user_location(f"seed_everything: the seed must be from 0 to {_MOST}, not {seed}"))
    if verbose:
        log.info("[rank: %d] Seed set to %d", rank_zero_only.rank, seed)
    os.environ["PL_GLOBAL_SEED"], os.environ["PL_SEED_WORKERS"] = str(seed), str(int(workers))
    python_random.seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    if is_torch_loaded():
        sys.modules["torch"].manual_seed(seed)
    return seed


def _seed_of_environment(verbose: bool) -> int:
    told = os.environ.get("PL_GLOBAL_SEED")
    if told is not None:
        return _whole(told, "PL_GLOBAL_SEED")
    if verbose:
        rank_zero_warn("seed_everything: no seed is given, and PL_GLOBAL_SEED is not set; the seed is 0")
    return 0


def _whole(value: object, what: str) -> int:
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError):
        raise ValueError(with_user_location(f"{what} is a whole number, not {value!r}")) from None


def reset_seed() -> None:
    """Seed everything again as `seed_everything` did last; nothing where it was never called.

    >>> from gluongraph.lightning.utilities.seed import reset_seed
    >>> reset_seed()
    """
    if (told := os.environ.get("PL_GLOBAL_SEED")) is not None:
        seed_everything(int(told), bool(int(os.environ.get("PL_SEED_WORKERS") or 0)), verbose=False)


def seed_worker(worker: int, rank: int | None = None) -> None:
    """Seed the generators of a worker process of PyTorch's, by its own seed, its number and the rank.

    It is what the trainer gives loaders as `worker_init_fn` after `seed_everything(workers=True)`.
    """
    torch = sys.modules["torch"]
    base = torch.initial_seed() - worker  # PyTorch adds the worker's number to the seed of the pass
    rank = rank_zero_only.rank if rank is None else rank
    words = np.random.SeedSequence([base, worker, rank]).generate_state(8)
    torch.manual_seed(int(words[0]) | int(words[1] & 0x7FFFFFFF) << 32)
    python_random.seed(int(words[2]) | int(words[3]) << 32)
    np.random.seed(words[4:])
    random.seed(int(words[2]) << 32 | int(words[3]))


@contextmanager
def isolate_rng(include_cuda: bool = True) -> Iterator[None]:
    """Within: what is drawn at random changes nothing for what comes after.

    >>> import numpy as np
    >>> from gluongraph.lightning.utilities.seed import isolate_rng
    >>> with isolate_rng():
    ...     first = np.random.rand()
    >>> np.random.rand() == first
    True
    """
    with generators.kept():
        yield
