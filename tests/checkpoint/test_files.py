"""What lies in a checkpoint's folder, which ones stay, and that nothing damaged or strange is ever taken for one."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from training import Training, X, Y

import gluongraph as mx
from gluongraph import debug, gluon, lr_scheduler, nd
from gluongraph.checkpoint import Keep
from gluongraph.errors import FormatError, MXNetError
from gluongraph.runtime import tensorfile


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    """What is written does not depend on the compiler."""
    with debug.override(backend="reference"):
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run with the checkpoints of the steps 1 and 2. To be copied, not to be changed."""
    run = tmp_path_factory.mktemp("saved") / "run"
    with debug.override(backend="reference"):
        training = Training()
        for _ in range(2):
            training.go(1)
            training.save(run)
    return run


@pytest.fixture
def run(saved: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(saved, tmp_path / "run", symlinks=True))


def names(run: pathlib.Path) -> list[str]:
    return sorted(path.name for path in run.iterdir())


# -- tensors


def test_safetensors_reads_what_is_written(tmp_path: pathlib.Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    arrays = {
        "part": np.arange(12, dtype=np.float32).reshape(3, 4).T[::2],  # not contiguous
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), np.float16),
        "half": np.ones(3, ml_dtypes.bfloat16),
        "truth": np.array([True, False, True]),
        "wörter": np.arange(5, dtype=np.int64),
    }
    file = tmp_path / "file"
    file.write_bytes(b"".join(piece.tobytes() for piece in tensorfile.pieces(arrays)))
    own = tensorfile.parse(np.fromfile(file, np.uint8), "file")
    for found in (own, numpy.load_file(file)):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype and found[name].shape == array.shape
            np.testing.assert_array_equal(found[name], array)
    numpy.save_file({"a": np.arange(3)}, file)
    assert tensorfile.parse(np.fromfile(file, np.uint8), "file")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}',
        b'{"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}}',
    ],
)
def test_other_bytes_are_refused(header: bytes) -> None:
    data = np.frombuffer(len(header).to_bytes(8, "little") + header + bytes(4), np.uint8)
    with pytest.raises(FormatError, match="file is not a safetensors file"):
        tensorfile.parse(data, "file")


# -- the folder


def test_what_a_checkpoint_is_made_of(run: pathlib.Path) -> None:
    assert names(run) == ["last", "step-00000001", "step-00000002"]
    assert (run / "last").resolve().name == "step-00000002"
    assert names(run / "last") == [
        "MANIFEST.json",
        "extra-00000-of-00001.safetensors",
        "optim-00000-of-00001.safetensors",
        "params-00000-of-00001.safetensors",
        "trainer.json",
    ]
    told = json.loads((run / "last/MANIFEST.json").read_text())
    assert told["format"] == "gluongraph-checkpoint" and (told["step"], told["number"]) == (2, 2)
    assert set(told["writer"]) == {"gluongraph", "numpy", "python"} and told["writer"]["gluongraph"] == mx.__version__


def test_weights_alone_are_a_parameter_file(run: pathlib.Path) -> None:
    training, other = Training(), Training()
    training.load(run)
    other.net.load_parameters(str(run / "last" / "params-00000-of-00001.safetensors"))
    pairs = (t.net._collect_params_with_prefix().values() for t in (training, other))
    for p, q in zip(*pairs, strict=True):
        np.testing.assert_array_equal(p.data().asnumpy(), q.data().asnumpy())


def test_one_checkpoint_of_a_run(run: pathlib.Path) -> None:
    training = Training()
    training.load(run / "step-00000001")
    assert training.trainer.optimizer.num_update == 1
    training.load(run)
    assert training.trainer.optimizer.num_update == 2


def test_the_newest_is_the_one_saved_last(run: pathlib.Path) -> None:
    """Who has gone back and goes on from there does not come out at the old end of the run."""
    training = Training()
    training.load(run / "step-00000001")
    place = training.save(run)
    assert place.name == "step-00000001-v1" and (run / "last").resolve() == place
    (run / "last").unlink()
    training.load(run)
    assert training.trainer.optimizer.num_update == 1


