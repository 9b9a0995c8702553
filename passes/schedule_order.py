"""The order of kernels: of several topological orders the one with the lowest peak of live bytes.

The problem is NP-hard, so several list-scheduling rules are tried, each good for some graphs, and the orders are
improved by moving single kernels. All costs are integers; ties are broken by the graph's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush


@dataclass
class Jobs:
    """Kernels 0, 1, ... in the graph's order, and the scratch values 0, 1, ... that they produce and read.

    A value that is `kept` is live until the end. `over[v]` are the values in whose place v may be stored if its
    producer is their last reader.
    """

    waits: list[set[int]] = field(default_factory=list)  # job -> those that must come first
    makes: list[tuple[int, ...]] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    workspace: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)  # bytes of each value
    kept: set[int] = field(default_factory=set)
    over: dict[int, tuple[int, ...]] = field(default_factory=dict)
    overlapping: set[int] = field(default_factory=set)  # collectives that run while other jobs do

    def __len__(self) -> int:
        return len(self.waits)


def order_of(jobs: Jobs) -> list[int] | None:
    """Return all jobs, each after those it depends on; None if the dependencies are cyclic."""
    best: tuple[int, list[int]] | None = None
    for rule in (_growing_least, _as_in_graph, _freeing_first):
        order = _listed(jobs, rule)
        if len(order) != len(jobs):
            return None
        result = _improved(jobs, order)
        if best is None or result[0] < best[0]:
            best = result
    assert best is not None
    return _overlapped(jobs, best[1])


def _overlapped(jobs: Jobs, order: list[int]) -> list[int]:
    """Start collectives as soon as their operands are there, and run what depends on them last."""
    if not jobs.overlapping:
        return order
    late: set[int] = set()
    for job in order:
        if not late.isdisjoint(jobs.waits[job]) or not jobs.overlapping.isdisjoint(jobs.waits[job]):
            late.add(job)
    early = _as_early(jobs, [job for job in order if job not in late], jobs.overlapping - late)
    return early + [job for job in order if job in late]


def placed_in_place(jobs: Jobs, order: Sequence[int]) -> dict[int, int]:
    """Return for each value that is stored in place: the operand of its producer whose memory it takes."""
    last = _last_reads(jobs, order)
    result: dict[int, int] = {}
    taken: set[int] = set()
    for at, job in enumerate(order):
        for v in jobs.makes[job]:
            place = next((o for o in jobs.over.get(v, ()) if last.get(o) == at and o not in taken), None)
            if place is not None and place not in jobs.kept:
                result[v] = place
                taken.add(place)
    return result


def live_bytes(jobs: Jobs, order: Sequence[int]) -> list[int]:
    """Return the bytes that are live while each job of the order runs, including its workspace."""
    last, over = _last_reads(jobs, order), placed_in_place(jobs, order)
    live, result = 0, []
    for at, job in enumerate(order):
        live += sum(jobs.size[v] for v in jobs.makes[job] if v not in over)
        result.append(live + jobs.workspace[job])
        dead = [v for v in (*jobs.reads[job], *jobs.makes[job]) if last.get(v, at) == at and v not in jobs.kept]
        reused = {over[v] for v in jobs.makes[job] if v in over}
        live -= sum(jobs.size[v] for v in dead if v not in reused)
    return result


def _last_reads(jobs: Jobs, order: Sequence[int]) -> dict[int, int]:
    """Return for each value the position of its last reader in the order."""
    return {v: at for at, job in enumerate(order) for v in jobs.reads[job]}


Key = tuple[int, ...]
Rule = Callable[[Jobs, int, list[int]], Key]


def _growth(jobs: Jobs, job: int, unread: list[int]) -> int:
    """Return by how many bytes live memory grows if this job runs now."""
    made = sum(jobs.size[v] for v in jobs.makes[job])
    return made - sum(jobs.size[v] for v in jobs.reads[job] if unread[v] == 1 and v not in jobs.kept)


def _growing_least(jobs: Jobs, job: int, unread: list[int]) -> Key:
    return (_growth(jobs, job, unread), job)


def _as_in_graph(jobs: Jobs, job: int, unread: list[int]) -> Key:
    return (job,)


def _freeing_first(jobs: Jobs, job: int, unread: list[int]) -> Key:
    """Jobs that do not increase memory first; then the graph's order."""
    return (_growth(jobs, job, unread) > 0, job)


def _listed(jobs: Jobs, rule: Rule) -> list[int]:
    """Return a list schedule: of the ready jobs the one with the smallest key. Keys of ready jobs only decrease, when a
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
        if best in order:  # already scheduled with a smaller key
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
    """Improve an order by moving jobs that increase memory right before their first follower, and jobs that decrease it
    right behind their dependencies, as long as the peak falls; return the peak and the order."""
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
    """Move these jobs right before the first that depends on them."""
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
    """Move these jobs right behind the last that they depend on."""
    result = list(order)
    for job in order:
        if job in which and jobs.waits[job]:
            at = result.index(job)
            to = next(i for i in range(at - 1, -1, -1) if result[i] in jobs.waits[job])
            result.insert(to + 1, result.pop(at))
    return result
