"""Vocabularies, and the texts of WikiText from local files."""

from __future__ import annotations

import pathlib
import zipfile
from collections import Counter

import pytest

from gluongraph.contrib.text import Vocabulary, count_tokens_from_str
from gluongraph.gluon import contrib


def test_counting() -> None:
    counter = count_tokens_from_str(" A b b \n c c c a  d\n")
    assert counter == Counter({"c": 3, "b": 2, "A": 1, "a": 1, "d": 1})
    assert count_tokens_from_str("A a", to_lower=True, counter_to_update=Counter(a=1)) == Counter(a=3)


def test_vocabulary() -> None:
    counter = Counter({"c": 3, "a": 2, "b": 2, "d": 1})
    words = Vocabulary(counter, reserved_tokens=["<eos>"])
    assert words.idx_to_token == ["<unk>", "<eos>", "c", "a", "b", "d"] and len(words) == 6
    assert words.to_indices(["a", "zz"]) == [3, 0] and words.to_indices("c") == 2
    assert words.to_tokens([1, 2]) == ["<eos>", "c"] and words.token_to_idx["d"] == 5
    assert Vocabulary(counter, most_freq_count=2, min_freq=2).idx_to_token == ["<unk>", "c", "a"]
    with pytest.raises(ValueError, match="no token has the number 99; there are 6"):
        words.to_tokens(99)
    for wrong in ({"min_freq": 0}, {"reserved_tokens": ["<unk>"]}, {"reserved_tokens": ["x", "x"]}):
        with pytest.raises(AssertionError):
            Vocabulary(counter, **wrong)


def test_wikitext(tmp_path: pathlib.Path) -> None:
    (tmp_path / "wiki.train.tokens").write_text(" a b c \n\n a d \n")  # a b c <eos> a d <eos>
    data = contrib.data.text.WikiText2(str(tmp_path), "train", seq_len=3)
    assert data.vocabulary.idx_to_token == ["<unk>", "<eos>", "a", "b", "c", "d"]
    assert data.frequencies["a"] == 2 and len(data) == 2
    rows = [(x.asnumpy().tolist(), y.asnumpy().tolist()) for x, y in (data[i] for i in range(2))]
    assert rows == [([2, 3, 4], [3, 4, 1]), ([1, 2, 5], [2, 5, 1])]
    (tmp_path / "wiki.valid.tokens").write_text(" a zz b \n")
    other = contrib.data.WikiText2(str(tmp_path), "validation", vocab=data.vocabulary, seq_len=2)
    assert other[0][0].asnumpy().tolist() == [2, 0]
    with pytest.raises(ValueError, match="train, validation, test"):
        contrib.data.WikiText2(str(tmp_path), "dev")


def test_wikitext_from_the_archive(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "small.zip", "w") as file:
        file.writestr("wikitext-2/wiki.test.tokens", " a b \n")
    monkeypatch.setattr(contrib.data.text, "download", lambda *args, **kwargs: str(tmp_path / "small.zip"))
    assert len(contrib.data.WikiText2(str(tmp_path), "test", seq_len=1)) == 2
