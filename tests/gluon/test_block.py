"""Blocks: names, registration, collection, files, hooks, both ways to write a forward."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, init, nd
from gluongraph.errors import FormatError
from gluongraph.gluon import Block, HybridBlock, nn


class Net(HybridBlock):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.first = nn.Dense(4, activation="relu")
            self.second = nn.Dense(2)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


class Scaled(HybridBlock):
    """The old style, with a parameter of its own whose shape the first input tells."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = self.params.get("scale", shape=(0,), init="ones", allow_deferred_init=True)

    def infer_shape(self, x: Any, *args: Any) -> None:
        self.scale.shape = (x.shape[-1],)

    def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
        assert F is nd
        return F.relu(x) * scale


def test_names() -> None:
    net = Net(prefix="net_")
    assert list(net.collect_params()) == [
        "net_dense0_weight", "net_dense0_bias", "net_dense1_weight", "net_dense1_bias"
    ]  # fmt: skip
    assert net.name == "net" and net.first.name == "net_dense0"
    a, b = nn.Conv2D(1, 1), nn.Conv2D(1, 1)
    assert a.prefix != b.prefix and a.prefix.startswith("conv")
    assert list(net.collect_params(".*bias")) == ["net_dense0_bias", "net_dense1_bias"]


def test_shared_parameters() -> None:
    a = nn.Dense(3, in_units=3, prefix="a_")
    b = nn.Dense(3, in_units=3, params=a.params)
    assert b.weight is a.weight
    net = nn.Sequential()
    net.add(a, b)
    assert list(net.collect_params()) == ["a_weight", "a_bias"]


def test_two_parameters_of_one_name_are_refused() -> None:
    net = nn.Sequential()
    net.add(nn.Dense(1, in_units=1, prefix="x_"), nn.Dense(1, in_units=1, prefix="x_"))
    with pytest.raises(ValueError, match="'x_weight'"):
        net.collect_params()


def test_repr() -> None:
    net = Net(prefix="net_")
    assert repr(net) == ("Net(\n  (first): Dense(None -> 4, Activation(relu))\n  (second): Dense(None -> 2, linear)\n)")
    net.initialize()
    net(nd.ones((1, 3)))
    assert "Dense(3 -> 4" in repr(net)


def test_deferred_shapes_both_styles() -> None:
    net = nn.HybridSequential()
    net.add(Net(), Scaled())
    net.initialize()
    assert net(nd.ones((5, 3))).shape == (5, 2)
    assert net[0].first.weight.shape == (4, 3) and net[1].scale.shape == (2,)
    with pytest.raises(ValueError, match="inner sizes differ"):
        net(nd.ones((5, 4)))


def test_a_block_that_is_given_nothing() -> None:
    """Whether its shapes are known or not, what is missing is an argument of forward."""
    layer = nn.Dense(2)
    layer.initialize()
    for _ in range(2):
        with pytest.raises(TypeError, match=r"Dense.forward\(\) missing 1 required positional argument: 'x'"):
            layer()
        layer(nd.ones((1, 3)))


