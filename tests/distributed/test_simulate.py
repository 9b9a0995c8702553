"""Predictions: formulas against numbers computed by hand, what holds for any step, timelines of plans, the command."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from ranks import needs_mpi, run_ranks

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.cli import main
from gluongraph.distributed import simulate_calibration
from gluongraph.distributed.simulate import (
    Cluster,
    Exchange,
    Link,
    Timeline,
    Work,
    estimates,
    predict,
    timeline,
)
from gluongraph.distributed.simulate_calibration import Timing, fit, measure_here
from gluongraph.distributed.simulate_chart import svg
from gluongraph.distributed.simulate_step import timeline_of_plan, timeline_of_step
from gluongraph.errors import ArgumentError, MXNetError
from gluongraph.runtime.communicator.environment import world

LINK = Link(1e9, 1e-5)  # 1 GB/s, 10 us
RING, RECURSIVE = (Link(1e9, 1e-5, algorithm=name) for name in ("ring", "recursive"))
OPS = ("all_reduce", "reduce_scatter", "all_gather")


def buckets(number: int = 10, nbytes: int = 5_000_000) -> Timeline:
    """A forward of 40 ms, gradients every 6 ms, an update of 2 ms that reads them all."""
    works = (Work(0.046), *(Work(0.006) for _ in range(number - 1)), Work(0.002))
    steps = [step for i in range(number) for step in (("run", i), ("start", i))]
    steps += [*(("wait", i) for i in range(number)), ("run", number)]
    return Timeline(works, (Exchange("all_reduce", nbytes),) * number, tuple(steps))


def sharded() -> Timeline:
    """Gradients to shards, an update of the shard of 8 ms on 2 ranks, whole parameters."""
    steps = (("run", 0), ("start", 0), ("wait", 0), ("run", 1), ("start", 1), ("wait", 1))
    return Timeline(
        (Work(0.1), Work(0.0, 0.008)),
        (Exchange("reduce_scatter", 50_000_000), Exchange("all_gather", 50_000_000)),
        steps,
    )


def codes() -> Timeline:
    """Codes of 1/16 of 50 MB, which take 4 ms to read on 2 ranks."""
    steps = (("run", 0), ("start", 0), ("wait", 0), ("run", 1))
    return Timeline((Work(0.1), Work(0.01, 0.0, 0.004)), (Exchange("all_gather", 3_125_000, each=True),), steps)


TIMELINES = {"buckets": buckets(), "sharded": sharded(), "codes": codes()}


# -- the alpha-beta model


def test_rings_by_hand() -> None:
    """4 ranks, 8 MB: 3 messages of 2 MB for each half of an allreduce."""
    assert RING.seconds("all_gather", 4, 8e6) == pytest.approx(3e-5 + 6e-3)
    assert RING.seconds("reduce_scatter", 4, 8e6) == pytest.approx(3e-5 + 6e-3)
    assert RING.seconds("all_reduce", 4, 8e6) == pytest.approx(6e-5 + 12e-3)
    assert RING.seconds("all_reduce", 3, 9e6) == pytest.approx(4e-5 + 12e-3)


def test_recursive_algorithms_by_hand() -> None:
    assert RECURSIVE.seconds("all_gather", 4, 8e6) == pytest.approx(2e-5 + 6e-3)
    assert RECURSIVE.seconds("all_gather", 5, 10e6) == pytest.approx(3e-5 + 8e-3)  # Bruck: ceil(lg 5) messages
    assert RECURSIVE.seconds("reduce_scatter", 8, 8e6) == pytest.approx(3e-5 + 7e-3)
    assert RECURSIVE.seconds("all_reduce", 8, 8e6) == pytest.approx(6e-5 + 14e-3)
    assert RECURSIVE.seconds("all_reduce", 8, 8) == pytest.approx(3e-5 + 3 * 8e-9)  # doubling, of a small array
    # 3 ranks: 9 MB to a neighbour, 2 ranks halve and double, 9 MB back; or they exchange all of it at once.
    assert RECURSIVE.seconds("all_reduce", 3, 9e6) == pytest.approx(3e-5 + 27e-3)


def test_additions_by_hand() -> None:
    link = Link(1e9, 0.0, additions=2e9)
    assert link.seconds("all_reduce", 4, 8e6) == pytest.approx(12e-3 + 3e-3)  # each rank adds 6 MB
    assert link.seconds("all_gather", 4, 8e6) == pytest.approx(6e-3)


def test_the_fastest_algorithm_is_used() -> None:
    for op, ranks, nbytes in itertools.product(OPS, (2, 3, 7, 8, 12, 1000), (1, 10_000, 1e8)):
        assert LINK.seconds(op, ranks, nbytes) == min(link.seconds(op, ranks, nbytes) for link in (RING, RECURSIVE))


def test_hosts_by_hand() -> None:
    """2 hosts of 4 ranks: 8 MB are scattered within (3/4 at 10 GB/s), exchanged between, gathered within."""
    cluster = Cluster(LINK, Link(10e9, 0.0), per_host=4)
    within, between = 6e-4, LINK.seconds("all_reduce", 2, 8e6)
    assert cluster.seconds("all_reduce", 8, 8e6) == pytest.approx(2 * within + between)
    assert cluster.seconds("all_gather", 8, 8e6) == pytest.approx(within + LINK.seconds("all_gather", 2, 8e6))
    assert cluster.seconds("all_reduce", 4, 8e6) == pytest.approx(12e-4)  # of one host
    adding = Cluster(Link(math.inf, 0.0, additions=1e9), Link(math.inf, 0.0, additions=1e9), per_host=4)
    assert adding.seconds("reduce_scatter", 8, 8e6) == pytest.approx(6e-3 + 1e-3)  # 3/4, then half of an own quarter


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("link", [RING, RECURSIVE, LINK], ids=["ring", "recursive", "best"])
def test_more_takes_longer(op: str, link: Link) -> None:
    assert link.seconds(op, 1, 1e9) == 0
    powers = [2**i for i in range(13)]
    sizes = (0, 1, 1e3, 1e6, 1e9)
    for nbytes in sizes:
        times = [link.seconds(op, ranks, nbytes) for ranks in powers]
        assert all(a < b or (nbytes == 0 and a <= b) for a, b in itertools.pairwise(times))
    for ranks in (2, 3, 8, 1000):
        times = [link.seconds(op, ranks, nbytes) for nbytes in sizes]
        assert all(a < b for a, b in itertools.pairwise(times))
        assert link.seconds(op, ranks, 1e6) < Link(1e9, 2e-5, algorithm=link.algorithm).seconds(op, ranks, 1e6)
        assert link.seconds(op, ranks, 1e6) < Link(5e8, 1e-5, algorithm=link.algorithm).seconds(op, ranks, 1e6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Link(0.0, 1.0), "a link of 0 bytes a second"),
        (lambda: Link(1e9, -1.0), "latency of -1 s"),
        (lambda: Link(math.nan, 1.0), "a link of nan"),
        (lambda: Link(1e9, 1.0, algorithm="star"), "no algorithm 'star' of collectives"),
        (lambda: Cluster(LINK, None, 8), "8 ranks a host, joined by None"),
        (lambda: Cluster(LINK, LINK, 8).seconds("all_reduce", 12, 1), "one host would have 4"),
        (lambda: predict(buckets(), Cluster(LINK), 0), "a step on 0 ranks"),
        (lambda: fit([]), "timings of collectives on 2 ranks or more"),
        (lambda: fit([Timing("all_reduce", 1, 8, 1.0)]), "timings of collectives on 2 ranks or more"),
    ],
)
def test_what_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


# -- predictions


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", TIMELINES)
def test_what_holds_for_any_step(name: str, overlap: bool) -> None:
    step, cluster = TIMELINES[name], Cluster(LINK)
    found = [predict(step, cluster, ranks, overlap=overlap) for ranks in (1, 2, 4, 8, 64, 1024)]
    assert found[0].seconds == found[0].compute == step.compute(1) and found[0].efficiency == 1
    assert found[0].communication == 0
    assert all(a.exposed <= b.exposed + 1e-12 for a, b in itertools.pairwise(found))
    assert all(-1e-12 <= p.exposed <= p.communication + 1e-12 for p in found)
    assert all(p.throughput == pytest.approx(p.ranks * p.efficiency / step.compute(1)) for p in found)


@pytest.mark.parametrize("bandwidth", [1e7, 1e9, 1e11])
@pytest.mark.parametrize("latency", [0.0, 1e-3])
@pytest.mark.parametrize("name", TIMELINES)
def test_overlap_is_never_slower(name: str, bandwidth: float, latency: float) -> None:
    cluster = Cluster(Link(bandwidth, latency))
    for ranks in (2, 8, 100):
        hidden, bare = (predict(TIMELINES[name], cluster, ranks, overlap=overlap) for overlap in (True, False))
        assert hidden.communication == bare.communication == pytest.approx(bare.exposed)
        assert hidden.seconds <= bare.seconds + 1e-12


def test_overlap_by_hand() -> None:
    """Buckets of 5 MB take 8.75 ms on 8 ranks, longer than the 6 ms of a gradient: the network is the queue."""
    found = predict(buckets(), Cluster(Link(1e9, 0.0)), 8)
    assert found.compute == pytest.approx(0.102)
    assert found.exposed == pytest.approx(0.046 + 10 * 8.75e-3 - 0.1)
    fast = predict(buckets(), Cluster(Link(1e10, 0.0)), 8)
    assert fast.exposed == pytest.approx(8.75e-4)  # the last bucket has nothing to hide behind


def test_shards_and_codes_by_hand() -> None:
    found = [predict(sharded(), Cluster(Link(1e9, 0.0)), ranks) for ranks in (1, 2, 8)]
    assert [p.compute for p in found] == pytest.approx([0.116, 0.108, 0.102])  # 16 ms of updates, divided by ranks
    assert found[2].communication == pytest.approx(2 * 7 / 8 * 0.05)
    found = [predict(codes(), Cluster(Link(1e9, 0.0)), ranks) for ranks in (1, 2, 8)]
    assert [p.compute for p in found] == pytest.approx([0.11, 0.114, 0.126])  # 2 ms for the codes of each rank
    assert found[2].communication == pytest.approx(7 * 3.125e-3)  # the codes of 7 others


def test_the_agreement_is_a_collective() -> None:
    without, step = buckets(), Timeline(**{**vars(buckets()), "agreement": 40})
    before, found = (predict(each, Cluster(LINK), 8, overlap=False) for each in (without, step))
    assert found.seconds - before.seconds == pytest.approx(LINK.seconds("all_reduce", 8, 40))


def test_scaled_timelines_keep_their_proportions() -> None:
    step = sharded()
    assert step.scaled(1.16).compute(1) == pytest.approx(1.16)
    assert step.scaled(1.16).compute(8) == pytest.approx(10 * step.compute(8))


# -- timelines of plans


def dense(
    optimizer: str = "adam", kind: type[gluon.Trainer] = gluon.Trainer, **how: Any
) -> tuple[Any, tuple[Any, ...]]:
    net = gluon.nn.HybridSequential(prefix="")
    net.add(gluon.nn.Dense(32, activation="relu", in_units=20), gluon.nn.Dense(10, in_units=32))
    net.initialize(mx.init.Xavier())
    trainer = kind(net.collect_params(), optimizer, **how)
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    draw = np.random.default_rng(0)
    return step, (nd.array(draw.standard_normal((16, 20), np.float32)), nd.array(np.arange(16) % 10))


class OwnTrainer(gluon.Trainer):
    """One that does something between gradients and updates."""

    def _allreduce_grads(self) -> None:
        super()._allreduce_grads()


PARAMETERS = 4 * (20 * 32 + 32 + 32 * 10 + 10)  # bytes


@pytest.mark.parametrize(
    ("strategy", "ops"),
    [
        ("allreduce", {"all_reduce": PARAMETERS}),
        ("zero1", {"reduce_scatter": PARAMETERS, "all_gather": PARAMETERS}),
        ("zero2", {"reduce_scatter": PARAMETERS, "all_gather": PARAMETERS}),
        ("fsdp", {"reduce_scatter": PARAMETERS, "all_gather": 2 * PARAMETERS}),
    ],
)
def test_bytes_are_those_of_the_strategy(strategy: str, ops: dict[str, int]) -> None:
    step, batch = dense()
    found = timeline_of_step(step, batch, strategy=strategy, compute=0.1)
    total = {op: sum(e.nbytes for e in found.exchanges if e.op == op) for op in OPS}
    assert {op: nbytes for op, nbytes in total.items() if nbytes} == ops
    assert found.samples == 16 and found.compute(1) == pytest.approx(0.1)
    assert any(work.sharded for work in found.works) == (strategy != "allreduce")
    assert world().size == 1


@pytest.mark.parametrize(("kind", "share"), [("bf16", 1 / 2), ("2bit", 1 / 16), ("1bit", 1 / 32)])
def test_bytes_are_those_of_the_compression(kind: str, share: float) -> None:
    step, batch = dense()
    found = timeline_of_step(step, batch, compression={"type": kind}, compute=0.1)
    (exchange,) = found.exchanges
    assert exchange.nbytes == pytest.approx(share * PARAMETERS, abs=64)  # aligned
    assert exchange.each == any(work.decoding for work in found.works) == (kind != "bf16")


def test_kernels_are_measured() -> None:
    step, batch = dense()
    found = timeline_of_step(step, batch, overlap=False, repeat=2)
    assert found.alone is not None and found.alone > 0 and sum(work.fixed for work in found.works) > 0
    assert found.compute(1) == found.alone and found.compute(2) == found.compute(512)
    assert [what for what, _ in found.steps] == ["run", "start", "wait", "run"]


def test_a_plan_of_one_rank() -> None:
    """Gradients are there when their updates are; in buckets all of them are sent, too."""
    step, batch = dense("sgd", optimizer_params={"learning_rate": 0.1})
    step.memory(*batch)
    times = estimates(step.plan)
    names = step.trainer.names
    whole, parts = (timeline(step.plan, times, parameters=names, bucket=bucket) for bucket in (0, 1))
    assert [e.nbytes for e in whole.exchanges] == [PARAMETERS] and len(parts.exchanges) > 1
    assert whole.gradient_bytes == parts.gradient_bytes == PARAMETERS
    assert whole.compute(1) == parts.compute(1) == pytest.approx(sum(times))
    assert timeline_of_plan(step, batch, compute=0.1).gradient_bytes == PARAMETERS
    measured = timeline_of_plan(step, batch, repeat=2)
    assert measured.alone is not None and measured.samples == 16
    with pytest.raises(ArgumentError, match="updates none of the parameters"):
        timeline(step.plan, times)
    with pytest.raises(ArgumentError, match="1 times for a plan of"):
        timeline(step.plan, [1.0], parameters=names)


def test_steps_that_exchange_nothing_are_refused() -> None:
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize()
    with pytest.raises(MXNetError, match="without a trainer"):
        timeline_of_step(mx.compile(net), (nd.ones((4, 2)),), compute=0.1)
    with pytest.raises(MXNetError, match="divides parameters among ranks"):
        timeline_of_step(*dense("lamb"), strategy="zero1", compute=0.1)
    with pytest.raises(ValueError, match="compression_params"):
        timeline_of_step(*dense(), strategy="zero1", compression={"type": "2bit"}, compute=0.1)
    with pytest.raises(ValueError, match="there is no strategy 'zero9'"):
        timeline_of_step(*dense(), strategy="zero9", compute=0.1)
    for compute in (0.1, None):
        with pytest.raises(MXNetError, match="Python acts between gradients and updates"):
            timeline_of_step(*dense(kind=OwnTrainer), compute=compute)
    assert world().size == 1


# -- calibration


@pytest.mark.parametrize("additions", [math.inf, 4e9])
def test_a_fit_finds_the_link(additions: float) -> None:
    link = Link(2e9, 5e-6, additions)
    grid = itertools.product(OPS, (2, 4), (1 << 10, 1 << 14, 1 << 18, 1 << 22))
    found = fit([Timing(op, ranks, nbytes, link.seconds(op, ranks, nbytes)) for op, ranks, nbytes in grid])
    assert found.link.latency == pytest.approx(5e-6, rel=1e-3) and found.largest == pytest.approx(1, abs=1e-3)
    grid = itertools.product(OPS, (2, 4), (1 << 12, 1 << 20))
    assert all(found.link.seconds(*each) == pytest.approx(link.seconds(*each), rel=1e-3) for each in grid)
    assert ("--addition-bandwidth" in str(found)) == (additions == 4e9)


def test_a_fit_has_no_negative_times() -> None:
    """Larger arrays that take less: no bandwidth is that large."""
    found = fit([Timing("all_gather", 2, nbytes, seconds) for nbytes, seconds in ((1000, 2e-5), (10_000, 1e-5))])
    assert found.link.bandwidth == math.inf and found.link.latency > 0


@needs_mpi
def test_ranks_time_their_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure_here([2])
    assert {(timing.op, timing.ranks) for timing in found} == {(op, 2) for op in OPS}
    assert all(0 < timing.seconds < 1 for timing in found) and 0 < fit(found).link.latency < 1
    monkeypatch.setattr(simulate_calibration, "_PATIENCE", 0.01)
    with pytest.raises(simulate_calibration.LaunchError, match=r"have not ended their measurements within 0\.01 s"):
        measure_here([2])


@needs_mpi
def test_a_job_prints_what_the_command_takes() -> None:
    first, second = run_ranks(2, "from gluongraph.distributed.simulate_ranks import main\nmain()")
    assert first.startswith("--latency ") and "--bandwidth " in first and not second


# -- the command


def simulate(*more: str, subject: str = "mlp-8", network: bool = True) -> list[str]:
    link = ("--bandwidth", "1e9", "--latency", "1e-5") if network else ()
    return ["simulate", subject, *link, *more]


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "scaling.svg"
    assert main(simulate("--ranks", "1..8", "--compute", "10", "--json", "--plot", str(plot))) == 0
    found = json.loads(capsys.readouterr().out)
    rows: list[dict[str, Any]] = found["predictions"]
    assert [row["ranks"] for row in rows] == [1, 2, 4, 8] and found["samples"] == 8
    assert rows[0]["seconds"] == pytest.approx(0.01) and rows[0]["efficiency"] == 1
    parameters = 4 * (784 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10)
    wanted = LINK.seconds("all_reduce", 2, parameters) + LINK.seconds("all_reduce", 2, 40)  # with the agreement
    assert rows[1]["communication"] == pytest.approx(wanted, rel=1e-6)
    texts = [element.text for element in ElementTree.fromstring(plot.read_text()).iter() if element.text]
    assert {"100%", "compute", "exposed communication", "8"} <= set(texts)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--ranks", "2,8", "--compute", "10", "--no-overlap", "--strategy", "zero1")
    assert main(simulate(*more)) == 0
    first, network, empty, head, *rows = capsys.readouterr().out.splitlines()
    assert "one rank 10 ms of another machine" in first and "zero1" in first and "no overlap" in first
    assert network == "network 1 GB/s, 10 us; algorithm best" and not empty
    assert head.split()[0] == "ranks" and [row.split()[0] for row in rows] == ["2", "8"]


def test_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--ranks-per-host", "4", "--host-bandwidth", "100GB", "--host-latency", "0", "--algorithm", "ring")
    assert main(simulate("--ranks", "8", "--compute", "10", "--no-overlap", "--json", *more)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["network"]["ranks_per_host"] == 4 and found["network"]["within"]["bandwidth"] == 1e11
    cluster = Cluster(RING, Link(1e11, 0.0, algorithm="ring"), 4)
    wanted = cluster.seconds("all_reduce", 8, found["exchanges"][0]["nbytes"]) + cluster.seconds("all_reduce", 8, 40)
    assert found["predictions"][0]["exposed"] == pytest.approx(wanted)


SCRIPT = """
import numpy as np
import gluongraph as mx
from gluongraph import gluon

