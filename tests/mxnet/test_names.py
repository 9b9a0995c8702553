"""Names that code written for MXNet imports, beyond those of its documentation: that they exist, and what they do."""

from __future__ import annotations

import hashlib
import importlib
import logging
import multiprocessing.pool
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import nd
from gluongraph.mxnet import dataloader, install, internals, registry, uninstall
from gluongraph.mxnet.log import get_logger

# Module of MXNet's: names that gluoncv, gluonnlp, gluonts and MXNet's own tests take from it.
NAMES = {
    "": "AttrScope is_np_array is_np_shape np_array np_shape operator registry set_np_shape use_np_shape",
    "attribute": "AttrScope",
    "base": "MXNetError _as_list data_dir integer_types numeric_types py_str string_types",
    "contrib.amp.amp": "init init_trainer scale_loss unscale",
    "gluon.block": "Block HybridBlock SymbolBlock _flatten _regroup",
    "gluon.contrib.estimator": "BatchProcessor CheckpointHandler Estimator",
    "gluon.contrib.estimator.event_handler": "BatchEnd CheckpointHandler EpochEnd LoggingHandler TrainBegin",
    "gluon.data.dataloader": "DataLoader ForkingPickler _MultiWorkerIter _as_in_context default_mp_batchify_fn",
    "gluon.model_zoo.model_store": "get_model_file purge",
    "gluon.model_zoo.vision.resnet": "BasicBlockV1 BottleneckV1 _conv3x3",
    "gluon.parameter": "DeferredInitializationError Parameter ParameterDict",
    "gluon.utils": "_get_repo_file_url _get_repo_url check_sha1 download replace_file",
    "image.image": "_get_interp_method imresize",
    "img.image": "imresize",
    "metric": "EvalMetric ndarray np",
    "name": "NameManager Prefix",
    "nd": "Custom multi_mp_sgd_mom_update multi_sgd_mom_update preloaded_multi_sgd_update",
    "nd.contrib": "mp_adamw_update multi_adamw_update multi_lamb_update multi_mp_adamw_update",
    "ndarray.ndarray": "NDArray _STORAGE_TYPE_STR_TO_ID array py_slice",
    "operator": "CustomOp CustomOpProp get_all_registered_operators register",
    "profiler": "Counter Domain Event Frame Marker Task dump dumps pause resume set_config set_state",
    "registry": "get_alias_func get_create_func get_register_func get_registry",
    "symbol.contrib": "",
    "test_utils": "assert_allclose assert_exception check_numeric_gradient default_context discard_stderr environment"
    " effective_dtype gen_buckets_probs_with_ppf is_cd_run mx np np_reduce random_sample random_uniform_arrays retry"
    " same_array set_default_context use_np verify_generator",
    "util": "getenv is_np_array np_shape setenv use_np",
}


@pytest.fixture
def shim() -> Iterator[None]:
    install()
    try:
        yield
    finally:
        uninstall()


@pytest.mark.usefixtures("shim")
@pytest.mark.parametrize("module", NAMES)
def test_names_can_be_imported(module: str) -> None:
    path = f"mxnet.{module}".rstrip(".")
    importlib.import_module(path)
    for name in NAMES[module].split():
        exec(f"from {path} import {name}", {})


@pytest.mark.usefixtures("shim")
def test_what_star_brings_along_from_test_utils() -> None:
    found: dict[str, Any] = {}
    exec("from mxnet.test_utils import *", found)
    assert found["np"] is np and found["mx"] is sys.modules["mxnet"] and found["default_context"]() == mx.cpu()
    assert {"os", "sys", "check_consistency", "assert_almost_equal"} <= found.keys()


def test_flat_and_back() -> None:
    a, b = nd.ones(1), nd.ones(2)
    nested = [a, [None, b], []]
    flat, form = internals._flatten(nested, "input")
    assert flat[0] is a and flat[1] is None and flat[2] is b
    back, rest = internals._regroup(flat, form)
    assert back[1][1] is b and back[2] == [] and not rest
    with pytest.raises(ValueError, match="nested lists of arrays, not a str"):
        internals._flatten("x", "input")


def test_kinds_of_interpolation() -> None:
    assert internals._get_interp_method(9) == 2 and internals._get_interp_method(9, (4, 4, 8, 8)) == 2
    assert internals._get_interp_method(9, (8, 8, 4, 4)) == 3 and internals._get_interp_method(9, (8, 4, 4, 8)) == 1
    assert internals._get_interp_method(10) in range(5) and internals._get_interp_method(3) == 3
    with pytest.raises(ValueError, match="0 to 4, 9 or 10"):
        internals._get_interp_method(5)


def test_where_models_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_GLUON_REPO", "https://models.example/x")
    assert internals._get_repo_url() == "https://models.example/x/"
    assert internals._get_repo_file_url("gluon", "a.zip") == "https://models.example/x/gluon/a.zip"
    assert internals._brief_print_list("abcdefghij") == "'a', 'b', 'c', ..., 'h', 'i', 'j'"


