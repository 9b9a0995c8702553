"""One seed for everything."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import gluongraph as mx
from gluongraph.lightning.utilities import seed_everything
from gluongraph.lightning.utilities.seed import reset_seed


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)


def draws() -> list[float]:
    return [random.random(), np.random.rand(), float(mx.random.uniform().asscalar())]


def test_all_generators_follow() -> None:
    assert seed_everything(3, workers=True) == 3
    assert (os.environ["PL_GLOBAL_SEED"], os.environ["PL_SEED_WORKERS"]) == ("3", "1")
    first = draws()
    seed_everything(3)
    assert draws() == first and os.environ["PL_SEED_WORKERS"] == "0"
    reset_seed()
    assert draws() == first
    seed_everything(4)
    assert draws() != first


def test_the_numbers_are_lightnings() -> None:
    """A script draws what it drew with Lightning."""
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("lightning.fabric.utilities.seed")
    drawn = []
    for seeded in (seed_everything, theirs.seed_everything):
        seeded(11, verbose=False)
        drawn.append([random.random(), np.random.rand(), float(torch.rand(1))])
    assert drawn[0] == drawn[1]


def test_the_seed_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="the seed is 0"):
        assert seed_everything() == 0
    monkeypatch.setenv("PL_GLOBAL_SEED", "17")
    assert seed_everything() == 17
    monkeypatch.setenv("PL_GLOBAL_SEED", "many")
    with pytest.raises(ValueError, match="PL_GLOBAL_SEED is a whole number, not 'many'"):
        seed_everything()


@pytest.mark.parametrize(
    ("seed", "message"), [(-1, "from 0 to 4294967295"), (1 << 32, "from 0"), ("x", "whole number")]
)
def test_bad_seeds(seed: object, message: str) -> None:
    before = random.getstate()
    with pytest.raises(ValueError, match=message):
        seed_everything(seed)  # type: ignore[arg-type]
    assert random.getstate() == before and "PL_GLOBAL_SEED" not in os.environ


def test_the_seed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "gluongraph.lightning"):
        seed_everything(5)
        seed_everything(6, verbose=False)
    assert [record.getMessage() for record in caplog.records] == ["[rank: 0] Seed set to 5"]
