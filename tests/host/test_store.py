"""The store under the cache: what is damaged, whose it is, what cannot be written, and drafts of killed writers."""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from gluongraph import debug, ops
from gluongraph.artefact import bundle
from gluongraph.codegen.cache import measurements, selections
from gluongraph.codegen.targets import target as find_target
from gluongraph.compiler import lower
from gluongraph.host import disk, private, store
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.ir.plan import Candidate

ROOT = pytest.mark.skipif(os.getuid() != 0, reason="folders of other users are made by the superuser alone")


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A cache for each test alone, and passes that nobody watches."""
    place = tmp_path / "kept" / "cache"
    monkeypatch.setenv("GG_CACHE", str(place))
    with debug.override(verify=False):
        yield place


def product() -> tuple[Graph, dict[str, str]]:
    """y = x * w, w = w + x."""
    a, b = (ops.input(name, TensorType((4, 5))) for name in "xw")
    return Graph({"x": a, "w": b}, {"y": a * b}, {"w": b + a}), {"x": "input", "w": "state"}


def run() -> bool:
    """Run the graph, compiled or from the cache, and look at its numbers: has it been compiled now?"""
    made = lower.lower(*product())
    w, x = np.full((4, 5), 3, np.float32), np.arange(20, dtype=np.float32).reshape(4, 5)
    (y,) = made.executor({"w": w})([x])
    assert np.array_equal(y, 3 * x) and np.array_equal(w, 3 + x) and made.artefact is not None
    return bool(made.artefact.compiled)


def damage(path: pathlib.Path, how: str) -> None:
    data = path.read_bytes()
    if how == "cut":
        path.write_bytes(data[:-7])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "longer":
        path.write_bytes(data + b"x")
    elif how == "missing":
        path.unlink()
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "a link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
    elif how == "another user's":
        os.chown(path, 12345, -1)
    else:
        at = {"first bit": 0, "middle bit": len(data) // 2, "last bit": len(data) - 1}[how]
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])


HARM = ["cut", "empty", "longer", "missing", "a folder", "a link", "first bit", "middle bit", "last bit"]


@pytest.mark.parametrize("how", [*HARM, pytest.param("another user's", marks=ROOT)])
@pytest.mark.parametrize("name", ["*/step.so", "*/program.json", "*/files.json", "plan-*.json", "selections-*.json"])
def test_damage_is_seen_and_mended(folder: pathlib.Path, name: str, how: str) -> None:
    assert run() == 1
    (file,) = folder.glob(name)
    damage(file, how)
    if "selections" in name:  # read by a process that compiles
        selections._selection_cache.cache_clear()
        (code,) = folder.glob("*/step.so")
        (plan,) = folder.glob("plan-*.json")
        shutil.rmtree(code.parent), plan.unlink()
    assert run() == ("plan" not in name), "code is made again, or what is known of it asked again"
    assert run() == 0 and file.is_file() and not file.is_symlink()
    assert not list(folder.glob(f"{disk.DRAFT}*")), "nothing is left of what was damaged"


@pytest.mark.parametrize("how", HARM)
def test_damage_is_told_at_the_first_level(folder: pathlib.Path, capsys: pytest.CaptureFixture[str], how: str) -> None:
    assert run() == 1
    (file,) = folder.glob("*/step.so")
    damage(file, how)
    with debug.override(debug=1):
        assert run() == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "is removed" in line]
    assert line.startswith(f"{file.parent} is removed, and made again if it is wanted: ") and "step.so" in line


def test_entries_of_other_names(folder: pathlib.Path) -> None:
    """Each is whole, but is not what its name says."""
    assert run() == 1
    (entry,) = folder.glob("*/")
    (plan,) = folder.glob("plan-*.json")
    entry.rename(entry.with_name("another"))
    plan.rename(folder / "plan-of-another.json")
    assert store.get(folder / "another") is None and store.noted(folder / "plan-of-another.json") is None
    assert not list(folder.glob("*another*"))


@pytest.mark.parametrize("name", ["../../outside", "/outside", "lib/../../outside"])
def test_an_entry_names_nothing_outside_of_it(folder: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "file").write_bytes(b"1")
    path = folder / "entry"
    store.put(path, tmp_path / "made")
    text = store._listing(store.Entry(None, {name: b"1"}, {}))
    (path / store.LISTING).write_bytes(store._sealed(f"entry/{store.LISTING}", text))
    assert store.get(path) is None and not path.exists()


def test_what_is_loaded_is_what_was_checked(folder: pathlib.Path) -> None:
    """Changed between the look at its digest and the load; and cut while it runs, which was a bus error."""
    assert run() == 1
    made = lower.lower(*product())
    (file,) = folder.glob("*/step.so")
    damage(file, "middle bit")
    w, x = np.full((4, 5), 3, np.float32), np.ones((4, 5), np.float32)
    runner = made.executor({"w": w})
    file.write_bytes(b"")
    assert np.array_equal(runner([x])[0], 3 * x) and np.array_equal(w, 3 + x)


def test_other_code_under_the_same_key_is_replaced(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path, made = folder / "entry", tmp_path / "made"
    made.mkdir()
    for text in ("one", "two", "two"):
        (made / "file").write_text(text)
        entry, found = store.put(path, made), store.get(path)
        assert found == entry and found.files == {"file": text.encode()} and found.path == path


def test_notes(tmp_path: pathlib.Path, folder: pathlib.Path) -> None:
    """A folder in the place of one is damage too."""
    note = folder / "note.json"
    assert store.noted(note) is None
    assert store.note(note, "first\nline") and store.note(note, "second") and store.noted(note) == "second"
    note.unlink()
    note.mkdir()
    assert store.noted(note) is None and store.note(note, "third") and store.noted(note) == "third"
    assert [path.name for path in folder.iterdir()] == ["note.json"]


# -- whose it is


@pytest.mark.parametrize("mask", [0, 0o002, 0o077, 0o277])
def test_folders_are_private_whatever_the_umask(folder: pathlib.Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        assert run() == 1 and run() == 0
    finally:
        os.umask(before)
    for path in (folder.parent, folder, *folder.rglob("*")):
        assert not path.stat().st_mode & 0o077, path
        assert not path.is_dir() or path.stat().st_mode & 0o700 == 0o700, path


@pytest.mark.parametrize(
    ("owner", "mode", "said"),
    [
        pytest.param(
            12345, 0o700, r"belongs to another user \(number 12345\).*\n  help: name one of your own", marks=ROOT
        ),
        (None, 0o770, r"is open to others.*\n  help: chmod go-w"),
        (None, 0o702, r"is open to others.*\n  help: chmod go-w"),
    ],
)
def test_folders_that_others_may_write_are_not_used(
    folder: pathlib.Path, owner: int | None, mode: int, said: str
) -> None:
    assert run() == 1
    before = sorted(path.stat().st_mtime_ns for path in folder.rglob("*"))
    if owner is not None:
        os.chown(folder, owner, -1)
    folder.chmod(mode)
    with pytest.warns(UserWarning, match=rf"not kept: {folder} {said}"):
        assert run() == 1
    assert run() == 0, "a private folder takes its place, and the warning comes once"
    place = store.folder()
    assert place is not None and place != folder and not place.stat().st_mode & 0o077
    assert sorted(path.stat().st_mtime_ns for path in folder.rglob("*")) == before
    folder.chmod(0o755)
    if owner is None:
        assert store.folder() == folder and run() == 0, "others may read"


def test_what_root_owns_will_do(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an image of a machine has it: root can write anything anyway. Keys must be the user's own."""
    found = os.stat_result((0o40755, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert private.fault(tmp_path, found, root=True) == "" != private.fault(tmp_path, found)


@ROOT
def test_made_by_somebody_else_meanwhile(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the folder, which is not there, and the first file in it."""
    make = private.make

    def overtaken(place: pathlib.Path) -> None:
        make(place)
        if place == folder:
            os.chown(folder, 12345, -1)

    monkeypatch.setattr(private, "make", overtaken)
    with pytest.warns(UserWarning, match=r"cannot be written \(.*belongs to another user"):
        assert run() == 1
    assert not list(folder.iterdir())


# -- what cannot be written


@pytest.fixture
def full(folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A disk that holds half of the product's library."""
    run()
    (library,) = folder.rglob("step.so")
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={library.stat().st_size // 2},mode=700", "tmpfs", str(place)]
    if os.getuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    monkeypatch.setenv("GG_CACHE", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_full_in_the_middle_of_a_write(full: pathlib.Path) -> None:
    with pytest.warns(UserWarning, match=r"not kept: .*disk cannot be written \(No space left on device\)\n  help: "):
        assert run() == 1
    assert run() == 0, "a temporary folder has it"
    assert not list(full.rglob("step.so")) and not list(full.glob(f"{disk.DRAFT}*"))
    measurements.table(find_target()).put(
        {f"kernel {i} " + 1000 * "x": measurements.Measurement(Candidate("loop"), 1.0, 2.0) for i in range(40)}
    )
    assert not list(full.glob("tuned*")), "nor does what was measured fit; it is known in this process"
    assert len(measurements.table(find_target())) == 40


def test_neither_cache_nor_temporary_folder(
    tmp_path: pathlib.Path, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then code is in memory alone."""
    folder.parent.mkdir()
    folder.write_text("a file")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(store, "_temporary", None)
    with pytest.warns(UserWarning, match=r"cache cannot be written \(File exists\)"):
        assert run() == 1
    assert run() == 1


# -- the runner


def test_bundles_take_the_runner_that_was_built(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def build(place: pathlib.Path) -> None:  # that it compiles is tested elsewhere, and takes a minute
        built.append(place)
        (place / "lib").mkdir()
        (place / "lib" / "libtvm_ffi.so").symlink_to("/lib/one")
        (place / "gg-run").write_bytes(b"a program")
        (place / "gg-run").chmod(0o755)

    monkeypatch.setattr(bundle, "_build", build)
    place = bundle.built()
    assert bundle.built() == place and len(built) == 1 and os.access(place / "gg-run", os.X_OK)
    damage(place / "gg-run", "middle bit")
    assert bundle._runner().files == {"gg-run": b"a program"} and len(built) == 2
    (place / "lib" / "libtvm_ffi.so").unlink()
    (place / "lib" / "libtvm_ffi.so").symlink_to("/tmp/another")
    assert bundle._runner().links == {"lib/libtvm_ffi.so": "/lib/one"} and len(built) == 3
    assert bundle.built() == place and len(built) == 3


# -- drafts

WRITER = """
import pathlib, sys, time
from gluongraph.host import disk, store
place = pathlib.Path(sys.argv[1])
def slowly(file):
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    time.sleep(60)
if sys.argv[2] == "file":
    disk.whole(place / "file", slowly)
elif sys.argv[2] == "cache":
    with open(store.temporary() / "part", "wb") as file:
        slowly(file)
elif sys.argv[2] == "temporary":
    with disk.temporary_folder() as draft, open(draft / "part", "wb") as file:
        slowly(file)
else:
    with disk.draft_folder(place) as draft, open(draft / "part", "wb") as file:
        slowly(file)
"""


@pytest.mark.parametrize("what", ["file", "folder", "temporary", "cache"])
def test_drafts_of_killed_writers_go_and_those_of_others_stay(
    tmp_path: pathlib.Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    run = [sys.executable, "-c", WRITER, str(tmp_path), what]
    dead, alive = (subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(2))
    try:
        for process in (dead, alive):
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        drafts = {path.name.split("-")[1]: path for path in tmp_path.iterdir()}
        assert set(drafts) == {str(dead.pid), str(alive.pid)}
        dead.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # it has ended; its number is still taken
        disk.whole(tmp_path / "other", lambda file: file.write(b"whole"))
        with disk.temporary_folder() as folder:
            left = {path.name for path in tmp_path.iterdir()} - {folder.name}
        assert left == {"other", drafts[str(alive.pid)].name}
    finally:
        for process in (dead, alive):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    disk.sweep(tmp_path)
    with disk.temporary_folder():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_draft_that_is_swept_before_it_is_locked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another is begun."""
    locked, seen = disk._locked, []

    def late(handle: int) -> bool:
        if not seen:
            seen.append(1)
            disk.sweep(tmp_path)
        return locked(handle)

    monkeypatch.setattr(disk, "_locked", late)
    disk.whole(tmp_path / "file", lambda file: file.write(b"whole"))
    assert (tmp_path / "file").read_bytes() == b"whole" and len(list(tmp_path.iterdir())) == 1
    seen.clear()
    with disk.draft_folder(tmp_path) as draft:
        disk.put(draft / "part", b"whole")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("before", ["chmod", "open"])
def test_a_folder_that_is_swept_before_it_is_open(
    before: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another is begun; without the folder that it should lie in there is none."""
    call, seen = getattr(os, before), []

    def late(path: pathlib.Path, *args: int, **kwargs: int) -> object:
        if not seen:
            seen.append(path)
            path.rmdir()
        return call(path, *args, **kwargs)

    monkeypatch.setattr(os, before, late)
    with disk.draft_folder(tmp_path) as draft:
        assert draft.is_dir() and draft.stat().st_mode & 0o777 == 0o700
    assert seen and draft not in seen and not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError), disk.draft_folder(tmp_path / "none"):
        pass


def test_a_file_that_must_not_be_replaced(tmp_path: pathlib.Path) -> None:
    disk.whole(tmp_path / "file", lambda file: file.write(b"one"), replace=False)
    with pytest.raises(FileExistsError):
        disk.whole(tmp_path / "file", lambda file: file.write(b"two"), replace=False)
    assert (tmp_path / "file").read_bytes() == b"one" and len(list(tmp_path.iterdir())) == 1


# -- several processes that want the same


TAKER = """
import pathlib, sys, time
from gluongraph.host import disk
with disk.turn(pathlib.Path(sys.argv[1]), "entry"):
    print("mine", flush=True)
    time.sleep(60)
"""


def takes_a_turn(place: pathlib.Path) -> subprocess.Popen[str]:
    """A process that has the turn of an entry, and keeps it."""
    process = subprocess.Popen([sys.executable, "-c", TAKER, str(place)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "mine\n"
    return process


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_turn_ends_with_its_process(end: signal.Signals, tmp_path: pathlib.Path) -> None:
    with takes_a_turn(tmp_path) as process:
        assert disk._turn(tmp_path / f"{disk.DRAFT}turn-entry") is None
        process.send_signal(end)
        process.wait()
    started = time.monotonic()
    with disk.turn(tmp_path, "entry"):
        assert time.monotonic() - started < disk.PATIENCE / 2
    assert not list(tmp_path.iterdir())


def test_who_waits_for_a_stopped_process_goes_on(tmp_path: pathlib.Path) -> None:
    with takes_a_turn(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        with disk.turn(tmp_path, "other"):
            pass
        started = time.monotonic()
        with disk.turn(tmp_path, "entry", patience=0.2):
            assert 0.2 <= time.monotonic() - started < disk.PATIENCE / 2
        disk.sweep(tmp_path)
        assert len(list(tmp_path.iterdir())) == 1  # it still has its turn
        process.kill()
    disk.sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def test_one_at_a_time(tmp_path: pathlib.Path) -> None:
    """More threads than cores, each with handles of its own, as processes have."""
    within, most = 0, 0

    def work() -> None:
        nonlocal within, most
        for _ in range(20):
            with disk.turn(tmp_path, "entry"):
                within += 1
                most = max(most, within)
                time.sleep(0.0005)
                within -= 1

    workers = [threading.Thread(target=work) for _ in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert most == 1 and within == 0 and not list(tmp_path.iterdir())


def test_turns_where_nothing_can_be_locked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    with disk.turn(tmp_path / "none", "entry"):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with disk.turn(tmp_path, "entry"):
            pass
    monkeypatch.setenv("GG_CACHE", "0")
    with store.turn("entry"):
        pass


COMPILER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_store import product
from gluongraph.compiler import lower
from gluongraph.codegen import build
found = build.artifacts.find
def looked(*args):  # what it has found at first it goes by when the others have looked as well
    build.artifacts.find, result = found, found(*args)
    print("looked", flush=True)
    sys.stdin.readline()
    return result
build.artifacts.find = looked
print(lower.lower(*product()).artefact.compiled > 0, flush=True)
"""


def test_processes_that_start_together_compile_once(folder: pathlib.Path) -> None:
    command = [sys.executable, "-c", COMPILER, str(pathlib.Path(__file__).parent)]
    private.make(folder)
    jobs = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for job in jobs:
        assert job.stdout is not None and job.stdout.readline() == "looked\n"
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
    found = sorted(job.communicate()[0] for job in jobs)
    assert found == ["False\n", "False\n", "True\n"] and len(list(folder.glob("*/step.so"))) == 1


# -- all of it at once


@pytest.mark.parametrize("what", [("kills", "--count", "6"), ("flips", "--count", "8", "--cuts", "4")], ids=str)
def test_kills_and_damage(what: tuple[str, ...]) -> None:
    """A few of what the benchmark does by hundreds."""
    script = pathlib.Path(__file__).parents[2] / "benchmarks" / "cache.py"
    done = subprocess.run([sys.executable, script, *what], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 bad, 0 wrong, 0 crashed" in done.stdout
