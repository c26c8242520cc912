"""What every engine adapter promises the node: against llama.cpp itself, and against servers that misbehave."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from adapters.engines import process
from adapters.engines.llamacpp import LlamaCppEngine
from adapters.engines.openai import OpenAIEngine, checked_url
from adapters.engines.port import Engine
from adapters.http.upstream import Upstream
from domain.errors import BadConfigError, MayHaveRunError, NotStartedError
from tests.support.engines import ROOT, engine_command, tiny_engine
from tests.support.family import command_of, pause
from tests.support.odd_server import DONE, Heard, Reply, event, odd_server, stream
from tests.support.waiting import until

PATH = "/v1/chat/completions"
HEADERS = {"Content-Type": "application/json"}


class Started(msgspec.Struct, kw_only=True):
    """An engine behind its adapter."""

    engine: Engine
    model: str
    real: bool
    """llama.cpp; else a server of ours that answers as OpenAI's API says."""


def body(model: str, **more: object) -> bytes:
    ask = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    return json.dumps(ask | more).encode()


def adapter(kind: str, url: str, client: Upstream, **options: float) -> Engine:
    return (LlamaCppEngine if kind == "llama.cpp" else OpenAIEngine)(url, client, **options)  # type: ignore[arg-type]


@pytest.fixture(params=["llama.cpp by its own adapter", "llama.cpp by openai's", "openai by openai's"])
async def started(request: pytest.FixtureRequest) -> AsyncIterator[Started]:
    client = Upstream(connections=4, silent_s=30)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        if request.param.startswith("llama.cpp"):
            real = await stack.enter_async_context(tiny_engine(slots=2, ctx=2048))
            kind = "llama.cpp" if "own" in request.param else "openai"
            yield Started(engine=adapter(kind, real.url, client), model="tiny", real=True)
        else:
            odd = await stack.enter_async_context(odd_server(obedient))
            yield Started(engine=adapter("openai", odd.url, client), model="local", real=False)


async def obedient(heard: Heard, reply: Reply) -> None:
    """Answer as OpenAI's API says."""
    ask = heard.json()
    if not isinstance(ask.get("messages"), list):
        await reply.json({"error": {"message": "messages", "type": "invalid_request_error", "code": 400}}, 400)
    elif ask.get("max_tokens") == 2000:
        await reply.head(content_type="text/event-stream")
        await reply.chunk(event("x"))
        await reply.gone()
    elif ask.get("stream"):
        await stream([event("a"), event("b"), DONE])(heard, reply)
    else:
        usage = {"prompt_tokens": 1, "completion_tokens": 8}
        await reply.json({"model": "local", "choices": [{"message": {"content": "x"}}], "usage": usage})


@pytest.mark.real
async def test_a_ready_engine_says_so_and_lists_its_model(started: Started):
    health = await started.engine.health()
    assert health.ready
    assert not health.gone
    assert started.model in await started.engine.models()
    assert started.engine.address in started.engine.url


@pytest.mark.real
async def test_an_answer_comes_whole(started: Started):
    reply = await started.engine.complete(PATH, body(started.model), HEADERS)
    document = json.loads(await reply.read(1_000_000))
    assert (reply.status, reply.content_type) == (200, "application/json")
    assert document["usage"]["completion_tokens"] == 8
    assert len(document["choices"]) == 1


@pytest.mark.real
async def test_a_stream_comes_in_events_and_ends_with_its_terminator(started: Started):
    reply = await started.engine.complete(PATH, body(started.model, stream=True), HEADERS)
    text = b"".join([part async for part in reply.chunks()]).decode()
    assert reply.content_type == "text/event-stream"
    events = text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    assert all(json.loads(each.removeprefix("data: "))["choices"] is not None for each in events[:-1])


