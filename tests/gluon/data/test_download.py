"""Files from the network; the network is a server here, or files."""

from __future__ import annotations

import hashlib
import http.server
import os
import pathlib
import sys
import threading
from collections.abc import Iterator

import pytest

from gluongraph import test_utils
from gluongraph.gluon.utils import check_sha1, download
from gluongraph.host.download import repository_url

CONTENT = b"some numbers" * 1000
SHA1 = hashlib.sha1(CONTENT).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    """/data comes at the third request, anything else never."""

    requests = 0

    def do_GET(self) -> None:
        _Handler.requests += 1
        fine = self.path == "/data" and _Handler.requests > 2
        self.send_response(200 if fine else 503)
        self.end_headers()
        self.wfile.write(CONTENT if fine else b"")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    _Handler.requests = 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "data").write_bytes(CONTENT)
    return (tmp_path / "source" / "data").as_uri()


@pytest.mark.parametrize("requests", [True, False])
def test_retries(
    server: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    requests: bool,
) -> None:
    if requests:
        pytest.importorskip("requests")
    else:
        monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(OSError, match=r"503.*put the file at .*data yourself"):
        download(f"{server}/data", str(tmp_path), retries=2)
    assert _Handler.requests == 2 and os.listdir(tmp_path) == []
    assert download(f"{server}/data", str(tmp_path), retries=2) == str(tmp_path / "data")
    assert (tmp_path / "data").read_bytes() == CONTENT and _Handler.requests == 3
    assert "1 more attempt\n" in capsys.readouterr().out


@pytest.mark.usefixtures("offline")
def test_offline(tmp_path: pathlib.Path) -> None:
    url = repository_url("gluon/dataset/mnist", "x.gz")
    assert url == "http://127.0.0.1:9/gluon/dataset/mnist/x.gz"
    with pytest.raises(OSError, match="could not be downloaded"):
        download(url, str(tmp_path / "new" / "x.gz"), retries=1)
    assert os.listdir(tmp_path) == []


def test_hashes(url: str, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "here"
    assert download(url, str(target), sha1_hash=SHA1) == str(target)
    assert check_sha1(str(target), SHA1) and not check_sha1(str(target), SHA1[::-1])
    target.write_bytes(b"other")
    assert download(url, str(target)) == str(target) and target.read_bytes() == b"other"  # it is there
    download(url, str(target), sha1_hash=SHA1)
    assert target.read_bytes() == CONTENT
    with pytest.raises(OSError, match="the SHA-1 of its content is not"):
        download(url, str(target), overwrite=True, sha1_hash="0" * 40, retries=1)
    assert target.read_bytes() == CONTENT and sorted(os.listdir(tmp_path)) == ["here", "source"]


def test_names(url: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert download(url) == "data" and (tmp_path / "data").exists()
    (tmp_path / "data").unlink()
    assert test_utils.download(url, dirname="folder") == os.path.join("folder", "data")
    assert test_utils.download(url, fname="other") == "other" and (tmp_path / "other").read_bytes() == CONTENT
    with pytest.raises(AssertionError, match="does not end in a file's name"):
        download(url + "/")
    with pytest.raises(AssertionError, match="retries must not be negative"):
        download(url, retries=-1)
