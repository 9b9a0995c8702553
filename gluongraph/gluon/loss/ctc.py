"""The loss of sequences whose alignment is not known."""

from __future__ import annotations

from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.gluon.loss.base import Loss
from gluongraph.ir.graph import Node
from gluongraph.mxops import ctc as mxctc
from gluongraph.mxops import shapes as mxshapes


class CTCLoss(Loss):
    """Connectionist temporal classification: -log of the probability of the label, of shape (N,) (Graves et al., 2006).

    `pred` has scores before softmax in `layout` ("NTC" or "TNC"), the last class is the blank; `label` has class
    numbers in `label_layout` ("NT" or "TN"), padded with -1 unless `label_lengths` is given. `pred_lengths` says how
    many frames of each sequence count. A label that needs more frames than there are costs 0.

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.CTCLoss()
    >>> loss(nd.zeros((2, 6, 4)), nd.array([[0, 2, 1], [1, -1, -1]])).shape
    (2,)

    Raises:
        AssertionError: another layout.
        ShapeError: shapes that do not fit; labels longer than predictions.
        IndexRangeError: when it is computed, a label holds the blank, or what is no class.
    """

    def __init__(self, layout: str = "NTC", label_layout: str = "NT", weight: float | None = None, **kwargs: Any):
        if layout not in ("NTC", "TNC") or label_layout not in ("NT", "TN"):
            known = "'NTC' or 'TNC' for predictions and 'NT' or 'TN' for labels"
            raise AssertionError(
                with_user_location(f"CTCLoss: layouts are {known}, not {layout!r} and {label_layout!r}")
            )
        super().__init__(weight, label_layout.find("N"), **kwargs)
        self._layout, self._label_layout = layout, label_layout

    def forward(
        self, pred: Any, label: Any, pred_lengths: Any = None, label_lengths: Any = None, sample_weight: Any = None
    ) -> Any:
        layouts = {"layout": self._layout, "label_layout": self._label_layout}
        arrays = pred, label, pred_lengths, label_lengths
        return self._loss(_ctc, *arrays, sample_weight=sample_weight, reduce="none", **layouts)


def _ctc(pred: Node, label: Node, frames: Node | None, symbols: Node | None, *, layout: str, label_layout: str) -> Node:
    pred = mxshapes.swapaxes(pred, 0, 1) if layout == "NTC" else pred
    label = mxshapes.swapaxes(label, 0, 1) if label_layout == "TN" else label
    lengths = {"use_data_lengths": frames is not None, "use_label_lengths": symbols is not None}
    found: Node = mxctc.CTCLoss(pred, label, frames, symbols, **lengths, blank_label="last")
    return found