@pytest.mark.real
async def test_a_refused_request_is_an_answer_with_its_status_and_the_next_one_is_served(started: Started):
    reply = await started.engine.complete(PATH, b'{"model":"%b","messages":7}' % started.model.encode(), HEADERS)
    assert 400 <= reply.status < 600
    assert json.loads(await reply.read(100_000))["error"]["message"]
    reply = await started.engine.complete(PATH, body(started.model), HEADERS)
    assert reply.status == 200
    await reply.read(100_000)


@pytest.mark.real
async def test_closing_an_answer_frees_the_engine_within_a_second(started: Started):
    reply = await started.engine.complete(
        PATH, body(started.model, stream=True, max_tokens=2000, ignore_eos=True), HEADERS
    )
    async for _ in reply.chunks():
        break
    reply.close()
    if isinstance(started.engine, LlamaCppEngine):
        metrics = started.engine.metrics

        async def idle() -> bool:
            return (await metrics()).processing == 0

        await until("the engine to be idle", idle, timeout_s=1)
    after = await asyncio.wait_for(started.engine.complete(PATH, body(started.model), HEADERS), 5)
    await after.read(100_000)


@pytest.mark.real
async def test_llama_cpp_tells_its_slots_their_context_and_what_it_does():
    client = Upstream(connections=8)
    async with tiny_engine(slots=2, ctx=2048) as real:
        engine = LlamaCppEngine(real.url + "/v1/", client)
        health = await engine.health()
        assert (health.slots, health.context) == (2, 1024)
        assert await engine.metrics() == await engine.metrics()
        replies = [
            await engine.complete(PATH, body("tiny", stream=True, max_tokens=900, ignore_eos=True), HEADERS)
            for _ in range(2)
        ]
        assert (await engine.metrics()).processing == 2
        for reply in replies:
            reply.close()
    await client.close()


@pytest.mark.real
async def test_a_stopped_engine_is_not_ready_but_not_gone_and_a_killed_one_is_gone():
    client = Upstream(connections=4)
    async with tiny_engine() as real:
        engine = LlamaCppEngine(real.url, client, health_s=0.3)
        pause(real.process.pid)
        health = await engine.health()
        assert (health.ready, health.gone) == (False, False)
        real.signal(signal.SIGCONT)
        real.signal(signal.SIGKILL)
        await real.process.wait()
        health = await engine.health()
        assert (health.ready, health.gone) == (False, True)
        assert await engine.models() == ()
        with pytest.raises(NotStartedError):
            await engine.complete(PATH, body("tiny"), HEADERS)
    await client.close()


@pytest.mark.real
async def test_an_engine_killed_in_the_middle_never_looks_complete():
    client = Upstream(connections=4)
    async with tiny_engine(layers=16) as real:
        engine = LlamaCppEngine(real.url, client)
        reply = await engine.complete(PATH, body("tiny", stream=True, max_tokens=2000, ignore_eos=True), HEADERS)
        chunks = reply.chunks()
        await anext(chunks)
        real.signal(signal.SIGKILL)
        with pytest.raises(MayHaveRunError):
            async for _ in chunks:
                pass
    await client.close()


@pytest.mark.real
async def test_a_child_engine_has_a_key_of_its_own_and_ends_with_everything_it_started():
    client = Upstream(connections=4)
    command = (*engine_command(slots=1, port="{port}"), "--api-key-env", "LEASEWAY_ENGINE_KEY")
    child = await process.start(command)
    mine, stranger = LlamaCppEngine(child.url, client, key=child.key), LlamaCppEngine(child.url, client)

    async def ready() -> bool:
        return (await mine.health()).ready

    await until("the engine", ready, timeout_s=30)
    reply = await mine.complete(PATH, body("tiny"), HEADERS)
    assert reply.status == 200
    await reply.read(100_000)
    reply = await stranger.complete(PATH, body("tiny"), HEADERS)
    assert reply.status == 401
    reply.close()
    assert child.key not in str(child.process.args if hasattr(child.process, "args") else command)
    await child.stop()
    await child.stop()
    assert (await mine.health()).gone
    await client.close()