def test_extra_comes_back_as_it_went(tmp_path: pathlib.Path) -> None:
    training = Training()
    extra = {"epoch": 3, "best": [0.1, float("inf"), None, True], "deep": {"a": {"b": "ü"}}}
    training.step.save(tmp_path, extra=extra)
    assert training.step.load(tmp_path) == extra


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"a": [1, {"b": np.float32(1)}]}, r"extra\['a'\]\[1\]\['b'\] is float32, which JSON does not hold"),
        ({"a": (1, 2)}, r"extra\['a'\] is tuple"),
        ({"a": {1: 2}}, r"extra\['a'\] has the key 1; in JSON keys are texts"),
    ],
)
def test_extra_that_would_not_come_back_is_refused(extra: Any, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError, match=message):
        Training().step.save(tmp_path, extra=extra)
    assert not names(tmp_path)


# -- which stay


def saves(run: pathlib.Path, losses: list[float], keep: Any) -> None:
    training = Training()
    for loss in losses:
        training.go(1)
        training.save(run, metrics={"loss": nd.array([loss])}, keep=keep)


@pytest.mark.parametrize(
    ("keep", "stay", "best"),
    [
        (None, [1, 2, 3, 4, 5], None),
        (2, [4, 5], None),
        (Keep(last=1, monitor="loss"), [2, 5], 2),
        (Keep(last=1, monitor="loss", mode="max"), [1, 5], 1),
        (Keep(last=1, best=2, monitor="loss"), [2, 4, 5], 2),
        (Keep(monitor="loss"), [1, 2, 3, 4, 5], 2),
    ],
)
def test_keep(keep: Any, stay: list[int], best: int | None, tmp_path: pathlib.Path) -> None:
    saves(tmp_path, [5.0, 1.0, 2.0, 1.0, float("nan")], keep)
    links = {"best", "last"} if best else {"last"}
    assert set(names(tmp_path)) == links | {f"step-{n:08d}" for n in stay}
    assert (tmp_path / "last").resolve().name == "step-00000005"
    if best:
        training = Training()
        training.load(tmp_path / "best")
        assert training.trainer.optimizer.num_update == best


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"keep": 0}, ValueError, "at least 1"),
        ({"keep": Keep(monitor="loss"), "metrics": {"acc": 1}}, ValueError, "'loss'; the metrics given: acc"),
        ({"metrics": {"loss": "low"}}, TypeError, "'loss' is no number but str"),
        ({"metrics": {"loss": nd.zeros((2,))}}, TypeError, "'loss' is no number"),
    ],
)
def test_what_cannot_be_kept(how: Any, error: Any, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(error, match=message):
        Training().step.save(tmp_path, **how)
    assert not names(tmp_path)


@pytest.mark.parametrize("how", [{"best": 0}, {"mode": "least"}, {"last": -1}])
def test_policies_that_mean_nothing(how: Any) -> None:
    with pytest.raises(ValueError, match="keep: "):
        Keep(**how)


# -- damage


def unchanged(training: Training, load: Callable[[], object], error: type[Exception], message: str) -> None:
    """Loading raises, and all of the state is what it was."""
    mx.random.seed(5)
    before = training.state()
    mx.random.seed(5)
    with pytest.raises(error, match=message):
        load()
    np.random.seed(0)
    after = training.state()
    assert {k: v for k, v in after.items() if k != "next"} == {k: v for k, v in before.items() if k != "next"}
    assert after["next"][0] == before["next"][0]


FILES = ("MANIFEST.json", "trainer.json", *(f"{g}-00000-of-00001.safetensors" for g in ("params", "optim", "extra")))


def test_files_that_cannot_be_read(run: pathlib.Path) -> None:
    (run / "last" / "trainer.json").rename(run / "last" / "elsewhere")
    (run / "last" / "trainer.json").mkdir()
    with pytest.warns(UserWarning, match=r"trainer.json .*step-00000001 is loaded instead"):
        Training().load(run)


def damages(data: bytes) -> Iterator[bytes | None]:
    """The file missing, cut at several places, longer, and with single bits turned, all over it."""
    yield None
    yield b""
    yield data + b"\0"
    rng = np.random.default_rng(len(data))
    for at in rng.integers(0, len(data), 4):
        yield data[:at]
    places = [0, 7, 8, len(data) - 1, *rng.integers(0, len(data), 16).tolist()]
    for at in places:
        if at < len(data) and not data[at : at + 1].isspace():  # space between the words of JSON means nothing
            yield data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]