def test_a_block_that_does_not_say_its_shapes() -> None:
    class Mute(HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.w = self.params.get("w", shape=(0,), allow_deferred_init=True)

        def hybrid_forward(self, F: Any, x: Any, w: Any) -> Any:
            return x + w

    net = Mute()
    net.initialize()
    with pytest.raises(
        gluon.parameter.MXNetError, match=r"Mute .* unknown shape[\s\S]*test_block.py[\s\S]*infer_shape"
    ):
        net(nd.ones((2,)))


def test_not_initialized() -> None:
    with pytest.raises(RuntimeError, match=r"has not been initialized[\s\S]*initialize\(\)"):
        nn.Dense(2, in_units=2)(nd.ones((1, 2)))


def test_no_forward() -> None:
    with pytest.raises(NotImplementedError, match="Block says what it computes"):
        Block()(1)


def test_attributes_keep_their_kind() -> None:
    net = Net()
    with pytest.raises(TypeError, match="first is a Dense"):
        net.first = 3
    net.first = nn.Dense(7)
    assert net._children["first"] is net.first


def test_children_of_hybrid_blocks_are_hybrid() -> None:
    with pytest.raises(ValueError, match="must be hybrid blocks"):
        nn.HybridSequential().add(nn.Lambda("relu"))
    net = nn.Sequential()
    net.add(nn.Lambda("relu"), nn.HybridLambda(lambda F, x: F.tanh(x)), nn.HybridLambda("negative"))
    np.testing.assert_allclose(net(nd.array([-1, 1])).asnumpy(), [0, -np.tanh(1)], rtol=1e-6)


def test_sequential() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(2), nn.Dense(3), nn.Dense(4))
    assert len(net) == 3 and net[1]._units == 3 and [b._units for b in net[1:]] == [3, 4]


def test_a_sequential_of_hybrid_blocks_could_be_a_hybrid_one() -> None:
    net = nn.Sequential(prefix="s_")
    net.add(nn.Dense(1))
    with pytest.warns(UserWarning, match="all children of the Sequential 's' are hybrid blocks"):
        net.hybridize()
    net.add(gluon.Block())
    net.hybridize()  # and no warning


class Listed(gluon.Block):
    def __init__(self, layers: Any):
        super().__init__()
        self.layers = layers


@pytest.mark.parametrize("layers", [[nn.Dense(1)], {"a": (2, [nn.Dense(1)])}])
def test_blocks_that_only_a_list_knows(layers: Any) -> None:
    with pytest.warns(UserWarning, match=r"Listed\.layers holds blocks that are no children"):
        assert not Listed(layers).collect_params()


def test_blocks_in_lists_that_are_children_too() -> None:
    layer = nn.Dense(1)
    net = Listed([layer, 3, "text"])
    net.register_child(layer)
    assert len(net.collect_params()) == 2  # and no warning


def test_what_a_property_lacks_is_what_is_said() -> None:
    class Odd(gluon.Block):
        @property
        def size(self) -> int:
            return self.nothing.size

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = Odd().size


def test_apply_and_hooks() -> None:
    net, seen = Net(), []
    net.apply(lambda b: seen.append(type(b).__name__))
    assert seen == ["Activation", "Dense", "Dense", "Net"]
    net.initialize()
    calls: list[str] = []
    before = net.first.register_forward_pre_hook(lambda block, args: calls.append(f"before {args[0].shape}"))
    net.first.register_forward_hook(lambda block, args, out: calls.append(f"after {out.shape}"))
    net(nd.ones((1, 3)))
    before.detach()
    net(nd.ones((1, 3)))
    assert calls == ["before (1, 3)", "after (1, 4)", "after (1, 4)"]


def test_cast() -> None:
    net = Net()
    net.initialize()
    net(nd.ones((1, 3)))
    net.cast("float64")
    assert net(nd.ones((1, 3), dtype="float64")).dtype == np.float64


def test_parameters_to_file_and_back(tmp_path: pathlib.Path) -> None:
    file, x = str(tmp_path / "net.params"), nd.ones((2, 3))
    net = Net()
    net.initialize(init.Normal(1.0))
    y = net(x).asnumpy()
    net.save_parameters(file)
    other = Net()  # other names, and neither initialized nor shaped
    other.load_parameters(file)
    assert (other(x).asnumpy() == y).all()
    waiting = Net()
    waiting.initialize()
    waiting.load_parameters(file)
    assert (waiting(x).asnumpy() == y).all()


def test_parameters_by_full_name(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "params")
    a, b = (nn.Dense(2, in_units=2, prefix=p) for p in ("a_", "b_"))
    a.initialize(init.One())
    a.collect_params().save(file, strip_prefix="a_")
    b.collect_params().load(file, restore_prefix="b_")
    assert (b.weight.data().asnumpy() == 1).all()
    with pytest.raises(ValueError, match="does not begin with"):
        a.collect_params().save(file, strip_prefix="b_")
    with pytest.raises(AssertionError, match="has no b_weight"):
        b.collect_params().load(file)


