"""Exact resumption within epochs, in another process; what is refused."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import resuming

from gluongraph import gluon
from gluongraph.lightning.data import ArrayLoader, CombinedLoader, EpochIterator, sampling
from gluongraph.lightning.errors import MisconfigurationException

PROGRAM = pathlib.Path(__file__).with_name("resuming.py")


def process(what: str, kind: str, text: str = "") -> str:
    done = subprocess.run([sys.executable, PROGRAM, what, kind], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runs() -> Callable[[str], tuple[Any, Any]]:
    """Of each kind: what a process read that was not interrupted, and what others read that went on."""
    made: dict[str, tuple[Any, Any]] = {}

    def of(kind: str) -> tuple[Any, Any]:
        if kind not in made:
            whole = process("run", kind)
            made[kind] = json.loads(whole), json.loads(process("go_on", kind, whole))
        return made[kind]

    return of


@pytest.mark.parametrize(
    "kind", [("free", name) for name in resuming.FREE] + [("torch", name) for name in resuming.TORCH]
)
def test_what_follows_is_what_would_have_followed(
    runs: Callable[[str], tuple[Any, Any]], kind: tuple[str, str]
) -> None:
    """From every batch of two epochs on: the batches that are left, and all draws of all generators."""
    if kind[0] == "torch":
        pytest.importorskip("torch")
    whole, resumed = (each[kind[1]] for each in runs(kind[0]))
    assert len(whole["states"]) == len(resumed) >= 2 * resuming.EPOCHS
    for state, seen in zip(whole["states"], resumed, strict=True):
        # the state of an epoch's end goes on with what comes behind the epoch
        assert seen == whole["seen"][state["seen"] :], (kind, state["epoch"], state["state"]["batches"])


def test_batches_differ_from_epoch_to_epoch(runs: Callable[[str], tuple[Any, Any]]) -> None:
    """Else the comparison above would prove little."""
    whole, _ = runs("free")
    for name in ("gluon", "gluon, processes", "arrays, no seed", "arrays, by rank", "NDArrayIter"):
        epochs = [[entry[2] for entry in whole[name]["seen"] if entry[0] == epoch] for epoch in (0, 1)]
        assert epochs[0] != epochs[1], name


def states_of(loader: Any, **how: Any) -> list[dict[str, Any]]:
    epoch = EpochIterator(loader, **how)
    return [epoch.state_dict() for _ in epoch]


def arrays(samples: int = 12, **how: Any) -> ArrayLoader:
    return ArrayLoader(np.arange(samples), batch_size=2, **how)


def by_rank(loader: Any) -> Any:
    return sampling.by_rank(loader, 2, 0, sampling.is_shuffled(loader))


@pytest.mark.parametrize("framework", ["gluon", "torch"])
def test_the_order_of_another_sampler_is_refused(framework: str) -> None:
    """As where another number of ranks goes on: samples would be read twice, or never."""
    make: Any = gluon.data.DataLoader
    if framework == "torch":
        pytest.importorskip("torch")
        from torch.utils.data import DataLoader as make

    shuffled, fixed = (make(list(range(12)), batch_size=2, shuffle=shuffle) for shuffle in (True, False))
    wide = make(list(range(12)), batch_size=1, shuffle=True)
    for loader, other in ((shuffled, by_rank(wide)), (by_rank(wide), shuffled), (shuffled, fixed), (fixed, shuffled)):
        states = states_of(loader)
        with pytest.raises(MisconfigurationException, match=r"order.*; here it is .*order.*\n.*\n.*number of ranks"):
            EpochIterator(other, state=states[1])
        assert len(list(EpochIterator(other, state=states[-1]))) == 0  # at the end of an epoch it goes on


def test_a_fixed_order_goes_on_with_another_number_of_ranks() -> None:
    torch = pytest.importorskip("torch")
    whole, part = (torch.utils.data.DataLoader(list(range(12)), batch_size=size) for size in (2, 1))
    rest = [each.tolist() for each in EpochIterator(by_rank(part), state=states_of(whole)[1])]
    assert rest == [[4], [6], [8], [10]]
    rest = [each.tolist() for each in EpochIterator(whole, state=states_of(by_rank(part))[1])]
    assert rest == [[4, 5], [6, 7], [8, 9], [10, 11]]


def test_another_number_of_samples_is_refused() -> None:
    state = states_of(arrays(12))[1]
    with pytest.raises(MisconfigurationException, match=r"dataset of 12 samples; here it has 14.*\n.*\n.*epoch's end"):
        EpochIterator(arrays(14), state=state)


def test_another_number_of_batches_is_refused() -> None:
    def loader(batch_size: int) -> gluon.data.DataLoader:
        return gluon.data.DataLoader(list(range(12)), batch_size=batch_size, sampler=resuming.Jumping())

    state = states_of(loader(2))[1]
    with pytest.raises(MisconfigurationException, match="of 6 batches in an epoch; here are 3"):
        EpochIterator(loader(4), state=state)


def test_another_number_of_loaders_is_refused() -> None:
    state = states_of(CombinedLoader([arrays(), arrays()], "max_size_cycle"))[1]
    with pytest.raises(MisconfigurationException, match="2 loaders; here are 1"):
        EpochIterator(arrays(), state=state)


def test_a_stream_that_has_become_shorter_is_refused() -> None:
    batches = [[1], [2], [3]]
    state = states_of(lambda_of(batches))[2]
    assert state["finished"] is False  # nobody asked whether there was another batch
    with pytest.raises(MisconfigurationException, match="more than 2 batches, with which it ends"):
        next(EpochIterator(lambda_of(batches[:2]), state=state))


def lambda_of(batches: list[Any]) -> Any:
    def generator() -> Any:
        yield from batches

    return generator


def test_the_end_of_an_epoch_goes_on_with_other_data() -> None:
    state = states_of(arrays(12))[-1]
    longer = arrays(14)
    epoch = EpochIterator(longer, state=state)
    assert list(epoch) == [] and epoch.finished
    assert len(list(EpochIterator(longer))) == 7


def test_a_state_before_the_first_batch() -> None:
    loader = arrays(shuffle=True)
    np.random.seed(2)
    state = EpochIterator(loader).state_dict()
    expected = [batch.tolist() for batch in EpochIterator(loader)]
    np.random.seed(9)
    assert [batch.tolist() for batch in EpochIterator(arrays(shuffle=True), state=state)] == expected


def test_a_state_that_nobody_has_gone_on_from_is_given_again() -> None:
    state = states_of(arrays())[2]
    assert EpochIterator(arrays(), state=state).state_dict() == state


def test_a_state_of_a_resumed_epoch() -> None:
    state = states_of(arrays(shuffle=True, seed=1))[1]
    epoch = EpochIterator(arrays(shuffle=True, seed=1), state=state)
    next(epoch)
    later = EpochIterator(arrays(shuffle=True, seed=1), state=epoch.state_dict())
    assert [batch.tolist() for batch in epoch] == [batch.tolist() for batch in later]


@pytest.mark.parametrize("name", ["gluon, processes", "arrays, by rank", "a generator function", "a list"])
def test_batches_that_were_taken_and_not_done(name: str) -> None:
    """An error within step 3: the third batch is given again."""
    np.random.seed(3)
    loader = resuming.FREE[name]()
    epoch = EpochIterator(loader)
    taken = [resuming.written(next(epoch)) for _ in range(3)]
    state = json.loads(json.dumps(epoch.state_dict(completed=2)))
    epoch.close()
    again = EpochIterator(resuming.FREE[name](), state=state)
    assert resuming.written(next(again)) == taken[2]
    again.close()


def test_limits() -> None:
    epoch = EpochIterator(arrays(), limit=4)
    assert epoch.total == 4 and len(list(epoch)) == 4 and epoch.finished and epoch.is_last
    assert EpochIterator(arrays(), limit=float("inf")).total == 6
    assert EpochIterator(lambda_of([1, 2, 3])).total is None
    assert EpochIterator(lambda_of([1, 2, 3]), limit=2).total == 2


@pytest.mark.parametrize("loader", [arrays(6), lambda_of([1, 2, 3]), [1, 2, 3]])
def test_the_last_batch_is_known(loader: Any) -> None:
    epoch = EpochIterator(loader)
    assert [epoch.is_last for _ in epoch] == [False, False, True]


def test_a_loader_that_ends_before_its_length() -> None:
    class Short:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            return iter([1, 2])

    epoch = EpochIterator(Short(), name="train_dataloader")
    with pytest.warns(UserWarning, match="train_dataloader says that it has 3 batches, and has ended after 2"):
        assert list(epoch) == [1, 2]
    assert epoch.finished


def test_stacked_batches_count() -> None:
    epoch = EpochIterator(arrays(12))
    assert epoch.stack(4).shape == (4, 2) and epoch.taken == 4
    assert epoch.stack(3) is None and epoch.taken == 4
    state = epoch.state_dict()
    assert epoch.stack(2).tolist() == [[8, 9], [10, 11]] and epoch.finished
    assert [batch.tolist() for batch in EpochIterator(arrays(12), state=state)] == [[8, 9], [10, 11]]
    assert EpochIterator([1, 2, 3]).stack(2) is None


def test_closing_ends_what_was_begun() -> None:
    ended: list[int] = []

    def batches() -> Any:
        try:
            yield from range(5)
        finally:
            ended.append(1)

    epoch = EpochIterator(batches)
    next(epoch)
    epoch.close()
    assert ended == [1] and list(epoch) == []


def test_workers_end_with_the_epoch() -> None:
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(list(range(8)), batch_size=1, num_workers=2)
    epoch = EpochIterator(loader)
    next(epoch)
    workers = list(epoch._source._workers)  # type: ignore[attr-defined]
    epoch.close()
    for worker in workers:
        worker.join(10)
    assert [worker.is_alive() for worker in workers] == [False, False]


def test_workers_that_stay_are_warned_of() -> None:
    torch = pytest.importorskip("torch")

    def loader() -> Any:
        return torch.utils.data.DataLoader(resuming.Drawing0(), batch_size=4, num_workers=1, persistent_workers=True)

    resuming.scenarios("torch")
    first = loader()
    states_of(first)
    epoch = EpochIterator(first)
    next(epoch)
    state = epoch.state_dict()
    second = loader()
    resumed = EpochIterator(second, state=state)
    with pytest.warns(UserWarning, match="persistent_workers"):
        next(resumed)
    for each in (first, second):
        each._iterator._shutdown_workers()
