"""The runner on several ranks of MPI: the same bits as Python's ranks; one prints and writes; what is refused."""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import re
import subprocess
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempts import attempt
from hostile import edited, says_otherwise
from rank_exports import (
    FIXED,
    OWN,
    STEPS,
    TRAININGS,
    X,
    Y,
    deterministic,
    divided,
    exported_by_two,
    global_batch,
    losses,
    normalized,
    part,
    sgd,
)
from ranks import environment, is_open_mpi, kill_left_over, mpiexec, needs_mpi, run_ranks
from trainings import logged, mean, run

import gluongraph as mx
from gluongraph.artefact import bundle
from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.runtime import tensorfile
from gluongraph.runtime.checkpoint import load
from gluongraph.runtime.communicator.environment import world

pytestmark = needs_mpi
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artefacts of two ranks of Python, what they have then come to, and their data."""
    folder = exported_by_two(tmp_path_factory)
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    return folder


@pytest.fixture
def on_ranks(runner: Path, tmp_path: Path) -> Iterator[Any]:
    """A function that runs gg-run, or a line of the shell for each rank, on two ranks; nothing is left of them."""
    token = uuid.uuid4().hex

    def start(*words: object, shell: str = 'exec "$0" "$@"') -> Done:
        many = ["--oversubscribe"] if is_open_mpi() else []
        line = [str(mpiexec()), *many, "-n", "2", "sh", "-c", shell, str(runner / "gg-run"), *map(str, words)]
        env = environment(token, tmp_path)
        return subprocess.run(line, env=env, capture_output=True, text=True, timeout=60)

    yield start
    assert not kill_left_over(token)


def data_of(folder: Path) -> list[object]:
    return ["--data", f"{folder}/x.npy,{folder}/y.npy"]


def parameters(checkpoint: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in load(checkpoint).groups["params"].items()}


def expected(exported: Path, kind: str) -> list[bytes]:
    """The parameters of Python's ranks."""
    found = np.load(exported / f"{kind}0.npz")
    return [found[name].tobytes() for name in found.files]


@pytest.mark.parametrize("kind", TRAININGS | FIXED)
def test_it_trains_to_the_same_bits(kind: str, exported: Path, on_ranks: Any, tmp_path: Path) -> None:
    words = [*data_of(exported), "--steps", STEPS, "--save", tmp_path / "run", "--log", tmp_path / "log"]
    done = on_ranks(exported / f"{kind}0.gga", *words)
    assert done.returncode == 0 and not done.stderr, done
    assert list(parameters(tmp_path / "run").values()) == expected(exported, kind)
    place = f"{tmp_path}/run/step-{STEPS + 1:08}"
    assert re.fullmatch(rf"update {STEPS + 1}  loss .*\nsaved in {place}\n", done.stdout)  # of one rank
    assert len(logged(tmp_path / "log")) == STEPS
    same_checkpoints(tmp_path / "run", exported / kind)


HALVES = ("scaled", "2bit", "zero1", "fsdp-16")


@pytest.mark.parametrize("kind", HALVES)
def test_it_goes_on_from_checkpoints(kind: str, exported: Path, on_ranks: Any, tmp_path: Path) -> None:
    """What it has saved it goes on from, and so does Python."""
    halves = [*data_of(exported), "--steps", STEPS - 1, "--save", tmp_path / "half"]
    assert on_ranks(exported / f"{kind}0.gga", *halves).returncode == 0
    more = [*data_of(exported), "--steps", 1, "--load", tmp_path / "half", "--save", tmp_path / "more"]
    assert on_ranks(exported / f"{kind}0.gga", *more).returncode == 0
    same_checkpoints(tmp_path / "more", exported / kind)
    run_ranks(2, go_on_from_half, exported / f"{kind}0.gga", tmp_path)
    same_checkpoints(tmp_path / "python", exported / kind)


def go_on_from_half(file: str, folder: str) -> None:
    step = mx.load(file)
    step.load(f"{folder}/half")
    losses(step, range(STEPS - 1, STEPS))
    step.save(f"{folder}/python")


def save_micro(folder: str) -> None:
    step = deterministic()
    step(*global_batch(0))
    if world().rank == 0:
        step.export(f"{folder}/micro.gga", modes=["step"])
    step.trainer.communicator.barrier()
    loaded = mx.load(f"{folder}/micro.gga")
    for number in range(STEPS):
        loaded(*global_batch(number))
    loaded.save(f"{folder}/python")


