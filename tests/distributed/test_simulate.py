"""gluongraph simulate: the formulas by hand, what must hold for any step, and the command."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from gluongraph.cli import main
from gluongraph.distributed.simulate import COMPRESSIONS, STRATEGIES, Cluster, Link, Timeline, predict
from gluongraph.errors import ArgumentError

LINK = Link(1e9, 1e-5)  # 1 GB/s, 10 us
STEP = Timeline(0.1, tuple((0.04 + 0.006 * i, 5e6) for i in range(1, 11)))  # 50 MB, all there after 100 ms


def test_formulas_by_hand() -> None:
    assert LINK.allreduce(1, 1e9) == LINK.allgather(1, 1e9) == 0
    assert LINK.reduce_scatter(4, 8e6) == pytest.approx(2e-5 + 0.75 * 8e-3)  # log2 4 messages, 3/4 of the bytes
    assert LINK.reduce_scatter(3, 9e6) == pytest.approx(2e-5 + 2 / 3 * 9e-3)  # no power of two: 2 messages
    assert LINK.allreduce(4, 8e6) == pytest.approx(4e-5 + 1.5 * 8e-3)
    assert LINK.allreduce(4, 8.0) == pytest.approx(2e-5, rel=1e-2)  # a small array: log2 4 messages of all of it
    cluster = Cluster(LINK, Link(10e9, 0.0), per_host=4)
    assert cluster.allreduce(8, 8e6) == pytest.approx(1.5 * 8e-4 + LINK.allreduce(2, 8e6))
    assert predict(STEP, Cluster(LINK), 4, compression="2bit").communication == pytest.approx(2e-5 + 3 / 16 * 50e-3)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_holds_for_any_step(strategy: str, overlap: bool) -> None:
    found = [predict(STEP, Cluster(LINK), n, strategy, overlap=overlap) for n in (1, 2, 4, 8, 64, 1024)]
    assert found[0].seconds == found[0].compute == 0.1 and found[0].efficiency == 1
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(found))
    assert all(0 <= p.exposed <= p.communication + 1e-12 for p in found)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("bandwidth", [1e8, 1e9, 1e11])
def test_overlap_hides_what_it_can(strategy: str, bandwidth: float) -> None:
    cluster = Cluster(Link(bandwidth, 0.0))
    hidden, bare = (predict(STEP, cluster, 8, strategy, overlap=o) for o in (True, False))
    assert hidden.communication == pytest.approx(bare.communication)
    assert hidden.seconds <= bare.seconds + 1e-12
    least = (
        5e6 * 2 * 7 / 8 / bandwidth if strategy == "allreduce" else 0.0
    )  # the last bucket has nothing to hide behind
    assert hidden.exposed >= least - 1e-12


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compression_sends_less_to_few_ranks(compression: str) -> None:
    cluster = Cluster(LINK)
    assert predict(STEP, cluster, 4, compression=compression).seconds < predict(STEP, cluster, 4).seconds
    if not COMPRESSIONS[compression][1]:  # codes of all ranks go to all: at some number that is more
        assert predict(STEP, cluster, 256, compression=compression).seconds > predict(STEP, cluster, 256).seconds


def test_what_is_refused() -> None:
    for wrong in ({"strategy": "zero9"}, {"compression": "3bit"}, {"strategy": "zero1", "compression": "2bit"}):
        with pytest.raises(ArgumentError):
            predict(STEP, Cluster(LINK), 2, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        Link(0.0, 1.0)


def simulate(*more: str) -> list[str]:
    return ["simulate", "mlp-8", "--bandwidth", "1e9", "--latency", "1e-5", *more]


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "scaling.svg"
    assert main(simulate("--ranks", "2..8", "--compute", "10", "--json", "--plot", str(plot))) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [row["ranks"] for row in rows] == [1, 2, 4, 8]
    assert rows[0]["seconds"] == pytest.approx(0.01)
    parameters = 784 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10
    assert rows[1]["communication"] == pytest.approx(LINK.allreduce(2, 4 * parameters), rel=1e-6)
    assert "<svg" in plot.read_text() and math.isfinite(rows[3]["efficiency"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--ranks", "2", "--strategy", "zero9"), "strategy='zero9'"),
        (("--ranks", "2", "--compute", "-1"), "--compute -1.0"),
        (("--ranks", "2", "--plot", "x.png"), "x.png: a plot is an .svg"),
    ],
)
def test_bad_arguments(more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(simulate(*more)) == 2
    assert message in capsys.readouterr().err
