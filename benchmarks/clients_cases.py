"""The cases of benchmarks/clients.py; `python benchmarks/clients.py --here NAME` runs one of them in this process.

Libraries written for MXNet are imported as they are, with gluongraph in MXNet's place. What numpy 2 took away is put
back. One of gluonts' estimators is left out: WaveNetEstimator reads the row behind its table's last, which MXNet
clips in silence and gluongraph refuses. torch is kept out: gluoncv refuses to be imported beside one that is newer
than itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

CASES: dict[str, Callable[[], None]] = {}


def case(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Enter a case: it raises if something is wrong."""

    def enter(fn: Callable[[], None]) -> Callable[[], None]:
        CASES[name] = fn
        return fn

    return enter


def put_back() -> None:
    """Names that numpy 1.26 has and numpy 2 lacks, as far as these libraries say them."""
    names: dict[str, Any] = {"bool": np.bool_, "int": int, "float": float, "object": object, "str": str}
    names |= {"float_": np.float64, "Inf": np.inf, "NaN": np.nan, "product": np.prod, "in1d": np.isin}
    for name, value in names.items():
        if name not in vars(np):
            setattr(np, name, value)


def steps(net: Any, batches: list[tuple[Any, ...]], loss: Callable[..., Any], rate: float = 1e-3) -> None:
    """Two steps of Adam; the loss is finite and something moves."""
    import mxnet as mx

    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": rate})
    before: list[Any] = []
    for batch in batches:
        with mx.autograd.record():
            value = loss(*batch).mean()
        value.backward()
        if not before:
            before = [p.data().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]
        trainer.step(1, ignore_stale_grad=True)
        assert np.isfinite(value.asscalar()), f"the loss is {value.asscalar()}"
    after = [p.data().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]
    moved = sum(bool((a != b).any()) for a, b in zip(before, after, strict=True))
    assert 2 * moved > len(after), f"only {moved} of {len(after)} parameters moved"


def finite(*arrays: Any) -> None:
    """All numbers are."""
    for array in arrays:
        assert np.isfinite(array.asnumpy()).all()


# -- gluonts


def series(count: int, dimensions: int = 0, length: int = 240) -> Any:
    """Hourly counts with a period of a day."""
    from gluonts.dataset.common import ListDataset

    drawn = np.random.default_rng(0)
    shape = (dimensions, length) if dimensions else (length,)
    made = [
        {
            "start": "2021-01-01 00:00",
            "target": 5 + np.sin(np.arange(length) / 24 * 2 * np.pi) + drawn.poisson(3, shape),
            "feat_static_cat": [i],
            "item_id": str(i),
        }
        for i in range(count)
    ]
    return ListDataset(made, freq="H", one_dim_target=not dimensions)


def trainer(hybridize: bool = True) -> Any:
    """gluonts' own, of two steps."""
    from gluonts.mx import Trainer

    return Trainer(epochs=1, num_batches_per_epoch=2, learning_rate=1e-3, hybridize=hybridize)


def forecasts(estimator: Any, data: Any, count: int) -> None:
    """Train two steps and predict each series."""
    made = list(estimator.train(data).predict(data))
    assert len(made) == count
    for forecast in made:
        values = getattr(forecast, "samples", None)
        values = forecast.forecast_array if values is None else values
        assert np.isfinite(values).all()


def estimated(name: str, dimensions: int = 0, **how: Any) -> None:
    """A case of one of gluonts' estimators."""

    def run() -> None:
        import gluonts.mx as gm

        given = {k: v() if callable(v) else v for k, v in how.items()}
        estimator = getattr(gm, name)(**{"freq": "H", "prediction_length": 6, "trainer": trainer(), **given})
        forecasts(estimator, series(3, dimensions), 3)

    case(f"gluonts.{name}")(run)


