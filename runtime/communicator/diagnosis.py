"""What is wrong with a job, concluded from the reports of its ranks: who waits for whom, and whether that can end.

No messages and no clock here: whoever asks says what time it is, so that each rule has a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gluongraph.runtime.communicator.activity import within

ENDED_WAIT = 2.0  # seconds that a rank waits for one that has ended, before it is an error: data may be under way
ASK = 1.0  # seconds that a rank waits for another before that one is asked where it is
SILENCE = 6.0  # seconds without a report after which a rank is looked at
WARN = 10.0  # seconds that a rank waits for another before that is said
RUNNING, FINISHED = "running", "finished"


@dataclass(frozen=True)
class Report:
    """What a rank is doing."""

    state: str = RUNNING
    inside: str = ""  # the collective that its main thread waits in
    members: str = ""  # the ranks that take part in it
    calls: int = 0  # number of collectives of these ranks, with this one
    place: str = ""  # where its main thread is in the program, if that is known
    asks: bool = False  # the receiver is to say where it is: others wait for it

    @property
    def activity(self) -> tuple[str, str, str, int]:
        """What two reports have in common between which a rank has not gone on."""
        return self.state, self.inside, self.members, self.calls

    def encode(self) -> str:
        """As a text of six lines."""
        return "\n".join((*map(str, self.activity), self.place, "?" if self.asks else ""))

    @classmethod
    def decode(cls, text: str) -> Report:
        """The report that `encode` wrote.

        >>> Report.decode(Report(inside="barrier", calls=3, place="train.py:7").encode())
        Report(state='running', inside='barrier', members='', calls=3, place='train.py:7', asks=False)
        """
        state, inside, members, calls, place, asks = text.split("\n")
        return cls(state, inside, members, int(calls), place, bool(asks))


@dataclass(frozen=True)
class Fault:
    """What is wrong: the job has to end, or only a line is to be shown."""

    message: str
    fatal: bool = True
    lost: int | None = None  # index of a rank whose process is gone or stopped, or that has come to its end
    remains: bool = False  # is there still a process of it, stopped or waiting for the others to end?


@dataclass
class _Rank:
    name: int  # its number in the job as it was started
    heard: float
    since: float  # when it entered the collective that it is within, or began to do something else
    report: Report = field(default_factory=Report)
    trouble: str = ""  # "ended", "stopped": what the system says of its process, or "silent" where it cannot be asked

    @property
    def waits(self) -> bool:
        return bool(self.report.inside)


class Diagnosis:
    """The latest reports of all ranks, and what follows from them."""

    def __init__(self, names: Sequence[int], now: float, timeout: float) -> None:
        """`names` are the ranks' numbers in the job; `timeout` is how long a rank may wait for a busy one."""
        self._ranks = [_Rank(name, now, now) for name in names]
        self._timeout = timeout
        self._warned: set[tuple[int, tuple[str, str, str, int]]] = set()

    def hear(self, index: int, report: Report, now: float) -> None:
        """Take a report of a rank."""
        rank = self._ranks[index]
        if rank.report.activity != report.activity:
            rank.since = now
        rank.report, rank.heard, rank.trouble = report, now, ""

    def silent(self, now: float, at_least: float) -> list[int]:
        """The ranks that have not reported for so long; somebody has to look at their processes."""
        return [index for index, rank in enumerate(self._ranks) if now - rank.heard >= at_least]

    def trouble(self, index: int, kind: str) -> None:
        """Note what is known of a rank's process: it has "ended", is "stopped", or "silent" on another host."""
        self._ranks[index].trouble = kind

    def pause(self, seconds: float) -> None:
        """Whoever observes has itself been stopped for so long: nobody is late because of that."""
        for rank in self._ranks:
            rank.heard += seconds
            rank.since += seconds

    def waited_for(self, now: float) -> set[int]:
        """The ranks that are in no collective while others have long been in one that they are to take part in."""
        groups = {rank.report.members for rank in self._ranks if rank.waits and now - rank.since >= ASK}
        return {
            index
            for index, rank in enumerate(self._ranks if groups else ())
            if not rank.waits and any(within(rank.name, members) for members in groups)
        }

    def all_finished(self) -> bool:
        """Have all ranks come to the end of their program?"""
        return all(rank.report.state == FINISHED for rank in self._ranks)

    def fault(self, now: float) -> Fault | None:
        """What is wrong, the most certain first."""
        for rule in (self.lost, self._waits_for_ended, self._other_collectives, self._too_long, self._waits_for_busy):
            if (fault := rule(now)) is not None:
                return fault
        return None

    # --- the rules

    def lost(self, now: float) -> Fault | None:
        """A process is gone, or is stopped while others wait for it."""
        for index, rank in enumerate(self._ranks):
            waiting = self._waiting_for(rank, now, at_least=0) or self._finished()
            if rank.trouble == "ended":
                suffix = f" while {_doing(waiting)}" if waiting else ""
                return Fault(f"rank {rank.name} ended without a word{suffix}", lost=index)
            if rank.trouble and waiting:
                stopped = rank.trouble == "stopped"
                what = "is stopped (SIGSTOP)" if stopped else f"has not answered for {now - rank.heard:.0f} s"
                return Fault(f"rank {rank.name} {what} while {_doing(waiting)}", lost=index, remains=stopped)
        return None

    def _waits_for_ended(self, now: float) -> Fault | None:
        """A rank has come to the end of its program, others wait in a collective that it does not enter.

        They have to have said so for as long: the last report of one that was stopped meanwhile is an old one.
        """
        for index, rank in enumerate(self._ranks):
            if rank.report.state != FINISHED or now - rank.since < ENDED_WAIT:
                continue
            if any(each.heard - each.since >= ENDED_WAIT for each in self._waiting_for(rank, now, ENDED_WAIT)):
                message = f"rank {rank.name} ended while {_doing(self._waiting_for(rank, now, at_least=0))}"
                return Fault(message, lost=index, remains=True)
        return None

    def _other_collectives(self, now: float) -> Fault | None:
        """Two ranks of the same group are in their collective of the same number, and these are different ones."""
        first: dict[tuple[str, int], _Rank] = {}
        for rank in self._ranks:
            if rank.waits and now - rank.since >= ENDED_WAIT:
                other = first.setdefault((rank.report.members, rank.report.calls), rank)
                if other.report.inside != rank.report.inside:
                    return Fault(f"ranks call different collectives: {_doing([other])}, {_doing([rank])}")
        return None

    def _too_long(self, now: float) -> Fault | None:
        late = [rank for rank in self._ranks if rank.waits and now - rank.since >= self._timeout]
        if not late:
            return None
        return Fault(f"{_doing(late)} for {self._timeout:g} s (GG_COMM_TIMEOUT){self._others(late[0])}")

    def _waits_for_busy(self, now: float) -> Fault | None:
        """A rank computes while others wait for it: said once for each collective."""
        for rank in self._ranks:
            busy = not rank.waits and now - rank.since >= ENDED_WAIT  # else the others' reports may be the older ones
            for first in self._waiting_for(rank, now, WARN) if busy else ():
                activity = first.report.activity
                if (rank.name, activity) not in self._warned:
                    self._warned.add((rank.name, activity))
                    waiting = self._waiting_for(rank, now, at_least=0)
                    waiting = [each for each in waiting if each.report.activity == activity]
                    silent = now - rank.heard >= SILENCE
                    return Fault(f"{_doing(waiting)} for {WARN:g} s: {_busy(rank, silent)}", fatal=False)
        return None

    def _others(self, waiting: _Rank) -> str:
        """What the ranks do that this one may wait for."""
        key = (waiting.report.inside, waiting.report.calls)
        others = [
            rank
            for rank in self._ranks
            if within(rank.name, waiting.report.members) and (rank.report.inside, rank.report.calls) != key
        ]
        doing = [_doing([each]) if each.waits else _busy(each) for each in others[:3]]
        return "".join(f"; {each}" for each in doing)

    def _finished(self) -> list[_Rank]:
        return [rank for rank in self._ranks if rank.report.state == FINISHED]

    def _waiting_for(self, rank: _Rank, now: float, at_least: float) -> list[_Rank]:
        """The others that have been for so long in a collective that this rank is to take part in."""
        return [
            other
            for other in self._ranks
            if other is not rank
            and other.waits
            and now - other.since >= at_least
            and within(rank.name, other.report.members)
        ]


