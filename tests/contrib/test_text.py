"""Vocabularies, and the texts of WikiText from local files."""

from __future__ import annotations

import pathlib
import zipfile
from collections import Counter
from hashlib import sha1

import pytest

from gluongraph.contrib import embedding, pretrained
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


# -- GloVe's and FastText's files

VECTORS = "<unk> 9 9\nhello 1 2\nworld 3 4\n"


@pytest.fixture
def server(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder in the place of MXNet's server, with one archive of GloVe's that holds two files."""
    archive = tmp_path / "server" / "gluon" / "embeddings" / "glove" / "glove.6B.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("glove.6B.50d.txt", VECTORS)
        made.writestr("../outside.txt", "never written")
    known = pretrained.Listed(sha1(VECTORS.encode()).hexdigest(), archive.name, sha1(archive.read_bytes()).hexdigest())
    files = {"glove.6B.50d.txt": known, "glove.6B.100d.txt": known._replace(sha1="0" * 40)}
    monkeypatch.setattr(pretrained, "listed", lambda name: files if name == "glove" else {})
    monkeypatch.setenv("MXNET_GLUON_REPO", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "home"))
    return archive


def test_pretrained_vectors(server: pathlib.Path, tmp_path: pathlib.Path) -> None:
    made = embedding.create("glove", pretrained_file_name="glove.6B.50d.txt")
    assert isinstance(made, embedding.GloVe) and made.idx_to_token == ["<unk>", "hello", "world"]
    assert made.get_vecs_by_tokens(["world", "other"]).asnumpy().tolist() == [[3, 4], [9, 9]]
    folder = tmp_path / "home" / "embeddings" / "glove"
    assert sorted(path.name for path in folder.iterdir()) == ["glove.6B.50d.txt", "glove.6B.zip"]
    server.unlink()  # what is there is not fetched again
    words = Vocabulary(Counter(["hello"]))
    again = embedding.GloVe("glove.6B.50d.txt", embedding_root=str(tmp_path / "home" / "embeddings"), vocabulary=words)
    assert again.idx_to_token == ["<unk>", "hello"] and again.idx_to_vec.asnumpy().tolist() == [[9, 9], [1, 2]]


def test_vectors_that_cannot_be_had(server: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(KeyError, match=r"glove has no file 'glove\.7B\.txt'"):
        embedding.GloVe("glove.7B.txt")
    with pytest.raises(OSError, match=r"glove\.6B\.zip does not contain glove\.6B\.100d\.txt"):
        embedding.GloVe("glove.6B.100d.txt")
    server.write_bytes(b"damaged")
    (tmp_path / "home" / "embeddings" / "glove" / server.name).unlink()
    with pytest.raises(OSError, match="put the file at"):
        embedding.GloVe("glove.6B.50d.txt")
    with pytest.raises(KeyError, match="glove"):
        embedding.get_pretrained_file_names("glov")


def test_names_of_pretrained_files() -> None:
    found = embedding.get_pretrained_file_names()
    assert len(found["glove"]) == 10 and len(found["fasttext"]) == 327 and found["customembedding"] == []
    assert (
        embedding.get_pretrained_file_names("fasttext") == found["fasttext"] and "wiki.simple.vec" in found["fasttext"]
    )
    for name in ("glove", "fasttext"):
        for file, known in pretrained.listed(name).items():
            assert len(known.sha1) == len(known.archive_sha1) == 40 and known.archive.endswith(".zip")
            assert file.split(".")[0] == known.archive.split(".")[0]
