"""Names of checkpoints: `{epoch}-{val_loss:.2f}` becomes `epoch=0-val_loss=0.32`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gluongraph.lightning.errors import misconfigured

_FIELD = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")


def filled(pattern: str, metrics: Mapping[str, float], named: bool = True, equals: str = "=") -> str:
    """The pattern with the values of metrics in place of `{name}` and `{name:format}`.

    Formats are those of Python. A metric that is not there is 0. With `named`, each value follows its name.

    >>> filled("{epoch:02d}-{val/loss:.2f}", {"epoch": 3, "val/loss": 0.321})
    'epoch=03-val/loss=0.32'
    >>> filled("net-{epoch}-{val/loss:.2f}", {"epoch": 3, "val/loss": 0.321}, named=False)
    'net-3-0.32'

    Raises:
        MisconfigurationException: a format that does not fit the value.
    """

    def value(found: re.Match[str]) -> str:
        name, form = found[1], found[2] or ""
        number = metrics.get(name, 0)
        try:
            text = format(number, form)
        except ValueError as wrong:
            message = f"filename={pattern!r}: {name} is {number!r}, which cannot be written as {form!r}: {wrong}"
            raise misconfigured(message, help="'{epoch:02d}' for whole numbers, '{val_loss:.2f}' for others") from None
        return f"{name}{equals}{text}" if named else text

    return _FIELD.sub(value, pattern)
