"""Keys: what this user has exported runs, what others have signed runs where they are trusted, and nothing else."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shlex
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from attack import X, Y, resigned, training

import gluongraph as mx
from gluongraph import cli
from gluongraph.artefact import file, keys, signing
from gluongraph.cli import key

NOT_MINE = "it was not exported by this user on this machine"
ADA = "ed25519:" + "1f" * 32


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """What this user has exported."""
    training().export(tmp_path / "step.gga", modes=["step"])
    return tmp_path / "step.gga"


@contextmanager
def another_user(folder: pathlib.Path) -> Iterator[None]:
    """Within: somebody else, with keys of his own in this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        yield


def runs(path: pathlib.Path, trust: str = "keys") -> bool:
    """Would the code of the artefact run?"""
    return signing.judge(file.read(path), trust).trusted


def why(path: pathlib.Path, trust: str = "keys") -> str:
    return signing.judge(file.read(path), trust).why


# -- what this user has exported


def test_the_first_export_makes_a_secret(tmp_path: pathlib.Path, own_keys: pathlib.Path) -> None:
    step, before = training(), os.umask(0)
    try:
        step.export(tmp_path / "step.gga", modes=["step"])
    finally:
        os.umask(before)
    assert [path.name for path in own_keys.iterdir()] == ["local.key"]
    assert stat.S_IMODE(own_keys.stat().st_mode) == 0o700
    assert stat.S_IMODE((own_keys / "local.key").stat().st_mode) == 0o600
    mx.load(tmp_path / "step.gga")(X, Y)  # a warning would be an error
    secret = (own_keys / "local.key").read_text().strip()
    assert secret.encode() not in (tmp_path / "step.gga").read_bytes()


