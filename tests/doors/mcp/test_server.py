"""The server, asked by the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.doors.mcp import command
from stepscope.doors.mcp.answers import ANSWER_BYTES
from stepscope.doors.mcp.command import server
from stepscope.doors.mcp.roots import Roots
from stepscope.doors.mcp.tools import Tools
from tests.installed import need
from tests.shared_data import DEMO
from tests.wording import mentions

need("mcp")


def started(folder: Path) -> Any:
    """A server in a process of its own, as an agent starts it."""
    import mcp

    words = ["-m", "stepscope", "mcp", "--root", str(folder)]
    return mcp.stdio_client(mcp.StdioServerParameters(command=sys.executable, args=words))


def made(folder: Path, *words: str) -> Any:
    """The same server in this process."""
    return server(Tools(Roots.of([folder]), words))


def asked(place: Any, talk: Callable[[Any], Awaitable[None]]) -> None:
    import mcp

    async def conversation() -> None:
        async with mcp.Client(place) as client:
            await talk(client)

    # In a thread of its own: a browser test of this process may have a loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, asyncio.wait_for(conversation(), 1200)).result()


def text_of(result: Any) -> str:
    (content,) = result.content
    text: str = content.text
    assert len(text.encode()) <= ANSWER_BYTES + 200
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    inside.mkdir()
    shutil.copy(DEMO, inside / "demo.pt.trace.json.gz")
    (tmp_path / "secret.json").write_text('{"traceEvents": []}')
    (inside / "link.json").symlink_to(tmp_path / "secret.json")
    return inside


def test_an_agent_gets_its_answers_and_from_another_server_the_same_bytes(
    folder: Path, tmp_path: Path
) -> None:
    whole: list[str] = []

    async def ask_whole(client: Any) -> None:
        whole.append(text_of(await client.call_tool("diagnose", {"path": "."})))

    async def talk(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["diagnose", "explain", "compare", "query", "plan"]
        assert tools["diagnose"].input_schema["required"] == ["path"]
        assert tools["plan"].input_schema["properties"]["seq"]["type"] == "integer"

        given = {"path": "demo.pt.trace.json.gz", "step_ms": 65.48}
        first = text_of(await client.call_tool("diagnose", given))
        told = json.loads(first)
        assert told["bound"] == "data"
        assert told["findings"][0]["code"] == "serial-loader"
        assert text_of(await client.call_tool("diagnose", given)) == first

        text = text_of(await client.call_tool("explain", {"code": "serial-loader"}))
        assert text.startswith("serial-loader (bound: data)")

        sides = {"before": given["path"], "after": given["path"]}
        told = json.loads(text_of(await client.call_tool("compare", sides)))
        assert told["speedup"]["value"] == pytest.approx(1.0)

        sql = "select name, dur_ns from kernels order by dur_ns desc, name, event"
        answer = await client.call_tool("query", {"path": given["path"], "sql": sql})
        told = json.loads(text_of(answer))
        assert told["columns"] == ["name", "dur_ns"]
        assert told["rows"]
        assert told["rows_left_out"] > 0

        job = {"model": "llama3-8b", "cluster": "1x8xH100", "seq": 8192, "global_batch": 64}
        told = json.loads(text_of(await client.call_tool("plan", job)))
        assert told["layouts"][0]["fits"] is True

        refused = [
            ("diagnose", {"path": "../secret.json"}),
            ("diagnose", {"path": str(tmp_path / "secret.json")}),
            ("diagnose", {"path": "link.json"}),
            ("diagnose", {"path": "/etc/passwd"}),
            ("diagnose", {"path": "demo.pt.trace.json.gz", "step_ms": -1}),
            ("query", {"path": given["path"], "sql": "select * from read_text('/etc/passwd')"}),
            ("query", {"path": given["path"], "sql": "copy kernels to '/tmp/x.csv'"}),
            ("query", {"path": "../secret.json", "sql": "select 1"}),
            ("compare", {"before": given["path"], "after": "link.json"}),
            ("explain", {"code": "no-such-code"}),
            ("plan", job | {"model": "/etc/passwd"}),
            ("plan", job | {"cluster": "../x.toml"}),
        ]
        for name, arguments in refused:
            result = await client.call_tool(name, arguments)
            assert result.is_error, (name, arguments, text_of(result))
            assert "Traceback" not in text_of(result)
            assert "root:" not in text_of(result)
        (folder / "link.json").unlink()
        await ask_whole(client)

    asked(made(folder), talk)
    asked(started(folder), ask_whole)
    assert whole[0] == whole[1]
    assert json.loads(whole[0])["bound"] == "data"


def test_verify_runs_the_users_command_and_no_other(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print('ran', flush=True)")
    monkeypatch.chdir(tmp_path)

    async def talk(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools["verify"].input_schema["properties"]) == {"apply"}
        result = await client.call_tool("verify", {"apply": "--out=/tmp"})
        assert result.is_error
        result = await client.call_tool("verify", {"apply": "no-such-finding"})
        assert result.is_error
        assert "no-such-finding" in text_of(result)
        assert not list(tmp_path.glob("stepscope-runs/*"))
        result = await client.call_tool("verify", {"apply": "num_workers=4"})
        assert result.is_error
        assert mentions(text_of(result), "baseline", "no step"), text_of(result)

    asked(made(folder, sys.executable, "train.py"), talk)
    assert len(list(tmp_path.glob("stepscope-runs/*"))) == 1
    assert not (folder / "stepscope-runs").exists(), "verify writes where the user started it"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--root", "no-such-folder"], "no folder"),
        (["runs"], "given with --root"),
        (["--allow-verify"], "no command"),
    ],
)
def test_mistakes_at_the_start_are_sentences(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_without_the_sdk_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert main(["mcp"]) == 2
    assert "pip install 'stepscope[mcp]'" in capsys.readouterr().err


def test_what_stands_after_the_dashes_is_what_verify_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Served:
        def __init__(self, tools: Tools) -> None:
            self.offered = [tool.__name__ for tool in tools.offered()]
            self.command = tools._command

        def run(self, _: str) -> None:
            seen.append(self)

    seen: list[Served] = []
    monkeypatch.setattr(command, "server", Served)
    words = ["mcp", "--root", str(folder), "--allow-verify", "--", "python", "train.py", "--lr=1"]
    assert main(words) == 0
    assert seen[0].command == ("python", "train.py", "--lr=1")
    assert main(words[:3]) == 0
    assert "verify" not in seen[1].offered
