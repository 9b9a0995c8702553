"""Recurrent cells: one step against numpy, unrolled against single steps, stacks and modifiers, traced and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rnn_reference as reference

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.gluon import rnn
from gluongraph.gluon.contrib import rnn as contrib

N, T, C, H = 3, 5, 4, 6
CELLS: dict[str, Any] = {
    "rnn": lambda: rnn.RNNCell(H),
    "rnn relu": lambda: rnn.RNNCell(H, activation="relu"),
    "lstm": lambda: rnn.LSTMCell(H),
    "gru": lambda: rnn.GRUCell(H),
    "lstmp": lambda: contrib.LSTMPCell(H, 2),
}
MODES = {"rnn": "tanh", "rnn relu": "relu", "lstm": "lstm", "gru": "gru", "lstmp": "lstm"}


def stacked() -> Any:
    stack = rnn.HybridSequentialRNNCell()
    stack.add(rnn.LSTMCell(C))
    stack.add(rnn.ResidualCell(rnn.GRUCell(C)))
    stack.add(rnn.RNNCell(H))
    return stack


def both_ways() -> Any:
    return rnn.BidirectionalCell(rnn.LSTMCell(H), rnn.GRUCell(2))


def mixed() -> Any:
    stack = rnn.SequentialRNNCell()
    stack.add(rnn.DropoutCell(0.0))
    stack.add(both_ways())
    stack.add(rnn.ZoneoutCell(rnn.LSTMCell(3)))
    return stack


OTHERS: dict[str, Any] = {
    "stack": stacked,
    "both ways": both_ways,
    "mixed": mixed,
    "zoneout": lambda: rnn.ZoneoutCell(rnn.LSTMCell(H), 0.3, 0.2),
    "residual": lambda: rnn.ResidualCell(rnn.LSTMCell(C)),
    "variational": lambda: contrib.VariationalDropoutCell(rnn.GRUCell(H), 0.3, 0.2, 0.1),
    "convolution": lambda: contrib.Conv1DLSTMCell((1, C), 2, 3, 3, i2h_pad=1),
}


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ready(make: Any) -> Any:
    cell = make()
    cell.initialize(mx.init.Uniform(0.7))
    return cell


def close(a: Any, b: Any, tolerance: float = 2e-6) -> None:
    a, b = (x.asnumpy() if isinstance(x, nd.NDArray) else np.asarray(x) for x in (a, b))
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


def begin(cell: Any, n: int = N) -> list[Any]:
    return [nd.array(draw(*info["shape"], seed=7 + k)) for k, info in enumerate(cell.state_info(n))]


@pytest.mark.parametrize("name", CELLS)
def test_one_step(name: str) -> None:
    cell, x = ready(CELLS[name]), draw(N, C)
    states = begin(cell)
    output, after = cell(nd.array(x), states)
    weights = {k: p.data().asnumpy().astype("f8") for k, p in cell._reg_params.items()}
    wanted = reference.step(MODES[name], x.astype("f8"), [s.asnumpy().astype("f8") for s in states], weights)
    assert isinstance(after, list) and len(after) == len(wanted)
    for a, b in zip([output, *after], [wanted[0], *wanted], strict=True):
        close(a, b)


def by_steps(cell: Any, x: Any, states: Any, lengths: Any) -> tuple[Any, Any]:
    """Outputs (steps, n, ...) and last states from single calls; sequences that have ended give 0 and keep states."""
    cell.reset()
    outputs = []
    for t in range(len(x)):
        output, after = cell(x[t], states)
        if lengths is not None:
            on = nd.array([1.0 if t < length else 0.0 for length in lengths]).reshape((-1, 1))
            output, after = output * on, [a * on + b * (1 - on) for a, b in zip(after, states, strict=True)]
        outputs.append(output)
        states = after
    return nd.stack(*outputs), states


@pytest.mark.parametrize("name", [*CELLS, "stack", "zoneout", "residual"])
@pytest.mark.parametrize("lengths", [None, [2, 5, 1]])
def test_unrolled_is_step_after_step(name: str, lengths: Any) -> None:
    """Outputs, states and gradients; Zoneout draws nothing outside of training."""
    cell, x = ready((CELLS | OTHERS)[name]), nd.array(draw(T, N, C))
    states = begin(cell)
    cell.unroll(T, x, layout="TNC")
    found = []
    for loop in (True, False):
        x.attach_grad()
        with autograd.record(train_mode=False):
            if loop:
                valid = None if lengths is None else nd.array(lengths)
                y, last = cell.unroll(T, x, states, "TNC", True, valid)
            else:
                y, last = by_steps(cell, x, states, lengths)
            total = y.square().sum() + sum(s.sum() for s in last)
        total.backward()
        found.append([y, *last, x.grad, *(p.grad().copy() for p in cell.collect_params().values())])
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("name", [*CELLS, *OTHERS])
@pytest.mark.parametrize("lengths", [None, [2, 5, 1]])
def test_layouts_and_forms_of_one_result(name: str, lengths: Any) -> None:
    """One array or a list, time first or batch first, given and handed back: the same numbers."""
    cell = ready((CELLS | OTHERS)[name])
    one = (1,) if name == "convolution" else ()
    x, valid = nd.array(draw(T, N, *one, C)), None if lengths is None else nd.array(lengths)
    turned = nd.swapaxes(x, 0, 1)
    wanted, last = cell.unroll(T, x, None, "TNC", True, valid)
    assert wanted.shape[:2] == (T, N)
    for merge in (None, True, False):
        for inputs, layout in ((x, "TNC"), (turned, "NTC"), ([x[t] for t in range(T)], "TNC")):
            found, after = cell.unroll(T, inputs, layout=layout, merge_outputs=merge, valid_length=valid)
            if merge is not None:
                assert isinstance(found, list) != merge
            if isinstance(found, list):
                assert len(found) == T
                found = nd.stack(*found, axis=0)
                layout = "TNC"
            close(found if layout == "TNC" else nd.swapaxes(found, 0, 1), wanted)
            for a, b in zip(after, last, strict=True):
                close(a, b)
    if lengths is not None:
        assert (wanted[2:, 0].asnumpy() == 0).all() and (wanted[1:, 2].asnumpy() == 0).all()


def test_a_cell_is_its_layer() -> None:
    for make, kind, how in ((CELLS["rnn"], rnn.RNN, {"activation": "tanh"}), (CELLS["lstm"], rnn.LSTM, {})):
        cell = ready(make)
        x = nd.array(draw(T, N, C))
        y, _ = cell.unroll(T, x, layout="TNC", merge_outputs=True)
        layer = kind(H, input_size=C, **how)
        layer.initialize()
        for name, parameter in cell._reg_params.items():
            layer._reg_params["l0_" + name].set_data(parameter.data())
        close(layer(x), y)


def test_both_ways_runs_backwards_from_the_end_of_each_sequence() -> None:
    cell = ready(both_ways)
    left, right = cell._children.values()
    x, lengths = nd.array(draw(T, N, C)), [2, 5, 1]
    y, last = cell.unroll(T, x, layout="TNC", merge_outputs=True, valid_length=nd.array(lengths))
    for k, length in enumerate(lengths):
        part = x[:length, k : k + 1]
        there, l_last = left.unroll(length, part, layout="TNC", merge_outputs=True)
        back, r_last = right.unroll(length, nd.flip(part, axis=0), layout="TNC", merge_outputs=True)
        close(y[:length, k : k + 1], nd.concat(there, nd.flip(back, axis=0), dim=2))
        for a, b in zip(last, l_last + r_last, strict=True):
            close(a[k : k + 1], b)


@pytest.mark.parametrize("name", ["gru", "lstm", "zoneout", "both ways"])
def test_on_several_contexts(name: str) -> None:
    """A sequence is run where it lies; the weights are there too."""
    cell, contexts = (CELLS | OTHERS)[name](), [mx.cpu(0), mx.cpu(1)]
    cell.initialize(mx.init.Uniform(0.7), ctx=contexts)
    found = [cell.unroll(T, nd.array(draw(T, N, C), ctx=ctx), layout="TNC", merge_outputs=True) for ctx in contexts]
    assert [(y.context, *(s.context for s in last)) for y, last in found] == [
        (ctx,) * (1 + len(cell.state_info())) for ctx in contexts
    ]
    close(found[0][0], found[1][0])


def test_zoneout_keeps_what_was() -> None:
    base = rnn.RNNCell(H, input_size=C)
    cell = ready(lambda: rnn.ZoneoutCell(base, 0.5, 0.5))
    x = nd.array(draw(40, 20, C))
    mx.random.seed(3)
    with autograd.train_mode():
        y, _ = cell.unroll(40, x, layout="TNC", merge_outputs=True)
        mx.random.seed(3)
        again, _ = cell.unroll(40, x, layout="TNC", merge_outputs=True)
    assert (y.asnumpy() == again.asnumpy()).all(), "reset by unroll"
    kept = (y.asnumpy()[1:] == y.asnumpy()[:-1]).mean()
    assert 0.47 < kept < 0.53 and 0.45 < (y.asnumpy()[0] == 0).mean() < 0.55
    plain = rnn.RNNCell(H, input_size=C, params=base.params, prefix=base.prefix)
    close(cell.unroll(40, x, layout="TNC")[0][-1], plain.unroll(40, x, layout="TNC")[0][-1])


def test_variational_dropout_has_one_mask_a_sequence() -> None:
    x = nd.ones((T, N, C))
    for states in (0.0, 0.4):
        cell = ready(lambda s=states: contrib.VariationalDropoutCell(rnn.RNNCell(H, activation="relu"), 0.5, s, 0.5))
        cell.base_cell.h2h_weight.initialize(mx.init.Zero(), force_reinit=True)
        with autograd.train_mode():
            y = cell.unroll(T, x, layout="TNC", merge_outputs=True)[0].asnumpy()
            other = cell.unroll(T, x, layout="TNC", merge_outputs=True)[0].asnumpy()
        assert (y == y[0]).all() and (other == other[0]).all() and (y != other).any()
        assert (y == 0).any() and (y != 0).any()


def test_dropout_cell() -> None:
    cell = rnn.DropoutCell(0.5)
    x = nd.ones((N, T, C))
    assert cell.state_info(N) == cell.begin_state(batch_size=N) == []
    assert cell.unroll(T, x)[0] is not None and (cell.unroll(T, x)[0].asnumpy() == 1).all()
    with autograd.train_mode():
        whole, parts = cell.unroll(T, x)[0], cell.unroll(T, x, merge_outputs=False)[0]
    assert set(np.unique(whole.asnumpy())) == {0, 2} and len(parts) == T and parts[0].shape == (N, C)
    assert set(np.unique(np.stack([p.asnumpy() for p in parts]))) == {0, 2}


def test_activations_by_name_function_and_block() -> None:
    x = nd.array(draw(N, C))
    linear = ready(lambda: rnn.RNNCell(H, activation=lambda z: z, prefix="a_"))
    total = linear(x, begin(linear))[0]
    for activation, wanted in (
        (gluon.nn.LeakyReLU(0.1), nd.LeakyReLU(total, slope=0.1)),
        (nd.sigmoid, nd.sigmoid(total)),
        ("softsign", nd.softsign(total)),
    ):
        cell = rnn.RNNCell(H, activation=activation, params=linear.params, prefix="a_")
        close(cell(x, begin(cell))[0], wanted)
        assert cell.unroll(2, [x, x], begin(cell), merge_outputs=True)[0].shape == (N, 2, H) and not cell._children
    other = ready(lambda: rnn.LSTMCell(H, activation="relu", recurrent_activation="softsign"))
    assert other(x, begin(other))[0].shape == (N, H)
    with pytest.raises(ValueError, match="relu, sigmoid, softrelu, softsign, tanh"):
        rnn.LSTMCell(H, activation="swish")


class Doubled(rnn.LSTMCell):
    """A cell of one's own on top of one from here."""

    def forward(self, inputs: Any, states: Any) -> Any:
        output, states = super().forward(inputs, states)
        return output * 2, states


