"""The runner and artefacts that are not what was written: one sentence and exit code 2, or the meaning of before."""

from __future__ import annotations

import pathlib
import random

import pytest
from attempts import attempt, damaged, whole
from hostile import DAMAGE, says_otherwise

EACH = 12  # of each kind of damage; benchmarks/fuzz_runner.py goes on for as long as one likes


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, pathlib.Path]:
    folder = tmp_path_factory.mktemp("fuzz")
    return whole(folder), folder


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused(kind: str, exported: tuple[bytes, pathlib.Path], runner: pathlib.Path) -> None:
    (data, folder), chance = exported, random.Random(kind)
    for _ in range(EACH):
        damaged(runner, folder, data, kind, chance)


def test_descriptors_that_say_anything(exported: tuple[bytes, pathlib.Path], runner: pathlib.Path) -> None:
    (data, folder), chance = exported, random.Random(0)
    found = [attempt(runner, folder, *says_otherwise(data, chance)) for _ in range(8 * EACH)]
    assert {*found} == {0, 2}