def test_micro_batches(on_ranks: Any, runner: Path, tmp_path: Path) -> None:
    """On one process as on two: the bits of Python's ranks, running statistics among them."""
    run_ranks(2, save_micro, tmp_path)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    words = [tmp_path / "micro.gga", *data_of(tmp_path), "--steps", STEPS]
    for name, start in (("two", on_ranks), ("one", partial(run, runner))):
        done = start(*words, "--save", tmp_path / name, "--log", tmp_path / f"{name}.log")
        assert done.returncode == 0, done
        assert parameters(tmp_path / name) == parameters(tmp_path / "python"), name
    same_checkpoints(tmp_path / "two", tmp_path / "python")
    one, two = logged(tmp_path / "one.log"), logged(tmp_path / "two.log")
    assert one == pytest.approx(two)  # the mean over ranks is added up in another order
    labels = Y.copy()
    labels[64 + 40] = 11  # of rank 1, in the second batch
    np.save(tmp_path / "y.npy", labels)
    done = on_ranks(*words, "--save", tmp_path / "none")
    assert done.returncode == 2 and "gg-run: out of range, and nothing has changed: Soft" in done.stderr, done
    assert "gg-run: rank 1 has refused its batch, and nothing has changed\n" in done.stderr


def test_another_number_of_ranks(exported: Path, runner: Path) -> None:
    for kind in FIXED:
        done = run(runner, exported / f"{kind}0.gga")
        assert done.returncode == 2 and "is compiled for 2 ranks, and there are 1: start 2" in done.stderr, done


NUMBERS = [name for name in DTYPES if name != "bool"]


def train_on_bytes(folder: str) -> None:
    """Python's ranks, on the artefacts whose gradients are summed as numbers of other types."""
    for dtype in NUMBERS:
        step = mx.load(f"{folder}/{dtype}.gga", trust="file")
        losses(step, range(2))
        if world().rank == 0:
            np.savez(f"{folder}/{dtype}.npz", *(p.data().asnumpy() for p in step.trainer.params))


def test_sums_of_all_types(exported: Path, on_ranks: Any, tmp_path: Path) -> None:
    """The bytes of gradients, taken for numbers of each type, have the sums that Python's ranks make of them: there are
    infinities, NaNs and numbers below the least normal one among them."""
    data = (exported / "sgd0.gga").read_bytes()
    for dtype in NUMBERS:
        (tmp_path / f"{dtype}.gga").write_bytes(edited(data, lambda told, dtype=dtype: sums_as(told, dtype)))
    run_ranks(2, train_on_bytes, tmp_path)
    for dtype in NUMBERS:
        words = [*data_of(exported), "--steps", 2, "--save", tmp_path / dtype]
        done = on_ranks(tmp_path / f"{dtype}.gga", *words)
        assert done.returncode == 0, done
        found = np.load(tmp_path / f"{dtype}.npz")
        assert list(parameters(tmp_path / dtype).values()) == [found[name].tobytes() for name in found.files], dtype


def accumulate(folder: str) -> None:
    """Python's ranks: windows of two batches, the last of one; rank 0's checkpoint, and the mean losses."""
    step, size = mx.load(f"{folder}/adam0.gga"), world().size
    found = []
    for numbers in ([0, 1], [2]):
        total = np.array([sum(mean(step.accumulate(*part(i))) for i in numbers) / len(numbers)])
        step.apply()
        world().allreduce(total)
        found.append(float(total[0]) / size)
    step.save(f"{folder}/accumulated")  # together
    if world().rank == 0:
        Path(folder, "losses.json").write_text(json.dumps(found))


def test_windows_of_batches(exported: Path, on_ranks: Any, tmp_path: Path) -> None:
    samples = 3 * 2 * OWN
    np.save(tmp_path / "x.npy", X[:samples])
    np.save(tmp_path / "y.npy", Y[:samples])
    run_ranks(2, accumulate, exported)
    words = [
        *data_of(tmp_path),
        "--passes",
        1,
        "--accumulate",
        2,
        "--save",
        tmp_path / "run",
        "--log",
        tmp_path / "log",
    ]
    done = on_ranks(exported / "adam0.gga", *words)
    assert done.returncode == 0, done
    assert parameters(tmp_path / "run") == parameters(exported / "accumulated")
    assert logged(tmp_path / "log") == json.loads((exported / "losses.json").read_text())