def _without(name: str, dimensions: int = 0, **how: Any) -> None:
    """A case of one that is not told the frequency."""

    def run() -> None:
        import gluonts.mx as gm

        given = {k: v() if callable(v) else v for k, v in how.items()}
        estimator = getattr(gm, name)(prediction_length=6, trainer=trainer(), **given)
        forecasts(estimator, series(3, dimensions), 3)

    case(f"gluonts.{name}")(run)


_without("SimpleFeedForwardEstimator", num_hidden_dimensions=[8])
estimated("DeepAREstimator", num_layers=1, num_cells=8, num_parallel_samples=10)
estimated("DeepFactorEstimator", cardinality=[3], num_hidden_global=8, num_layers_global=1, num_factors=3)
estimated("DeepStateEstimator", cardinality=[3], num_layers=1, num_cells=8, past_length=48, num_parallel_samples=10)
estimated("DeepVAREstimator", 2, target_dim=2, num_layers=1, num_cells=8, num_parallel_samples=10)
estimated("GPVAREstimator", 2, target_dim=2, num_layers=1, num_cells=8, num_parallel_samples=10)
estimated("GaussianProcessEstimator", cardinality=3, context_length=24, trainer=lambda: trainer(hybridize=False))
_without(
    "LSTNetEstimator", 2, num_series=2, context_length=30, skip_size=3, ar_window=4, channels=6, rnn_num_cells=6,
    skip_rnn_num_cells=4,
)  # fmt: skip
estimated("MQCNNEstimator", channels_seq=[4, 4, 4])
estimated("MQRNNEstimator")
estimated("NBEATSEstimator", num_stacks=2, widths=[8], num_blocks=[1], num_block_layers=[2])
estimated("TemporalFusionTransformerEstimator", hidden_dim=8, num_heads=2)
estimated("TransformerEstimator", model_dim=8, num_heads=2, num_parallel_samples=10)
estimated("CanonicalRNNEstimator", cardinality=[3], context_length=24, num_layers=1, num_cells=8)


@case("gluonts.DeepRenewalProcessEstimator")
def renewal() -> None:
    from gluonts.mx import DeepRenewalProcessEstimator

    how = {"context_length": 24, "num_cells": 8, "num_layers": 1, "num_parallel_samples": 10}
    forecasts(DeepRenewalProcessEstimator(prediction_length=6, trainer=trainer(), **how), series(3), 3)


# -- gluonnlp


def tokens(shape: tuple[int, ...], vocabulary: int) -> Any:
    """Whole numbers as float32, as gluonnlp's scripts have them."""
    import mxnet as mx

    return mx.nd.array(np.random.default_rng(0).integers(0, vocabulary, shape))


