"""What rank 0 alone does."""

from __future__ import annotations

import logging
import warnings

import pytest

from gluongraph.lightning.utilities import rank_zero_deprecation, rank_zero_info, rank_zero_only, rank_zero_warn
from gluongraph.lightning.utilities.rank_zero import _rank_of_launcher


@pytest.mark.parametrize(("rank", "called"), [(0, True), (1, False)])
def test_other_ranks_do_nothing(
    rank: int, called: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", rank)

    @rank_zero_only
    def doubled(x: int) -> int:
        """Twice."""
        return 2 * x

    assert doubled(3) == (6 if called else None) and doubled.__doc__ == "Twice."
    assert rank_zero_only(lambda: 1, default=2)() == (1 if called else 2)
    with warnings.catch_warnings(record=True) as seen, caplog.at_level("INFO", "gluongraph.lightning"):
        warnings.simplefilter("always")
        rank_zero_info("told")
        rank_zero_warn("warned")
        rank_zero_deprecation("old")
    assert [w.category for w in seen] == ([UserWarning, DeprecationWarning] if called else [])
    assert len(caplog.records) == called
    if called:
        assert seen[0].filename == __file__


@pytest.mark.parametrize(("handlers", "shown"), [([], "told\n"), ([logging.NullHandler()], "")])
def test_messages_are_seen_where_the_program_sets_up_no_logging(
    handlers: list[logging.Handler], shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", handlers)
    rank_zero_info("told")
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize(
    ("variables", "rank"),
    [({}, 0), ({"RANK": "3"}, 3), ({"LOCAL_RANK": "1", "SLURM_PROCID": "2"}, 1), ({"PMIX_RANK": "2"}, 2)],
)
def test_the_rank_of_the_launcher(variables: dict[str, str], rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _rank_of_launcher() == rank