def save_and_train(folder: str) -> None:
    """A checkpoint of all ranks, and rank 0's parameters some updates later."""
    step = normalized()
    losses(step, range(2))
    step.export(f"{folder}/{world().rank}.gga", modes=["step"])
    losses(step, range(2, 4))
    step.save(f"{folder}/saved", extra={"gg-run": {"pass": 0, "sample": 4 * 2 * OWN, "samples": len(X)}})
    losses(step, range(4, 7))
    step.save(f"{folder}/python")
    arrays = {key: p.data().asnumpy() for key, p in step.net._collect_params_with_prefix().items()}
    np.savez(f"{folder}/python{world().rank}.npz", **arrays)


def test_checkpoints_of_ranks(on_ranks: Any, runner: Path, tmp_path: Path) -> None:
    """They hold the statistics of each rank; another number of ranks has their mean. And back to Python."""
    run_ranks(2, save_and_train, tmp_path)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    words = [tmp_path / "0.gga", *data_of(tmp_path), "--load", tmp_path / "saved", "--steps", 3]
    done = on_ranks(*words, "--save", tmp_path / "run")
    assert done.returncode == 0, done
    expected = [dict(np.load(tmp_path / f"python{rank}.npz")) for rank in range(2)]
    assert expected[0]["2.running_mean"].tobytes() != expected[1]["2.running_mean"].tobytes()
    same_checkpoints(tmp_path / "run", tmp_path / "python")
    assert run(runner, *words).returncode == 0  # alone
    run_ranks(2, go_on, tmp_path)


def same_checkpoints(one: Path, other: Path) -> None:
    """They hold the same arrays, for all ranks and for each."""
    ours, theirs = load(one), load(other)
    for group, arrays in theirs.groups.items():
        found = {name: array.tobytes() for name, array in ours.groups[group].items()}
        assert found == {name: array.tobytes() for name, array in arrays.items()}, group
    for row, expected in zip(ours.about["ranks"], theirs.about["ranks"], strict=True):
        assert (row["arrays"], row["without"]) == (expected["arrays"], expected["without"])


def go_on(folder: str) -> None:
    step = mx.load(f"{folder}/0.gga")
    step.load(f"{folder}/run")
    assert step.trainer.optimizer.num_update == 7
    found = np.load(f"{folder}/python{world().rank}.npz")  # this rank's statistics
    for key, parameter in step.net._collect_params_with_prefix().items():
        assert parameter.data().asnumpy().tobytes() == found[key].tobytes(), key
    losses(step, range(1))


def test_the_first_rank_evaluates(exported: Path, on_ranks: Any, runner: Path) -> None:
    words = [exported / "sgd0.gga", "--evaluate", f"{exported}/x.npy,{exported}/y.npy"]
    assert on_ranks(*words).stdout == run(runner, *words).stdout


def evaluate_parts(folder: str) -> None:
    """Python's ranks, each of which has a part of the parameters: the mean loss, and what the net makes of the data."""
    step = divided("fsdp")
    step(*part(0))
    step.export(f"{folder}/fsdp.gga", batch_sizes=[len(X)], modes=["evaluate", "predict"])
    total, made = mean(step.evaluate(X, Y)), step.predict(X).asnumpy()
    if world().rank == 0:
        np.save(f"{folder}/expected.npy", made)
        Path(folder, "loss").write_text(f"evaluated on {len(X)} samples: loss {total:.6g}")


def test_ranks_evaluate_together(on_ranks: Any, tmp_path: Path) -> None:
    """Where none of them has whole parameters; one of them tells and writes."""
    run_ranks(2, evaluate_parts, tmp_path)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    asked = ["--evaluate", f"{tmp_path}/x.npy,{tmp_path}/y.npy", "--predict", f"{tmp_path}/x.npy"]
    done = on_ranks(tmp_path / "fsdp.gga", *asked, "--output", tmp_path / "made.npy")
    assert done.returncode == 0 and done.stdout.splitlines()[0] == (tmp_path / "loss").read_text(), done
    assert done.stdout.count("evaluated") == 1
    made, expected = np.load(tmp_path / "made.npy"), np.load(tmp_path / "expected.npy")
    assert (made.shape, made.tobytes()) == (expected.shape, expected.tobytes())


