"""DeviceStatsMonitor: numbers of this machine that can be right, and where they are logged."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import numpy as np
import pytest
from pretend_trainer import Pretend
from small_fit import Linear, Loader, quiet

from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.callbacks import DeviceStatsMonitor, device_stats_monitor
from gluongraph.lightning.callbacks.device_stats_monitor import stats
from gluongraph.lightning.loggers import CSVLogger


def test_numbers_can_be_right() -> None:
    before = device_stats_monitor._counted()
    used = stats()["process_rss_bytes"]
    block = np.ones(1 << 23)  # 64 MiB
    while time.perf_counter() - before["wall"] < 0.2:
        block.sum()
    found = stats(before, device_stats_monitor._counted())
    assert found["process_rss_bytes"] - used > 0.9 * block.nbytes
    assert found["process_cpu_percent"] > 10
    for name in ("cpu_percent", "cpu_vm_percent", "cpu_swap_percent"):
        assert 0 <= found[name] <= 100, name


def test_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_stats_monitor, "_read", lambda path: [])
    assert stats().keys() == {"process_cpu_percent", "process_rss_bytes"} and stats()["process_rss_bytes"] > 1e6


def test_where_they_are_logged(tmp_path: pathlib.Path) -> None:
    logger = CSVLogger(tmp_path)
    quiet(tmp_path, logger=logger, log_every_n_steps=3, callbacks=[DeviceStatsMonitor()]).fit(Linear(), Loader(7))
    text = (pathlib.Path(logger.log_dir) / "metrics.csv").read_text(encoding="utf-8")
    names, *rows = [line.split(",") for line in text.splitlines()]
    for moment in ("start", "end"):
        column = names.index(f"DeviceStatsMonitor.on_train_batch_{moment}/process_rss_bytes")
        steps = [row[names.index("step")] for row in rows if row[column]]
        assert steps == ["2", "5"]


def test_when_it_logs_nothing(tmp_path: pathlib.Path) -> None:
    off = DeviceStatsMonitor(cpu_stats=False)
    trained: Any = Pretend(tmp_path, loggers=[None])
    off.setup(trained, None, "fit")
    off.on_train_batch_start(trained, None, None, 0)
    assert off.idle_batches(trained) == float("inf")
    with pytest.raises(MisconfigurationException, match="no logger"):
        DeviceStatsMonitor().setup(Pretend(tmp_path), None, "fit")
