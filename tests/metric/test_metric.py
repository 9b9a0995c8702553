"""Metrics against their formulas in numpy, over several batches; what they forget, and how they are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gluongraph import metric, nd

RNG = np.random.default_rng(3)
SIZES = (5, 8, 11)
Batches = list[tuple[Any, Any]]


def scores(*shape: int) -> Any:
    drawn = RNG.random(shape) + 0.01
    return (drawn / drawn.sum(axis=-1, keepdims=True)).astype(np.float32)


def classes(n: int, c: int) -> Any:
    """n classes, each of the c at least once."""
    return RNG.permutation(np.arange(n) % c)


MULTI: Batches = [(classes(n, 4), scores(n, 4)) for n in SIZES]
BINARY: Batches = [(classes(n, 2), scores(n, 2)) for n in SIZES]
GROWING: Batches = [(classes(n, c), scores(n, c)) for c, n in zip((2, 4, 3), SIZES, strict=True)]
CLASSES: Batches = [(classes(n, 3), classes(n, 3)) for n in SIZES]
REAL: Batches = [(RNG.normal(size=(n, 3)), RNG.normal(size=(n, 3))) for n in SIZES]
COLUMN: Batches = [(RNG.normal(size=n), RNG.normal(size=(n, 1))) for n in SIZES]
IMAGES: Batches = [(RNG.integers(0, 4, (n, 2, 3)), np.moveaxis(scores(n, 2, 3, 4), -1, 1)) for n in SIZES]


# -- the formulas: a number from all labels and all predictions


def accuracy(label: Any, pred: Any) -> float:
    return float((pred.argmax(axis=1) == label).mean())


def top(k: int) -> Callable[[Any, Any], float]:
    """A label is among the best k if fewer than k scores are larger than its own."""
    return lambda label, pred: float(((pred > picked(label, pred)[:, None]).sum(axis=1) < k).mean())


def picked(label: Any, pred: Any) -> Any:
    return pred[np.arange(len(label)), label]


def f1(label: Any, pred: Any) -> float:
    given = pred.argmax(axis=1)
    hits = int((given * label).sum())
    precision, recall = hits / max(given.sum(), 1), hits / max(label.sum(), 1)
    return float(2 * precision * recall / (precision + recall)) if hits else 0.0


def correlation_of_classes(label: Any, pred: Any) -> float:
    """Of the one-hot vectors, all elements together."""
    given = pred.argmax(axis=1) if pred.ndim > 1 else pred
    x, y = (np.eye(9)[c] - np.eye(9)[c].mean(axis=0) for c in (given, label))
    return float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))


def mean_log(label: Any, pred: Any) -> float:
    return float(-np.log(picked(label, pred).astype(np.float64)).mean())


def perplexity_but(ignored: int) -> Callable[[Any, Any], float]:
    return lambda label, pred: math.exp(mean_log(label[label != ignored], pred[label != ignored]))


def of_column(function: Callable[[Any], float]) -> Callable[[Any, Any], float]:
    return lambda label, pred: float(function(label.reshape(pred.shape) - pred))


def pearson(label: Any, pred: Any) -> float:
    return float(np.corrcoef(label.ravel(), pred.ravel())[0, 1])


def of_updates(formula: Callable[[Any, Any], float]) -> Callable[[Batches], float]:
    """The mean of the values of the single updates."""
    return lambda batches: float(np.mean([formula(label, pred) for label, pred in batches]))


def of_all(formula: Callable[[Any, Any], float]) -> Callable[[Batches], float]:
    """The value of all samples together."""

    def value(batches: Batches) -> float:
        widest = max(pred.shape[1:] for _, pred in batches)
        wide = [np.zeros((len(pred), *widest), pred.dtype) for _, pred in batches]
        for target, (_, pred) in zip(wide, batches, strict=True):
            target[tuple(slice(n) for n in pred.shape)] = pred
        return formula(np.concatenate([label for label, _ in batches]), np.concatenate(wide))

    return value


CASES: list[tuple[str, Any, str, Batches, Callable[[Batches], float]]] = [
    ("acc", metric.Accuracy(), "accuracy", MULTI, of_all(accuracy)),
    ("acc classes", metric.Accuracy(), "accuracy", CLASSES, of_all(lambda y, p: float((y == p).mean()))),
    ("acc images", metric.Accuracy(axis=1), "accuracy", IMAGES, of_all(accuracy)),
    ("top 2", metric.TopKAccuracy(2), "top_k_accuracy_2", MULTI, of_all(top(2))),
    ("top 3", metric.TopKAccuracy(top_k=3, name="t"), "t_3", MULTI, of_all(top(3))),
    ("f1", metric.F1(), "f1", BINARY, of_updates(f1)),
    ("f1 of all", metric.F1(average="micro"), "f1", BINARY, of_all(f1)),
    ("mcc", metric.MCC(), "mcc", BINARY, of_updates(correlation_of_classes)),
    ("mcc of all", metric.MCC(average="micro"), "mcc", BINARY, of_all(correlation_of_classes)),
    ("pcc", metric.PCC(), "pcc", MULTI, of_all(correlation_of_classes)),
    ("pcc growing", metric.PCC(), "pcc", GROWING, of_all(correlation_of_classes)),
    ("pcc classes", metric.PCC(), "pcc", CLASSES, of_all(correlation_of_classes)),
    ("perplexity", metric.Perplexity(None), "perplexity", MULTI, of_all(lambda y, p: math.exp(mean_log(y, p)))),
    ("perplexity but 2", metric.Perplexity(2), "perplexity", MULTI, of_all(perplexity_but(2))),
    ("ce", metric.CrossEntropy(), "cross-entropy", MULTI, of_all(mean_log)),
    ("nll", metric.NegativeLogLikelihood(), "nll-loss", MULTI, of_all(mean_log)),
    ("ce eps", metric.CrossEntropy(eps=0.5), "cross-entropy", MULTI, of_all(lambda y, p: mean_log(y, p + 0.5))),
    ("mae", metric.MAE(), "mae", REAL, of_updates(of_column(lambda d: np.abs(d).mean()))),
    ("mse", metric.MSE(), "mse", COLUMN, of_updates(of_column(lambda d: (d * d).mean()))),
    ("rmse", metric.RMSE(), "rmse", REAL, of_updates(of_column(lambda d: np.sqrt((d * d).mean())))),
    ("pearson", metric.PearsonCorrelation(), "pearsonr", REAL, of_updates(pearson)),
    ("pearson of all", metric.PearsonCorrelation(average="micro"), "pearsonr", REAL, of_all(pearson)),
    ("loss", metric.Loss(), "loss", REAL, of_all(lambda y, p: float(p.mean()))),
    ("torch", metric.Torch(), "torch", REAL, of_all(lambda y, p: float(p.mean()))),
    ("caffe", metric.Caffe(), "caffe", REAL, of_all(lambda y, p: float(p.mean()))),
    ("function", metric.CustomMetric(pearson), "pearson", REAL, of_updates(pearson)),
    ("function, counted", metric.np(lambda y, p: (y.sum(), y.size), "sum"), "sum", REAL, of_all(lambda y, p: y.mean())),
]


@pytest.mark.parametrize("measure,name,batches,formula", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_formula(measure: Any, name: str, batches: Batches, formula: Callable[[Batches], float]) -> None:
    """Both means, before and after each kind of reset; in lists of NDArray, or as single numpy arrays."""
    measure.reset()
    assert measure.get()[0] == name and math.isnan(measure.get()[1]) and math.isnan(measure.get_global()[1])
    for k, (label, pred) in enumerate(batches, 1):
        if k == 2:
            measure.update(label, pred.astype(np.float32))
        else:
            measure.update([nd.array(label)], [nd.array(pred)])
        assert measure.get() == (name, pytest.approx(formula(batches[:k]), abs=2e-6))
    measure.reset_local()
    assert math.isnan(measure.get()[1])
    assert measure.get_global() == (name, pytest.approx(formula(batches), abs=2e-6))
    label, pred = batches[1]
    measure.update(nd.array(label), nd.array(pred))
    assert measure.get_name_value() == [(name, pytest.approx(formula(batches[1:2]), abs=2e-6))]
    expected = formula([*batches, batches[1]])
    assert measure.get_global_name_value() == [(name, pytest.approx(expected, abs=2e-6))]


EXTREMES: list[tuple[Any, Any, Any, float]] = [
    (metric.F1(), [0, 1], [[0.2, 0.8], [0.6, 0.4]], 0.0),
    (metric.MCC(), [1, 1], [[0.2, 0.8], [0.1, 0.9]], 0.0),
    (metric.PCC(), [1, 1], [[0.2, 0.8], [0.1, 0.9]], math.nan),
    (metric.PearsonCorrelation(), [1, 1], [2, 3], math.nan),
    (metric.Perplexity(0), [0, 0], [[0.2, 0.8], [0.1, 0.9]], math.nan),
    (metric.Perplexity(-1), [1, -1], [[1.0, 0.0], [0.5, 0.5]], 1e10),
    (metric.CrossEntropy(), [1], [[1.0, 0.0]], -math.log(1e-12)),
    (metric.TopKAccuracy(5), [1, 0], [[0.2, 0.8], [0.1, 0.9]], 1.0),
]


@pytest.mark.parametrize("measure,label,pred,expected", EXTREMES, ids=[type(c[0]).__name__ for c in EXTREMES])
def test_extremes(measure: Any, label: Any, pred: Any, expected: float) -> None:
    measure.update(nd.array(label), nd.array(pred))
    assert measure.get()[1] == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_averages_of_updates_forget_their_counts() -> None:
    """In `macro`, MXNet's default, an update is a value of its own, whatever came before."""
    first, second = BINARY[0], BINARY[1]
    macro, micro = metric.F1(), metric.F1(average="micro")
    for measure in (macro, micro):
        measure.update(*first)
        measure.reset_local()
        measure.update(*second)
        assert measure.get()[1] == pytest.approx(f1(*second))
    assert macro.get_global()[1] == pytest.approx((f1(*first) + f1(*second)) / 2)
    both = [np.concatenate(arrays) for arrays in zip(first, second, strict=True)]
    assert micro.get_global()[1] == pytest.approx(f1(*both))


# -- made of others, and by users


def test_composite() -> None:
    both = metric.create(["acc", metric.CrossEntropy(), lambda label, pred: 2.0])
    both.add("mae")
    label, pred = np.array([1]), np.array([[0.5, 0.5]])
    both.update([label], [pred])
    names = ["accuracy", "cross-entropy", "custom(<lambda>)", "mae"]
    values = [0.0, pytest.approx(math.log(2)), 2.0, 0.5]
    assert both.get() == (names, values) == both.get_global()
    assert both.get_name_value() == list(zip(names, values, strict=True))
    assert isinstance(both.get_metric(0), metric.Accuracy) and str(both).startswith("EvalMetric: {'accuracy': 0.0")
    both.reset_local()
    assert all(math.isnan(v) for v in both.get()[1]) and both.get_global() == (names, values)
    both.reset()
    assert all(math.isnan(v) for _, v in both.get_global_name_value())


def test_arrays_by_name() -> None:
    labels, preds = {"a": np.array([0]), "b": np.array([1])}, {"x": np.array([[0.1, 0.9]]), "y": np.array([[1.0, 0.0]])}
    for measure in (
        metric.Accuracy(label_names=["b"], output_names=["x"]),
        metric.CompositeEvalMetric(["acc"], label_names=["b"], output_names=["x"]),
    ):
        measure.update_dict(labels, preds)
        assert measure.get_name_value() == [("accuracy", 1.0)]
    both = metric.Accuracy()
    both.update_dict(labels, preds)
    assert both.get()[1] == 0.0 and both.num_inst == 2


def test_extra_outputs() -> None:
    measure = metric.CustomMetric(lambda label, pred: float(pred[0]), allow_extra_outputs=True)
    measure.update([nd.array([1])], [nd.array([3]), nd.array([4])])
    assert measure.get()[1] == 3


def test_a_users_metric_has_one_mean() -> None:
    class Largest(metric.EvalMetric):
        def update(self, labels: Any, preds: Any) -> None:
            labels, preds = metric.check_label_shapes(labels, preds, wrap=True)
            for pred in preds:
                self.sum_metric += float(pred.max().asscalar())
                self.num_inst += 1

    measure = Largest("largest")
    measure.update(nd.array([0, 0]), nd.array([3, 5]))
    assert measure.get() == measure.get_global() == ("largest", 5.0)
    assert measure.get_name_value() == measure.get_global_name_value()


# -- made by name


@pytest.mark.parametrize(
    "spec,made",
    [
        ("acc", metric.Accuracy),
        ("Accuracy", metric.Accuracy),
        ("ce", metric.CrossEntropy),
        ("nll_loss", metric.NegativeLogLikelihood),
        ("pearsonr", metric.PearsonCorrelation),
        ("composite", metric.CompositeEvalMetric),
        (metric.RMSE, metric.RMSE),
        ("pcc", metric.PCC),
        ('["mae", {"name": "m"}]', metric.MAE),
    ],
)
def test_create(spec: Any, made: type) -> None:
    assert type(metric.create(spec)) is made


@pytest.mark.parametrize("name", ["top_k_accuracy", "top_k_acc", "topkaccuracy"])
def test_create_with_arguments(name: str) -> None:
    assert metric.create(name, top_k=2).get()[0] == metric.create(name, 2).get()[0] == "top_k_accuracy_2"


CONFIGURED: list[metric.EvalMetric] = [
    metric.Accuracy(axis=2),
    metric.TopKAccuracy(3),
    metric.F1(average="micro"),
    metric.MCC(average="micro"),
    metric.PCC(),
    metric.Perplexity(1, axis=0),
    metric.CrossEntropy(1e-3),
    metric.PearsonCorrelation(average="micro"),
    metric.MAE("m", ["out"], ["in"]),
    metric.CompositeEvalMetric(["acc", metric.F1(average="micro")]),
]