def test_model_files_come_from_a_folder(tmp_path: pathlib.Path) -> None:
    from gluongraph.gluon.model_zoo import model_store

    with pytest.raises(OSError, match=r"resnet18_v1-<hash>\.params(.|\n)*none are downloaded"):
        model_store.get_model_file("resnet18_v1", str(tmp_path))
    (tmp_path / "resnet18_v1-abcd1234.params").touch()
    (tmp_path / "notes.txt").touch()
    assert model_store.get_model_file("resnet18_v1", str(tmp_path)).endswith("resnet18_v1-abcd1234.params")
    model_store.purge(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_pools_batches_in_order() -> None:
    data = list(range(10))
    with multiprocessing.pool.ThreadPool(2) as pool:
        batches = dataloader._MultiWorkerIter(
            pool,
            dataloader.default_mp_batchify_fn,
            [[0, 1], [2, 3], [4]],
            worker_fn=lambda samples, batchify, dataset: batchify([dataset[i] for i in samples]),
            prefetch=2,
            dataset=data,
        )
        assert len(batches) == 3 and [b.asnumpy().tolist() for b in batches] == [[0, 1], [2, 3], [4]]
    moved = dataloader._as_in_context([nd.ones(2), "text"], mx.cpu(1))
    assert moved[0].context == mx.cpu(1) and moved[1] == "text"


def test_classes_by_name() -> None:
    class Base:
        def __init__(self, size: int = 1):
            self.size = size

    register = registry.get_register_func(Base, "thing")
    create = registry.get_create_func(Base, "thing")

    @registry.get_alias_func(Base, "thing")("other")
    class Own(Base):
        pass

    register(Own)
    assert set(registry.get_registry(Base)) == {"own", "other"}
    assert create("own", size=3).size == 3 and create(thing="other").size == 1
    assert create('["own", {"size": 2}]').size == 2 and create({"thing": "own", "size": 4}).size == 4


def test_contexts_scopes_and_names_are_each_threads_own() -> None:
    from gluongraph.attribute import AttrScope
    from gluongraph.context import Context
    from gluongraph.name import NameManager, Prefix

    seen: list[Any] = []

    def other() -> None:
        mx.test_utils.set_default_context(mx.cpu(3))
        seen.extend((mx.current_context(), AttrScope.current.get(None), NameManager.current.get(None, "a")))

    with AttrScope(x="1"), Prefix("net_"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with AttrScope(y="2"):
            assert AttrScope.current.get({"z": "3"}) == {"x": "1", "y": "2", "z": "3"}
        assert AttrScope.current.get(None) == {"x": "1"} and NameManager.current.get(None, "a") == "net_a0"
    assert seen == [mx.cpu(3), {}, "a0"] and Context.default_ctx == mx.cpu()
    assert AttrScope.current.get(None) == {} and Context.devtype2str[mx.cpu().device_typeid] == "cpu"
    try:
        Context.default_ctx = mx.cpu(1)
        with mx.cpu(2):
            assert mx.current_context() == mx.cpu(2)
        assert nd.ones(1).context == mx.cpu(1)
    finally:
        Context.default_ctx = mx.cpu(0)
    with pytest.raises(ValueError, match="attributes are texts"):
        AttrScope(x=1)  # type: ignore[arg-type]


def test_rules_of_shapes_and_of_arrays() -> None:
    @mx.use_np_shape
    def inside() -> bool:
        return mx.is_np_shape()

    assert not mx.is_np_shape() and inside() and not mx.is_np_shape()
    with mx.np_shape(), mx.np_shape(False):
        assert not mx.is_np_shape()
    assert mx.set_np_shape(True) is False and mx.set_np_shape(False) is True
    with mx.np_array(False):
        assert not mx.is_np_array()
    with pytest.raises(NotImplementedError, match="numpy's semantics do not exist"), mx.np_array():
        pass

    @mx.util.use_np
    class Net:
        pass

    with pytest.raises(NotImplementedError, match="Net, which is under use_np,"):
        Net()


def test_a_logger(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    logger = get_logger("test_names", str(path), level=logging.INFO)
    assert get_logger("test_names") is logger and len(logger.handlers) == 1
    logger.setLevel(logging.INFO)
    logger.info("hello")
    logger.handlers[0].close()
    assert path.read_text().endswith("hello\n")


def test_the_parameters_that_wait_and_another_optimizer() -> None:
    dense = mx.gluon.nn.Dense(2)
    assert dense.weight._deferred_init == ()
    dense.initialize()
    assert dense.weight._deferred_init[1] == [mx.cpu()]
    dense(nd.ones((1, 3)))
    assert dense.weight._deferred_init == ()
    trainer = mx.gluon.Trainer(dense.collect_params(), "adam")
    before = dense.weight.data().copy()

    def step() -> None:
        with mx.autograd.record():
            loss = dense(nd.ones((1, 3))).sum()
        loss.backward()
        trainer.step(1)

    step()
    trainer._init_optimizer("sgd", {"learning_rate": 0.5})
    before = dense.weight.data().copy()
    step()
    assert np.allclose((before - dense.weight.data()).asnumpy(), 0.5)


def test_vectors_of_tokens(tmp_path: pathlib.Path) -> None:
    from gluongraph.contrib import embedding, text

    path = tmp_path / "vectors.txt"
    path.write_text("2 2\na 0.1 0.2\nb 0.3 0.4\na 9 9\n")
    with pytest.warns(UserWarning) as said:
        found = embedding.CustomEmbedding(str(path), init_unknown_vec=nd.ones)
    assert [str(w.message).split(": ", 1)[1][:12] for w in said] == ["'2 2' looks ", "another vect"]
    assert found.vec_len == 2 and found.idx_to_token == ["<unk>", "a", "b"]
    assert np.allclose(found.get_vecs_by_tokens(["b", "x"]).asnumpy(), [[0.3, 0.4], [1, 1]])
    assert np.allclose(found.get_vecs_by_tokens("A", lower_case_backup=True).asnumpy(), [0.1, 0.2])
    found.update_token_vectors("a", nd.array([5, 6]))
    assert found.get_vecs_by_tokens("a").asnumpy().tolist() == [5, 6]
    with pytest.raises(ValueError, match="'x' is not known"):
        found.update_token_vectors(["x"], nd.ones((1, 2)))
    with pytest.raises(AssertionError, match="2 vectors of 2 numbers"):
        found.update_token_vectors(["a", "b"], nd.ones((1, 2)))
    words = text.Vocabulary({"b": 2, "c": 1}, reserved_tokens=["<pad>"])
    both = embedding.CompositeEmbedding(words, [found, found])
    assert both.idx_to_vec.shape == (4, 4) and np.allclose(both.get_vecs_by_tokens("b").asnumpy(), [0.3, 0.4] * 2)
    wrong = {"a": "without a vector", "a 1 2\nb 1 2 3": "3 numbers, where others have 2", "a 1 x": "could not convert"}
    for content, says in wrong.items():
        path.write_text(content + "\n")
        with pytest.raises(AssertionError, match=says):
            embedding.CustomEmbedding(str(path))
    with pytest.raises(ValueError, match="there is no file"):
        embedding.CustomEmbedding(str(tmp_path / "nowhere"))

    @embedding.register
    class Own(embedding.TokenEmbedding):
        pass

    assert isinstance(embedding.create("own"), Own)


def test_the_first_form_of_autograd() -> None:
    from gluongraph.contrib import autograd

    x, y = nd.array([2.0]), nd.array([3.0])
    (dx, dy), out = autograd.grad_and_loss(lambda x, y: x * x * y)(x, y)
    assert (dx.asscalar(), dy.asscalar(), out.asscalar()) == (12, 4, 12)
    assert autograd.grad(lambda x, y: x * y, argnum=1)(x, y)[0].asscalar() == 2
    with autograd.train_section():
        assert mx.autograd.is_recording() and mx.autograd.is_training()
        with autograd.test_section():
            assert not mx.autograd.is_recording()
    assert autograd.set_is_training(True) is False and autograd.set_is_training(False) is True
    with pytest.raises(AssertionError, match="by arrays"):
        autograd.grad(lambda x: x)(1)


@pytest.mark.usefixtures("shim")
def test_import_star_brings_nothing_of_the_inner_works() -> None:
    """`from mxnet.autograd import *` must not put a builder in the place of `nd.zeros_like`."""
    from gluongraph.mxnet.modules import _inner

    for module in ("mxnet.autograd", "mxnet.ndarray", "mxnet.gluon", "mxnet.test_utils", "mxnet.gluon.nn"):
        found: dict[str, Any] = {}
        exec(f"from {module} import *", found)
        assert not [name for name, value in found.items() if _inner(value)], module


@pytest.mark.usefixtures("shim")
def test_texts_and_files_of_libraries(tmp_path: pathlib.Path) -> None:
    from mxnet.base import py_str
    from mxnet.gluon.model_zoo import model_store

    assert py_str(b"a") == py_str("a") == "a"
    model_store._model_sha1["own"] = hashlib.sha1(b"weights").hexdigest()
    try:
        file = tmp_path / f"own-{model_store.short_hash('own')}.params"
        file.write_bytes(b"weights")
        assert model_store.get_model_file("own", root=str(tmp_path)) == str(file)
        file.write_bytes(b"other")
        with pytest.raises(OSError, match="another checksum"):
            model_store.get_model_file("own", root=str(tmp_path))
    finally:
        del model_store._model_sha1["own"]
