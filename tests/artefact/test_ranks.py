"""Artefacts of steps that ranks train together, in Python: the same bits on any number of ranks; what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_exports import (
    FIXED,
    MODES,
    OWN,
    STEPS,
    TRAININGS,
    X,
    Y,
    adam,
    compressed,
    deterministic,
    divided,
    exported_by_two,
    global_batch,
    losses,
    part,
    sgd,
    weights,
)
from ranks import needs_mpi, run_ranks

import gluongraph as mx
from gluongraph import random
from gluongraph.artefact import entries, file
from gluongraph.errors import FormatError, IndexRangeError, MXNetError, ShapeError
from gluongraph.runtime.communicator.base import Disagreement
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.overlap import BUCKET
from gluongraph.runtime.device import Device

pytestmark = needs_mpi


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artefacts of two ranks, which have been held against the steps that they came from."""
    return exported_by_two(tmp_path_factory)


def test_ranks_train_alike(exported: Path) -> None:
    for kind in TRAININGS | FIXED:
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


# -- steps that are for as many ranks as export them


def refuse_ranks(folder: str) -> None:
    for kind in FIXED:
        with pytest.raises(MXNetError, match=f"is compiled for 2 ranks, and there are {world().size}"):
            mx.load(f"{folder}/{kind}0.gga")


def test_another_number_of_ranks(exported: Path) -> None:
    for kind in FIXED:
        artefact = file.read(exported / f"{kind}0.gga")
        assert (artefact.told["ranks"], artefact.metadata["format_version"]) == (2, "3")
    run_ranks(3, refuse_ranks, exported)
    refuse_ranks(str(exported))


@pytest.mark.filterwarnings("ignore:.*its code is not run")
def test_arrays_of_the_file_do_not_depend_on_ranks(tmp_path: Path) -> None:
    """What is divided among ranks is whole in the file, as in that of a step of one process."""
    run_ranks(2, export_divided, tmp_path)
    one = divided("zero1")
    one(*part(0))
    one.export(tmp_path / "one.gga", modes=["step"])
    wanted = {name: array.shape for name, array in file.read(tmp_path / "one.gga").under("optim/").items()}
    for strategy in ("zero1", "fsdp"):
        found = file.read(tmp_path / f"{strategy}.gga").under("optim/")
        assert {name: array.shape for name, array in found.items()} == wanted


def export_divided(folder: str) -> None:
    """What a loaded step exports is what it was loaded from, and so is what is compiled again."""
    for strategy in ("zero1", "fsdp"):
        step = divided(strategy)
        step(*part(0))
        step.export(f"{folder}/{strategy}.gga", modes=["step", "evaluate"])
        loaded, drawn = mx.load(f"{folder}/{strategy}.gga"), random.all_states()
        loaded.export(f"{folder}/again.gga")
        ours = losses(step, range(2))
        for path, how in ((f"{folder}/again.gga", "keys"), (f"{folder}/{strategy}.gga", "none")):
            random.set_all_states(drawn)
            again = mx.load(path, trust=how)
            assert losses(again, range(2)) == ours and weights(again) == weights(step), (strategy, how)
        assert again.evaluate(*part(3)).asnumpy().tobytes() == step.evaluate(*part(3)).asnumpy().tobytes()


def predict_whole(folder: str) -> None:
    step = divided("zero1")
    step(*part(0))
    step.export(f"{folder}/predict.gga", batch_sizes=[OWN], modes=["predict"])
    if world().rank == 0:
        np.save(f"{folder}/made.npy", step.predict(X[:OWN]).asnumpy())


def test_predictions_from_whole_parameters(tmp_path: Path) -> None:
    """They are for any number of ranks, whoever trains."""
    run_ranks(2, predict_whole, tmp_path)
    loaded = mx.load(tmp_path / "predict.gga")
    assert loaded.predict(X[:OWN]).asnumpy().tobytes() == np.load(tmp_path / "made.npy").tobytes()


def keep_back(folder: str) -> None:
    """A checkpoint holds what each rank has kept back; the artefact and the program go on from it alike."""
    step = compressed("2bit")
    losses(step, range(2))
    step.export(f"{folder}/2bit.gga", modes=["step"])
    losses(step, range(2, 4))
    step.save(f"{folder}/run")
    ours = losses(step, range(4, 6))
    loaded = mx.load(f"{folder}/2bit.gga")
    loaded.load(f"{folder}/run")
    assert losses(loaded, range(4, 6)) == ours and weights(loaded) == weights(step)


def test_checkpoints_of_compressed_gradients(tmp_path: Path) -> None:
    run_ranks(2, keep_back, tmp_path)


def part_ways(folder: str) -> None:
    """Ranks export together; parameters that were divided together stay so."""
    step = divided("zero1")
    step(*part(0))
    with pytest.raises(Disagreement, match=r"step\.export after 1 updates"):
        step.export(f"{folder}/none.gga") if world().rank == 0 else step.save(f"{folder}/none")
    if world().rank == 0:
        Path(folder, "taken.gga").mkdir()  # a file cannot be put there
    with pytest.raises(OSError) as wrong:
        step.export(f"{folder}/taken.gga", modes=["step"])
    assert ("rank 0: " in str(wrong.value)) == (world().rank != 0)
    step.export(f"{folder}/zero1.gga", modes=["step"])
    loaded = mx.load(f"{folder}/zero1.gga")
    loaded.trainer.params[0].lr_mult = 0.5
    with pytest.raises(MXNetError, match="have come apart since the export"):
        loaded(*part(0))