@pytest.mark.parametrize("measure", CONFIGURED, ids=lambda m: type(m).__name__)
def test_configuration(measure: metric.EvalMetric) -> None:
    config = measure.get_config()
    again = metric.create(**config)
    assert type(again) is type(measure) and again.get_config() == config and again.get()[0] == measure.get()[0]


def test_register() -> None:
    @metric.register
    @metric.alias("zeroes")
    class AlwaysZero(metric.EvalMetric):
        def __init__(self) -> None:
            super().__init__("zero")

    assert isinstance(metric.create("alwayszero"), AlwaysZero) and isinstance(metric.create("zeroes"), AlwaysZero)


TWO, THREE = nd.zeros((2,)), nd.zeros((3, 2))
ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: metric.create("accurcy"), AssertionError, "did you mean 'accuracy'"),
    (lambda: metric.create(None), AssertionError, "by name"),
    (lambda: metric.create(metric.MAE(), name="m"), AssertionError, "arguments"),
    (lambda: metric.register(int), AssertionError, "subclasses of EvalMetric"),
    (lambda: metric.TopKAccuracy(top_k=1), AssertionError, "use Accuracy"),
    (lambda: metric.Perplexity(), TypeError, "ignore_label"),
    (lambda: metric.EvalMetric("m").update(TWO, TWO), NotImplementedError, "update"),
    (lambda: metric.CustomMetric(f1).get_config(), NotImplementedError, "f1"),
    (lambda: metric.create(["acc"]).get_metric(1), ValueError, "no metric 1 among 1"),
    (lambda: metric.Accuracy(label_names=["a"]).update_dict({}, {}), KeyError, "a"),
    (lambda: metric.check_label_shapes([1], [1, 2]), ValueError, "number of labels, 1"),
    (lambda: metric.check_label_shapes(TWO, THREE, shape=True), ValueError, r"shape of labels, \(2,\)"),
    (lambda: metric.Accuracy().update([TWO] * 2, [TWO]), ValueError, "accuracy: 2 arrays of labels"),
    (lambda: metric.Accuracy().update([TWO], [THREE]), ValueError, "accuracy: 2 labels"),
    (lambda: metric.TopKAccuracy(2).update(TWO, THREE), ValueError, "top_k_accuracy_2: 2 labels"),
    (lambda: metric.TopKAccuracy(2).update(TWO, TWO), AssertionError, r"shape \(2,\)"),
    (lambda: metric.F1().update(TWO, THREE), ValueError, "f1: 2 labels"),
    (lambda: metric.F1().update(nd.array([0, 1, 2]), THREE), ValueError, "f1 is for two classes"),
    (lambda: metric.MCC().update(TWO, TWO), ValueError, r"mcc takes scores \(N, 2\)"),
    (lambda: metric.PCC().update(TWO, THREE), ValueError, "pcc: 2 labels"),
    (lambda: metric.Perplexity(None).update(TWO, THREE), AssertionError, r"perplexity: labels \(2,\)"),
    (lambda: metric.CrossEntropy().update(TWO, THREE), AssertionError, r"cross-entropy: labels \(2,\)"),
    (lambda: metric.CrossEntropy().update(nd.array([0, 1, 2]), THREE), IndexError, "2"),
    (lambda: metric.MSE().update(TWO, THREE), ValueError, r"mse: labels \(2,\)"),
    (lambda: metric.PearsonCorrelation().update(TWO, THREE), ValueError, r"pearsonr: \(2,\) labels"),
    (lambda: metric.CustomMetric(f1).update([TWO], [TWO] * 2), ValueError, "f1: 1 arrays of labels"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_pearson_of_all_samples_is_global_too() -> None:
    measure = metric.PearsonCorrelation(average="micro")
    labels, preds = np.array([0.0, 1, 2, 3]), np.array([1.0, 0, 3, 2])
    for part in (slice(0, 2), slice(2, 4)):
        measure.update([nd.array(labels[part])], [nd.array(preds[part])])
    assert measure.get() == measure.get_global() == ("pearsonr", pytest.approx(np.corrcoef(labels, preds)[0, 1]))


@pytest.mark.parametrize("name", ["acc", "f1", "pcc", "mae", "rmse", "pearsonr", "ce"])
def test_what_fits_is_not_counted_beside_what_does_not(name: str) -> None:
    right, wrong = nd.array([0, 1]), nd.array([0, 1, 1])
    scores = nd.array([[0.9, 0.1], [0.2, 0.8]]) if name in ("acc", "f1", "pcc", "ce") else nd.array([0.5, 0.7])
    measure = metric.create(name)
    measure.update([right], [scores])
    before = vars(measure).copy()
    with pytest.raises((ValueError, AssertionError)):
        measure.update([right, wrong], [scores, scores])
    assert vars(measure) == before
