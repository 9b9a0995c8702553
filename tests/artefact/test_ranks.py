"""Artefacts of steps that ranks train together, in Python: the same bits on any number of ranks; what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_exports import MODES, OWN, STEPS, TRAININGS, adam, export_all, losses, part, sgd, weights
from ranks import needs_mpi, run_ranks

import gluongraph as mx
from gluongraph import random
from gluongraph.artefact import entries, file
from gluongraph.errors import FormatError, IndexRangeError, MXNetError
from gluongraph.runtime.communicator.base import Disagreement
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.overlap import BUCKET
from gluongraph.runtime.device import Device

pytestmark = needs_mpi


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artefacts of two ranks, which have been held against the steps that they came from."""
    folder = tmp_path_factory.mktemp("exported")
    run_ranks(2, export_all, folder)
    return folder


def test_ranks_train_alike(exported: Path) -> None:
    for kind in TRAININGS:
        first, second = (np.load(exported / f"{kind}{rank}.npz") for rank in range(2))
        assert [first[n].tobytes() for n in first.files] == [second[n].tobytes() for n in second.files], kind


def compare_with_program(folder: str) -> None:
    """On so many ranks as there are the artefact trains as the program does from the same checkpoint on."""
    for how in ({}, {"trust": "none"}):
        loaded = mx.load(f"{folder}/sgd0.gga", **how)
        place, drawn = loaded.save(f"{folder}/run-{world().size}-{len(how)}"), random.all_states()
        step = sgd()
        step(*part(0))
        step.load(place)
        ours = losses(step, range(STEPS))
        random.set_all_states(drawn)
        assert losses(loaded, range(STEPS)) == ours and weights(loaded) == weights(step), how
        loaded.export(f"{folder}/again{world().rank}.gga")
        assert file.read(f"{folder}/again{world().rank}.gga").told["ranks"] == 2


@pytest.mark.filterwarnings("ignore:.*its code is not run")
def test_on_other_numbers_of_ranks(exported: Path) -> None:
    run_ranks(3, compare_with_program, exported)
    compare_with_program(str(exported))


def refuse_one_rank(folder: str) -> None:
    with pytest.raises(MXNetError, match="was exported by one rank: its code has no sum over the 2 ranks"):
        mx.load(f"{folder}/one.gga")
    mx.load(f"{folder}/evaluate.gga").evaluate(*part(0))


def test_what_one_rank_exports_is_for_one(tmp_path: Path) -> None:
    step = sgd()
    step(*part(0))
    for name, modes in (("one", ["step"]), ("evaluate", ["evaluate"])):
        step.export(tmp_path / f"{name}.gga", modes=modes)
    assert file.read(tmp_path / "one.gga").told["ranks"] == 1
    loaded = mx.load(tmp_path / "one.gga")
    loaded(*part(0))
    run_ranks(2, refuse_one_rank, tmp_path)


def disagree(folder: str) -> None:
    """One rank's batch, file or rate is another one: all are told, nobody has changed anything, and all go on."""
    first = world().rank == 0
    step, other = mx.load(f"{folder}/sgd0.gga"), mx.load(f"{folder}/adam0.gga")
    x, y = part(0)
    before = weights(step)
    with pytest.raises(Disagreement if first else IndexRangeError, match=r"rank 1 has refused the batch|label 11 at"):
        step(x, y if first else np.full(OWN, 11, np.int32))
    with pytest.raises(Disagreement, match="rank 1 runs another program than rank 0"):
        (step if first else other)(x, y)
    step.trainer.set_learning_rate(0.1 if first else 0.2)
    with pytest.raises(Disagreement, match=r"lr: 0\.1 on rank 0, 0\.2 on rank 1"):
        step(x, y)
    assert weights(step) == before
    step.trainer.set_learning_rate(0.1)
    step(x, y)
    assert weights(step) != before


def test_disagreement(exported: Path) -> None:
    run_ranks(2, disagree, exported)


