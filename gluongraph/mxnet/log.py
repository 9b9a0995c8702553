"""`mxnet.log`: a logger as scripts of MXNet's set it up."""

from __future__ import annotations

import logging
from logging import CRITICAL as CRITICAL
from logging import DEBUG as DEBUG
from logging import ERROR as ERROR
from logging import INFO as INFO
from logging import NOTSET as NOTSET
from logging import WARNING as WARNING


def get_logger(
    name: str | None = None, filename: str | None = None, filemode: str | None = None, level: int = WARNING
) -> logging.Logger:
    """A logger that writes to a file, or to standard error; a second call changes nothing but the level."""
    logger = logging.getLogger(name)
    if not getattr(logger, "_has_handler", False):
        handler = logging.FileHandler(filename, filemode or "a") if filename else logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname).1s%(asctime)s %(message)s", "%m%d %H:%M:%S"))
        logger.addHandler(handler)
        logger._has_handler = True  # type: ignore[attr-defined]
    logger.setLevel(level)
    return logger


getLogger = get_logger
