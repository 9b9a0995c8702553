"""What is concluded from the reports of ranks, at which time."""

from __future__ import annotations

import pytest

from gluongraph.runtime.communicator.activity import ranges, within
from gluongraph.runtime.communicator.diagnosis import (
    ASK,
    ENDED_WAIT,
    FINISHED,
    SILENCE,
    WARN,
    Diagnosis,
    Fault,
    Report,
)

TIMEOUT = 100.0
BUSY = Report(place="train.py:7 in load")
ENDED = Report(FINISHED)


def waits(inside: str = "allreduce", calls: int = 5, members: str = "") -> Report:
    return Report(inside=inside, members=members, calls=calls, place="train.py:30 in step")


def job(*reports: Report) -> Diagnosis:
    """Ranks that have reported at time 0, and do so again at each look."""
    found = Diagnosis(range(len(reports)), 0, TIMEOUT)
    for index, report in enumerate(reports):
        found.hear(index, report, 0)
    return found


def look(found: Diagnosis, reports: tuple[Report, ...], now: float) -> Fault | None:
    for index, report in enumerate(reports):
        found.hear(index, report, now)
    return found.fault(now)


@pytest.mark.parametrize(
    ("reports", "time", "message"),
    [
        ((waits(), ENDED), ENDED_WAIT, "rank 1 ended while rank 0 waits in allreduce at train.py:30 in step"),
        ((ENDED, waits(), waits()), ENDED_WAIT, "rank 0 ended while ranks 1, 2 wait in allreduce at "),
        (
            (waits(), waits("barrier")),
            ENDED_WAIT,
            "call different collectives: rank 0 waits in allreduce at train.py:30",
        ),
        ((waits(), BUSY), TIMEOUT, "for 100 s (GG_COMM_TIMEOUT); rank 1 runs train.py:7 in load"),
        ((waits(), waits()), TIMEOUT, "ranks 0, 1 wait in allreduce at train.py:30 in step for 100 s"),
        ((waits(calls=6), waits("broadcast")), TIMEOUT, "rank 1 waits in broadcast at train.py:30"),
    ],
)
def test_faults_that_end_the_job(reports: tuple[Report, ...], time: float, message: str) -> None:
    found = job(*reports)
    before = look(found, reports, time - 0.1)
    assert before is None or not before.fatal
    fault = look(found, reports, time)
    assert fault is not None and fault.fatal
    assert message in fault.message


def test_a_rank_that_has_come_to_its_end_can_be_lost() -> None:
    """Its process remains, and waits for the others."""
    reports = (waits(), ENDED, waits())
    fault = look(job(*reports), reports, ENDED_WAIT)
    assert fault is not None and (fault.lost, fault.remains) == (1, True)


@pytest.mark.parametrize(
    "reports",
    [
        (BUSY, BUSY),
        (ENDED, BUSY),  # it may go on alone
        (ENDED, ENDED),
        (waits(), waits()),  # a large array
        (waits(calls=6), waits("broadcast")),  # the root of a broadcast may be ahead
        (waits(members="0,2"), ENDED, waits(members="0,2")),  # others than those that wait
        (waits(members="0"), waits("barrier", members="1")),
        (waits(members="?"), ENDED),  # too many to be written down
    ],
)
def test_what_is_no_fault(reports: tuple[Report, ...]) -> None:
    found = job(*reports)
    for time in (1.0, ENDED_WAIT, WARN, TIMEOUT / 2):
        assert look(found, reports, time) is None


def test_the_old_report_of_a_stopped_rank_is_not_believed() -> None:
    """It was in a collective when it was stopped, which the others have left."""
    found = job(ENDED, waits())
    for time in (ENDED_WAIT, SILENCE):
        found.hear(0, ENDED, time)
        assert found.fault(time) is None
    found.trouble(1, "stopped")
    fault = found.fault(SILENCE)
    assert fault is not None and fault.message.startswith("rank 1 is stopped (SIGSTOP)") and fault.lost == 1


