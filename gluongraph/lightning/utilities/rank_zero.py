"""What rank 0 alone does, and messages that it alone gives."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from gluongraph.errors import warn

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("gluongraph.lightning")
if log.level == logging.NOTSET:  # the program may have chosen a level before
    log.setLevel(logging.INFO)
_RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


class _LastResort(logging.Handler):
    """Writes to standard error where the program has set up no logging: what the loop says is to be seen by default.
    Python's own last resort shows warnings only."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr)


if not log.handlers:
    log.addHandler(_LastResort())


def _rank_of_launcher() -> int:
    """The number that the launcher gave this process; 0 without one."""
    return next((int(os.environ[name]) for name in _RANKS if os.environ.get(name, "").isdigit()), 0)


class _RankZeroOnly:
    """Decorator: on other ranks than 0 the function is not called, and the result is `default`."""

    def __init__(self) -> None:
        self.rank = _rank_of_launcher()  # the trainer sets it when it has joined the others

    def __call__(self, function: F, default: Any = None) -> F:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self.rank == 0 else default

        return cast(F, called)


rank_zero_only = _RankZeroOnly()


@rank_zero_only
def rank_zero_info(message: str, *args: Any) -> None:
    """Log a message at level INFO to the logger "gluongraph.lightning", which writes to standard error where the
    program has set up no logging. `logging.getLogger("gluongraph.lightning").setLevel("ERROR")` silences it.

    >>> from gluongraph.lightning.utilities import rank_zero_info
    >>> rank_zero_info("an epoch has ended")
    """
    log.info(message, *args)


@rank_zero_only
def rank_zero_debug(message: str, *args: Any) -> None:
    """Log a message at level DEBUG.

    >>> from gluongraph.lightning.utilities import rank_zero_debug
    >>> rank_zero_debug("an epoch has ended")
    """
    log.debug(message, *args)


@rank_zero_only
def rank_zero_warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of the user's line.

    >>> import warnings
    >>> from gluongraph.lightning.utilities import rank_zero_warn
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     rank_zero_warn("there are few batches")
    >>> str(seen[0].message)
    'there are few batches'
    """
    warn(message, category)


def rank_zero_deprecation(message: str) -> None:
    """Warn of something that will go.

    >>> import warnings
    >>> from gluongraph.lightning.utilities import rank_zero_deprecation
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     rank_zero_deprecation("this will go")
    >>> seen[0].category.__name__
    'DeprecationWarning'
    """
    rank_zero_warn(message, DeprecationWarning)