def test_it_needs_no_cryptography(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    program = "import sys; sys.modules['cryptography'] = None; import gluongraph as mx, numpy as np\n"
    program += "step = mx.load(sys.argv[1]); step(np.ones((4, 5), np.float32), np.zeros(4, np.int32))\n"
    program += "step.export(sys.argv[2])"
    line = [sys.executable, "-W", "error", "-c", program, path, tmp_path / "again.gga"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert runs(tmp_path / "again.gga")


def test_another_user_or_machine(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with another_user(tmp_path / "other"):
        assert why(path).startswith(NOT_MINE)
        training().export(tmp_path / "theirs.gga", modes=["step"])
    assert runs(path) and why(tmp_path / "theirs.gga").startswith(NOT_MINE)
    assert runs(tmp_path / "theirs.gga", "file") and not runs(path, "none")


def test_first_exports_at_once_agree(tmp_path: pathlib.Path) -> None:
    program = "from gluongraph.artefact import keys; print(keys.local_key(make=True).hex())"
    line = [sys.executable, "-c", program]
    started = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert len({process.communicate()[0] for process in started}) == 1


def test_artefacts_without_signatures(path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of before there were any: compiled again, until somebody vouches for them."""
    resigned(path, {})
    with pytest.warns(UserWarning, match=f"step.gga: {NOT_MINE}, and nobody has signed it; its code is not run"):
        mx.load(path)
    before = file.read(path)
    assert cli.main(["key", "sign", str(path)]) == 0 and "signed: " in capsys.readouterr().out
    after = file.read(path)
    assert runs(path) and before.told == after.told and before.arrays.keys() == after.arrays.keys()


def test_where_no_key_can_be_made(tmp_path: pathlib.Path, own_keys: pathlib.Path) -> None:
    own_keys.parent.mkdir()
    own_keys.write_text("a file in place of the folder")
    with pytest.warns(UserWarning, match="not signed as yours, so its code will not run when it is loaded"):
        training().export(tmp_path / "step.gga", modes=["step"])
    with pytest.warns(UserWarning, match=NOT_MINE):
        mx.load(tmp_path / "step.gga")


@pytest.mark.parametrize(
    ("name", "mode", "said"),
    [
        ("local.key", 0o640, "local.key is open to others"),
        ("local.key", 0o602, "local.key is open to others"),
        (".", 0o777, "gluongraph is open to others"),
    ],
)
def test_secrets_that_are_open_to_others(
    name: str, mode: int, said: str, path: pathlib.Path, own_keys: pathlib.Path
) -> None:
    (own_keys / name).chmod(mode)
    assert not runs(path) and said in why(path) and "chmod" in why(path)
    with pytest.warns(UserWarning, match=said):
        training().export(path, modes=["step"])


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to others")
def test_secrets_of_others(path: pathlib.Path, own_keys: pathlib.Path) -> None:
    os.chown(own_keys / "local.key", 12345, -1)
    assert not runs(path) and "local.key belongs to another user" in why(path)


@pytest.mark.parametrize("text", ["", "00", "z" * 64])
def test_a_damaged_secret(text: str, path: pathlib.Path, own_keys: pathlib.Path) -> None:
    (own_keys / "local.key").write_text(text)
    assert not runs(path) and "local.key is damaged" in why(path)


# -- what others have signed


@pytest.fixture
def signed(path: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> pathlib.Path:
    """What ada has signed; her public key is in ada.pub."""
    pytest.importorskip("cryptography")
    with another_user(tmp_path / "ada"):
        assert cli.main(["key", "make", "--name", "ada"]) == 0
        training().export(tmp_path / "signed.gga", modes=["step"])
        capsys.readouterr()
        assert cli.main(["key", "show"]) == 0
        (tmp_path / "ada.pub").write_text(capsys.readouterr().out)
    return tmp_path / "signed.gga"


def test_trusted_keys(signed: pathlib.Path, own_keys: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    public = signed.with_name("ada.pub").read_text().strip()
    assert (
        public.endswith(" ada")
        and why(signed) == f"it is signed by {public.split()[0]}, a key that is not trusted here"
    )
    assert cli.main(["key", "trust", str(signed.with_name("ada.pub"))]) == 0
    assert capsys.readouterr().out == f"trusted: {public}\n" and runs(signed)
    mx.load(signed)(X, Y)  # a warning would be an error
    assert cli.main(["key", "list"]) == 0 and capsys.readouterr().out == f"trusted: {public}\n"
    assert cli.main(["key", "trust", public.split()[0], "--name", "ada l."]) == 0
    assert [key.name for key in keys.trusted()] == ["ada l."]
    assert cli.main(["key", "trust", ADA, "--name", "another"]) == 0
    assert cli.main(["key", "distrust", "ada l."]) == 0
    assert [key.name for key in keys.trusted()] == ["another"] and not runs(signed)
    assert stat.S_IMODE((own_keys / "trusted.keys").stat().st_mode) == 0o600


def test_a_key_for_one_load(signed: pathlib.Path) -> None:
    public = signed.with_name("ada.pub").read_text().strip()
    assert runs(signed, public) and runs(signed, public.split()[0]) and not runs(signed, ADA) and not keys.trusted()
    for wrong in ("ed25519:12", "ssh-rsa AAAA", "", "File", None):
        with pytest.raises(ValueError, match="trust is 'keys', 'file', 'none' or a public key"):
            mx.load(signed, trust=wrong)  # type: ignore[arg-type]


def test_ones_own_key_is_trusted_on_other_machines(signed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with another_user(tmp_path / "ada"):
        (tmp_path / "ada/gluongraph/local.key").unlink()
        assert runs(signed)


def test_code_of_others_is_not_signed_again(signed: pathlib.Path) -> None:
    """Trust in a key can be taken back; what was exported anew meanwhile must not outlive it."""
    keys.trust(keys.public_key(signed.with_name("ada.pub").read_text()))
    mx.load(signed).export(again := signed.with_name("again.gga"))
    assert not runs(again)


def test_without_cryptography_a_signature_is_not_believed(
    signed: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.trust(keys.public_key(signed.with_name("ada.pub").read_text()))
    assert cli.main(["key", "make"]) == 0
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    assert "pip install 'gluongraph[sign]'" in why(signed)
    with pytest.warns(UserWarning, match="not signed for others"):
        training().export(signed.with_name("mine.gga"), modes=["step"])
    assert runs(signed.with_name("mine.gga"))
    capsys.readouterr()
    assert cli.main(["key", "show"]) == 0 and capsys.readouterr().out.startswith("ed25519:")


def _flipped(text: str) -> str:
    return text[:-1] + ("0" if text[-1] != "0" else "1")


@pytest.mark.parametrize(
    "change",
    [
        _flipped,
        lambda text: text.split(" ")[0],
        lambda text: "",
        lambda text: text + " 00",
        lambda text: text[:10] + " " + text.split(" ")[-1],
        lambda text: "é é",
        lambda text: text.split(" ")[0] + " " + "00" * 64,
    ],
)
def test_signatures_that_are_none(change: Callable[[str], str], signed: pathlib.Path) -> None:
    keys.trust(keys.public_key(signed.with_name("ada.pub").read_text()))
    found = file.read(signed).metadata
    resigned(signed, {"ed25519": change(found["ed25519"]), "made_here": change(found["made_here"])})
    assert not runs(signed) and ("damaged" in why(signed) or "is not of this file" in why(signed))


def test_a_signature_serves_one_purpose(signed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A signature of the same digest under another first line, or of the bare digest, is none of an artefact."""
    keys.trust(keys.public_key(signed.with_name("ada.pub").read_text()))
    digest = file.read(signed).digest
    for message in (digest.encode(), bytes.fromhex(digest), f"another purpose 1\n{digest}".encode()):
        with another_user(tmp_path / "ada"):
            made = keys.sign(message)
        assert made is not None
        resigned(signed, {"ed25519": " ".join(part.hex() for part in made)})
        assert "is not of this file" in why(signed)


def test_everything_is_signed(path: pathlib.Path) -> None:
    """The digest that is signed covers all tensors, by name, type and content."""
    found = file.read(path)
    assert found.told["tensors"].keys() == found.arrays.keys()
    for name, array in found.arrays.items():
        assert found.told["tensors"][name][2] == hashlib.sha256(array.tobytes()).hexdigest()


# -- the command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show"], "`gluongraph key make` makes them"),
        (["trust"], "trust takes a public key, or a file of public keys behind it"),
        (["list", "ada"], "list takes nothing behind it"),
        (["trust", "ed25519:12"], "'ed25519:12' is no public key"),
        (["trust", "ada.pub"], "'ada.pub' is no public key"),
        (["trust", "empty"], "empty holds no public key"),
        (["trust", "two", "--name", "x"], "two holds 2 keys, and --name is for one"),
        (["trust", "wrong"], "wrong: 'no key' is no public key"),
        (["trust", ADA, "--name", "a\nb"], "is no name"),
        (["show", "--name", "x"], "--name is for make and trust"),
        (["distrust", "ada"], "no key that is trusted is called ada"),
        (["sign", "empty"], "is no artefact"),
        (["sign", "none"], "No such file"),
    ],
)
def test_what_the_command_refuses(
    words: list[str],
    said: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("empty").write_text("# no key\n\n")
    pathlib.Path("two").write_text(f"{ADA} a # one\n{ADA.replace('1f', '2f')} b\n")
    pathlib.Path("wrong").write_text("no key\n")
    assert cli.main(["key", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "config").exists()


def test_files_of_keys(own_keys: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = tmp_path / "two"
    two.write_text(f"{ADA} a # one\n\n{ADA.replace('1f', '2f')}\n")
    assert cli.main(["key", "list"]) == 0 and "no keys" in capsys.readouterr().out
    assert cli.main(["key", "trust", str(two)]) == 0
    assert [key.name for key in keys.trusted()] == ["a", ""]
    (own_keys / "trusted.keys").chmod(0o666)
    with pytest.raises(keys.KeyFileError, match=r"trusted\.keys is open to others"):
        keys.trusted()
    assert cli.main(["key", "list"]) == 2


def test_keys_are_made_once(own_keys: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography")
    assert cli.main(["key", "make", "--name", "me"]) == 0
    made = capsys.readouterr().out
    assert cli.main(["key", "make"]) == 2 and "is there already" in capsys.readouterr().err
    assert cli.main(["key", "show"]) == 0 and capsys.readouterr().out == made
    assert stat.S_IMODE((own_keys / "signing.key").stat().st_mode) == 0o600
    (own_keys / "signing.key").write_text("something else\n")
    assert cli.main(["key", "show"]) == 2 and "signing.key is damaged" in capsys.readouterr().err


def test_the_examples_of_the_help(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.chdir(path.parent)
    lines = [
        line.split("#")[0].strip() for line in str(key.__doc__).splitlines() if line.startswith("  gluongraph key")
    ]
    assert [line.split()[2] for line in lines] == list(key.TAKES)
    for line in lines:
        command, _, output = line.partition(" > ")
        assert cli.main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
        if output:
            pathlib.Path(output).write_text(capsys.readouterr().out)


def test_who_has_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is ignored; without a home there are no keys, and that is no error of `mx.load`."""

    def none() -> pathlib.Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert keys.folder() == pathlib.Path.home() / ".config" / "gluongraph"
    monkeypatch.setattr(pathlib.Path, "home", none)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert signing.signatures("00" * 32) == {}
    assert len(said) == 2 and "no folder for keys" in str(said[0].message)