def test_a_file_that_has_changed_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "net.params"
    net = nn.Dense(2, in_units=2)
    net.initialize(init.One())
    net.save_parameters(str(file))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FormatError, match=r"net.params is damaged[^~]*restore"):
        net.load_parameters(str(file))
    assert (net.weight.data().asnumpy() == 1).all()


def test_the_names_of_old_scripts(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "net.params")
    net, other = Net(prefix="one_"), Net(prefix="two_")
    net.initialize(init.Normal(1.0))
    net(nd.ones((1, 3)))
    with pytest.warns(UserWarning, match="save_params is deprecated"):
        net.save_params(file)
    with pytest.warns(UserWarning, match="load_params is deprecated"):
        other.load_params(file)
    assert (other.first.weight.data().asnumpy() == net.first.weight.data().asnumpy()).all()


def test_files_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "d.params")
    one = nn.Dense(2, in_units=3, use_bias=False)
    one.initialize()
    one.save_parameters(file)
    more = nn.Dense(2, in_units=3)
    more.initialize(init.One())
    with pytest.raises(AssertionError, match="has no bias"):
        more.load_parameters(file)
    assert (more.weight.data().asnumpy() == 1).all()
    more.load_parameters(file, allow_missing=True)
    assert (more.weight.data().asnumpy() == one.weight.data().asnumpy()).all()
    more.save_parameters(file)
    with pytest.raises(ValueError, match="has bias, which the block lacks"):
        one.load_parameters(file)
    one.load_parameters(file, ignore_extra=True)
    wide = nn.Dense(2, in_units=4)
    wide.initialize()
    with pytest.raises(AssertionError, match="weight has shape"):
        wide.load_parameters(file)
    double = nn.Dense(2, in_units=3, dtype="float64")
    double.initialize()
    with pytest.raises(AssertionError, match="cast_dtype"):
        double.load_parameters(file)
    double.load_parameters(file, cast_dtype=True)
    assert double.weight.data().dtype == np.float64
    double.load_parameters(file, cast_dtype=True, dtype_source="saved")
    assert double.weight.data().dtype == np.float32
    with pytest.raises(FileNotFoundError):
        one.load_parameters(str(tmp_path / "nowhere"))


def test_summary(capsys: pytest.CaptureFixture[str]) -> None:
    net = Net(prefix="s_")
    net.initialize()
    net.summary(nd.ones((1, 3)))
    text = capsys.readouterr().out
    assert "Dense s_dense0" in text and "(1, 4)" in text and text.rstrip().endswith("26")


def test_summary_of_lists_in_lists(capsys: pytest.CaptureFixture[str]) -> None:
    class Pair(gluon.Block):
        def forward(self, x: Any) -> Any:
            return x, [x, x.reshape((-1,))]

    Pair().summary(nd.ones((1, 3)))
    assert "(1, 3) (1, 3) (3,)" in capsys.readouterr().out


def test_gradients_reach_the_parameters() -> None:
    net = Net()
    net.initialize(init.Normal(0.5))
    x = nd.array(np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32))
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    w = net.second.weight
    grad, eps = w.grad().asnumpy(), 1e-2
    for at in [(0, 0), (1, 3)]:
        values = []
        for sign in (1, -1):
            changed = w.data().asnumpy()
            changed[at] += sign * eps
            before, net_w = w.data().asnumpy(), w.data()
            net_w[:] = changed
            values.append(float((net(x) ** 2).sum().asscalar()))
            net_w[:] = before
        assert grad[at] == pytest.approx((values[0] - values[1]) / (2 * eps), rel=2e-2, abs=1e-3)


