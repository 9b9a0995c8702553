"""The order of kernels: of several topological orders the one with the lowest peak of live bytes.

The problem is hard in general, so simple rules are tried, each good for some graphs, and what comes out is improved by
moving single kernels. Everything is counted on whole numbers; ties go by the graph's own order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush


@dataclass
class Jobs:
    """Kernels 0, 1, ... in the graph's order, and the values in scratch 0, 1, ... that they make and read.

    A value that is `kept` lives until the end. `over[v]` are the values in whose place v may be written by its maker,
    where that is their last reader.
    """

    waits: list[set[int]] = field(default_factory=list)  # job -> those that must come first
    makes: list[tuple[int, ...]] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    workspace: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)  # bytes of each value
    kept: set[int] = field(default_factory=set)
    over: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.waits)


def order_of(jobs: Jobs) -> list[int] | None:
    """All jobs, each after what it waits for; None if they wait for each other in a circle."""
    best: tuple[int, list[int]] | None = None
    for rule in (_growing_least, _as_in_graph, _freeing_first):
        order = _listed(jobs, rule)
        if len(order) != len(jobs):
            return None
        found = _improved(jobs, order)
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None
    return best[1]


def laid_over(jobs: Jobs, order: Sequence[int]) -> dict[int, int]:
    """Value -> the dying operand of its maker in whose place it is written."""
    last = _last_reads(jobs, order)
    found: dict[int, int] = {}
    taken: set[int] = set()
    for at, job in enumerate(order):
        for v in jobs.makes[job]:
            place = next((o for o in jobs.over.get(v, ()) if last.get(o) == at and o not in taken), None)
            if place is not None and place not in jobs.kept:
                found[v] = place
                taken.add(place)
    return found


def live_bytes(jobs: Jobs, order: Sequence[int]) -> list[int]:
    """What is alive while each job of the order runs, workspace included."""
    last, over = _last_reads(jobs, order), laid_over(jobs, order)
    live, found = 0, []
    for at, job in enumerate(order):
        live += sum(jobs.size[v] for v in jobs.makes[job] if v not in over)
        found.append(live + jobs.workspace[job])
        dead = [v for v in (*jobs.reads[job], *jobs.makes[job]) if last.get(v, at) == at and v not in jobs.kept]
        handed_on = {over[v] for v in jobs.makes[job] if v in over}
        live -= sum(jobs.size[v] for v in dead if v not in handed_on)
    return found


def _last_reads(jobs: Jobs, order: Sequence[int]) -> dict[int, int]:
    """Value -> the place in the order of its last reader."""
    return {v: at for at, job in enumerate(order) for v in jobs.reads[job]}


Key = tuple[int, ...]
Rule = Callable[[Jobs, int, list[int]], Key]


def _growth(jobs: Jobs, job: int, unread: list[int]) -> int:
    """Bytes that running this job now adds, less those it frees."""
    made = sum(jobs.size[v] for v in jobs.makes[job])
    return made - sum(jobs.size[v] for v in jobs.reads[job] if unread[v] == 1 and v not in jobs.kept)


def _growing_least(jobs: Jobs, job: int, unread: list[int]) -> Key:
    return (_growth(jobs, job, unread), job)


def _as_in_graph(jobs: Jobs, job: int, unread: list[int]) -> Key:
    return (job,)


def _freeing_first(jobs: Jobs, job: int, unread: list[int]) -> Key:
    """Whatever does not grow memory at once; the rest as in the graph."""
    return (_growth(jobs, job, unread) > 0, job)


def _listed(jobs: Jobs, rule: Rule) -> list[int]:
    """Kahn's order; among the ready the one for which the rule's key is least. Keys of ready jobs can only fall: when a
    job becomes the last reader of a value."""
    missing = [len(w) for w in jobs.waits]
    followers: list[list[int]] = [[] for _ in jobs.waits]
    for job, waits in enumerate(jobs.waits):
        for w in waits:
            followers[w].append(job)
    readers: list[set[int]] = [set() for _ in jobs.size]  # those that have not run
    for job, reads in enumerate(jobs.reads):
        for v in reads:
            readers[v].add(job)
    unread = [len(jobs_reading) for jobs_reading in readers]
    ready = [(rule(jobs, job, unread), job) for job, count in enumerate(missing) if not count]
    heapify(ready)
    order: dict[int, None] = {}
    while ready:
        _, best = heappop(ready)
        if best in order:  # with a key that has fallen since
            continue
        order[best] = None
        freer = list(followers[best])
        for f in freer:
            missing[f] -= 1
        for v in jobs.reads[best]:
            readers[v].remove(best)
            unread[v] -= 1
            freer.extend(readers[v] if unread[v] == 1 else ())
        for job in freer:
            if not missing[job]:
                heappush(ready, (rule(jobs, job, unread), job))
    return list(order)


def _improved(jobs: Jobs, order: list[int], rounds: int = 4) -> tuple[int, list[int]]:
    """The order with jobs moved: those that grow memory right before their first follower, those that shrink it right
    behind what they wait for; as long as the peak falls. With it the peak."""
    peak = max(live_bytes(jobs, order), default=0)
    for _ in range(rounds):
        moved = _moved(jobs, order)
        lower = max(live_bytes(jobs, moved), default=0)
        if lower >= peak:
            break
        peak, order = lower, moved
    return peak, order


def _moved(jobs: Jobs, order: list[int]) -> list[int]:
    last = _last_reads(jobs, order)
    place = {job: at for at, job in enumerate(order)}

    def growth(job: int) -> int:
        freed = sum(jobs.size[v] for v in jobs.reads[job] if last[v] == place[job] and v not in jobs.kept)
        return sum(jobs.size[v] for v in jobs.makes[job]) - freed

    growing = {job for job in order if growth(job) > 0}
    late = _as_late(jobs, order, growing)
    return _as_early(jobs, late, set(order) - growing)


def _as_late(jobs: Jobs, order: list[int], which: set[int]) -> list[int]:
    """These jobs right before the first that waits for them."""
    followers: list[set[int]] = [set() for _ in jobs.waits]
    for job, waits in enumerate(jobs.waits):
        for w in waits:
            followers[w].add(job)
    result = list(order)
    for job in reversed(order):
        if job in which and followers[job]:
            at = result.index(job)
            to = next(i for i in range(at + 1, len(result)) if result[i] in followers[job])
            result.insert(to - 1, result.pop(at))
    return result


def _as_early(jobs: Jobs, order: list[int], which: set[int]) -> list[int]:
    """These jobs right behind the last that they wait for."""
    result = list(order)
    for job in order:
        if job in which and jobs.waits[job]:
            at = result.index(job)
            to = next(i for i in range(at - 1, -1, -1) if result[i] in jobs.waits[job])
            result.insert(to + 1, result.pop(at))
    return result
