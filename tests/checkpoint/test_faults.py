"""What can happen while a checkpoint is written: the process dies, the disk is full, the folder may not be written."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from training import Training

import gluongraph as mx
from gluongraph import debug
from gluongraph.errors import MXNetError
from gluongraph.runtime.checkpoint import Content, Keep, load, write
from gluongraph.runtime.saving import Saver, room

BENCHMARKS = pathlib.Path(__file__).parent.parent.parent / "benchmarks"
BOTH = pytest.mark.parametrize("asynchronous", [False, True])


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    """What is written does not depend on the compiler."""
    with debug.override(backend="reference"):
        yield


def content(step: int, value: float, numbers: int = 1000) -> Content:
    arrays = {"a": np.full(numbers, value, np.float32), "b": np.full((3, 4), value)}
    return Content(step, {"params": arrays, "optim": {"a/m": np.full(numbers, value)}}, {"value": value})


def values(run: pathlib.Path) -> set[float]:
    """All numbers in the newest checkpoint, told ones too."""
    found = load(run)
    return {found.about["value"], *(float(x) for g in found.groups.values() for a in g.values() for x in np.unique(a))}


def names(run: pathlib.Path) -> list[str]:
    return sorted(path.name for path in run.iterdir())


def test_killed_at_any_moment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """25 times; each training goes on from what the one before has left, and in the end nothing shows of it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    outcome = importlib.import_module("checkpoint").kills(tmp_path, count=25, units=64, delay=0.2)
    assert outcome.kills == 25 and outcome.within > 0 and outcome.steps > 5


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Within: no file of this process grows larger; the system says so as it does of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@BOTH
@pytest.mark.parametrize(
    "size", [0, 700, 2000, 5000]
)  # bytes: of extra, params, optim, trainer.json the first too many
def test_no_room(asynchronous: bool, size: int, tmp_path: pathlib.Path) -> None:
    training = Training()
    training.go(1)
    training.save(tmp_path)
    losses = training.go(1)
    message = r"step 2 could not be saved in .*: File too large[^~]*help: .* make room"
    with files_up_to(size), pytest.raises(OSError, match=message):
        training.save(tmp_path, asynchronous=asynchronous)
        training.step.wait()
    assert names(tmp_path) == ["last", "step-00000001"]
    other = Training()
    other.load(tmp_path)
    assert other.go(1) == losses
    training.save(tmp_path, asynchronous=asynchronous)  # there is room again
    training.step.wait()
    assert names(tmp_path) == ["last", "step-00000001", "step-00000002"]