def refuse_exports(folder: str) -> None:
    for wrong, step in (
        ("divided among ranks", sgd(strategy="zero1")),
        ("gradients are compressed", sgd(compression_params={"type": "2bit", "threshold": 0.5})),
    ):
        step(*part(0))
        with pytest.raises(MXNetError, match=wrong):
            step.export(f"{folder}/none.gga")
    step = adam()
    step(*part(0))
    if world().rank == 0:  # alone: an export communicates nothing
        step.export(f"{folder}/alone.gga", modes=MODES[:1])


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    run_ranks(2, refuse_exports, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["alone.gga"]


def export_for_a_gpu(folder: str) -> None:
    step = sgd()
    step(*part(0))
    if world().rank == 0:
        step.export(f"{folder}/gpu.gga", modes=MODES[:1], target="cuda:sm_90")
    world().barrier()
    with pytest.warns(UserWarning, match="it is for a GPU, sm_90"):
        loaded = mx.load(f"{folder}/gpu.gga")
    drawn = random.all_states()
    ours = losses(step, range(STEPS))
    random.set_all_states(drawn)
    assert losses(loaded, range(STEPS)) == ours  # compiled again, for this CPU


@pytest.mark.skipif(Device().exists(), reason="there is a GPU; benchmarks/nccl_check.py runs code on it")
def test_artefacts_for_gpus(tmp_path: Path) -> None:
    """Collectives are described as those of CPUs; sums run beside kernels."""
    run_ranks(2, export_for_a_gpu, tmp_path)
    artefact = file.read(tmp_path / "gpu.gga")
    (entry,) = artefact.told["entries"]
    assert (artefact.told["target"]["kind"], artefact.told["ranks"]) == ("cuda", 2)
    assert entry["collectives"] and f'"bucket":{BUCKET}' in artefact.arrays[entry["graph"]].tobytes().decode()


# -- descriptors that nobody has written

Entry = dict[str, Any]


def collective(place: int, value: Any) -> Callable[[Entry], object]:
    """Another operation, other arguments, another shard."""
    return lambda entry: entry["collectives"][0].__setitem__(place, value)


def both(arguments: list[Any]) -> Callable[[Entry], object]:
    return lambda entry: entry["collectives"][0].__setitem__(slice(1, 3), [arguments, arguments])


def steps(*steps: tuple[Any, Any]) -> Callable[[Entry], object]:
    return lambda entry: entry.update(steps=[list(step) for step in steps])


def other_argument(entry: Entry, place: int, value: Any) -> None:
    entry["args"][entry["collectives"][0][1][-1]][place] = value


WRONG: dict[str, tuple[Callable[[Entry], object], str]] = {
    "another operation": (collective(0, "all_gather"), "no sum"),
    "not in place": (collective(2, [0]), "no sum"),
    "a shard": (collective(3, 1 << 40), "in parts"),
    "a shard that is no number": (collective(3, False), "in parts"),
    "no arguments": (both([]), "what its collectives sum"),
    "an argument that is none": (both([1 << 20]), "sums no argument"),
    "a negative argument": (both([-1]), "what its collectives sum"),
    "an argument that is no number": (both([True]), "what its collectives sum"),
    "state": (lambda e: both([next(i for i, arg in enumerate(e["args"]) if arg[3] == "state")])(e), "gaps"),
    "a gap": (lambda e: both(e["collectives"][0][1][::-1])(e), "gaps"),
    "other elements": (lambda e: other_argument(e, 1, "i32"), "gaps"),
    "beyond the memory": (lambda e: e.update(scratch_bytes=max(a[4] + 40 for a in e["args"])), "gaps|outside"),
    "no steps": (lambda e: e.pop("steps"), "without steps"),
    "steps alone": (lambda e: e.update(collectives=[]), "steps alone"),
    "no collective": (steps(("run", 0), ("run", 1)), "not all collectives"),
    "twice": (steps(("run", 0), ("start", 0), ("wait", 0), ("start", 0), ("wait", 0)), "not all collectives"),
    "no wait": (steps(("run", 0), ("start", 0), ("run", 1)), "not all collectives"),
    "an early wait": (steps(("run", 0), ("wait", 0), ("start", 0), ("run", 1)), "not running"),
    "no code": (steps(("start", 0), ("wait", 0)), "segments"),
    "a segment left out": (steps(("run", 0), ("start", 0), ("wait", 0), ("run", 2)), "segments"),
    "a step that is none": (steps(("run", 0), ("start", 0), ("wait", 0), ("go", 1)), "a step that is none"),
    "a step without a number": (steps(("run", "0"), ("start", 0), ("wait", 0)), "its steps"),
}


@pytest.mark.parametrize("name", WRONG)
def test_descriptors_that_nobody_has_written(name: str, exported: Path, tmp_path: Path) -> None:
    change, message = WRONG[name]
    artefact = file.read(exported / "sgd0.gga")
    told = copy.deepcopy(dict(artefact.told))
    change(next(entry for entry in told["entries"] if entry["mode"] == "step"))
    write(tmp_path / "wrong.gga", told, artefact)
    with pytest.raises(FormatError, match=message):
        mx.load(tmp_path / "wrong.gga")


def write(path: Path, told: dict[str, Any], artefact: file.Artefact) -> None:
    file.write(path, {name: value for name, value in told.items() if name not in file.WRITTEN}, artefact.arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": 0}, "exported by 0 ranks"),
        ({"ranks": None}, "exported by one process"),
        ({"ranks": "2"}, "exported by '2' ranks"),
        ({"entries": []}, "format 2 is not that of its contents"),
    ],
)
def test_ranks_and_versions(change: dict[str, Any], message: str, exported: Path) -> None:
    artefact = file.read(exported / "sgd0.gga")
    assert artefact.metadata["format_version"] == "2"
    told = file.Artefact("", {**artefact.told, **change}, artefact.arrays, metadata=artefact.metadata)
    with pytest.raises(FormatError, match=message):
        entries.check(told)