async def test_a_command_that_cannot_be_started_is_named():
    with pytest.raises(BadConfigError, match="engine command 'no-such-program'"):
        await process.start(("no-such-program",))


@pytest.mark.parametrize(
    ("stated", "meant"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("https://h/api/v1", "https://h/api"),
        ("http://[::1]:1/", "http://[::1]:1"),
    ],
)
def test_an_engine_url_may_end_in_v1_or_not(stated: str, meant: str):
    assert checked_url(stated) == meant


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "h:1",
        "ftp://h",
        "http://",
        "http://u:p@h",
        "http://h?x=1",
        "http://h#f",
        "http://h\\x",
        "http://h:x",
        " http://h",
        "file:///x",
    ],
)
def test_an_engine_url_that_says_more_than_where_is_refused(bad: str):
    with pytest.raises(BadConfigError, match="engine url"):
        checked_url(bad)


async def test_a_server_that_dies_or_answers_nothing_is_told_apart_from_one_that_was_not_reached():
    client = Upstream(connections=4, silent_s=0.3)

    async def die(_: Heard, reply: Reply) -> None:
        reply.die()

    async def silent(_: Heard, reply: Reply) -> None:
        await reply.gone()

    for script in (die, silent):
        async with odd_server(script) as odd:
            engine = OpenAIEngine(odd.url, client)
            with pytest.raises(MayHaveRunError):
                await engine.complete(PATH, body("local"), HEADERS)
            assert len(odd.heard) == 1
    await client.close()


async def test_a_loading_or_broken_server_is_not_ready():
    client = Upstream(connections=4)
    async with odd_server() as odd:
        for status in (503, 500, 404):
            odd.health_status = status
            for engine in (OpenAIEngine(odd.url, client), LlamaCppEngine(odd.url, client)):
                health = await engine.health()
                assert (health.ready, health.gone) == (False, False)
                assert str(status) in health.reason
    await client.close()


@pytest.mark.real
async def test_cancelling_a_request_that_waits_inside_the_engine_leaves_the_running_one_unharmed():
    client = Upstream(connections=4)
    async with tiny_engine(slots=1, ctx=4096, layers=8) as real:
        engine = LlamaCppEngine(real.url, client)
        running = await engine.complete(PATH, body("tiny", stream=True, max_tokens=300, ignore_eos=True), HEADERS)
        waiting = asyncio.ensure_future(engine.complete(PATH, body("tiny", max_tokens=300, ignore_eos=True), HEADERS))

        async def deferred() -> bool:
            return (await engine.metrics()).deferred == 1

        await until("the second to wait inside", deferred)
        waiting.cancel()
        text = b"".join([part async for part in running.chunks()])
        assert text.endswith(b"data: [DONE]\n\n")
        assert text.count(b"\n\n") >= 300
    await client.close()


@pytest.mark.parametrize(
    "launcher", ["sleep 60 & echo $! >{file}; exit 3", "(trap '' TERM; sleep 60) & echo $! >{file}; wait"]
)
async def test_what_an_engine_has_started_does_not_outlive_it_whether_it_ends_by_itself_or_is_told_to(
    tmp_path: Path, launcher: str
):
    file = tmp_path / "worker"
    child = await process.start(("sh", "-c", launcher.format(file=file)))
    worker = int(await until("a worker", lambda: file.exists() and file.read_text().strip()))
    if "exit" in launcher:
        assert await child.ended() == 3
    assert command_of(worker)
    await child.stop()
    await until("the worker to be gone", lambda: not command_of(worker))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent is gone")
async def test_a_child_engine_does_not_outlive_a_node_that_is_killed():
    code = """if True:
        import asyncio
        from adapters.engines import process
        async def main():
            child = await process.start(("sleep", "60"))
            print(child.process.pid, flush=True)
            await child.ended()
        asyncio.run(main())
    """
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 20))
    assert command_of(pid)
    parent.kill()
    await parent.wait()
    await until("the child to be gone", lambda: not command_of(pid))