def test_a_full_disk(tmp_path: pathlib.Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs rights that are not given here")
    try:
        saved = 0
        with pytest.raises(OSError, match="No space left on device"):
            for saved in range(100):
                write(disk / f"step-{saved:08d}", content(saved, saved), Keep())
        assert 0 < saved < 99 and len(names(disk)) == saved + 1  # and `last`
        assert values(disk) == {saved - 1}
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Within: without the rights of root, whom no folder stops."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_only_be_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        run = pathlib.Path(name) / "run"
        training = Training()
        training.go(1)
        training.save(run)
        for folder in (run.parent, run):
            folder.chmod(0o555)
        with as_nobody():
            with pytest.raises(PermissionError, match=r"could not be saved in .*run: Permission denied"):
                training.save(run)
            with pytest.raises(PermissionError, match=r"could not be saved in .*new: Permission denied"):
                training.save(run.parent / "new")
            Training().load(run)
        for folder in (run.parent, run):
            folder.chmod(0o755)
        assert names(run) == ["last", "step-00000001"]


def test_a_file_where_the_folder_should_be(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(FileExistsError, match="could not be saved"):
        Training().save(tmp_path / "run")


# -- in a thread


def fails_later(training: Training, run: pathlib.Path) -> None:
    run.write_text("a file where the folder should be")
    training.save(run, asynchronous=True)


@pytest.mark.parametrize("where", ["step", "save", "load", "wait"])
def test_errors_come_out_at_the_next_call(where: str, tmp_path: pathlib.Path) -> None:
    training = Training()
    training.go(1)
    training.save(tmp_path / "good")
    fails_later(training, tmp_path / "bad")
    training.step._saver._thread.join()
    before = training.trainer.optimizer.num_update
    calls: dict[str, Any] = {
        "step": lambda: training.go(1),
        "save": lambda: training.save(tmp_path / "good"),
        "load": lambda: training.load(tmp_path / "good"),
        "wait": training.step.wait,
    }
    with pytest.raises(FileExistsError, match="the checkpoint of step 1 could not be saved"):
        calls[where]()
    assert training.trainer.optimizer.num_update == before
    calls[where]()  # it is said once


def test_an_error_that_nobody_asks_for_is_told_at_the_end(tmp_path: pathlib.Path) -> None:
    program = f"""
import pathlib, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_faults import Training, fails_later
fails_later(Training(), pathlib.Path({str(tmp_path / "bad")!r}))
"""
    environment = {**os.environ, "GG_BACKEND": "reference"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "an asynchronous save has failed: " in done.stderr
    assert "step 0 could not be saved" in done.stderr and "Traceback" not in done.stderr


def test_a_program_that_ends_has_saved(tmp_path: pathlib.Path) -> None:
    program = f"""
import pathlib, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_faults import Keep, Saver, content
Saver().save(pathlib.Path({str(tmp_path)!r}), content(1, 7.0, 1 << 20), Keep(), asynchronous=True)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert values(tmp_path) == {7.0}


def test_what_is_written_is_the_state_of_then(tmp_path: pathlib.Path) -> None:
    """The arrays go on changing; a second save waits for the first, and uses its memory again."""
    saver = Saver()
    for number in (1, 2):
        now = content(number, float(number), 1 << 21)
        saver.save(tmp_path, now, Keep(), asynchronous=True)
        for arrays in now.groups.values():
            for array in arrays.values():
                array[...] = -1
    saver.wait()
    assert not saver.busy
    assert values(tmp_path / "step-00000001") == {1.0} and values(tmp_path / "step-00000002") == {2.0}


@pytest.mark.parametrize("late", [False, True])
def test_memory_that_has_been_reserved(late: bool, tmp_path: pathlib.Path) -> None:
    """It is what the copy goes to, however far the taking of it has come."""
    saver, now = Saver(), content(1, 3.0, 1 << 21)
    saver.reserve(room(now))
    memory = saver._memory
    while late and saver.reserving:
        pass
    saver.save(tmp_path, now, Keep(), asynchronous=True)
    saver.wait()
    assert saver._memory is memory
    assert values(tmp_path) == {3.0}


def test_a_step_reserves_what_its_state_takes(tmp_path: pathlib.Path) -> None:
    training = Training()
    training.go(1)
    training.step.reserve()
    memory = training.step._saver._memory
    training.save(tmp_path, asynchronous=True)
    training.step.wait()
    assert training.step._saver._memory is memory
    with pytest.raises(MXNetError, match="without a trainer"):
        mx.compile(training.net).reserve()


# -- others in the same folder


def test_what_dead_processes_have_left_goes(tmp_path: pathlib.Path) -> None:
    left = tmp_path / ".tmp-step-00000001-99"
    left.mkdir()
    (left / "params").write_text("half of it")
    (tmp_path / ".tmp-last-99").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        load(tmp_path)
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # somebody writes: it may be theirs
    write(tmp_path / "step-00000001", content(1, 1.0), Keep())
    assert left.exists()
    os.close(folder)
    write(tmp_path / "step-00000002", content(2, 2.0), Keep())
    assert names(tmp_path) == ["last", "step-00000001", "step-00000002"]


def test_a_place_that_has_been_taken_meanwhile(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "step-00000001"
    assert write(place, content(1, 1.0), Keep()) == place
    assert write(place, content(1, 2.0), Keep()).name == "step-00000001-v1"
    assert values(place) == {1.0} and values(tmp_path) == {2.0}