@pytest.mark.parametrize("name", FILES)
def test_damaged_files(name: str, run: pathlib.Path) -> None:
    """The one before is loaded, and it is said; asked for by name, a damaged one is refused."""
    file, training = run / "step-00000002" / name, Training()
    data = file.read_bytes()
    for number, damaged in enumerate(damages(data)):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        with pytest.warns(UserWarning, match=f"{name}.*step-00000001 is loaded instead"):
            training.load(run)
        assert training.trainer.optimizer.num_update == 1, number
        file.write_bytes(data)
    file.write_bytes(data[:-1])
    message = f"step-00000002 is damaged: [^~]*{name}[^~]*step-00000001"
    for place in (run / "step-00000002", run / "last"):
        unchanged(training, lambda place=place: training.load(place), FormatError, message)


def test_nothing_whole_is_left(run: pathlib.Path) -> None:
    for path in run.glob("step-*"):
        (path / "trainer.json").unlink()
    training = Training()
    training.go(1)
    message = "no whole checkpoint: .*step-00000002 is damaged: trainer.json is missing; .*step-00000001"
    unchanged(training, lambda: training.load(run), FormatError, message)


def test_no_checkpoint_at_all(tmp_path: pathlib.Path, run: pathlib.Path) -> None:
    training = Training()
    for place in (tmp_path, tmp_path / "none", tmp_path / "step-00000001", run / "step-00000003"):
        with pytest.raises(FileNotFoundError, match="there is no"):
            training.load(place)


def rewritten(path: pathlib.Path, **changes: Any) -> None:
    """A manifest with other entries, whose digest is right."""
    from gluongraph.runtime.checkpoint import _digest

    told = {**json.loads((path / "MANIFEST.json").read_text()), **changes}
    (path / "MANIFEST.json").write_text(json.dumps({**told, "sha256": _digest(told)}))


def test_a_newer_format_is_not_passed_over(run: pathlib.Path) -> None:
    """What is newer is whole: to go on from an older one, silently, would lose work."""
    rewritten(run / "step-00000002", format_version=2)
    training = Training()
    message = r"has format 2, and this version of gluongraph reads up to 1[^~]*written by gluongraph "
    unchanged(training, lambda: training.load(run), FormatError, message)
    unchanged(training, lambda: training.load(run / "last"), FormatError, message)


def test_files_of_others_are_left_alone(run: pathlib.Path) -> None:
    others = ("notes.txt", "step-7", "step-00000002.bak", ".tmp-of-somebody")
    for name in others:
        (run / name).mkdir()
    training = Training()
    training.load(run)
    training.save(run, keep=1)
    assert set(names(run)) == {
        "last",
        "notes.txt",
        "step-7",
        "step-00000002.bak",
        ".tmp-of-somebody",
        "step-00000002-v1",
    }


# -- what is whole, and does not fit


def with_last(*last: gluon.HybridBlock) -> Training:
    """A training of a net that ends in these layers."""
    training = Training()
    net = gluon.nn.HybridSequential()
    net.add(*training.net[:4], *last)
    for layer in last:
        layer.initialize()
    training.net, training.trainer = net, gluon.Trainer(net.collect_params(), "adam")
    training.step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), training.trainer)
    return training


def narrow() -> Training:
    return with_last(gluon.nn.Dense(2, in_units=6))


def deeper() -> Training:
    return with_last(gluon.nn.Dense(3, in_units=6), gluon.nn.Dense(3, in_units=3))


def shallow() -> Training:
    return with_last()


