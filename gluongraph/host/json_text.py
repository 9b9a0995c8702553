"""JSON that others may have written: Python's reader, and a bound on how deep it is nested.

Whatever walks through what was read calls itself at each level, and deep enough that ends in a RecursionError.
"""

from __future__ import annotations

import json
from typing import Any

DEEPEST = 64  # lists and objects within each other; gg-run reads as many (runtime/native/json.cc)


def parse(text: str | bytes, **how: Any) -> Any:
    """What a text in JSON says; `how` is as for `json.loads`.

    >>> parse('{"x": [1, 2]}')
    {'x': [1, 2]}

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        found = json.loads(text, **how)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if depth_exceeds(found, DEEPEST):
        raise ValueError("it is nested too deeply")
    return found


def depth_exceeds(value: Any, most: int) -> bool:
    """Are there more than so many lists and dictionaries within each other?"""
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(most):
        parts = (part for each in level for part in (each.values() if isinstance(each, dict) else each))
        level = [part for part in parts if isinstance(part, list | dict)]
        if not level:
            return False
    return bool(level)
