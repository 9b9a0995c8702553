"""Functions of PyTorch's that torch.export cannot trace, as operators without a body while it traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

# PyTorch's CTC loss reads the lengths when it is traced.
CTC_LOSS = (
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, int reduction,"
    " bool zero_infinity) -> Tensor"
)


@lru_cache(maxsize=1)
def _library(torch: Any) -> Any:
    """The library of the operators; it lives as long as the process."""
    library = torch.library.Library("gluongraph", "DEF")
    library.define(CTC_LOSS)

    def fake(log_probs: Any, targets: Any, frames: Any, symbols: Any, blank: int, reduction: int, zero: bool) -> Any:
        return log_probs.new_empty(log_probs.shape[1:-1] if reduction == 0 else ())

    torch.library.register_fake("gluongraph::ctc_loss", fake, lib=library)
    return library


@contextmanager
def opaque(torch: Any) -> Iterator[None]:
    """Within: these functions are operators, whose meaning the table has."""
    _library(torch)
    own = torch.ctc_loss

    def ctc_loss(
        log_probs: Any,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Any:
        lengths = [v if isinstance(v, torch.Tensor) else torch.tensor(v) for v in (input_lengths, target_lengths)]
        return torch.ops.gluongraph.ctc_loss(log_probs, targets, *lengths, blank, reduction, zero_infinity)

    torch.ctc_loss = ctc_loss
    try:
        yield
    finally:
        torch.ctc_loss = own