class Counter(rnn.HybridRecurrentCell):
    """Written the Gluon way, with `hybrid_forward`."""

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [{"shape": (batch_size, 1), "__layout__": "NC"}]

    def hybrid_forward(self, F: Any, x: Any, states: Any) -> Any:
        count = states[0] + 1
        return self._get_activation(F, F.broadcast_mul(x, count), "relu"), [count]


def test_cells_of_ones_own() -> None:
    own = ready(lambda: Doubled(H, input_size=C))
    x = nd.array(draw(T, N, C))
    y, _ = own.unroll(T, x, layout="TNC", merge_outputs=True)
    plain = rnn.LSTMCell(H, params=own.params, prefix=own.prefix)
    close(y, 2 * plain.unroll(T, x, layout="TNC", merge_outputs=True)[0])
    y, (count,) = Counter().unroll(T, x, layout="TNC", merge_outputs=True)
    close(y, np.maximum(x.asnumpy() * np.arange(1, T + 1).reshape(T, 1, 1), 0))
    assert count.asnumpy().tolist() == [[T]] * N
    seen: list[Any] = []
    plain.register_forward_hook(lambda *args: seen.append(args))
    plain.unroll(T, x, layout="TNC")
    assert len(seen) == T, "whoever looks at single steps gets single steps"


