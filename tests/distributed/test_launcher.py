"""`gluongraph run` on a real MPI: what ranks are given, what is shown of them, and how they end."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import socket
import sys
from pathlib import Path

import pytest
from launched import PROGRAM, cores_given, launched, run
from ranks import is_open_mpi, needs_mpi

from gluongraph.cli import main
from gluongraph.distributed import launcher_mpi
from gluongraph.distributed.launcher_mpi import Mpi, recognized
from gluongraph.distributed.launcher_output import SHOWN_AFTER, Output
from gluongraph.distributed.launcher_rank import answer
from gluongraph.distributed.launcher_server import Server

NO_THREADS: dict[str, str | None] = dict.fromkeys(("GG_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"))


# --- what ranks are given


@needs_mpi
def test_ranks_run_the_script_as_python_does() -> None:
    words = ["two words", "-n", "7", 'a "quote"\n and a line', "", "--", "-q"]
    done = run("report", *words, environ={**NO_THREADS, "OF_THE_USER": "as it was"})
    assert done.code == 0, done.err
    assert sorted(done.err.splitlines()) == ["[0] a warning", "[1] a warning"]
    share = max(1, cores_given() // 2)
    for rank in (0, 1):
        (line,) = done.lines(rank)
        told = json.loads(line)
        assert (told["rank"], told["size"], told["sum"], told["input"]) == (rank, 2, 3, "")
        assert told["argv"] == [str(PROGRAM), "report", *words]
        assert told["path"] == str(PROGRAM.parent) and told["main"] == ["__main__", str(PROGRAM), True]
        assert told["environ"]["OF_THE_USER"] == "as it was"
        assert told["environ"]["PYTHONUNBUFFERED"] == "1" and "GG_LAUNCHER_TOKEN" not in told["environ"]
        assert told["environ"]["OMP_NUM_THREADS"] == told["environ"]["TVM_NUM_THREADS"] == str(share)
        assert told["cores"] == sorted(os.sched_getaffinity(0))  # it is bound to none


@needs_mpi
def test_a_module_runs_as_python_m_does(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "module.py").write_text(
        "import atexit, os, sys\n"
        "class Own: pass\n"
        "def at_the_end(): print(sys.modules['__main__'].Own is Own)\n"
        "atexit.register(at_the_end)\n"
        "print(__name__, __spec__.name, sys.argv[1:], sys.path[0] == os.getcwd(), os.environ['OMP_NUM_THREADS'])\n"
    )
    with launched("-q", "--threads", "3", "-n", "2", "-m", "package.module", "-n", "x", folder=tmp_path) as job:
        done = job.end()
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == sorted(["__main__ package.module ['-n', 'x'] True 3", "True"] * 2)


@needs_mpi
def test_scripts_of_mxnet_go_through(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse\n"
        "import mxnet as mx\n"
        "from mpi4py import MPI\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--kv-store')\n"
        "total = MPI.COMM_WORLD.allreduce(float(mx.nd.ones(3).sum().asscalar()))\n"
        "print(parser.parse_args().kv_store, total)\n"
    )
    words = ("-n", "2", "-m", "gluongraph.mxnet", "train.py", "--kv-store", "dist_sync")
    with launched(*words, folder=tmp_path) as job:
        done = job.end()
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == ["[0] dist_sync 6.0", "[1] dist_sync 6.0"]


# --- what is shown


@needs_mpi
def test_lines_stay_whole() -> None:
    done = run("noise", n=4)
    assert done.code == 0
    for number, text in enumerate((done.out, done.err)):
        seen = dict.fromkeys(range(4), number)
        for line in text.splitlines():
            found = re.fullmatch(r"\[(\d)\] (\d+) (a*|b*|c*|d*)", line)
            assert found, line[:100]
            rank, i = int(found[1]), int(found[2])
            length = 200_000 if i % 500 == 0 else (i * 7919 + rank * 31) % 3000
            assert (i, len(found[3])) == (seen[rank], length) and set(found[3]) <= {"abcd"[rank]}
            seen[rank] += 2
        assert seen == dict.fromkeys(range(4), 1500 + number)


@needs_mpi
def test_a_line_is_shown_before_it_ends(tmp_path: Path) -> None:
    with launched("-n", "2", str(PROGRAM), "progress", str(tmp_path / "go")) as job:
        assert job.read_until("half a line") == "[0] half a line"
        (tmp_path / "go").touch()
        out, _ = job.process.communicate(timeout=60)
    assert out == b", the rest\n[0] \xff\xfe no end\n"


class Clock:
    """Time that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_of_several_ranks_and_streams(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    output = Output(prefix=True, clock=clock)
    output.feed(0, 1, b"one\ntwo")
    output.feed(1, 1, b"three\r\nfour\n")
    output.feed(1, 2, b"wrong\n")
    assert output.wait() == SHOWN_AFTER
    output.show_due()
    assert capsys.readouterr() == ("[0] one\n[1] three\r\n[1] four\n", "[1] wrong\n")
    clock.now = SHOWN_AFTER
    output.show_due()
    assert output.wait() is None and capsys.readouterr().out == "[0] two"
    output.feed(0, 1, b" and a half\n")  # goes on where it stood
    output.feed(0, 1, b"\r10 %\r20 %")
    clock.now *= 2
    output.show_due()
    assert capsys.readouterr().out == " and a half\n[0] \r[0] 10 %\r[0] 20 %"
    output.feed(1, 1, b"five\n")  # ends what another one has begun
    output.feed(0, 1, b"\nsix")
    output.feed(None, 1, b"of mpiexec\n")
    output.close()
    assert capsys.readouterr().out == "\n[1] five\nof mpiexec\n[0] six\n"


def test_without_marks_bytes_are_what_they_were(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    output = Output(prefix=False)
    output.feed(0, 1, b"\x00\xff\r1\r2\n\nno end")
    output.close()
    assert capsysbinary.readouterr().out == b"\x00\xff\r1\r2\n\nno end"


# --- how ranks end


@needs_mpi
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("raise", 1, "rank 1 ended with exit code 1"),
        ("thread", 1, "rank 1 ended with exit code 1"),
        ("text", 1, "rank 1 ended with exit code 1"),
        ("5", 5, "rank 1 ended with exit code 5"),
        ("abort", 7, ""),  # MPI ends the job, and its own words are shown
        ("SIGKILL", 137, "rank 1 was killed by signal 9 (SIGKILL)"),
        ("SIGSEGV", 139, "rank 1 was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_a_rank_that_fails_ends_all(how: str, code: int, said: str, tmp_path: Path) -> None:
    handled = tmp_path / "atexit"
    done = run("fails", how, str(handled))
    assert done.code == code and not done.out
    assert f"gluongraph run: {said}" in done.err if said else "MPI_Abort" in done.err or "MPI_ABORT" in done.err
    if how in ("raise", "thread"):
        trace = [line.removeprefix("[1] ") for line in done.err.splitlines() if line.startswith("[1] ")]
        assert trace[0] == "Traceback (most recent call last):" and trace[-1] == "ValueError: this rank has failed"
        assert trace[1].startswith(f'  File "{PROGRAM}", line') and "launcher" not in "".join(trace)
    assert ("[1] a text for the user\n" in done.err) == (how == "text")
    assert handled.exists() == (how in ("raise", "text", "5"))


@needs_mpi
def test_what_a_rank_forks_may_fail() -> None:
    done = run("forks")
    assert done.code == 0 and done.lines(0) == done.lines(1) == ["goes on"]
    assert done.err.count("ValueError: the child has failed") == 2


@needs_mpi
@pytest.mark.parametrize(
    ("numbers", "how", "code"),
    [
        ([signal.SIGINT], "gentle", 130),
        ([signal.SIGTERM], "gentle", 143),
        ([signal.SIGINT, signal.SIGINT], "stubborn", 130),
        ([signal.SIGTERM], "stubborn", 143),
    ],
)
def test_signals_end_all_ranks(numbers: list[signal.Signals], how: str, code: int) -> None:
    with launched("-n", "2", str(PROGRAM), "stays", how) as job:
        job.read_until("ready 2\n", times=2)
        for i, number in enumerate(numbers):
            job.process.send_signal(number)
            if i + 1 < len(numbers):
                assert job.process.stderr is not None
                assert b"waiting for ranks 0, 1 to end; Ctrl-C again kills them" in job.process.stderr.readline()
        done = job.end()
        assert done.code == code and not job.left()
    if numbers == [signal.SIGINT]:
        assert done.lines(0) == done.lines(1) == ["has saved"]
        assert len(re.findall(r"^\[\d\] KeyboardInterrupt$", done.err, re.M)) == 2


@needs_mpi
@pytest.mark.parametrize(("whom", "how"), [("launcher", "stubborn"), ("mpiexec", "gentle")])
def test_whoever_is_killed_no_process_is_left(whom: str, how: str, tmp_path: Path) -> None:
    folders = {"TMPDIR": str(tmp_path), "OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    with launched("-n", "2", str(PROGRAM), "stays", how, environ=folders) as job:
        job.read_until("ready 2\n", times=2)
        os.kill(job.process.pid if whom == "launcher" else job.mpiexec(), signal.SIGKILL)
        done = job.end()
        assert not job.left()
    assert done.code == (-signal.SIGKILL if whom == "launcher" else 137)


@needs_mpi
def test_nobody_reads_what_ranks_write() -> None:
    """The launcher waits to write, and ends when it is told to."""
    with launched("-n", "2", str(PROGRAM), "floods") as job:
        job.read_until("xxx\n", times=2)
        job.process.send_signal(signal.SIGTERM)
        assert job.process.wait(60) == 143 and not job.left()


@needs_mpi
def test_the_reader_ends() -> None:
    with launched("-n", "2", str(PROGRAM), "floods") as job:
        job.read_until("xxx\n")
        assert job.process.stdout is not None
        job.process.stdout.close()
        assert job.process.wait(60) == 1 and not job.left()


@needs_mpi
def test_two_launchers_beside_one_another() -> None:
    with launched("-n", "2", str(PROGRAM), "report") as one, launched("-n", "3", str(PROGRAM), "report") as other:
        sums = [[json.loads(job.lines(rank)[0])["sum"] for rank in (0, 1)] for job in (one.end(), other.end())]
    assert sums == [[3, 3], [6, 6]]


@needs_mpi
@pytest.mark.parametrize(("how", "code"), [("killed", 0), ("exits", 3)])
def test_elastic_ranks_go_on(how: str, code: int) -> None:
    """A rank that is killed is forgiven when the others succeed; the exit code of one that has failed by itself is not
    lost."""
    if not is_open_mpi():
        pytest.skip("--elastic needs Open MPI 5")
    done = run("survives", how, n=3, options=("--elastic",))
    assert done.code == code, done.err
    assert done.lines(0) == done.lines(2) == ["sum 4 elastic 1"] and not done.lines(1)
    assert "gluongraph run: rank 1 " in done.err


# --- what is refused


def refused(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What `gluongraph run` says, when it refuses."""
    try:
        code = main(["run", *words])
    except SystemExit as ended:  # by argparse
        code = int(ended.code or 0)
    said = capsys.readouterr()
    assert code == 2 and not said.out
    return said.err.splitlines()[-1].removeprefix("gluongraph run: ").removeprefix("error: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "2", "no_such.py"], "there is no file no_such.py"),
        (["-n", "2", "-m", "no_such.module"], "there is no module no_such"),
        (["-n", "2"], "what is to be run? A script, or -m and a module"),
        (["-n", "2", "-m"], "what is to be run? A script, or -m and a module"),
        ([str(PROGRAM), "-n", "2"], "how many ranks? -n 2, before the script"),
        (["-n", "0", str(PROGRAM)], "argument -n/--ranks: '0' is no whole number from 1 on"),
        (["-n", "abc", str(PROGRAM)], "argument -n/--ranks: 'abc' is no whole number from 1 on"),
        (["-n", "2", "--threads", "-1", str(PROGRAM)], "argument --threads: '-1' is no whole number from 1 on"),
        (["--hosts", "a:2,b:1", "-n", "4", str(PROGRAM)], "-n 4, but --hosts has room for 3 ranks"),
        (["--hosts", "a:1,a", str(PROGRAM)], "argument --hosts: 'a:1,a' names a twice: give it all its ranks at once"),
        (["-n", "1", "--mpiexec-args", "it's", str(PROGRAM)],
         'argument --mpiexec-args: "it\'s" cannot be split into words: No closing quotation'),
        *[(["--hosts", bad, str(PROGRAM)],
           f"argument --hosts: {bad!r} is no list of hosts: write NAME:COUNT,NAME:COUNT, as a:4,b:4")
          for bad in ("", "a:", "a:x", "a:0", "a,,b", "a b", ":2")],
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(*words, capsys=capsys) == said


@needs_mpi
def test_a_rank_that_ends_long_before_the_others_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from gluongraph.distributed import launcher

    monkeypatch.setattr(launcher, "_ALONE", 0.5)
    script = tmp_path / "script.py"
    script.write_text("import os, time\ntime.sleep(0 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else 3)\n")
    assert main(["run", "-n", "2", str(script)]) == 0
    assert "rank 1 has ended with exit code 0, and is no longer there for rank 0" in capfd.readouterr().err


def test_a_script_after_two_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    from gluongraph.distributed import launcher

    jobs: list[launcher.Job] = []
    monkeypatch.setattr(launcher, "launch", lambda job: jobs.append(job) or 0)
    assert main(["run", "-n", "2", "--", str(PROGRAM), "-n", "--", "3"]) == 0
    assert main(["run", "--hosts", "a:2,b", "--mpiexec-args", "--mca x 'y z'", "-m", "json", "--", "-n"]) == 0
    assert [job.program for job in jobs] == [(str(PROGRAM), "-n", "--", "3"), ("-m", "json", "--", "-n")]
    assert (jobs[1].ranks, jobs[1].hosts, jobs[1].mpiexec_args) == (3, (("a", 2), ("b", 1)), ("--mca", "x", "y z"))


def test_mpi_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-n", "2", str(PROGRAM))
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    expected = "ranks need mpi4py, which is not installed: pip install 'gluongraph[mpi]'"
    assert refused(*words, capsys=capsys) == expected
    monkeypatch.setattr(launcher_mpi, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert refused(*words, capsys=capsys) == (
        f"there is no mpiexec, neither beside {tmp_path}/python nor on PATH: pip install 'gluongraph[mpi]', "
        "or load the MPI of this cluster"
    )
    other = tmp_path / "mpiexec"
    other.write_text("#!/bin/sh\necho HYDRA build details:\n")
    other.chmod(0o755)
    assert refused(*words[:2], "--elastic", words[2], capsys=capsys) == (
        f"--elastic needs Open MPI 5 or later, and {other} is MPICH: leave --elastic out"
    )


# --- which mpiexec


@pytest.mark.parametrize(
    ("text", "flavour", "version"),
    [
        ("mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/", "Open MPI", 5),
        ("mpiexec (OpenRTE) 4.1.4", "Open MPI", 4),
        ("HYDRA build details:\n    Version:    5.0.2\n    CC:   cc", "MPICH", 0),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626", "Intel MPI", 0),
        ("an mpiexec of its own kind", "", 0),
    ],
)
def test_whose_mpiexec_it_is(text: str, flavour: str, version: int) -> None:
    found = recognized("mpiexec", text)
    assert (found.flavour, found.version) == (flavour, version)
    assert found.survives == (version == 5)
    command = found.command(["program"], 2)
    assert command[0] == "mpiexec" and command[-3:] == ["-n", "2", "program"]


def test_hosts_in_the_words_of_each_mpi() -> None:
    asked = (["program"], 3, [("a", 2), ("b", 2)])
    open_mpi = Mpi("mpiexec", "Open MPI", 5)
    assert open_mpi.command(*asked, elastic=True, more=["-v"]) == (
        ["mpiexec", "--with-ft", "ulfm", "-v", "-x", "GG_LAUNCHER_TOKEN", "--host", "a:2,b:2", "-n", "3", "program"]
    )
    intel = "mpiexec -host a -n 2 program : -host b -n 1 program"
    assert Mpi("mpiexec", "Intel MPI").command(*asked) == intel.split()
    with pytest.raises(launcher_mpi.LaunchError, match="name them in --mpiexec-args"):
        Mpi("mpiexec", "").command(*asked)
    assert "OMPI_ALLOW_RUN_AS_ROOT" in open_mpi.environ(hosts=False, root=True)
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in open_mpi.environ(hosts=False, root=False)


# --- who may connect


def test_strangers_are_turned_away() -> None:
    """Whoever connects and does not know the token is heard by nobody."""
    heard: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        server = Server(selector, False, lambda peer, kind, data: heard.append(kind), lambda peer: None)
        host, _, port = server.addresses[0].rpartition(":")
        tried = [("guessed", 5, []), (server.token, 5, [b"H", b"O"]), (server.token, 1 << 30, [b"H"])]
        for token, length, expected in tried:
            with socket.create_connection((host, int(port)), 10) as stranger:
                _serve(selector)
                proof = answer(token, stranger.recv(16))
                told = json.dumps({"rank": 0, "host": "a"}).encode()
                stranger.sendall(proof + b"H" + len(told).to_bytes(4, "big") + told)
                stranger.sendall(b"O" + length.to_bytes(4, "big") + b"hello")
                _serve(selector)
                assert heard == expected and server.peers[-1].open == (len(expected) == 2)
            heard.clear()
        server.close()


def _serve(selector: selectors.BaseSelector) -> None:
    """Do all that there is to do."""
    while ready := selector.select(0.2):
        for key, _ in ready:
            key.data()
