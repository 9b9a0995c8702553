"""The page of a run: what it holds, when it is written, and that it works in a browser."""

from __future__ import annotations

import json
import math
import pathlib
import re
import shutil
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from gluongraph.lightning.loggers import HTMLLogger
from gluongraph.lightning.loggers.series import Series
from gluongraph.lightning.utilities.rank_zero import rank_zero_only

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
EVIL = "</script><img src=x onerror=document.title='broken'>"


def filled(folder: pathlib.Path, status: str | None = "success") -> HTMLLogger:
    """A run of 3 epochs of 100 steps."""
    logger = HTMLLogger(folder, name="digits", save_every_seconds=1000)
    logger.log_hyperparams({"lr": 0.5, "net": {"act": "relu"}, EVIL: EVIL})
    for step in range(300):
        loss = math.exp(-step / 50) if step != 150 else math.nan
        logger.log_metrics({"train_loss_step": loss, "lr-Adam": 0.5, "epoch": step // 100}, step=step)
        if step % 100 == 99:
            logger.log_metrics({"val_loss": math.exp(-step / 40), "epoch": step // 100, EVIL: 1.0}, step=step)
    best = SimpleNamespace(best_model_path="a/epoch=2.ckpt", best_model_score=0.125, monitor="val_loss")
    logger.after_save_checkpoint(best)
    if status is not None:
        logger.finalize(status)
    return logger


def data_of(logger: HTMLLogger) -> dict[str, Any]:
    text = logger.experiment.path.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', text)
    data: dict[str, Any] = json.loads(found)
    return data


def test_what_it_holds(tmp_path: pathlib.Path) -> None:
    logger = filled(tmp_path)
    assert logger.experiment.path == tmp_path / "digits" / "version_0" / "report.html"
    data = data_of(logger)
    loss = data["series"]["train_loss_step"]
    assert loss["step"] == [step for step in range(300) if step != 150] and loss["notFinite"] == [150]
    assert loss["mean"][100] == pytest.approx(math.exp(-2), rel=1e-5) and loss["epoch"][100] == 1
    assert loss["extremes"] == [pytest.approx(math.exp(-299 / 50), rel=1e-5), 299, 1, 0] and loss["count"] == 300
    assert data["hparams"]["net/act"] == "relu" and data["hparams"]["lr"] == "0.5"
    assert data["best"] == {"name": "epoch=2.ckpt", "monitor": "val_loss", "score": "0.125"}
    assert data["status"] == "success"


def test_it_fetches_nothing_and_runs_no_text(tmp_path: pathlib.Path) -> None:
    text = filled(tmp_path).experiment.path.read_text(encoding="utf-8")
    code = re.sub(r'<script type="application/json".*?</script>', "", text)
    assert not re.search(r"""(src|href)=(?!["'](#|data:))|@import|url\(""", code)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert EVIL not in text and text.count("<script") == 2


def test_it_is_written_now_and_then(tmp_path: pathlib.Path) -> None:
    logger = HTMLLogger(tmp_path, save_every_seconds=1000)
    logger.log_metrics({"a": 1.0}, step=0)
    path = logger.experiment.path
    assert path.exists() and logger.experiment.status == "running"  # at once the first time
    first = path.read_bytes()
    for step in range(1, 50):
        logger.log_metrics({"a": 1.0}, step=step)
        logger.save()
    assert path.read_bytes() == first
    logger.finalize("failed")
    data = data_of(logger)
    assert data["status"] == "failed" and data["series"]["a"]["count"] == 50
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = HTMLLogger(tmp_path)
    logger.log_metrics({"a": 1.0}, step=0)
    before = logger.experiment.path.read_bytes()

    def fails(*args: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("gluongraph.host.disk.os.replace", fails)
    with pytest.raises(OSError, match="full"):
        logger.finalize("success")
    assert logger.experiment.path.read_bytes() == before
    assert [each.name for each in logger.experiment.path.parent.iterdir()] == ["report.html"]


def test_long_runs_stay_small(tmp_path: pathlib.Path) -> None:
    """Every value counts: the least and largest of each point are kept, and the mean of all is that of the values."""
    series = Series()
    values = [math.sin(step) for step in range(100_001)]
    for step, value in enumerate(values):
        series.add(step, None, 0.0, value)
    assert len(series.buckets) <= series.most and sum(b.count for b in series.buckets) == len(values)
    assert sum(b.total for b in series.buckets) == pytest.approx(sum(values))
    at = 0
    for bucket in series.buckets:
        part = values[at : at + bucket.count]
        assert (bucket.low, bucket.high, bucket.step) == (min(part), max(part), at + bucket.count - 1)
        at += bucket.count


def test_steps_may_be_left_out(tmp_path: pathlib.Path) -> None:
    logger = HTMLLogger(tmp_path, prefix="p")
    for value in (1.0, 2.0):
        logger.log_metrics({"a": value, "group": {"b": value}, "epoch": 0})
    logger.finalize("success")
    series = data_of(logger)["series"]
    assert series["p-a"]["step"] == [0, 1] and series["p-a"]["epoch"] == [0, 0] and "p-group/b" in series


def test_other_ranks_write_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    filled(tmp_path)
    assert list(tmp_path.iterdir()) == []


ACTS = """
  const out = {};
  const texts = (query) => [...document.querySelectorAll(query)].map((e) => e.textContent);
  out.groups = [...document.querySelectorAll("figure")].map((f) => f.dataset.group);
  out.legend = texts('[data-group="loss"] .legend li');
  out.cards = texts("#cards div");
  out.hparams = texts("#hparams tr");
  const figure = document.querySelector('[data-group="loss"]');
  const svg = figure.querySelector("svg");
  const axis = () => [...svg.querySelectorAll("text")].map((t) => t.textContent).join(" ");
  out.linear = axis();
  out.bad = svg.querySelectorAll(".bad").length;
  const at = (share) => {
    const box = svg.getBoundingClientRect();
    const where = { clientX: box.left + box.width * share, clientY: box.top + 50, bubbles: true };
    svg.dispatchEvent(new PointerEvent("pointermove", where));
    return figure.querySelector(".tip").textContent;
  };
  out.tip = at(0.97);
  document.getElementById("log").click();
  out.log = axis();
  document.querySelector('[data-x="epoch"]').click();
  out.epochs = axis();
  const smooth = document.getElementById("smooth");
  const path = () => svg.querySelector("path.curve").getAttribute("d");
  const before = path();
  smooth.value = "0.9";
  smooth.dispatchEvent(new Event("input"));
  out.smoothed = path() !== before;
  figure.querySelector(".legend li").click();
  out.left = svg.querySelectorAll("path.curve").length;
  const theme = () => document.documentElement.dataset.theme;
  const first = theme();
  document.getElementById("theme").click();
  out.themes = [first, theme()].sort();
  const filter = document.getElementById("filter");
  filter.value = "adam";
  filter.dispatchEvent(new Event("input"));
  out.shown = [...document.querySelectorAll("figure")].filter((f) => !f.hidden).map((f) => f.dataset.group);
  out.title = document.title;
  document.body.dataset.out = JSON.stringify(out);
"""


def test_it_works_in_a_browser(tmp_path: pathlib.Path) -> None:
    if BROWSER is None:
        pytest.skip("no Chromium here: the page was not opened")
    page = filled(tmp_path).experiment.path
    page.write_text(
        page.read_text(encoding="utf-8").replace("</body>", f"<script>{ACTS}</script></body>"), encoding="utf-8"
    )
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    more = [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom", page.as_uri()]
    done = subprocess.run([BROWSER, *flags.split(), *more], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and ":CONSOLE" not in done.stderr, done.stderr
    (text,) = re.findall(r'<body[^>]* data-out="([^"]*)"', done.stdout)
    out = json.loads(text.replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert out["groups"][0] == "loss" and out["groups"][-1] == "lr-Adam"
    assert out["legend"][0].startswith("train_loss_step 0.002") and "(1 not finite)" in out["legend"][0]
    assert out["legend"][1].startswith("val_loss")
    assert out["bad"] == 1 and "success" in out["cards"][0] and any("0.125" in card for card in out["cards"])
    assert f"{EVIL}{EVIL}" in out["hparams"] and "broken" not in out["title"]
    assert "0.5" in out["linear"] and "0.01" in out["log"] and "0.01" not in out["linear"].split()
    assert re.match(r"step 29\d · epoch 2 · [\d.]+ s(train_loss_step) 0.00\d+( at step \d+)?val_loss", out["tip"]), out[
        "tip"
    ]
    assert "200" in out["linear"].split() and "2" in out["epochs"].split() and "200" not in out["epochs"].split()
    assert out["smoothed"] and out["left"] == 1 and out["themes"] == ["dark", "light"] and out["shown"] == ["lr-Adam"]
