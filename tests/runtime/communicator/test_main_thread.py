"""When the place of the main thread is looked up: seldom, and of a thread that is still."""

from __future__ import annotations

import pytest

from gluongraph.runtime.communicator import main_thread
from gluongraph.runtime.communicator.main_thread import Doing, Place

FIRST, SECOND = ("allreduce", "", 1), ("allreduce", "", 2)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each look was told, of a thread that waits or does not."""
    found: list[bool] = []

    def place(waits: bool) -> str:
        found.append(waits)
        return f"look {len(found)}"

    monkeypatch.setattr(main_thread, "_place", place)
    return found


def read(reports: list[tuple[Doing, bool]]) -> list[str]:
    """One report each 0.4 s."""
    place = Place()
    return [place.read(doing, asked, 0.4 * index) for index, (doing, asked) in enumerate(reports)]


def test_a_thread_that_nobody_asks_for_is_not_looked_at(looks: list[bool]) -> None:
    assert read([(None, False)] * 5 + [(FIRST, False), (SECOND, False), (None, False)]) == [""] * 8 and not looks


def test_one_that_stays_in_a_collective_is_looked_at_once(looks: list[bool]) -> None:
    assert read([(FIRST, False)] * 4 + [(SECOND, True)] * 2) == ["", *["look 1"] * 3, "", "look 2"]
    assert looks == [True, True]


def test_one_that_others_wait_for_is_looked_at_once_a_second(looks: list[bool]) -> None:
    found = read([(None, False), *[(None, True)] * 6, (None, False), (FIRST, True)])
    assert found == ["", *["look 1"] * 3, *["look 2"] * 3, "", ""] and looks == [False, False]


def test_the_line_of_the_user() -> None:
    place = Place()
    assert place.read(None, True, 0.0) == place.read(None, True, 0.1)
    assert "test_main_thread.py:" in place.read(None, True, 0.2) and "in test_the_line_of_the_user" in place.read(
        None, True, 0.3
    )
