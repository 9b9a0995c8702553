"""RNN, LSTM and GRU over sequences: against float64 numpy and torch, eager, hybridized and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rnn_reference as reference

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.gluon import rnn

T, N, C, H = 5, 3, 4, 6
LAYERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "relu": (rnn.RNN, "relu", {}),
    "tanh, 2 layers": (rnn.RNN, "tanh", {"activation": "tanh", "num_layers": 2}),
    "lstm": (rnn.LSTM, "lstm", {}),
    "lstm, 2 layers both ways": (rnn.LSTM, "lstm", {"num_layers": 2, "bidirectional": True}),
    "lstm projected both ways": (rnn.LSTM, "lstm", {"num_layers": 2, "bidirectional": True, "projection_size": 2}),
    "lstm clipped": (rnn.LSTM, "lstm", {"state_clip_min": -0.2, "state_clip_max": 0.3}),
    "gru": (rnn.GRU, "gru", {}),
    "gru, 3 layers both ways": (rnn.GRU, "gru", {"num_layers": 3, "bidirectional": True}),
}


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def made(name: str, **other: Any) -> Any:
    kind, _, how = LAYERS[name]
    layer = kind(H, input_size=C, **how, **other)
    layer.initialize(mx.init.Uniform(0.7))
    for parameter in layer.collect_params(".*bias").values():
        parameter.set_data(nd.random.uniform(-0.5, 0.5, parameter.shape).astype(parameter.dtype))
    return layer


def states_of(layer: Any, n: int = N, dtype: str = "float64") -> list[Any]:
    return [draw(*info["shape"], seed=7 + k).astype(dtype) for k, info in enumerate(layer.state_info(n))]


def clip_of(name: str) -> Any:
    return (-0.2, 0.3) if "clipped" in name else None


def close(a: Any, b: Any, tolerance: float = 2e-6) -> None:
    a, b = (x.asnumpy() if isinstance(x, nd.NDArray) else np.asarray(x) for x in (a, b))
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", LAYERS)
def test_forward(name: str) -> None:
    layer, x = made(name), draw(T, N, C)
    states = states_of(layer)
    wanted, last = reference.layers(LAYERS[name][1], x, states, reference.weights_of(layer), clip=clip_of(name))
    found, after = layer(nd.array(x), [nd.array(s) for s in states])
    close(found, wanted)
    assert isinstance(after, list) and len(after) == len(last)
    for a, b in zip(after, last, strict=True):
        close(a, b)
    zeros = [np.zeros_like(s) for s in states]
    wanted, _ = reference.layers(LAYERS[name][1], x, zeros, reference.weights_of(layer), clip=clip_of(name))
    close(layer(nd.array(x)), wanted)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("lengths", [None, [2, 5, 1]])
def test_gradients_by_differences(name: str, lengths: Any) -> None:
    """The derivative along a random direction through inputs, states and all weights, in float64."""
    layer = made(name, dtype="float64", use_sequence_length=lengths is not None)
    weights, x = reference.weights_of(layer), draw(T, N, C)
    states = states_of(layer)
    heads = [draw(T, N, layer(nd.array(x, dtype="float64")).shape[2], seed=3)]
    heads += [draw(*s.shape, seed=4) for s in states]
    flat = [(k, d, kind) for k, both in enumerate(weights) for d, w in enumerate(both) for kind in w]

    def loss(x: Any, *rest: Any) -> Any:
        begin, values = rest[: len(states)], dict(zip(flat, rest[len(states) :], strict=True))
        own = [[{kind: values[k, d, kind] for kind in w} for d, w in enumerate(b)] for k, b in enumerate(weights)]
        y, last = reference.layers(LAYERS[name][1], x, begin, own, lengths, clip_of(name))
        return sum((g * z).sum() for g, z in zip(heads, [y, *last], strict=True))

    given = [nd.array(a, dtype="float64") for a in (x, *states)]
    for a in given:
        a.attach_grad()
    with autograd.record():
        y, last = layer(given[0], given[1:], None if lengths is None else nd.array(lengths))
        total = sum((nd.array(g, dtype="float64") * z).sum() for g, z in zip(heads, [y, *last], strict=True))
    total.backward()
    grads = [a.grad.asnumpy() for a in given]
    grads += [layer._reg_params[f"{'lr'[d]}{k}_{kind}"].grad().asnumpy() for k, d, kind in flat]
    arrays = [x, *states, *(weights[k][d][kind] for k, d, kind in flat)]
    assert total.asscalar() == pytest.approx(loss(*arrays), rel=1e-10)
    for i, array in enumerate(arrays):
        along = [draw(*a.shape, seed=i) if j == i else np.zeros_like(a) for j, a in enumerate(arrays)]
        wanted = reference.slope(loss, arrays, along)
        assert (grads[i] * along[i]).sum() == pytest.approx(wanted, rel=1e-6, abs=1e-7), (["x", *states, *flat][i],)
        assert array.shape == grads[i].shape


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # slower in torch, not wrong
@pytest.mark.parametrize("name", [n for n in LAYERS if "clipped" not in n])
def test_as_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    layer = made(name)
    kind, mode, how = LAYERS[name]
    other = {"num_layers": how.get("num_layers", 1), "bidirectional": how.get("bidirectional", False)}
    if "projection_size" in how:
        other["proj_size"] = how["projection_size"]
    if kind is rnn.RNN:
        other["nonlinearity"] = mode
    twin = getattr(torch.nn, kind.__name__)(C, H, **other)
    names = {"i2h_weight": "weight_ih", "h2h_weight": "weight_hh", "i2h_bias": "bias_ih", "h2h_bias": "bias_hh"}
    names["h2r_weight"] = "weight_hr"
    pairs = []
    for key, parameter in layer._reg_params.items():
        at, kind_of = key.split("_", 1)
        theirs = getattr(twin, f"{names[kind_of]}_l{at[1:]}" + "_reverse" * (at[0] == "r"))
        theirs.data = torch.from_numpy(parameter.data().asnumpy())
        pairs.append((parameter, theirs))
    x, states = draw(T, N, C).astype("f"), states_of(layer, dtype="float32")
    theirs_x = torch.from_numpy(x).requires_grad_()
    begin = [torch.from_numpy(s) for s in states]
    wanted, last = twin(theirs_x, tuple(begin) if len(begin) > 1 else begin[0])
    last = list(last) if len(begin) > 1 else [last]
    (wanted.square().sum() + sum(s.square().sum() for s in last)).backward()
    own_x = nd.array(x)
    own_x.attach_grad()
    with autograd.record():
        found, after = layer(own_x, [nd.array(s) for s in states])
        total = found.square().sum() + sum(s.square().sum() for s in after)
    total.backward()
    close(found, wanted.detach().numpy())
    for a, b in zip(after, last, strict=True):
        close(a, b.detach().numpy())
    close(own_x.grad, theirs_x.grad.numpy(), 2e-5)
    for parameter, theirs in pairs:
        close(parameter.grad(), theirs.grad.numpy(), 5e-5)


def test_layout_ntc_is_the_transposed_call() -> None:
    layer = made("gru, 3 layers both ways")
    other = rnn.GRU(H, 3, layout="NTC", bidirectional=True, params=layer.params, prefix=layer.prefix)
    x = draw(T, N, C)
    close(other(nd.array(x.swapaxes(0, 1))), layer(nd.array(x)).swapaxes(0, 1))
    found, (h,) = other(nd.array(x.swapaxes(0, 1)), other.begin_state(N))
    assert found.shape == (N, T, 2 * H) and h.shape == (6, N, H)


def test_sequence_length_is_the_call_on_each_sequence_alone() -> None:
    layer = made("lstm, 2 layers both ways", use_sequence_length=True)
    x, lengths = draw(T, N, C), [2, 5, 1]
    states = states_of(layer)
    found, last = layer(nd.array(x), [nd.array(s) for s in states], sequence_length=nd.array(lengths))
    for k, length in enumerate(lengths):
        alone, after = layer(nd.array(x[:length, k : k + 1]), [nd.array(s[:, k : k + 1]) for s in states])
        close(found[:length, k : k + 1], alone.asnumpy())
        assert (found[length:, k].asnumpy() == 0).all()
        for a, b in zip(last, after, strict=True):
            close(a[:, k : k + 1], b)
    plain = made("lstm")
    close(plain(nd.array(x), None, nd.array(lengths)), plain(nd.array(x)))  # unless it is asked for, they are ignored


def test_clipping_of_nan() -> None:
    x = draw(T, N, C)
    x[1] = np.nan
    for nan, finite in ((False, False), (True, True)):
        layer = rnn.LSTM(H, input_size=C, state_clip_min=-1, state_clip_max=1, state_clip_nan=nan)
        layer.initialize()
        _, (_, c) = layer(nd.array(x), layer.begin_state(N))
        assert np.isfinite(c.asnumpy()).all() == finite
    with pytest.raises(ValueError, match="between two numbers"):
        rnn.LSTM(H, state_clip_min=-1)


def test_dropout_lies_between_layers_in_training_only() -> None:
    layer, x = rnn.GRU(H, 3, dropout=0.5, input_size=C), nd.array(draw(T, N, C))
    layer.initialize(mx.init.Uniform(0.7))
    first = rnn.GRU(H, input_size=C, prefix="first_")
    first.initialize()
    plain = layer(x).asnumpy()

    def trained(seed: int) -> Any:
        mx.random.seed(seed)
        with autograd.train_mode():
            return layer(x).asnumpy()

    assert (layer(x).asnumpy() == plain).all() and (trained(1) == trained(1)).all()
    assert abs(trained(1) - trained(2)).max() > 1e-3 and abs(trained(1) - plain).max() > 1e-3
    weights = reference.weights_of(layer)
    begin = [np.zeros((1, N, H))]
    value = reference.layers("gru", x.asnumpy().astype("f8"), begin, weights[:1])[0]
    mx.random.seed(1)
    for k in (1, 2):
        kept = nd.Dropout(nd.ones((T, N, H)), p=0.5, mode="always").asnumpy()
        value = reference.layers("gru", value * kept, begin, weights[k : k + 1])[0]
    close(trained(1), value)


def test_parameters_states_and_text() -> None:
    layer = rnn.LSTM(H, 2, bidirectional=True, dropout=0.1, projection_size=2, prefix="p_")
    assert repr(layer) == "LSTM(None -> 6, TNC, num_layers=2, dropout=0.1, bidirectional)"
    shapes = {name: parameter.shape for name, parameter in layer.collect_params().items()}
    assert list(shapes)[:6] == [
        *("p_l0_i2h_weight", "p_l0_h2h_weight", "p_l0_i2h_bias", "p_l0_h2h_bias", "p_l0_h2r_weight"),
        "p_r0_i2h_weight",
    ]
    assert shapes["p_r0_i2h_weight"] == (24, 0) and shapes["p_r1_i2h_weight"] == (24, 4)
    assert shapes["p_l1_h2h_weight"] == (24, 2) and shapes["p_l1_h2r_weight"] == (2, 6)
    layer.initialize()
    assert layer(nd.ones((T, N, C))).shape == (T, N, 4)
    assert repr(layer).startswith("LSTM(4 -> 6") and layer.l0_i2h_weight.shape == (24, C)
    assert [info["shape"] for info in layer.state_info(N)] == [(4, N, 2), (4, N, H)]
    h, c = layer.begin_state(N, nd.ones, dtype="float64")
    assert h.shape == (4, N, 2) and c.dtype == np.float64 and (c.asnumpy() == 1).all()
    assert layer.begin_state(batch_size=2, func=nd.random.uniform, low=2, high=3)[0].min().asscalar() >= 2
    names = list(layer._collect_params_with_prefix())
    assert names[:2] == ["_unfused.0.l_cell.i2h_weight", "_unfused.0.l_cell.h2h_weight"]
    assert list(rnn.GRU(2)._collect_params_with_prefix())[:2] == ["_unfused.0.i2h_weight", "_unfused.0.h2h_weight"]
    own = rnn.RNN(3, i2h_bias_initializer="ones", h2h_weight_initializer=mx.init.Constant(2), input_size=1)
    own.initialize()
    assert own.l0_i2h_bias.data().asnumpy().tolist() == [1, 1, 1] and (own.l0_h2h_weight.data().asnumpy() == 2).all()


def test_parameters_go_through_a_file(tmp_path: Any) -> None:
    layer, other = made("lstm, 2 layers both ways"), rnn.LSTM(H, 2, bidirectional=True)
    layer.save_parameters(str(tmp_path / "p"))
    other.load_parameters(str(tmp_path / "p"))
    x = nd.array(draw(T, N, C))
    assert (other(x).asnumpy() == layer(x).asnumpy()).all()


def test_on_several_contexts() -> None:
    layer, contexts = rnn.GRU(H, 2, bidirectional=True), [mx.cpu(0), mx.cpu(1)]
    layer.initialize(mx.init.Uniform(0.7), ctx=contexts)
    found = [layer(x, layer.begin_state(N, ctx=x.context)) for x in (nd.array(draw(T, N, C), ctx=c) for c in contexts)]
    assert [(y.context, h.context) for y, (h,) in found] == [(c, c) for c in contexts]
    close(found[0][0], found[1][0])


def test_gradient_of_the_gradient() -> None:
    layer, direction = made("lstm", dtype="float64"), draw(T, N, C, seed=1)

    def squared_gradient(values: Any) -> tuple[float, Any]:
        x = nd.array(values, dtype="float64")
        x.attach_grad()
        with autograd.record():
            (g,) = autograd.grad(layer(x).square().sum(), [x], create_graph=True)
            total = g.square().sum()
        total.backward()
        return total.asscalar(), x.grad.asnumpy()

    _, g = squared_gradient(draw(T, N, C))
    wanted = reference.slope(lambda x: squared_gradient(x)[0], [draw(T, N, C)], [direction])
    assert (g * direction).sum() == pytest.approx(wanted, rel=1e-6)


def test_half_precision() -> None:
    layer = made("lstm")
    x = nd.array(draw(T, N, C))
    wanted = layer(x).asnumpy()
    layer.cast("float16")
    y, (h, _) = layer(x.astype("float16"), layer.begin_state(N))
    assert y.dtype == h.dtype == np.float16
    close(y.astype("float32"), wanted, 3e-3)


def test_errors_name_what_does_not_fit() -> None:
    layer = rnn.LSTM(H, 2)
    layer.initialize()
    with pytest.raises(mx.MXNetError, match=r"layout is TNC"):
        layer(nd.ones((T, C)))
    assert layer.l0_i2h_weight.shape == (24, 0), "nothing is settled by a bad call"
    layer(nd.ones((T, N, C)))
    with pytest.raises(mx.MXNetError, match=r"C = 4"):
        layer(nd.ones((T, N, C + 1)))
    good = layer.begin_state(N)
    for bad in (good[:1], [*good, good[0]], good[0], [], layer.begin_state(N + 1), [good[0][0], good[1][0]]):
        with pytest.raises(ValueError, match=r"Expecting \(2, 3, 6\), \(2, 3, 6\)"):
            layer(nd.ones((T, N, C)), bad)
    layer.hybridize()
    with pytest.raises(ValueError, match="invalid recurrent state"):
        layer(nd.ones((T, N, C)), good[:1])
    lengths = rnn.GRU(H, use_sequence_length=True)
    lengths.initialize()
    with pytest.raises(mx.MXNetError, match="there are 3 sequences"):
        lengths(nd.ones((T, N, C)), None, nd.ones((T,)))
    with pytest.raises(AssertionError, match="TNC or NTC"):
        rnn.GRU(H, layout="CNT")
    with pytest.raises(KeyError, match="sigmoid"):
        rnn.RNN(H, activation="sigmoid")
    with pytest.raises(ValueError, match="GRU: dropout must be from 0 to below 1, not 1"):
        rnn.GRU(H, dropout=1.0)
    with pytest.raises(ValueError, match="GRU: hidden_size is a whole number from 1 on, not 0"):
        rnn.GRU(0)
    with pytest.raises(RuntimeError, match="initialize"):
        rnn.GRU(H)(nd.ones((T, N, C)))
    with pytest.raises(mx.MXNetError, match="dtype"):
        layer.hybridize(False)
        layer(nd.ones((T, N, C), dtype="float64"))


def test_operator_with_all_weights_in_one_vector() -> None:
    for name, mode in (("relu", "rnn_relu"), ("gru, 3 layers both ways", "gru"), ("lstm projected both ways", "lstm")):
        layer, x = made(name), nd.array(draw(T, N, C))
        arrays = [p.data().reshape((-1,)) for p in layer._reg_params.values()]
        kinds = [len(p.shape) for p in layer._reg_params.values()]
        packed = nd.concat(*(a for rank in (2, 1) for a, k in zip(arrays, kinds, strict=True) if k == rank), dim=0)
        states = [nd.array(s) for s in states_of(layer)]
        how = {
            "state_size": H,
            "num_layers": layer._num_layers,
            "mode": mode,
            "bidirectional": layer._dir == 2,
            "projection_size": layer._projection_size,
        }
        wanted, last = layer(x, states)
        found = nd.RNN(x, packed, *states, state_outputs=True, **how)
        for a, b in zip(found, [wanted, *last], strict=True):
            close(a, b)
        close(nd.RNN(x, packed, *states, **how), wanted)
    with pytest.raises(mx.MXNetError, match="needed"):
        nd.RNN(x, packed[:-1], *states, **how)
    with pytest.raises(mx.MXNetError, match="rnn_relu, rnn_tanh, lstm, gru"):
        nd.RNN(x, packed, *states, **{**how, "mode": "rnn"})
    gru, lengths = made("gru", use_sequence_length=True), nd.array([1, 5, 2])
    weights = nd.concat(*(p.data().reshape((-1,)) for p in gru._reg_params.values()), dim=0)
    begin = gru.begin_state(N)[0]
    y = nd.RNN(x, weights, begin, lengths, state_size=H, num_layers=1, mode="gru", use_sequence_length=True)
    close(y, gru(x, None, lengths))


class Tagger(gluon.HybridBlock):
    """Layers and one output per step; the loss looks at all steps, and at the last states."""

    def __init__(self, layer: Any):
        super().__init__()
        self.layer = layer
        self.head = gluon.nn.Dense(3, flatten=False)

    def forward(self, x: Any, lengths: Any) -> Any:
        y, states = self.layer(x, self.layer.begin_state(N), lengths)
        return self.head(y).square().sum(axis=(0, 2)) + sum((s * s).sum() for s in states)


@pytest.mark.parametrize(
    "kind,how,modes",
    [
        (rnn.LSTM, {"num_layers": 2, "dropout": 0.4}, ("eager", "hybridized", "compiled")),
        (rnn.GRU, {"bidirectional": True}, ("eager", "compiled")),
    ],
    ids=["lstm", "gru"],
)
def test_hybridized_and_compiled_as_eager(kind: Any, how: dict[str, Any], modes: Any) -> None:
    """Losses and updates, with dropout from the same seed; a loop is compiled once for each layer and direction."""
    x, lengths = nd.array(draw(T, N, C)), nd.array([2, 5, 4])
    results = {}
    for mode in modes:
        mx.random.seed(5)
        net = Tagger(kind(H, use_sequence_length=True, **how))
        net.initialize(mx.init.Uniform(0.5))
        net(x, lengths)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        if mode == "compiled":
            step = mx.compile(net, trainer=trainer)
            losses = [step(x, lengths).asnumpy() for _ in range(2)]
            names = [n.op.name for n in step.graph.nodes()]
            assert names.count("scan") == 4, "two loops, and two that go back"
            assert names.count("matmul") <= 3 * 5, "inputs, and gradients of weights, of all steps at once"
        else:
            net.hybridize(mode == "hybridized")
            losses = []
            for _ in range(2):
                with autograd.record():
                    y = net(x, lengths)
                y.backward()
                trainer.step(N)
                losses.append(y.asnumpy())
        results[mode] = [*losses, *(p.data().asnumpy() for p in net.collect_params().values())]
    for mode in modes[1:]:
        for a, b in zip(results[mode], results["eager"], strict=True):
            close(a, b, 3e-6)