def test_a_busy_rank_is_named_once() -> None:
    reports = waits(), BUSY, waits()
    found = job(*reports)
    assert look(found, reports, WARN - 0.1) is None
    fault = look(found, reports, WARN)
    assert fault == Fault(
        "ranks 0, 2 wait in allreduce at train.py:30 in step for 10 s: rank 1 runs train.py:7 in load", fatal=False
    )
    assert look(found, reports, WARN + 1) is None
    later = waits(calls=6), BUSY, waits(calls=6)
    look(found, later, WARN + 2)
    again = look(found, later, 2 * WARN + 2)
    assert again is not None and not again.fatal


def test_a_busy_rank_whose_place_is_not_known() -> None:
    """It has not been asked yet, or cannot answer."""
    reports = waits(), Report(), waits()
    found = job(*reports)
    warned = look(found, reports, WARN)
    assert warned is not None and warned.message.endswith("for 10 s: rank 1 is busy")
    found = job(*reports)
    found.hear(0, waits(), WARN)
    silent = found.fault(WARN)
    assert silent is not None
    assert silent.message.endswith("for 10 s: rank 1 does not answer (native code holds Python's lock?)")


def test_who_is_asked_where_it_is() -> None:
    """Ranks outside of any collective that others have waited for, and no others."""
    reports = waits(members="0,1"), BUSY, BUSY, waits("barrier", members="3")
    found = job(*reports)
    look(found, reports, ASK)
    assert found.waited_for(ASK - 0.1) == set() and found.waited_for(ASK) == {1}
    look(found, (BUSY, BUSY, BUSY, BUSY), ASK + 1)
    assert found.waited_for(ASK + 1) == set()


def test_a_rank_that_has_just_left_the_collective_is_not_busy() -> None:
    """The reports of others that are still in it may be older."""
    reports = waits(), waits()
    found = job(*reports)
    look(found, reports, 2 * WARN)
    found.hear(0, BUSY, 2 * WARN + 0.1)
    assert found.fault(2 * WARN + 0.1) is None


def test_a_collective_that_is_left_starts_the_time_again() -> None:
    found = job(waits(), ENDED)
    look(found, (BUSY, ENDED), 1)
    assert look(found, (waits(), ENDED), 50) is None
    assert look(found, (waits(), ENDED), 50 + ENDED_WAIT) is not None


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("stopped", "rank 1 is stopped (SIGSTOP) while rank 0 waits in allreduce"),
        ("silent", "rank 1 has not answered for 6 s while rank 0 waits in allreduce"),
        ("ended", "rank 1 ended without a word while rank 0 waits in allreduce"),
    ],
)
def test_lost_processes(trouble: str, message: str) -> None:
    found = job(waits(), BUSY)
    found.hear(0, waits(), SILENCE)
    assert found.silent(SILENCE, SILENCE) == [1]
    assert found.fault(SILENCE) is None  # nobody has looked at the process
    found.trouble(1, trouble)
    fault = found.fault(SILENCE)
    assert fault is not None and message in fault.message
    assert (fault.lost, fault.remains) == (1, trouble == "stopped")


def test_a_stopped_rank_for_which_nobody_waits_is_left_alone() -> None:
    found = job(BUSY, BUSY)
    found.trouble(1, "stopped")
    assert found.fault(SILENCE) is None
    found.trouble(1, "ended")
    assert found.fault(SILENCE) is not None


def test_an_answer_ends_the_trouble() -> None:
    found = job(waits(), BUSY)
    found.trouble(1, "stopped")
    found.hear(1, BUSY, 1)
    assert found.fault(1) is None


def test_an_observer_that_was_stopped_itself_accuses_nobody() -> None:
    reports = waits(), BUSY
    found = job(*reports)
    found.pause(1000)
    assert found.silent(1001, SILENCE) == []
    assert look(found, reports, 1001) is None


def test_all_finished() -> None:
    assert job(ENDED, ENDED).all_finished()
    assert not job(ENDED, BUSY).all_finished()


def test_reports_as_texts() -> None:
    for report in (BUSY, ENDED, waits(members="0-3,8")):
        assert Report.decode(report.encode()) == report


def test_many_ranks_in_few_characters() -> None:
    assert ranges([5, 1, 2, 3]) == "1-3,5"
    assert ranges(list(range(0, 2000, 2))) == "?"
    assert [rank for rank in range(7) if within(rank, "1-3,5")] == [1, 2, 3, 5]