def test_names_text_and_shared_parameters() -> None:
    cell = rnn.LSTMCell(H, prefix="c_")
    assert repr(cell) == "LSTMCell(None -> 24)" and list(cell.collect_params()) == [
        *("c_i2h_weight", "c_h2h_weight", "c_i2h_bias", "c_h2h_bias"),
    ]
    assert repr(rnn.RNNCell(2, input_size=3)) == "RNNCell(3 -> 2, tanh)"
    assert repr(contrib.LSTMPCell(5, 3)) == "LSTMPCell(None -> 20 -> 3)"
    zoneout = rnn.ZoneoutCell(cell, 0.2, 0.3)
    assert repr(zoneout) == "ZoneoutCell(p_out=0.2, p_state=0.3, LSTMCell(None -> 24))"
    assert zoneout.prefix == "c_zoneout" and list(zoneout.collect_params()) == list(cell.collect_params())
    assert next(iter(zoneout._collect_params_with_prefix())) == "base_cell.i2h_weight"
    stack = stacked()
    assert len(stack) == 3 and isinstance(stack[0], rnn.LSTMCell)
    assert repr(stack).splitlines()[1] == "(0): LSTMCell(None -> 16)"
    assert [info["shape"] for info in stack.state_info(2)] == [(2, C), (2, C), (2, C), (2, H)]
    ones = stack.begin_state(batch_size=2, func=nd.ones)
    assert len(ones) == 4 and all((s.asnumpy() == 1).all() for s in ones)
    assert repr(both_ways()) == "BidirectionalCell(forward=LSTMCell(None -> 24), backward=GRUCell(None -> 6))"


