"""debug, services, context: settings, the registry, devices."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from gluongraph import debug
from gluongraph.context import Context, cpu, gpu, num_gpus
from gluongraph.errors import MXNetError
from gluongraph.host import services


def test_settings_are_parsed() -> None:
    found = debug.parse({"GG_DEBUG": "3", "GG_LOG": "fuse, memory", "GG_SKIP": "cse", "GG_VERIFY": "1", "HOME": "/"})
    assert found.debug == 3 and found.log == {"fuse", "memory"} and found.skip == {"cse"} and found.verify
    assert debug.parse({}) == debug.Settings() and not debug.parse({"GG_VERIFY": "0"}).verify


@pytest.mark.parametrize("name", ["GG_DEBUG", "GG_BACKEND", "GG_CHECK"])
def test_values_that_cannot_be(name: str) -> None:
    with pytest.raises(MXNetError, match=f"{name}=much"):
        debug.parse({name: "much"})


def test_override_is_taken_back() -> None:
    before = debug.settings()
    with pytest.raises(KeyError), debug.override(stop="fuse"):
        assert debug.settings().stop == "fuse"
        raise KeyError
    assert debug.settings() is before


def test_log_prints_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with debug.override(log=frozenset({"fuse"}), debug=1):
        debug.log("fuse", "by name")
        debug.log("total", "by level")
        debug.log("code", "not this")
    assert capsys.readouterr().err == "by name\nby level\n"


def test_dump_writes_into_the_folder(tmp_path: pathlib.Path) -> None:
    assert debug.dump("a.txt", "text") is None
    with debug.override(dump=str(tmp_path / "new")):
        written = debug.dump("sub/a.txt", "text")
    assert written is not None and written.read_text() == "text"


def test_engine_imports_the_compiler_at_the_first_question_only() -> None:
    code = (
        "import sys, gluongraph\n"
        "from gluongraph.host import services\n"
        "assert not any(m == 'tvm' or m.startswith('tvm.') for m in sys.modules), 'tvm came with the package'\n"
        "services.register('mine', lambda: 5)\n"
        "assert services.get('mine')() == 5 and 'gluongraph.compiler.lower' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_engine_names_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_SERVICES", {"compile": print})
    monkeypatch.setattr(services, "_PROVIDER", "json")
    with pytest.raises(KeyError, match="no service 'nothing'; there are compile"):
        services.get("nothing")


def test_contexts_compare_by_value() -> None:
    assert cpu() == Context("cpu", 0) != cpu(1) and gpu(1) == Context(gpu(1)) and hash(cpu(2)) == hash(cpu(2))
    assert repr(gpu(3)) == "gpu(3)" and gpu().device_typeid == 2 and num_gpus() >= 0
    with pytest.raises(MXNetError, match="'tpu'"):
        Context("tpu")
