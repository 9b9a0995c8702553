"""Running averages over batches: mx.metric."""

from gluongraph.metric.base import EvalMetric, alias, check_label_shapes, register
from gluongraph.metric.classification import F1, MCC, PCC, Accuracy, TopKAccuracy
from gluongraph.metric.composed import Caffe, CompositeEvalMetric, CustomMetric, Loss, Torch, create, np
from gluongraph.metric.likelihood import CrossEntropy, NegativeLogLikelihood, Perplexity
from gluongraph.metric.regression import MAE, MSE, RMSE, PearsonCorrelation

__all__ = [
    "F1",
    "MAE",
    "MCC",
    "MSE",
    "PCC",
    "RMSE",
    "Accuracy",
    "Caffe",
    "CompositeEvalMetric",
    "CrossEntropy",
    "CustomMetric",
    "EvalMetric",
    "Loss",
    "NegativeLogLikelihood",
    "PearsonCorrelation",
    "Perplexity",
    "TopKAccuracy",
    "Torch",
    "alias",
    "check_label_shapes",
    "create",
    "np",
    "register",
]