def test_errors() -> None:
    cell = rnn.LSTMCell(H, input_size=C)
    cell.initialize()
    x = nd.ones((N, C))
    with pytest.raises(ValueError, match="has 2 states, not 1"):
        cell(x, cell.begin_state(N)[:1])
    with pytest.raises(ValueError, match=r"Expecting \(3, 6\), got \(2, 6\)"):
        cell(x, cell.begin_state(2))
    with pytest.raises(mx.MXNetError, match="take 4 features"):
        cell(nd.ones((N, C + 1)), cell.begin_state(N))
    for inputs in (nd.ones((N, T, C)), [x] * T):
        with pytest.raises(ValueError, match="4 steps are asked for, and the inputs have 5"):
            cell.unroll(4, inputs)
    rnn.ZoneoutCell(cell)
    with pytest.raises(AssertionError, match="modifier cell"):
        cell.begin_state(N)
    with pytest.raises(AssertionError, match="modifier cell"):
        rnn.ResidualCell(cell)
    both = both_ways()
    with pytest.raises(NotImplementedError, match="call unroll"):
        both(x, [])
    for modifier in (rnn.ZoneoutCell, lambda c: contrib.VariationalDropoutCell(c, 0, 0.5)):
        for wrapped in (both, mixed()):
            with pytest.raises(AssertionError, match="no single steps"):
                modifier(wrapped)
    with pytest.raises(ValueError, match="4 states, not 1"):
        stacked()(x, [x])
    with pytest.raises(ValueError, match=r"DropoutCell: rate must be from 0 to 1, not 1\.5"):
        rnn.DropoutCell(1.5)
    with pytest.raises(NotImplementedError, match="state_info"):
        rnn.RecurrentCell().begin_state(1)
    with pytest.raises(ValueError, match="hybrid"):
        rnn.HybridSequentialRNNCell().add(rnn.SequentialRNNCell())
    with pytest.raises(AssertionError, match="odd"):
        contrib.Conv2DRNNCell((1, 4, 4), 2, 3, 2)
    with pytest.raises(ValueError, match="NCHW"):
        contrib.Conv2DRNNCell((1, 4, 4), 2, 3, 3, conv_layout="NHWC")


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_one_point_are_products(kind: str, dims: int) -> None:
    """With kernels of one element, each place is a sequence of its own for the plain cell."""
    extents = (3, 2, 2)[:dims]
    conv = ready(lambda: getattr(contrib, f"Conv{dims}D{kind}Cell")((C, *extents), H, 1, 1))
    plain = getattr(rnn, f"{kind}Cell")(H, input_size=C)
    plain.initialize()
    for name, parameter in conv._reg_params.items():
        plain._reg_params[name].set_data(parameter.data().reshape(plain._reg_params[name].shape))
    x = draw(T, N, C, *extents)
    y, _ = conv.unroll(T, nd.array(x), layout="TNC", merge_outputs=True)
    rows = np.moveaxis(x, 2, -1).reshape(T, -1, C)
    wanted, _ = plain.unroll(T, nd.array(rows), layout="TNC", merge_outputs=True)
    close(np.moveaxis(y.asnumpy(), 2, -1).reshape(T, -1, H), wanted)