SCHEDULE = {"lr_scheduler": lr_scheduler.FactorScheduler(2)}
STRANGE: dict[str, tuple[Callable[[], Training], str]] = {
    "optimizer": (lambda: Training("sgd"), "the checkpoint is of Adam, the trainer uses SGD"),
    "schedule": (lambda: Training("adam", SCHEDULE), "lr_scheduler is none, the trainer's FactorScheduler"),
    "dtype": (
        lambda: Training("adam", None, "float64"),
        r"0.weight is f32\[6,5\] in the checkpoint and f64\[6,5\] in the net",
    ),
    "shape": (narrow, r"4.weight is f32\[3,6\] in the checkpoint and f32\[2,6\] in the net"),
    "missing": (deeper, "missing in the checkpoint: 5.bias, 5.weight"),
    "too many": (shallow, "in the checkpoint, but not in the net: 4.bias, 4.weight"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_what_does_not_fit(what: str, run: pathlib.Path) -> None:
    make, message = STRANGE[what]
    training = make()
    unchanged(training, lambda: training.load(run), FormatError, f"{message}.*; nothing has been changed[^~]*help: ")


def test_states_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    first = Training("sgd", {"learning_rate": 0.1, "momentum": 0.9})
    first.go(1)
    first.save(tmp_path)
    other = Training("sgd", {"learning_rate": 0.1})
    message = "the states of 1.beta are mom f32.6.; the trainer keeps none"
    unchanged(other, lambda: other.load(tmp_path), FormatError, message)


def test_gradients_that_nobody_adds_to(tmp_path: pathlib.Path) -> None:
    first = Training()
    first.net.collect_params().setattr("grad_req", "add")
    first.save(tmp_path)
    other = Training()
    unchanged(
        other,
        lambda: other.load(tmp_path),
        FormatError,
        "gradients of 0.bias were added up; here its grad_req is 'write'",
    )


def test_a_net_without_weights(run: pathlib.Path) -> None:
    training = Training()
    net = gluon.nn.HybridSequential()
    net.add(*training.net[:4], gluon.nn.Dense(3, in_units=6))  # the last is not initialized, and not trained
    trainer = gluon.Trainer(net[:4].collect_params(), "adam")
    training.step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    with pytest.raises(FormatError, match=r"4.weight has not been initialized[^~]*net.initialize\(\)"):
        training.load(run)


def test_another_generator_of_numpy(run: pathlib.Path) -> None:
    training, usual = Training(), np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        unchanged(
            training, lambda: training.load(run), FormatError, "numpy.random was drawn by MT19937, and is by PCG64"
        )
    finally:
        np.random.set_bit_generator(usual)


def test_a_part_of_a_later_version(run: pathlib.Path) -> None:
    """A checkpoint with more in it than this version can put back."""
    from gluongraph.runtime.checkpoint import Content, load, write
    from gluongraph.runtime.checkpoint import Keep as Policy

    content = load(run)
    parts = {**content.about["parts"], "tide": {"high": 1}}
    write(run / "step-00000003", Content(3, content.groups, {**content.about, "parts": parts}), Policy())
    training = Training()
    unchanged(training, lambda: training.load(run), FormatError, "holds tide, of which this version")


def test_what_has_nothing_to_resume(tmp_path: pathlib.Path) -> None:
    step = mx.compile(Training().net)
    for call in (lambda: step.save(tmp_path), lambda: step.load(tmp_path)):
        with pytest.raises((MXNetError, FileNotFoundError), match=r"without a trainer|no checkpoint"):
            call()


class Elsewhere(mx.kvstore.KVStore):
    """A store of somebody's own, which updates."""


def test_a_store_that_keeps_the_state(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    training = Training()
    trainer = gluon.Trainer(training.net.collect_params(), "adam", kvstore=Elsewhere())
    training.step = mx.compile(training.net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    training.go(1)
    message = r"keeps weights and states of its own[^~]*update_on_kvstore=False"
    with pytest.raises(MXNetError, match=message):
        training.save(tmp_path / "other")
    unchanged(training, lambda: training.load(run), MXNetError, message)


def test_statistics_that_would_be_lost(tmp_path: pathlib.Path) -> None:
    """The trainer has the last layer, a function runs the net: nobody tells where its running statistics are."""
    training = Training()
    trainer = gluon.Trainer(training.net[4].collect_params(), "sgd")
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    step = mx.compile(lambda x, y: loss(training.net(x), y), trainer=trainer)
    step(X, Y)
    with pytest.raises(MXNetError, match=r"the step changes batchnorm.*_running_mean, which is no parameter"):
        step.save(tmp_path)
    whole = mx.compile(training.net, loss, trainer)  # here the net is known
    whole(X, Y)
    whole.save(tmp_path)
