"""ThroughputMonitor: rates by their formula, and what it logs in a training."""

from __future__ import annotations

import pathlib
import random
import warnings
from typing import Any

import pytest
from small_fit import Linear, Loader, quiet

from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.callbacks import ThroughputMonitor
from gluongraph.lightning.callbacks.throughput_monitor import Throughput
from gluongraph.lightning.loggers import CSVLogger


@pytest.mark.parametrize("world_size", [1, 4])
def test_rates_are_those_of_lightning(original: Any, world_size: int) -> None:
    """Where each batch is noted, as soon as the window is full."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lightning.fabric.utilities.throughput import Throughput as Theirs
    rng = random.Random(0)
    how: dict[str, Any] = {"available_flops": 1e9, "world_size": world_size, "window_size": 7}
    ours, theirs = Throughput(**how), Theirs(**how)
    time, samples, lengths, flops = 0.0, 0, 0, 0.0
    for batch in range(1, 30):
        time += rng.uniform(0.1, 0.3)
        size, work = rng.randint(1, 9), rng.randint(1000, 2000)
        samples, lengths, flops = samples + size, lengths + 5 * size, flops + work
        ours.update(time=time, batches=batch, samples=samples, lengths=lengths, flops=flops)
        theirs.update(time=time, batches=batch, samples=samples, lengths=lengths, flops=work)
        if batch >= 7:
            wanted = theirs.compute()
            found = ours.compute()
            assert found.keys() == wanted.keys()
            assert [found[name] for name in wanted] == pytest.approx(list(wanted.values()))


def test_what_is_refused() -> None:
    for wrong in ({"window_size": 1}, {"world_size": 0}):
        with pytest.raises(MisconfigurationException, match="Throughput"):
            Throughput(**wrong)
    throughput = Throughput()
    assert throughput.compute() == {}
    throughput.update(time=1.0, batches=5, samples=5)
    with pytest.raises(MisconfigurationException, match="become smaller"):
        throughput.update(time=2.0, batches=4, samples=6)
    throughput.reset()
    throughput.update(time=0.5, batches=1, samples=1)
    with pytest.raises(MisconfigurationException, match="window_size=1"):
        ThroughputMonitor(window_size=1)


def rows(logger: CSVLogger) -> list[dict[str, float]]:
    import csv

    with open(pathlib.Path(logger.log_dir) / "metrics.csv", newline="", encoding="utf-8") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def test_what_is_logged(tmp_path: pathlib.Path) -> None:
    logger = CSVLogger(tmp_path)
    monitor = ThroughputMonitor(length_fn=lambda batch: batch[0].size, window_size=5)
    trainer = quiet(tmp_path, logger=logger, log_every_n_steps=4, callbacks=[monitor])
    trainer.fit(Linear(), Loader(16, size=8), Loader(4))
    found = [row for row in rows(logger) if "train/batches" in row]
    assert [(row["step"], row["train/batches"], row["train/samples"]) for row in found] == [
        (3, 4, 32),
        (7, 8, 64),
        (11, 12, 96),
        (15, 16, 128),
    ]
    last = found[-1]
    rate = last["train/device/batches_per_sec"]
    assert last["train/lengths"] == 4 * 128 and last["train/device/samples_per_sec"] == pytest.approx(8 * rate)
    assert last["train/device/items_per_sec"] == pytest.approx(32 * rate)
    assert last["train/device/flops_per_sec"] == pytest.approx(rate * trainer.step_flops)
    assert 0 < last["train/device/mfu"] <= last["train/device/roofline"] < 1  # equal where arithmetic is the bound
    assert any(row.get("validate/batches") == 4 for row in rows(logger))


def test_operations_that_the_module_tells(tmp_path: pathlib.Path) -> None:
    class Tells(Linear):
        flops_per_batch = 1000

    logger = CSVLogger(tmp_path)
    monitor = ThroughputMonitor(roofline=False)
    quiet(tmp_path, logger=logger, log_every_n_steps=4, callbacks=[monitor]).fit(Tells(), Loader(8))
    last = [row for row in rows(logger) if "train/batches" in row][-1]
    assert last["train/device/flops_per_sec"] == pytest.approx(1000 * last["train/device/batches_per_sec"])
    assert "train/device/mfu" not in last


def test_which_batches_it_looks_at(tmp_path: pathlib.Path) -> None:
    monitor = ThroughputMonitor(roofline=False)
    trainer = quiet(tmp_path, log_every_n_steps=4, callbacks=[monitor])
    assert monitor.idle_batches(trainer) == 0  # the first batch begins the time
    trainer.fit(Linear(), Loader(2))
    assert monitor.idle_batches(trainer) == 1
