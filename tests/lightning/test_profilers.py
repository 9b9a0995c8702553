"""Profilers: which parts of the loop they see, in which order, and what PyTorch's tells of them."""

from __future__ import annotations

import json
import pathlib
import pstats
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from nets import QUIET, GluonModel, loader

import gluongraph.lightning as L
from gluongraph.lightning.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler

torch = pytest.importorskip("torch")


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(6, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1].long())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(model: Any, profiler: Any, **how: Any) -> L.Trainer:
    trainer = L.Trainer(**{"max_epochs": 2, "profiler": profiler, **QUIET, **how})
    trainer.fit(model, loader(), loader(16))
    return trainer


def test_parts_of_the_loop() -> None:
    class Names:
        def __init__(self) -> None:
            self.names: list[str] = []

        @contextmanager
        def profile(self, name: str) -> Iterator[None]:
            self.names.append(name)
            yield

        def describe(self) -> None:
            self.names.append("described")

    fit(GluonModel(), names := Names(), max_epochs=1, limit_train_batches=2, num_sanity_val_steps=1)
    steps = ["run_training_batch"] * 2, ["validation_step"] * 2
    assert names.names == ["validation_step", "run_training_epoch", *steps[0], *steps[1], "described"]


def test_several_steps_that_are_one_call_are_one_part() -> None:
    profiler = SimpleProfiler()
    fit(GluonModel(), profiler, steps_per_call=4, limit_val_batches=0, max_epochs=1)
    assert len(profiler.seconds["run_training_batch"]) < 5


@pytest.mark.parametrize("eager", [False, True])
def test_pytorchs_profiler(eager: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Of eager steps it knows the operators, of compiled ones that there is a call."""
    fit(Model(), "pytorch", eager=eager, limit_val_batches=0)
    table = capsys.readouterr().out
    assert "run_training_batch" in table and ("aten::addmm" in table) is eager
    trainer = fit(Model(), PyTorchProfiler(schedule=None), eager=eager, num_sanity_val_steps=0)
    seen = {event.key: event.count for event in trainer.profiler._seen}
    assert seen["run_training_batch"] == 10 and seen["validation_step"] == 4


def test_files(tmp_path: pathlib.Path) -> None:
    calls: list[Any] = []
    profiler = PyTorchProfiler(tmp_path / "made", "steps", schedule=None, on_trace_ready=calls.append)
    trainer = fit(Model(), profiler)
    assert "run_training_batch" in (tmp_path / "made" / "steps.txt").read_text() and len(calls) == 1
    events = json.loads((tmp_path / "made" / "steps.json").read_text())["traceEvents"]
    assert any(event.get("name") == "run_training_batch" for event in events)
    trainer.validate(Model(), loader(), verbose=False)
    assert len(calls) == 2 and "validation_step" in profiler.summary()


def test_tables_in_files(tmp_path: pathlib.Path) -> None:
    fit(Model(), SimpleProfiler(tmp_path, "simple", extended=False))
    fit(Model(), AdvancedProfiler(tmp_path / "made", "advanced", line_count_restriction=3, dump_stats=True))
    assert "run_training_batch" in (tmp_path / "simple.txt").read_text()
    assert "due to restriction <3>" in (tmp_path / "made" / "advanced.txt").read_text()
    assert pstats.Stats(str(tmp_path / "made" / "advanced.prof")).total_calls > 0


def test_an_error_ends_the_profile(capsys: pytest.CaptureFixture[str]) -> None:
    class Fails(L.Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            raise ValueError("stop here")

    profiler = PyTorchProfiler(schedule=None)
    with pytest.raises(ValueError, match="stop here"):
        fit(Model(), profiler, callbacks=[Fails()])
    assert profiler._running is None
    fit(Model(), PyTorchProfiler(schedule=None))  # there can be one at a time
    assert "run_training_batch" in capsys.readouterr().out


def test_too_few_calls_for_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    fit(GluonModel(), "pytorch", max_epochs=1, limit_train_batches=1, limit_val_batches=0)
    assert "schedule=None records all calls" in capsys.readouterr().out


def test_nvtx_is_refused() -> None:
    with pytest.raises(L.MisconfigurationException, match="emit_nvtx"):
        PyTorchProfiler(emit_nvtx=True)


def test_ranges_end_before_pytorchs_recording_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch writes the end of a range to the memory of the recording that it began in, which crashed at times."""
    profiler = pytest.importorskip("torch").profiler
    counts = {"begun": 0, "ended": 0, "recordings": 0}
    own = profiler.record_function, profiler.profile._transit_action

    class Range(own[0]):
        def __enter__(self) -> Any:
            counts["begun"] += 1
            return super().__enter__()

        def __exit__(self, *error: Any) -> None:
            counts["ended"] += 1
            super().__exit__(*error)

    def transit(self: Any, before: Any, after: Any) -> None:
        if before is not None and after is not None and before != after:
            counts["recordings"] += 1
            assert counts["begun"] == counts["ended"]
        own[1](self, before, after)

    monkeypatch.setattr(profiler, "record_function", Range)
    monkeypatch.setattr(profiler.profile, "_transit_action", transit)
    fit(GluonModel(), "pytorch", max_epochs=2, limit_val_batches=1)
    assert counts["recordings"] > 3 and counts["begun"] == counts["ended"]
