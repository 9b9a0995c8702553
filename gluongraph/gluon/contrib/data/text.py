"""Texts for language models, as rows of word numbers: mx.gluon.contrib.data.text."""

from __future__ import annotations

import io
import os
import zipfile
from collections import Counter
from typing import Any, ClassVar

import numpy as np

from gluongraph import nd
from gluongraph.contrib.text import Vocabulary, count_tokens_from_str
from gluongraph.errors import with_user_location
from gluongraph.gluon.data.dataset import Dataset
from gluongraph.host.download import data_dir, download, repository_url

EOS = "<eos>"


class WikiText2(Dataset):
    """Articles of Wikipedia (Merity et al., 2016), 2 million words: rows of `seq_len` words, labelled by the next ones.

    `root` (default: datasets/wikitext-2 in $MXNET_HOME or ~/.mxnet) holds wiki.train.tokens, wiki.valid.tokens and
    wiki.test.tokens, for the segments train, validation and test. Each line ends with the token <eos>. Without `vocab`
    the vocabulary is that of the segment's words; `vocabulary` and `frequencies` tell.

    Raises:
        ValueError: there is no such segment.
        FileNotFoundError: the file is not there, and cannot be downloaded.
    """

    _name = "wikitext-2"
    _archive: ClassVar[tuple[str, str]] = ("wikitext-2-v1.zip", "3c914d17d80b1459be871a5039ac23e752a53cbe")
    _files: ClassVar[dict[str, str]] = {
        "train": "wiki.train.tokens",
        "validation": "wiki.valid.tokens",
        "test": "wiki.test.tokens",
    }

    def __init__(
        self, root: str | None = None, segment: str = "train", vocab: Vocabulary | None = None, seq_len: int = 35
    ):
        if segment not in self._files:
            raise ValueError(
                with_user_location(
                    f"{type(self).__name__}: segment is one of {', '.join(self._files)}; not {segment!r}"
                )
            )
        self._root = os.path.expanduser(root or os.path.join(data_dir(), "datasets", self._name))
        content = self._text(self._files[segment])
        self._counter = count_tokens_from_str(content)
        self._vocab = Vocabulary(self._counter, reserved_tokens=[EOS]) if vocab is None else vocab
        lines = [line.split() for line in content.splitlines()]
        words = [word for line in lines if line for word in (*line, EOS)]
        numbers = np.array(self._vocab.to_indices(words), np.int32)
        count = max(len(numbers) - 1, 0) // seq_len
        rows = [numbers[at : at + count * seq_len].reshape(count, seq_len) for at in (0, 1)]
        self._data, self._label = (nd.array(r, dtype="int32") for r in rows)

    def _text(self, name: str) -> str:
        path = os.path.join(self._root, name)
        if os.path.exists(path):
            with open(path, encoding="utf8") as file:
                return file.read()
        archive, sha1 = self._archive
        try:
            url = repository_url(f"gluon/dataset/{self._name}", archive)
            packed = download(url, os.path.join(self._root, archive), sha1_hash=sha1, retries=1)
        except OSError as error:
            raise FileNotFoundError(
                f"{type(self).__name__} needs {name} in {self._root}: put the file there, or name the folder that has "
                f"it, {type(self).__name__}(root=...). {error}"
            ) from error
        with zipfile.ZipFile(packed) as files:
            inside = next(n for n in files.namelist() if os.path.basename(n) == name)
            return io.TextIOWrapper(files.open(inside), encoding="utf8").read()

    @property
    def vocabulary(self) -> Vocabulary:
        """The words by number."""
        return self._vocab

    @property
    def frequencies(self) -> Counter[str]:
        """How often each word occurs in the segment."""
        return self._counter

    def __len__(self) -> int:
        return len(self._label)

    def __getitem__(self, idx: Any) -> Any:
        return self._data[idx], self._label[idx]


class WikiText103(WikiText2):
    """The same with 103 million words; the default root is datasets/wikitext-103."""

    _name = "wikitext-103"
    _archive = ("wikitext-103-v1.zip", "0aec09a7537b58d4bb65362fee27650eeaba625a")