@case("gluonnlp.BERT")
def bert() -> None:
    import mxnet as mx
    from gluonnlp.model.bert import BERTEncoder, BERTModel

    how = {"units": 16, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_length": 12, "dropout": 0.1}
    net = BERTModel(BERTEncoder(**how), 50, 2, units=16, embed_size=16, use_decoder=True)
    net.initialize(mx.init.Normal(0.02))
    net.hybridize()
    words, kinds, valid = tokens((2, 8), 50), mx.nd.zeros((2, 8)), mx.nd.array([8, 5])
    masked = mx.nd.array([[0, 3], [1, 2]])
    crossed = mx.gluon.loss.SoftmaxCELoss()

    def loss(words: Any, kinds: Any) -> Any:
        _, _, after, decoded = net(words, kinds, valid, masked)
        return crossed(decoded, tokens((2, 2), 50)).mean() + crossed(after, mx.nd.array([0, 1])).mean()

    steps(net, [(words, kinds)] * 2, loss)
    finite(*net(words, kinds, valid, masked))
    names = set(net._collect_params_with_prefix())
    assert any("proj_query.weight" in n for n in names), "names of files"


@case("gluonnlp.AWD-LSTM")
def awd() -> None:
    import gluonnlp as nlp
    import mxnet as mx

    net = nlp.model.train.AWDRNN("lstm", 40, 8, 8, 2, True, 0.1, 0.1, 0.1, 0.1, 0.1)
    net.initialize(mx.init.Xavier())
    words, crossed = tokens((5, 3), 40), mx.gluon.loss.SoftmaxCELoss()

    def loss(words: Any) -> Any:
        output, _, encoded, dropped = net(words, net.begin_state(batch_size=3))
        penalty = nlp.loss.ActivationRegularizationLoss(2)(*dropped) + nlp.loss.TemporalActivationRegularizationLoss(1)(
            *encoded
        )
        return crossed(output.reshape((-1, 40)), words.reshape((-1,))).mean() + penalty.mean()

    steps(net, [(words,)] * 2, loss)
    own = nlp.model.AWDRNN("lstm", 40, 8, 8, 2, True, 0.1, 0.1, 0.1, 0.1, 0.1, params=net.collect_params())
    finite(own(words, own.begin_state(batch_size=3))[0])


@case("gluonnlp.beam search")
def beam() -> None:
    import gluonnlp as nlp
    import mxnet as mx

    class Decoder(mx.gluon.Block):  # type: ignore[misc, name-defined]  # mxnet has no types
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.embed, self.cell = mx.gluon.nn.Embedding(20, 8), mx.gluon.rnn.LSTMCell(8)
                self.out = mx.gluon.nn.Dense(20)

        def forward(self, words: Any, states: Any) -> Any:
            hidden, states = self.cell(self.embed(words), states)
            return self.out(hidden), states

        def state_info(self, *args: Any) -> Any:
            return self.cell.state_info(*args)

    net = Decoder()
    net.initialize()
    crossed = mx.gluon.loss.SoftmaxCELoss()
    states = net.cell.begin_state(batch_size=3)
    steps(net, [(tokens((3,), 20),)] * 2, lambda words: crossed(net(words, states)[0], words))
    scorer = nlp.model.BeamSearchScorer(alpha=0.6)
    search = nlp.model.BeamSearchSampler(4, lambda *a: (lambda o, s: (mx.nd.log_softmax(o), s))(*net(*a)), 1, scorer, 6)
    found, scores, lengths = search(tokens((3,), 20), states)
    assert found.shape[:2] == (3, 4) and (np.diff(scores.asnumpy(), axis=1) <= 1e-6).all()
    assert lengths.dtype == np.int32 and lengths.asnumpy().max() <= 8
    drawn, _, _ = nlp.model.SequenceSampler(2, lambda *a: (lambda o, s: (mx.nd.log_softmax(o), s))(*net(*a)), 1, 6)(
        tokens((3,), 20), states
    )
    assert drawn.shape[:2] == (3, 2)


@case("gluonnlp.transformer")
def transformer() -> None:
    import mxnet as mx
    from gluonnlp import Vocab
    from gluonnlp.data import count_tokens
    from gluonnlp.model.transformer import get_transformer_encoder_decoder
    from gluonnlp.model.translation import NMTModel

    words = Vocab(count_tokens([f"w{i}" for i in range(30)]))
    how = {"num_layers": 1, "num_heads": 2, "units": 8, "hidden_size": 16, "max_src_length": 9, "max_tgt_length": 9}
    encoder, decoder, ahead = get_transformer_encoder_decoder(**how)
    net = NMTModel(words, words, encoder, decoder, ahead, embed_size=8, share_embed=False, tie_weights=False)
    net.initialize(mx.init.Xavier())
    source, valid = tokens((2, 6), len(words)), mx.nd.array([6, 4])
    crossed = mx.gluon.loss.SoftmaxCELoss()
    steps(net, [(source,)] * 2, lambda s: crossed(net(s, s, valid, valid)[0], s))
    finite(net(source, source, valid, valid)[0])


# -- gluoncv


def images(batch: int, size: int) -> Any:
    """Of a normal distribution."""
    import mxnet as mx

    return mx.nd.array(np.random.default_rng(0).normal(size=(batch, 3, size, size)))


@case("gluoncv.YOLO3")
def yolo() -> None:
    import mxnet as mx
    from gluoncv.data.batchify import Stack
    from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform
    from gluoncv.model_zoo import get_model

    net = get_model("yolo3_mobilenet1.0_voc", pretrained_base=False)
    net.initialize(mx.init.Xavier())
    transform = YOLO3DefaultTrainTransform(64, 64, net)
    drawn = np.random.default_rng(0)
    image = mx.nd.array(drawn.integers(0, 255, (80, 80, 3)), dtype="uint8")
    label = np.array([[10.0, 12.0, 40.0, 50.0, 3.0]])
    x, *targets = [Stack()(list(column)) for column in zip(*[transform(image, label) for _ in range(2)], strict=True)]
    boxes = targets.pop()

    def loss(x: Any) -> Any:
        return sum(net(x, boxes[:, :, :4], *targets))

    steps(net, [(x,)] * 2, loss)
    classes, scores, found = net(x)
    finite(classes, scores, found)


@case("gluoncv.FCN")
def fcn() -> None:
    _segmentation("fcn_resnet50_voc", "resnet50")


@case("gluoncv.DeepLab")
def deeplab() -> None:
    _segmentation("deeplab_resnet50_ade", "resnet50")


def _segmentation(name: str, base: str) -> None:
    import mxnet as mx
    from gluoncv.loss import MixSoftmaxCrossEntropyLoss
    from gluoncv.model_zoo.deeplabv3 import get_deeplab
    from gluoncv.model_zoo.fcn import get_fcn

    make = get_fcn if name.startswith("fcn") else get_deeplab
    net = make("pascal_voc", backbone=base, pretrained_base=False, aux=True, base_size=96, crop_size=64)
    net.initialize(mx.init.Xavier())
    criterion = MixSoftmaxCrossEntropyLoss(aux=True)
    labels = tokens((2, 64, 64), 21)

    def loss(x: Any) -> Any:
        return criterion(*net(x), labels)[0]

    steps(net, [(images(2, 64),)] * 2, loss)
    found = net.predict(images(2, 64))
    assert found.shape == (2, 21, 64, 64)
    finite(found)


@case("gluoncv.pose")
def pose() -> None:
    import mxnet as mx
    from gluoncv.data.transforms.pose import get_max_pred
    from gluoncv.model_zoo import get_model

    net = get_model("simple_pose_resnet18_v1b", pretrained=False, pretrained_base=False)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    criterion = mx.gluon.loss.L2Loss()
    target = mx.nd.random.uniform(shape=(2, 17, 16, 16))
    steps(net, [(images(2, 64),)] * 2, lambda x: criterion(net(x), target))
    places, sure = get_max_pred(net(images(2, 64)))
    finite(places, sure)


def _classifier(name: str) -> None:
    def run() -> None:
        import mxnet as mx
        from gluoncv.model_zoo import get_model

        net = get_model(name, classes=10, pretrained=False)
        net.initialize(mx.init.Xavier())
        net.hybridize()
        crossed = mx.gluon.loss.SoftmaxCELoss()
        steps(net, [(images(2, 32), mx.nd.array([1, 2]))] * 2, lambda x, y: crossed(net(x), y))
        finite(net(images(2, 32)))

    case(f"gluoncv.{name}")(run)


for _name in ("cifar_resnet20_v1", "cifar_wideresnet16_10", "mobilenetv3_small", "resnest14", "senet_154"):
    _classifier(_name)


def perform(name: str) -> None:
    """Run a case in this process."""
    put_back()
    sys.modules["torch"] = None  # type: ignore[assignment]  # cannot be imported: these cases are of mxnet
    from gluongraph.mxnet import install

    install()
    CASES[name]()


def names() -> Iterator[str]:
    """Of all cases, in order."""
    return iter(CASES)