def test_ranks_export_together(tmp_path: Path) -> None:
    run_ranks(2, part_ways, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken.gga", "zero1.gga"]


# -- steps in micro-batches, whose bits do not depend on the number of ranks


def export_micro(folder: str) -> None:
    step = deterministic()
    step(*global_batch(0))
    if world().rank == 0:
        step.export(f"{folder}/micro.gga", modes=["step", "evaluate"])
    drawn = random.all_states()
    for number in range(1, 4):
        step(*global_batch(number))
    if world().rank == 0:
        np.savez(f"{folder}/micro.npz", *(p.data().asnumpy() for p in step.trainer.params))
    random.set_all_states(drawn)


def go_on_micro(folder: str) -> None:
    loaded = mx.load(f"{folder}/micro.gga")
    for number in range(1, 4):
        loaded(*global_batch(number))
    expected = np.load(f"{folder}/micro.npz")
    assert weights(loaded) == [expected[name].tobytes() for name in expected.files]
    assert [each[0].shape for each in loaded.batches("step")] == [(64 // world().size, 20)]
    with pytest.raises(ShapeError, match="no code to compute a micro-batch of"):
        loaded(X[:8], Y[:8])


def refuse_micro(folder: str) -> None:
    loaded = mx.load(f"{folder}/micro.gga")
    with pytest.raises(MXNetError, match="4 micro-batches on 3 ranks"):
        loaded(*part(0))


def test_micro_batches(tmp_path: Path) -> None:
    """The same bits on 1, 2 and 4 ranks, whatever number has exported them."""
    run_ranks(2, export_micro, tmp_path)
    artefact = file.read(tmp_path / "micro.gga")
    assert [entry["mode"] for entry in artefact.told["entries"]] == ["backward", "apply", "evaluate"]
    assert artefact.metadata["format_version"] == "3"
    for ranks in (2, 4):
        run_ranks(ranks, go_on_micro, tmp_path)
    go_on_micro(str(tmp_path))
    run_ranks(3, refuse_micro, tmp_path)
    step = deterministic()
    with pytest.raises(ShapeError, match="argument 0 has 6 samples, which are not 4 equal micro-batches"):
        step.export(tmp_path / "none.gga", batches=[(X[:6], Y[:6])])


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
    "another operation": (collective(0, "all_to_all"), "does not exist"),
    "not in place": (collective(2, [0]), "not in place"),
    "a shard": (collective(3, 1 << 40), "not in place"),
    "a shard that is no number": (collective(3, False), "the size of a part"),
    "no arguments": (both([]), "a collective of nothing"),
    "an argument that is none": (both([1 << 20]), "a collective of no argument"),
    "a negative argument": (both([-1]), "a collective of nothing"),
    "an argument that is no number": (both([True]), "a collective of nothing"),
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


def collectives(told: Entry, operation: str) -> list[list[Any]]:
    return [row for e in told["entries"] for row in e.get("collectives", ()) if row[0] == operation]


def trained(told: Entry) -> list[Entry]:
    return [entry for entry in told["entries"] if entry["mode"] != "evaluate"]


def scatter(place: int, value: Any) -> Callable[[Entry], object]:
    """Another operation, other arguments, another size of what one rank gets of the sums."""
    return lambda told: collectives(told, "reduce_scatter")[0].__setitem__(place, value)


def bucket(key: str, change: Callable[[Any], Any]) -> Callable[[Entry], object]:
    def changed(told: Entry) -> None:
        found = next(iter(told["exchange"]["buckets"].values()))
        found[key] = change(found[key])

    return changed


def shard(key: str, value: Any) -> Callable[[Entry], object]:
    return lambda told: next(s for s in told["states"].values() if "state" in s["value"]).__setitem__(key, value)


DIVIDED: dict[str, tuple[Callable[[Entry], object], str]] = {
    "a part of another size": (scatter(3, 16), "another part|another size"),
    "no part": (scatter(2, []), "of nothing"),
    "two parts": (scatter(2, [0, 0]), "another part"),
    "states in another order": (lambda told: collectives(told, "all_gather")[0][2].reverse(), "gaps"),
    "a sum": (scatter(0, "all_reduce"), "not in place"),
    "another rank's part": (bucket("elements", lambda n: n + 16), "its part of a rank"),
    "a part that is no number": (bucket("elements", lambda n: None), "its part of a rank"),
    "no parameters": (bucket("parameters", lambda keys: []), "no parameters"),
    "parameters twice": (bucket("parameters", lambda keys: keys + keys), "its part of a rank"),
    "parameters in another order": (bucket("parameters", lambda keys: keys[::-1]), "gaps"),
    "a parameter that does not exist": (bucket("parameters", lambda keys: ["none"]), "KeyError"),
    "no buckets": (lambda told: told["exchange"].pop("buckets"), "KeyError"),
    "a state of another type": (shard("dtype", "f16"), "its type"),
    "a state of another size": (shard("shape", [16]), "its type"),
    "a state of nobody": (shard("value", {"shard": "shard:0", "state": "none"}), "KeyError"),
    "a strategy that does not exist": (lambda told: told["exchange"].update(strategy="zero9"), "no strategy"),
    "no parts": (
        lambda told: told.update(entries=[e for e in told["entries"] if e["mode"] == "evaluate"]),
        "any number",
    ),
    "more ranks": (lambda told: told.update(ranks=3), "its part of a rank|compiled for 3 ranks"),
}


def refuse_files(folder: str) -> None:
    for name, (_, message) in DIVIDED.items():
        with pytest.raises((FormatError, MXNetError), match=message):
            mx.load(f"{folder}/{name}.gga")


def test_divided_states_that_nobody_has_written(exported: Path, tmp_path: Path) -> None:
    artefact = file.read(exported / "zero10.gga")
    for name, (change, _) in DIVIDED.items():
        told = copy.deepcopy(dict(artefact.told))
        change(told)
        write(tmp_path / f"{name}.gga", told, artefact)
    run_ranks(2, refuse_files, tmp_path)


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
