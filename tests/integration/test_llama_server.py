"""The engine launcher, run as its own process: what nodes, the demo and these tests rely on."""

import asyncio
import hashlib
import io
import os
import re
import signal
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.support.engines import ROOT, tiny_engine
from tests.support.tiny_model import tiny_model, write_tiny_model

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16}


async def launch(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Return (exit code, standard output, standard error) of a launcher that is expected to end by itself."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "adapters.engines.llama_server", *arguments),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.real
async def test_the_engine_answers_with_as_many_tokens_as_asked_and_shows_its_slots_metrics_and_props():
    async with tiny_engine(slots=2, ctx=1024) as engine, aiohttp.ClientSession(engine.url) as client:
        async with client.post("/v1/chat/completions", json=CHAT) as answer:
            body = await answer.json()
        assert (answer.status, body["usage"]["completion_tokens"]) == (200, 16)
        async with client.get("/slots") as answer:
            slots = await answer.json()
        assert [slot["n_ctx"] for slot in slots] == [512, 512]
        async with client.get("/metrics") as answer:
            assert "llamacpp:requests_deferred 0" in await answer.text()
        async with client.get("/props") as answer:
            assert answer.status == 200


@pytest.mark.real
async def test_sigterm_ends_the_engine_with_exit_code_zero():
    async with tiny_engine() as engine:
        engine.signal(signal.SIGTERM)
        assert await asyncio.wait_for(engine.process.wait(), 10) == 0


@pytest.mark.real
async def test_an_engine_that_should_die_with_its_parent_frees_the_port_when_the_parent_is_killed():
    flags = ["--model", str(tiny_model()), "--die-with-parent"]
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'adapters.engines.llama_server', *sys.argv[1:]])\n"
        "time.sleep(60)\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *flags), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    assert (await asyncio.wait_for(parent.stdout.readline(), 30)).startswith(b"engine ready")
    parent.kill()  # at once: the engine must have known its parent before it said that it is ready
    # the child holds the other end of the pipe: end of file means that it is gone
    assert await asyncio.wait_for(parent.stdout.read(), 10) == b""
    await parent.wait()


async def test_a_missing_model_is_one_line_that_names_it_and_exit_code_two(tmp_path: Path):
    code, out, err = await launch("--model", str(tmp_path / "absent.gguf"))
    assert (code, out, err) == (2, "", f"engine model {tmp_path}/absent.gguf: no such file\n")


async def test_a_model_that_is_no_gguf_is_refused_before_the_engine_sees_it(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("hello")
    code, _, err = await launch("--model", str(tmp_path / "notes.txt"))
    assert (code, err.count("\n")) == (2, 1)
    assert "must be a GGUF file, it begins with b'hell'" in err


async def test_a_port_in_use_is_one_line_that_names_it_and_exit_code_one():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = await launch("--model", str(tiny_model()), "--port", str(port))
    rule = "must be free, another process listens there; choose another --port"
    assert (code, err) == (1, f"engine 127.0.0.1:{port}: {rule}\n")


async def test_a_value_out_of_range_names_the_flag_the_range_and_the_value():
    code, _, err = await launch("--model", str(tiny_model()), "--parallel", "0")
    assert (code, err) == (2, "engine --parallel: must be 1 to 256, got 0\n")


async def test_the_api_key_comes_from_the_environment_and_an_unset_variable_is_named():
    code, _, err = await launch("--model", str(tiny_model()), "--api-key-env", "NO_SUCH_KEY")
    assert (code, err) == (2, "engine --api-key-env: environment variable NO_SUCH_KEY must be set\n")


async def test_without_the_wheel_one_line_says_what_to_install(tmp_path: Path):
    # a module set to None cannot be found, as if the wheel were not there
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "_find = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'xllamacpp' else _find(name, package)\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    code, _, err = await launch("--model", str(tiny_model()), environment=environment)
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(r"package xllamacpp is not installed; pip install", err)


def test_the_tiny_model_is_the_same_bytes_on_every_machine():
    file = io.BytesIO()
    write_tiny_model(file)
    assert hashlib.sha256(file.getvalue()).hexdigest()[:16] == "486b06dec8bae040"