def _doing(ranks: Sequence[_Rank]) -> str:
    """That these ranks wait, in words."""
    one = ranks[0].report
    place = f" at {one.place}" if one.place else ""
    if not one.inside:
        return f"{_names(ranks)} waited for the others to end" if len(ranks) == 1 else f"{_names(ranks)} waited"
    return f"{_names(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {one.inside}{place}"


def _busy(rank: _Rank, silent: bool = False) -> str:
    """That a rank computes, in words."""
    place = rank.report.place
    if silent:
        return f"rank {rank.name} does not answer (native code holds Python's lock?){place and f', was at {place}'}"
    return f"rank {rank.name} {f'runs {place}' if place else 'is busy'}"


def _names(ranks: Sequence[_Rank]) -> str:
    """The ranks, a few of them by number.

    >>> _names([_Rank(0, 0, 0)]), _names([_Rank(n, 0, 0) for n in range(3)]), _names([_Rank(n, 0, 0) for n in range(9)])
    ('rank 0', 'ranks 0, 1, 2', 'ranks 0, 1, 2 and 6 others')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0].name}"
    shown = ", ".join(str(rank.name) for rank in ranks[:3])
    return f"ranks {shown}" + (f" and {len(ranks) - 3} others" if len(ranks) > 3 else "")