def test_dynamic_unroll_is_unroll() -> None:
    cell, x = ready(lambda: rnn.LSTMCell(H, input_size=C)), nd.array(draw(T, N, C))
    for lengths in (None, nd.array([2, 5, 1])):
        wanted, last = cell.unroll(T, x, begin(cell), "TNC", True, lengths)
        for layout in ("TNC", "NTC"):
            inputs = x if layout == "TNC" else nd.swapaxes(x, 0, 1)
            y, after = contrib.dynamic_unroll(cell, inputs, begin(cell), layout=layout, valid_length=lengths)
            close(y if layout == "TNC" else nd.swapaxes(y, 0, 1), wanted)
            for a, b in zip(after, last, strict=True):
                close(a, b)


class Unrolled(gluon.HybridBlock):
    """A cell over a sequence, with outputs as a list and states in the loss."""

    def __init__(self, cell: Any):
        super().__init__()
        self.cell = cell

    def forward(self, x: Any, lengths: Any) -> Any:
        outputs, last = self.cell.unroll(len(x), x, layout="TNC", merge_outputs=False, valid_length=lengths)
        return sum((y * y).sum(axis=1) for y in outputs) + sum(s.sum() for s in last)


def test_compiled_as_eager() -> None:
    """One cell in a loop, one step by step: Zoneout looks at the output of the step before."""
    x, lengths = nd.array(draw(2, N, C)), nd.array([2, 1, 2])
    results = {}
    for compiled in (False, True):
        mx.random.seed(5)
        stack = rnn.HybridSequentialRNNCell()
        stack.add(rnn.GRUCell(C, input_size=C))
        stack.add(rnn.ZoneoutCell(rnn.RNNCell(2, input_size=C), 0.3, 0.2))
        net = Unrolled(stack)
        net.initialize(mx.init.Uniform(0.5))
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        if compiled:
            step = mx.compile(net, trainer=trainer)
            losses = [step(x, lengths).asnumpy() for _ in range(2)]
            assert [n.op.name for n in step.graph.nodes()].count("scan") == 2
        else:
            losses = []
            for _ in range(2):
                with autograd.record():
                    y = net(x, lengths)
                y.backward()
                trainer.step(N)
                losses.append(y.asnumpy())
        results[compiled] = [*losses, *(p.data().asnumpy() for p in net.collect_params().values())]
    for a, b in zip(results[True], results[False], strict=True):
        close(a, b, 5e-6)
