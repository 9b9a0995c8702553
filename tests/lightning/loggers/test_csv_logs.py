"""CSVLogger writes the bytes that Lightning's writes."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import numpy as np
import pytest

from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.loggers import CSVLogger, csv_logs
from gluongraph.lightning.utilities.rank_zero import rank_zero_only

NAMES = ("train_loss", "val_loss", "epoch", "lr-Adam", "val/acc", "a,b", 'quo"te', "été", "z")


@pytest.mark.parametrize("seed", range(25))
def test_bytes_over_random_runs(original: Any, tmp_path: pathlib.Path, seed: int) -> None:
    """New columns come late, rows lack some, and saves come at any time."""
    rng = random.Random(seed)
    how: dict[str, Any] = {"prefix": rng.choice(["", "run"]), "flush_logs_every_n_steps": rng.choice([3, 7, 100])}
    loggers = [make(tmp_path / name, **how) for name, make in (("a", CSVLogger), ("b", original.loggers.CSVLogger))]
    step = 0
    for _ in range(40):
        some = rng.sample(NAMES, rng.randint(1, 4))
        metrics = {
            name: rng.choice([rng.random(), rng.randint(0, 9), float("nan"), float("inf"), 1e-9]) for name in some
        }
        step += rng.randint(0, 3)
        for logger in loggers:
            logger.log_metrics(dict(metrics), step=rng.choice([step]))
        if rng.random() < 0.3:
            for logger in loggers:
                logger.save()
        if rng.random() < 0.5:
            assert _bytes(loggers[0]) == _bytes(loggers[1])
    for logger in loggers:
        logger.finalize("success")
    assert _bytes(loggers[0]) == _bytes(loggers[1]) != b""


def _bytes(logger: Any) -> bytes:
    path = pathlib.Path(logger.log_dir) / "metrics.csv"
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize(
    "how", [{}, {"name": None}, {"name": "digits"}, {"version": 7}, {"version": "first"}, {"name": ""}]
)
def test_folders_are_those_of_lightning(original: Any, tmp_path: pathlib.Path, how: dict[str, Any]) -> None:
    for number in (0, 2, 10):
        (tmp_path / (how.get("name", "lightning_logs") or "") / f"version_{number}").mkdir(parents=True)
    (tmp_path / (how.get("name", "lightning_logs") or "") / "version_x").mkdir()
    ours, theirs = CSVLogger(tmp_path, **how), original.loggers.CSVLogger(tmp_path, **how)
    for name in ("name", "version", "save_dir", "root_dir", "log_dir"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_a_run_that_is_cut_leaves_whole_rows(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where new columns come and the file cannot be written anew, the old one is as it was and no row is lost."""
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"a": 1.0}, step=0)
    logger.save()
    before = _bytes(logger)

    def fails(*args: Any) -> None:
        raise OSError("the disk is full")

    logger.log_metrics({"b": 2.0}, step=1)
    with monkeypatch.context() as patched:
        patched.setattr(csv_logs.disk, "whole", fails)
        with pytest.raises(OSError, match="full"):
            logger.save()
    assert _bytes(logger) == before
    logger.save()
    assert _bytes(logger) == b"a,b,step\r\n1.0,,0\r\n,2.0,1\r\n"


def test_an_old_file_is_replaced(tmp_path: pathlib.Path) -> None:
    first = CSVLogger(tmp_path, version=0)
    first.log_metrics({"a": 1.0}, step=0)
    first.finalize("success")
    second = CSVLogger(tmp_path, version=0)
    with pytest.warns(UserWarning, match="not empty"):
        second.log_metrics({"b": 2.0}, step=0)
    second.save()
    assert _bytes(second) == b"b,step\r\n2.0,0\r\n"


def test_values_are_numbers(tmp_path: pathlib.Path) -> None:
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"a": np.float32(0.1), "b": np.array([2])}, step=0)
    logger.save()
    assert _bytes(logger) == b"a,b,step\r\n0.10000000149011612,2,0\r\n"
    with pytest.raises(MisconfigurationException, match=r"'a' is no number, but of shape \(2,\)"):
        logger.log_metrics({"a": np.zeros(2)}, step=1)


def test_other_ranks_write_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = CSVLogger(tmp_path)
    logger.log_hyperparams({"lr": 0.1})
    logger.log_metrics({"a": 1.0}, step=0)
    logger.experiment.log_metrics({"a": 1.0})
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == []
