"""Losses: mostly a number per sample, the mean over all axes but the batch's."""

from gluongraph.gluon.loss.base import Loss
from gluongraph.gluon.loss.base import _apply_weighting as _apply_weighting
from gluongraph.gluon.loss.base import _reshape_like as _reshape_like
from gluongraph.gluon.loss.classification import (
    HingeLoss,
    KLDivLoss,
    LogisticLoss,
    SigmoidBinaryCrossEntropyLoss,
    SoftmaxCrossEntropyLoss,
    SquaredHingeLoss,
)
from gluongraph.gluon.loss.ctc import CTCLoss
from gluongraph.gluon.loss.regression import HuberLoss, L1Loss, L2Loss, PoissonNLLLoss
from gluongraph.gluon.loss.similarity import CosineEmbeddingLoss, SDMLLoss, TripletLoss

SoftmaxCELoss = SoftmaxCrossEntropyLoss
SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss

__all__ = [
    "CTCLoss",
    "CosineEmbeddingLoss",
    "HingeLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "L2Loss",
    "LogisticLoss",
    "Loss",
    "PoissonNLLLoss",
    "SDMLLoss",
    "SigmoidBCELoss",
    "SigmoidBinaryCrossEntropyLoss",
    "SoftmaxCELoss",
    "SoftmaxCrossEntropyLoss",
    "SquaredHingeLoss",
    "TripletLoss",
]