def make_step():
    net = gluon.nn.Dense(3, in_units=8, prefix="d_")
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "adam", kvstore="dist_sync", strategy="zero1")
    return mx.compile(net, gluon.loss.L2Loss(), trainer), np.ones((4, 8), np.float32), np.ones((4, 3), np.float32)

step, x, y = make_step()
step(x, y)
"""


def test_a_script_and_an_artefact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The strategy is the script's; an artefact's plan is that of one rank."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert main(simulate("--ranks", "4", "--compute", "1", "--json", subject=str(script))) == 0
    assert [e["op"] for e in json.loads(capsys.readouterr().out)["exchanges"]] == ["reduce_scatter", "all_gather"]
    artefact = tmp_path / "step.gga"
    step, batch = dense()
    step(*batch)
    step.export(str(artefact))
    assert main(simulate("--ranks", "4", "--compute", "1", "--json", subject=str(artefact))) == 0
    assert json.loads(capsys.readouterr().out)["exchanges"] == [
        {"op": "all_reduce", "nbytes": PARAMETERS, "each": False}
    ]
    assert main(simulate("--ranks", "4", "--strategy", "zero1", subject=str(artefact))) == 2
    assert "--strategy is for steps that are made now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--strategy", "zero9", "--compute", "1"), "there is no strategy 'zero9'"),
        (("--compression", "3bit", "--compute", "1"), "gradient compression by {'type': '3bit'}"),
        (("--compute", "-1"), "--compute -1 is no time of a step"),
        (("--plot", "x.png"), "x.png: a plot is an .svg"),
        (("--plot", "nowhere/x.svg"), "there is no such folder"),
        (("--latency", "-1"), "--latency -1 is no time"),
        (("--measure",), "--bandwidth is what --measure finds out"),
        (("--host-latency", "1e-6"), "--host-latency is for hosts of several ranks"),
        (("--ranks-per-host", "4"), "2 ranks on hosts"),
        (("--loss", "L2Loss"), "--loss is for steps that are made now"),
    ],
)
def test_what_the_command_refuses(more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = "2" if "--ranks-per-host" not in more else "6"
    assert main(simulate("--ranks", ranks, *more)) == 2
    assert message.replace("2 ranks", f"{ranks} ranks") in capsys.readouterr().err


def test_what_the_command_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(simulate("--ranks", "2", network=False)) == 2
    assert "--bandwidth and --latency say so, or --measure" in capsys.readouterr().err
    assert main(simulate("--ranks", "2", subject="update")) == 2
    assert "update computes no gradients" in capsys.readouterr().err
    assert main(simulate("--ranks", "2", subject="nothing.py")) == 2
    assert "there is no file nothing.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--ranks", "8..", "are no numbers of ranks"),
        ("--ranks", "8..4", "the first number is the smallest"),
        ("--ranks", "0,2", "are no numbers of ranks"),
        ("--ranks", "1..2..3", "are no numbers of ranks"),
        ("--bandwidth", "fast", "is no number of bytes a second"),
        ("--bandwidth", "0", "is no number of bytes a second"),
        ("--host-bandwidth", "1.2.3", "is no number of bytes a second"),
    ],
)
def test_options_that_cannot_be_read(option: str, text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(simulate("--ranks", "2", option, text))
    assert message in capsys.readouterr().err


@needs_mpi
def test_the_command_measures_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(simulate("--ranks", "2", "--measure", "--compute", "1", network=False)) == 0
    said = capsys.readouterr()
    assert said.err.startswith("measured here: --latency ") and "ranks" in said.out


def test_bars_are_as_high_as_steps_are_long() -> None:
    found = [predict(buckets(), Cluster(LINK), ranks) for ranks in (1, 2, 8, 64)]
    picture = ElementTree.fromstring(svg(found, "a < b"))
    bars = list(picture.iter("{http://www.w3.org/2000/svg}rect"))[2:]  # without the legend
    heights = [float(bar.attrib["height"]) for bar in bars]
    longest = max(p.seconds for p in found)
    wanted = [part / longest * 240 for p in found for part in (p.compute, p.exposed)]
    assert heights == pytest.approx(wanted, abs=0.1)