class Renamed(nn.HybridBlock):
    """As the attention of gluonnlp's BERT: its files have names of an earlier version."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.query_weight = self.params.get("query_weight", shape=(2, 3))

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, gluon.Parameter]:
        dot = prefix + "." if prefix else ""
        return {dot + "proj_" + name.replace("_", "."): p for name, p in self._reg_params.items()}

    def hybrid_forward(self, F: Any, x: Any, query_weight: Any) -> Any:
        return F.dot(x, query_weight, transpose_b=True)


def test_names_in_files_are_those_that_a_block_gives(tmp_path: pathlib.Path) -> None:
    net, other = nn.HybridSequential(), nn.HybridSequential()
    net.add(Renamed())
    other.add(Renamed())
    net.initialize()
    weight = net[0].query_weight.data().asnumpy()
    net.save_parameters(str(tmp_path / "own"))
    nd.save(str(tmp_path / "theirs"), {"0.proj_query.weight": nd.array(weight + 1)})  # MXNet's format
    other.load_parameters(str(tmp_path / "own"))
    assert other[0].query_weight.data().asnumpy().tolist() == weight.tolist()
    other.load_parameters(str(tmp_path / "theirs"))
    assert other[0].query_weight.data().asnumpy().tolist() == (weight + 1).tolist()
    assert list(nd.load(str(tmp_path / "own"))) == ["0.proj_query.weight"]


def test_summary_of_a_hybridized_block_is_refused() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(2))
    net.initialize()
    net.hybridize()
    with pytest.raises(AssertionError, match="is hybridized"):
        net.summary(nd.ones((1, 3)))
    net.hybridize(False)
    net.summary(nd.ones((1, 3)))


class Dropped(gluon.Parameter):
    """As gluonnlp's WeightDropParameter: it takes the place of a parameter, with its internals."""

    def __init__(self, of: gluon.Parameter):
        self._deferred_init = of._deferred_init
        super().__init__(name=of.name, shape=of.shape, dtype=of.dtype, init=of.init, allow_deferred_init=True)
        self._var, self._data, self._grad = of._var, of._data, of._grad
        self._ctx_list, self._ctx_map, self._trainer = of._ctx_list, of._ctx_map, of._trainer

    def data(self, ctx: Any = None) -> Any:
        return nd.Dropout(self._check_and_get(self._data, ctx), 0.5)


@pytest.mark.parametrize("before", [True, False])
def test_a_parameter_in_the_place_of_another(before: bool) -> None:
    layer = nn.Dense(40, in_units=30, use_bias=False)
    if before:
        layer.initialize()
    layer.weight = Dropped(layer.weight)
    layer.params._params[layer.weight.name] = layer.weight
    if not before:
        layer.initialize()
    x = nd.ones((2, 30))
    assert (layer(x).asnumpy() == layer(x).asnumpy()).all()
    with autograd.record():
        one, other = layer(x), layer(x)
    one.backward()
    assert (one.asnumpy() != other.asnumpy()).any(), "other weights are dropped"
    assert (layer.weight.grad().asnumpy() == 0).any() and (layer.weight.grad().asnumpy() != 0).any()


def test_names_come_from_the_name_manager() -> None:
    """As in MXNet 1.9.1: a manager of one's own counts from 0, and Prefix goes before the names of outer blocks."""
    with mx.name.NameManager():
        assert [nn.Dense(1).name for _ in range(2)] == ["dense0", "dense1"]
        with mx.name.Prefix("left_"):
            net = nn.HybridSequential()
            with net.name_scope():
                net.add(nn.Dense(1))
        assert (net.name, net[0].name) == ("left_hybridsequential0", "left_hybridsequential0_dense0")
        assert nn.Dense(1).name == "dense2"


def test_hybrid_block_is_imported_from_where_mxnet_has_it() -> None:
    from gluongraph.gluon import block

    assert block.HybridBlock is gluon.HybridBlock
    with pytest.raises(AttributeError, match="has no attribute 'HybridBloc'"):
        _ = block.HybridBloc