class Array(ctypes.Structure):
    """gg_array."""

    _fields_ = (
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


def use_library(library: str, folder: str) -> None:
    """The functions for C on ranks, in processes that know nothing else of MPI."""
    made, rank = ctypes.CDLL(library), int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    made.gg_load.restype, made.gg_error.restype, made.gg_save.restype = ctypes.c_void_p, *[ctypes.c_char_p] * 2
    training = ctypes.c_void_p(made.gg_load(f"{folder}/adam0.gga".encode()))
    assert training, made.gg_error(None)
    assert (made.gg_rank(training), made.gg_rank_count(training)) == (rank, 2)
    value = ctypes.c_double(rank)
    assert made.gg_mean_over_ranks(training, ctypes.byref(value)) == 0 and value.value == 0.5
    assert made.gg_agree(training, b"the same") == 0
    assert made.gg_agree(training, b"rank %d" % rank) == 1
    assert made.gg_error(training) == b"not all ranks say the same: rank %d is at 'rank %d'" % (rank, rank)
    x, y = X[:OWN], Y[:OWN]
    shapes = [(ctypes.c_int64 * a.ndim)(*a.shape) for a in (x, y)]
    rows = zip((b"f32", b"i32"), (x, y), shapes, strict=True)
    batch = (Array * 2)(*(Array(dtype, a.ndim, shape, a.ctypes.data) for dtype, a, shape in rows))
    assert made.gg_accumulate(training, batch, 2) == 0, made.gg_error(training)
    assert made.gg_save(training, f"{folder}/window".encode()) is not None, made.gg_error(training)
    assert made.gg_restore(training, f"{folder}/window".encode()) == 0, made.gg_error(training)
    place = made.gg_save(training, f"{folder}/adam0.gga/none".encode())  # a file is no folder
    assert place is None and (b"rank 0: " in made.gg_error(training)) == (rank != 0), made.gg_error(training)
    assert made.gg_apply(training) == 0
    made.gg_free(training)


def test_the_library_for_c(exported: Path, runner: Path) -> None:
    run_ranks(2, use_library, runner / "lib" / bundle.LIBRARY, exported)
    run_ranks(2, apply_window, exported)


def apply_window(folder: str) -> None:
    """Python's ranks go on within the window that the library has saved, whose sums are each rank's own."""
    step, x, y = mx.load(f"{folder}/adam0.gga"), X[:OWN], Y[:OWN]
    step.accumulate(x, y)
    expected = [array.asnumpy().tobytes() for array in step.accumulator.live.values()]
    step.load(f"{folder}/window")
    assert step.accumulator.batches == 1
    assert [array.asnumpy().tobytes() for array in step.accumulator.live.values()] == expected
    step.apply()


# -- one rank is not as the others


def test_bad_batches_end_all_ranks(exported: Path, on_ranks: Any, tmp_path: Path) -> None:
    labels = Y.copy()
    labels[2 * OWN + OWN + 8] = 11  # of rank 1, in the second batch
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", labels)
    done = on_ranks(exported / "sgd0.gga", *data_of(tmp_path), "--steps", 3, "--save", tmp_path / "run")
    assert done.returncode == 2 and "gg-run: out of range, and nothing has changed: Soft" in done.stderr, done
    assert "gg-run: rank 1 has refused its batch, and nothing has changed\n" in done.stderr
    assert not (tmp_path / "run").exists()


OTHERS = {  # what rank 1 is given in place of the first words
    "other data": ("--steps 2 --data SMALL", "not all ranks say the same: rank 1 is at 'sample 0 of 448"),
    "another number of steps": ("--steps 3 --data DATA", "rank 1 is at 'sample 0 of 512, pass 0, --steps 3 "),
    "another rate": ("--steps 2 --data DATA --lr 0.5", "rates, counts of updates or seeds are not the same"),
    "no data": ("--steps 2 --data none.npy,none.npy", "none.npy: No such file"),
    "another option": ("--step 2 --data DATA", "there is no --step"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_ranks_that_differ(name: str, exported: Path, on_ranks: Any, tmp_path: Path) -> None:
    words, message = OTHERS[name]
    np.save(tmp_path / "x.npy", X[:448])
    np.save(tmp_path / "y.npy", Y[:448])
    for place, folder in (("DATA", exported), ("SMALL", tmp_path)):
        words = words.replace(place, f"{folder}/x.npy,{folder}/y.npy")
    own = f'if [ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = 1 ]; then set -- "$1" {words}; fi; exec "$0" "$@"'
    files = [exported / "sgd0.gga", *data_of(exported)]
    done = on_ranks(*files, "--steps", 2, "--save", tmp_path / "run", shell=own)
    assert done.returncode != 0 and message in done.stderr, done
    assert not (tmp_path / "run").exists()


def test_other_artefacts(exported: Path, on_ranks: Any, tmp_path: Path) -> None:
    own = f'[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = 1 ] && shift && set -- {exported}/adam0.gga "$@"; exec "$0" "$@"'
    done = on_ranks(exported / "sgd0.gga", *data_of(exported), "--steps", 2, shell=own)
    assert done.returncode == 2 and "not all ranks call the same entry of the same artefact" in done.stderr, done


# -- how many ranks there are


def test_one_process_trains_alone(exported: Path, runner: Path, tmp_path: Path) -> None:
    """Nothing of MPI is loaded; Python does the same."""
    words = [exported / "sgd0.gga", *data_of(exported), "--steps", STEPS, "--save", tmp_path / "run"]
    done = run(runner, *words, GG_MPI_LIBRARY="/nowhere")
    assert done.returncode == 0, done.stderr
    step = mx.load(exported / "sgd0.gga")
    for start in range(0, STEPS * OWN, OWN):
        step(X[start : start + OWN], Y[start : start + OWN])
    step.save(tmp_path / "python")
    assert parameters(tmp_path / "run") == parameters(tmp_path / "python")


def test_what_leaves_samples_over(exported: Path, on_ranks: Any, tmp_path: Path) -> None:
    for samples, message in (
        (140, "a batch of 12 is left after those of 64; export with batch_sizes=[32, 6]"),
        (141, "a batch of 13 is left, which 2 ranks cannot share; say --drop-last"),
    ):
        np.save(tmp_path / "x.npy", X[:samples])
        np.save(tmp_path / "y.npy", Y[:samples])
        words = [exported / "sgd0.gga", *data_of(tmp_path), "--passes", 1]
        done = on_ranks(*words)
        assert done.returncode == 2 and message in done.stderr, done


def test_artefacts_for_one_process(artefact: Path, exported: Path, on_ranks: Any, tmp_path: Path) -> None:
    done = on_ranks(artefact, "--data", artefact.with_name("data.safetensors"), "--steps", 1, "--drop-last")
    assert (
        done.returncode == 2 and 'trains in one process; the step of a Trainer with kvstore="dist_sync"' in done.stderr
    )
    step = sgd()
    step(X[:OWN], Y[:OWN])
    step.export(tmp_path / "one.gga", modes=["step"])
    done = on_ranks(tmp_path / "one.gga", *data_of(exported), "--steps", 1)
    assert done.returncode == 2 and "was exported by one rank, and its code has no sum over 2" in done.stderr, done


def test_mpi_that_is_not_there(exported: Path, runner: Path) -> None:
    words = [exported / "sgd0.gga", *data_of(exported), "--steps", 1]
    done = run(runner, *words, PMI_SIZE="2", GG_MPI_LIBRARY="/nowhere/libmpi.so")
    assert done.returncode == 2 and "one of several ranks, and the library of MPI cannot be loaded: /now" in done.stderr
    done = run(runner, *words, PMI_SIZE="2", GG_MPI_LIBRARY="libc.so.6")
    assert (done.returncode, done.stderr) == (2, "gg-run: the library of MPI has no MPI_Init_thread\n")
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    done = run(runner, *words, **variables)
    assert done.returncode == 2 and "RANK and WORLD_SIZE tell of 2 ranks" in done.stderr


def start_runner(runner: str, folder: str) -> None:
    """A process that a rank of Python starts is no rank, though it has the environment of one."""
    world()
    words = [runner, f"{folder}/sgd0.gga", "--data", f"{folder}/x.npy,{folder}/y.npy", "--steps", "1"]
    done = subprocess.run(words, env={**os.environ, "GG_MPI_LIBRARY": "/nowhere"}, capture_output=True, text=True)
    assert done.returncode == 0, done


def test_processes_of_ranks(exported: Path, runner: Path) -> None:
    run_ranks(2, start_runner, runner / "gg-run", exported)


# -- files that nobody has written


def sums_as(told: dict[str, Any], dtype: str) -> None:
    """The sums over ranks of all entries are those of the same bytes as other elements."""
    size = numpy_dtype(dtype).itemsize
    for entry in told["entries"]:
        for _, positions, _, _ in entry.get("collectives", ()):
            for row in (entry["args"][position] for position in positions):
                row[2] = [math.prod(row[2]) * numpy_dtype(row[1]).itemsize // size]
                row[1] = dtype


def step_entry(told: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in told["entries"] if entry["mode"] == "step")
    return found


def collective(place: int, value: Any) -> Any:
    return lambda told: step_entry(told)["collectives"][0].__setitem__(place, value)


def both(*arguments: Any) -> Any:
    return lambda told: step_entry(told)["collectives"][0].__setitem__(slice(1, 3), [list(arguments)] * 2)


def steps(*steps: tuple[Any, Any]) -> Any:
    return lambda told: step_entry(told).update(steps=[list(step) for step in steps])


def other_argument(told: dict[str, Any], place: int, value: Any) -> None:
    entry = step_entry(told)
    entry["args"][entry["collectives"][0][1][0]][place] = value


WRONG: dict[str, tuple[Any, str]] = {
    "another operation": (collective(0, "all_to_all"), "has a collective all_to_all, which does not exist"),
    "another collective": (collective(0, "all_gather"), "has a collective of another part than 0 elements"),
    "not in place": (collective(2, [0]), "sums over ranks what it does not write"),
    "a shard": (collective(3, 8), "sums over ranks in parts"),
    "no arguments": (both(), "has a collective of nothing"),
    "an argument that is none": (both(1 << 20), "has a collective of no argument"),
    "a negative argument": (both(-1), "has a collective of no argument"),
    "an argument that is no number": (both(True), "is no"),
    "a gap": (lambda told: step_entry(told)["collectives"][0][1].reverse(), "memory with gaps"),
    "other elements": (lambda told: other_argument(told, 1, "i32"), "memory with gaps"),
    "truth values": (lambda told: sums_as(told, "bool"), "sums truth values"),
    "no steps": (lambda told: step_entry(told).pop("steps"), "collectives without steps"),
    "steps alone": (lambda told: step_entry(told).pop("collectives"), "or steps alone"),
    "none at all": (lambda told: step_entry(told).update(collectives=[]), "has steps, and no collectives"),
    "no collective": (steps(("run", 0), ("run", 1)), "does not run its collectives"),
    "twice": (steps(("run", 0), ("start", 0), ("wait", 0), ("start", 0)), "in another order"),
    "no wait": (steps(("run", 0), ("start", 0), ("run", 1)), "does not run its collectives"),
    "an early wait": (steps(("run", 0), ("wait", 0), ("start", 0), ("run", 1)), "is not running"),
    "no code": (steps(("start", 0), ("wait", 0)), "runs none of its code"),
    "a step that is none": (steps(("go", 0)), "has a step 'go'"),
    "a segment that is none": (
        steps(("run", 0), ("start", 0), ("wait", 0), ("run", 1), ("run", 2)),
        "no function 'step_segment2'",
    ),
    "no ranks": (lambda told: told.pop("ranks"), "was exported by one process"),
    "0 ranks": (lambda told: told.update(ranks=0), "exported by 0 ranks"),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_nobody_has_written(name: str, exported: Path, runner: Path, tmp_path: Path) -> None:
    change, message = WRONG[name]
    (tmp_path / "bad.gga").write_bytes(edited((exported / "sgd0.gga").read_bytes(), change))
    done = run(runner, tmp_path / "bad.gga", *data_of(exported), "--steps", 1, "--save", tmp_path / "run")
    assert done.returncode == 2 and re.search(message, done.stderr) and done.stderr.count("\n") == 1, done
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gga"]


def test_versions_of_the_format(exported: Path, runner: Path, tmp_path: Path) -> None:
    """Files with collectives have a version that programs refuse which know none; others have the first."""
    data = edited((exported / "sgd0.gga").read_bytes(), lambda told: told.update(format_version=1))
    arrays, metadata = tensorfile.parse_all(np.frombuffer(data, np.uint8), "")
    assert metadata["format_version"] == "2"
    pieces = tensorfile.pieces(arrays, {**metadata, "format_version": "1"})
    (tmp_path / "bad.gga").write_bytes(b"".join(piece.tobytes() for piece in pieces))
    done = run(runner, tmp_path / "bad.gga")
    assert done.returncode == 2 and "has format 1, which is for artefacts without collectives" in done.stderr


def test_descriptors_that_say_anything(exported: Path, runner: Path, tmp_path: Path) -> None:
    data, chance = (exported / "scaled0.gga").read_bytes(), random.Random(0)
    pieces = tensorfile.pieces({"x": X, "y": Y})
    (tmp_path / "data.safetensors").write_bytes(b"".join(piece.tobytes() for piece in pieces))
    found = [attempt(runner, tmp_path, *says_otherwise(data, chance)) for _ in range(48)]
    assert {*found} == {0, 2}
