"""Files from the network: fetched whole, checked by their SHA-1, and never left half-written."""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from gluongraph.errors import warn
from gluongraph.host import disk
from gluongraph.host.file_names import check_name
from gluongraph.host.interrupts import import_whole

_REPOSITORY = "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/"


def check_sha1(filename: str, sha1_hash: str) -> bool:
    """Is this the SHA-1 of the file's content, in hexadecimal digits?"""
    with open(filename, "rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest() == sha1_hash


def download(
    url: str,
    path: str | None = None,
    overwrite: bool = False,
    sha1_hash: str | None = None,
    retries: int = 5,
    verify_ssl: bool = True,
) -> str:
    """Fetch a file, unless it is there already with the right hash; gives its name.

    `path` is a file, or a folder in which it gets the last part of the URL as its name; by default the current one.

    Raises:
        ArgumentError: the name of the file is empty.
        AssertionError: the URL names no file, or `retries` is negative.
        OSError: it could not be fetched, or has another hash; the message says where to put the file by hand.
    """
    if retries < 0:
        raise AssertionError(f"download: retries must not be negative, it is {retries}")
    check_name("download", path, "download(url, path='data.zip')")
    name = _target(url, path)
    if os.path.exists(name) and not overwrite and (sha1_hash is None or check_sha1(name, sha1_hash)):
        return name
    if not verify_ssl:
        warn(f"Unverified HTTPS request: the server of {url} may be another one (verify_ssl=False)")
    for left in range(max(retries, 1) - 1, -1, -1):
        try:
            _fetch(url, name, sha1_hash, verify_ssl)
            return name
        except OSError as error:
            nowhere = _unknown_name(error)  # no network: it stays so
            if nowhere or left == 0:
                raise OSError(f"{url} could not be downloaded ({error}); put the file at {name} yourself") from error
            print(f"download of {url} failed ({error}), {left} more attempt{'s' if left > 1 else ''}")
    raise AssertionError("not reached")


def _unknown_name(error: BaseException | None) -> bool:
    """Is it for want of the server's address?"""
    reason = getattr(error, "reason", None) or (error.args[0] if error is not None and error.args else None)
    reason = getattr(reason, "reason", reason)  # of what requests has tried
    return isinstance(reason, socket.gaierror) or "NameResolution" in type(reason).__name__


def _target(url: str, path: str | None) -> str:
    last = url.split("/")[-1]
    if path is None:
        name = last
    else:
        path = os.path.expanduser(path)
        name = os.path.join(path, last) if os.path.isdir(path) or path.endswith("/") else path
    if not os.path.basename(name):
        raise AssertionError(f"{url} does not end in a file's name; give the path to write to")
    return name


def _fetch(url: str, name: str, sha1_hash: str | None, verify_ssl: bool) -> None:
    """One attempt. What is being fetched has a name of its own until it is whole."""
    folder = os.path.dirname(os.path.abspath(name))
    with closing(_opened(url, verify_ssl)) as source:
        print(f"downloading {name} from {url}")
        os.makedirs(folder, exist_ok=True)

        def write(file: IO[bytes]) -> None:
            digest = hashlib.sha1()
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
            if sha1_hash is not None and digest.hexdigest() != sha1_hash:
                raise OSError(f"the SHA-1 of its content is not {sha1_hash}")

        disk.whole(Path(name), write, 0o644)


def _opened(url: str, verify_ssl: bool) -> Any:
    """What the server sends, to be read: by the package requests, as in MXNet, where it is installed.

    requests brings certificates of its own, and takes the settings of proxies that its users know.
    """
    try:
        # Here: few programs fetch anything, and all would wait for it when they start.
        get: Any = import_whole("requests").get
    except ImportError:
        get = None
    if get is None or not url.startswith(("http:", "https:")):
        import ssl
        import urllib.request

        context = None if verify_ssl else ssl._create_unverified_context()
        return urllib.request.urlopen(url, context=context)
    answer = get(url, stream=True, verify=verify_ssl, headers={"Accept-Encoding": "identity"})
    if answer.status_code != 200:
        raise OSError(f"the server answered {answer.status_code}")
    return answer.raw


def data_dir() -> str:
    """Where data sets lie: the folder in the variable MXNET_HOME, else ~/.mxnet."""
    return os.path.expanduser(os.environ.get("MXNET_HOME", os.path.join("~", ".mxnet")))


def repository_url(namespace: str, filename: str) -> str:
    """Where MXNet keeps a file; the variable MXNET_GLUON_REPO names another server."""
    base = os.environ.get("MXNET_GLUON_REPO", _REPOSITORY)
    return f"{base.rstrip('/')}/{namespace}/{filename}"
