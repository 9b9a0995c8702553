"""TensorBoardLogger: what TensorBoard reads from its files, with each of the writers."""

from __future__ import annotations

import math
import pathlib
import pickle
import subprocess
import sys
import warnings
from typing import Any

import pytest

from gluongraph.errors import MissingError
from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.loggers import TensorBoardLogger, load_hparams_from_yaml, tensorboard
from gluongraph.lightning.loggers.event_file import ScalarWriter
from gluongraph.lightning.utilities.rank_zero import rank_zero_only


def scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
    """All scalars of a folder, as TensorBoard reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(folder, size_guidance={"scalars": 0})
        found.Reload()
    return {name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]}


@pytest.fixture(params=["torch", "tensorboardX", "own"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which SummaryWriter is used."""
    if request.param == "own":
        monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip("torch.utils.tensorboard" if request.param == "torch" else request.param)
        monkeypatch.setattr(tensorboard, "is_torch_loaded", lambda: request.param == "torch")
    return str(request.param)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scalars_are_read_back(writer: str, tmp_path: pathlib.Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="digits", prefix="p")
    for step in range(300):
        logger.log_metrics({"loss": 1 / (step + 1), "epoch": step // 100}, step=step)
    logger.log_metrics({"wide": {"a": 1.0, "b": 2}}, step=5)
    logger.save()
    logger.log_metrics({"bad": math.nan, "huge": 1e300, "très": -1}, step=1 << 40)
    logger.finalize("success")
    names = {path.name.split(".")[0] for path in pathlib.Path(logger.log_dir).iterdir() if path.is_file()}
    assert names == {"events", "hparams"}
    expected = {"torch": "torch.", "tensorboardX": "tensorboardX.", "own": "gluongraph."}[writer]
    assert type(logger.experiment).__module__.startswith(expected)
    found = scalars(logger.log_dir)
    assert found["p-loss"] == [(s, pytest.approx(1 / (s + 1), rel=1e-6)) for s in range(300)]
    assert [value for _, value in found["p-epoch"]] == [s // 100 for s in range(300)]
    assert found["p-très"] == [(1 << 40, -1)] and math.isnan(found["p-bad"][0][1]) and found["p-huge"][0][1] == math.inf


def test_numbers_of_a_curve_in_one_picture(tmp_path: pathlib.Path) -> None:
    writer = ScalarWriter(str(tmp_path))
    writer.add_scalars("loss", {"train": 0.5, "val": 0.25}, 3)
    writer.close()
    writer.add_scalar("later", 1.0, 4)  # goes on in the same file
    writer.close()
    assert len(list(tmp_path.iterdir())) == 1
    assert scalars(str(tmp_path)) == {"loss/train": [(3, 0.5)], "loss/val": [(3, 0.25)], "later": [(4, 1.0)]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hyperparameters(writer: str, tmp_path: pathlib.Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    given = {"lr": 0.1, "net": {"layers": [64, 10], "act": max}, "none": None}
    logger.log_hyperparams(given)
    logger.log_hyperparams({"batch": 8}, metrics={"hp/loss": 0.5}, step=3)
    logger.finalize("success")
    found = scalars(logger.log_dir)
    assert found["hp_metric"][0][1] == -1 and found["hp/loss"] == [(3, 0.5)]
    kept = load_hparams_from_yaml(pathlib.Path(logger.log_dir) / "hparams.yaml")
    assert kept == {"lr": 0.1, "net": {"layers": [64, 10], "act": "max"}, "none": None, "batch": 8}


def test_the_table_of_hyperparameters_is_lightnings(original: Any, tmp_path: pathlib.Path) -> None:
    """The plugin's data of both in the event file."""
    given = {"lr": 0.1, "net": {"layers": [64, 10]}, "n": None}
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("tensorboard")
        for name, make in (("a", TensorBoardLogger), ("b", original.loggers.TensorBoardLogger)):
            logger = make(tmp_path / name)
            logger.log_hyperparams(dict(given))
            logger.finalize("success")
            from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

            (path,) = pathlib.Path(logger.log_dir).glob("events*")
            values = [v for event in EventFileLoader(str(path)).Load() for v in event.summary.value]
            seen.append([(v.tag, v.metadata.plugin_data.plugin_name, _content(v)) for v in values])
    assert seen[0] == seen[1] and len(seen[0]) >= 4


def _content(value: Any) -> bytes:
    """The plugin's data without times."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
    data.session_start_info.start_time_secs = data.session_end_info.end_time_secs = 0
    data.session_start_info.ClearField("group_name")
    return bytes(data.SerializeToString(deterministic=True))


@pytest.mark.parametrize("how", [{}, {"name": ""}, {"version": "a", "sub_dir": "$GG_SUB/b"}, {"version": 3}])
def test_folders_are_those_of_lightning(
    original: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    monkeypatch.setenv("GG_SUB", "sub")
    (tmp_path / "lightning_logs" / "version_4").mkdir(parents=True)
    ours, theirs = TensorBoardLogger(tmp_path, **how), original.loggers.TensorBoardLogger(tmp_path, **how)
    for name in ("name", "version", "save_dir", "root_dir", "log_dir", "sub_dir"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_nothing_imports_pytorch(tmp_path: pathlib.Path) -> None:
    """Nor do the callbacks and the other loggers."""
    program = f"""
import sys
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.host.torch_module import is_torch_loaded
import gluongraph.lightning.loggers as loggers
before = is_torch_loaded()
for kind in (loggers.TensorBoardLogger, loggers.CSVLogger, loggers.HTMLLogger):
    logger = kind({str(tmp_path)!r})
    logger.log_hyperparams({{"lr": 0.1}})
    logger.log_metrics({{"a": 1.0}}, step=0)
    logger.finalize("success")
print(before, is_torch_loaded())
"""
    code = "import gluongraph.host.interrupts as i, sys\nsys.modules['torch'] = None\n"  # as where there is none
    done = subprocess.run([sys.executable, "-c", code + program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    assert scalars(str(tmp_path / "lightning_logs" / "version_0"))["a"] == [(0, 1.0)]


def test_what_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    logger = TensorBoardLogger(tmp_path)
    with pytest.raises(MisconfigurationException, match="the metric 'a' is 'text'"):
        logger.log_metrics({"a": "text"}, step=0)
    with pytest.raises(MissingError, match="tensorboardX"):
        logger.experiment.add_image("a", None, 0)
    with pytest.raises(AttributeError):
        logger.experiment.nothing  # noqa: B018
    with pytest.warns(UserWarning, match="log_graph"):
        TensorBoardLogger(tmp_path, log_graph=True).log_graph(object())


def test_it_can_be_sent_to_another_process(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    logger = TensorBoardLogger(tmp_path)
    logger.log_metrics({"a": 1.0}, step=0)
    assert pickle.loads(pickle.dumps(logger)).log_dir == logger.log_dir


def test_other_ranks_write_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = TensorBoardLogger(tmp_path)
    logger.log_hyperparams({"lr": 0.1})
    logger.log_metrics({"a": 1.0}, step=0)
    logger.experiment.add_image("x")
    logger.experiment[0].add_image("x")
    logger.save()
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == []
