"""The edge of a node: what it refuses, what it lists, and what it never tells."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest
from yarl import URL

from domain.events import codec
from services.config import Limits
from tests.support.local_nodes import CHAT, LocalNode, client_of, local_node, model_at
from tests.support.odd_server import DONE, Heard, OddServer, Reply, event, odd_server, stream

PATH = "/v1/chat/completions"
STREAM = CHAT | {"stream": True}


@contextlib.asynccontextmanager
async def node_with(engine: OddServer, **options: object) -> AsyncIterator[tuple[LocalNode, aiohttp.ClientSession]]:
    async with local_node([model_at(engine.url)], **options) as local, client_of(local) as client:  # type: ignore[arg-type]
        yield local, client


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid_json"),
        (b"{}", "application/json", 400, "invalid_model"),
        (b'{"model":"public","model":"x"}', "application/json", 400, "invalid_json"),
        (b'{"model":"none"}', "application/json", 404, "model_not_found"),
        (b'{"model":"local"}', "application/json", 404, "model_not_found"),
        (b"{}", "text/plain", 415, "unsupported_content_type"),
        (b'{"model":"' + b"x" * 2000 + b'"}', "application/json", 413, "body_too_large"),
        (b'{"model":"public","tools":' + b"[" * 3000 + b"]" * 3000 + b"}", "application/json", 413, "body_too_large"),
        (b'{"model":"public","tools":' + b"[" * 300 + b"]" * 300 + b"}", "application/json", 400, "invalid_json"),
    ],
)
async def test_what_cannot_be_served_is_refused_and_changes_nothing(body: bytes, kind: str, status: int, code: str):
    async with odd_server() as engine, node_with(engine, limits=Limits(body_bytes=1500)) as (local, client):
        before = len(local.facts)
        async with client.post(PATH, data=body, headers={"Content-Type": kind}) as got:
            assert (got.status, (await got.json())["error"]["code"]) == (status, code)
            assert got.headers["x-request-id"]
            assert got.headers["leaseway-served-by"] == "n1"
        assert engine.heard == []
        assert len(local.facts) == before


async def test_models_are_listed_and_found_by_id_raw_and_encoded():
    ids = ("org/model:7b", "a.b*c>d", "モデル 1", "a.b", "a/b")
    async with odd_server() as engine:
        models = [model_at(engine.url, id=name) for name in ids]
        async with local_node(models) as local, client_of(local) as client:
            async with client.get("/v1/models") as got:
                listed = await got.json()
            assert {entry["id"] for entry in listed["data"]} == set(ids)
            for path, name in (
                ("/v1/models/org/model:7b", ids[0]),
                ("/v1/models/org%2Fmodel%3A7b", ids[0]),
                ("/v1/models/a.b*c%3Ed", ids[1]),
                ("/v1/models/%E3%83%A2%E3%83%87%E3%83%AB%201", ids[2]),
                ("/v1/models/a.b", ids[3]),
                ("/v1/models/a%2Fb", ids[4]),
            ):
                async with client.get(URL(local.url + path, encoded=True)) as got:
                    assert (got.status, (await got.json())["id"]) == (200, name)
            async with client.get("/v1/models/none") as got:
                assert (got.status, (await got.json())["error"]["code"]) == (404, "model_not_found")


async def test_other_paths_and_methods_are_refused_and_management_paths_are_not_reachable():
    async with odd_server() as engine, node_with(engine) as (_, client):
        for method, path, status in (
            ("GET", PATH, 405),
            ("POST", "/v1/models", 405),
            ("DELETE", "/v1/models/public", 405),
            ("POST", "/api/create", 404),
            ("GET", "/slots", 404),
            ("GET", "/props", 404),
            ("POST", "/v1/chat/completions/../../slots", 404),
            ("GET", "/", 404),
        ):
            async with client.request(method, path) as got:
                assert (method, path, got.status) == (method, path, status)
        assert engine.heard == []


async def test_no_prompt_and_no_answer_stands_in_a_fact_or_a_log_line(caplog: pytest.LogCaptureFixture):
    secret, told = "canary-prompt-51c0", "canary-answer-77ab"

    async def odd(heard: Heard, reply: Reply) -> None:
        match heard.json()["user"]:
            case "die":
                reply.die()
            case "cut":
                await stream([event(told)], die=True)(heard, reply)
            case "refuse":
                await reply.json({"error": {"message": f"cannot do {secret}"}}, 400)
            case _:
                await reply.json({"model": "local", "choices": [{"text": told}]})

    with caplog.at_level(logging.DEBUG):
        async with odd_server(odd) as engine, node_with(engine) as (local, client):
            for user in ("ok", "die", "cut", "refuse"):
                ask = STREAM | {"user": user, "messages": [{"role": "user", "content": secret}]}
                async with client.post(PATH, json=ask) as got:
                    await got.read()
            for broken in (f'{{"model":"public","x":{secret}}}', f'{{"model":7,"x":"{secret}"}}'):
                async with client.post(PATH, data=broken, headers={"Content-Type": "application/json"}) as got:
                    assert secret not in await got.text()
            said = b"".join(codec.encode(fact) for fact in local.facts).decode()
    logged = "".join(str(vars(record)) for record in caplog.records if record.name.startswith("leaseway"))
    for canary in (secret, told):
        assert canary not in said
        assert canary not in logged


ASKED = json.dumps(CHAT).encode()


def rows(host: str, *more: str, version: str = "1.1") -> bytes:
    """Return the head of a chat request as a client may write it."""
    lines = (f"POST {PATH} HTTP/{version}", f"Host: {host}", "Content-Type: application/json", *more)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


@contextlib.asynccontextmanager
async def wire(local: LocalNode) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, str]]:
    """Give a bare connection to a node, and how it is called in a Host header."""
    host = local.url.removeprefix("http://")
    name, port = host.split(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    try:
        async with asyncio.timeout(10):
            yield reader, writer, host
    finally:
        writer.close()


async def answer_on(reader: asyncio.StreamReader) -> tuple[int, dict[str, object]]:
    """Return (status, body) of the next whole answer on a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    body = await reader.readexactly(int(head.partition("content-length:")[2].split("\r\n")[0]))
    return int(head.split(" ")[1]), json.loads(body)


async def test_a_client_that_waits_for_a_100_before_its_body_is_told_to_go_on_or_why_not():
    async with odd_server() as engine, node_with(engine, limits=Limits(body_bytes=1500)) as (local, _):
        async with wire(local) as (reader, writer, host):
            writer.write(rows(host, "Expect: 100-continue", f"Content-Length: {len(ASKED)}"))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(ASKED)
            assert (await answer_on(reader))[0] == 200
            # one that does not wait after all is not told so, and its connection goes on
            writer.write(rows(host, "Expect: 100-continue", f"Content-Length: {len(ASKED)}") + ASKED)
            assert (await answer_on(reader))[0] == 200
        async with wire(local) as (reader, writer, host):
            writer.write(rows(host, "Expect: 100-continue", "Content-Length: 9000"))
            status, body = await answer_on(reader)
            assert (status, body["error"]["code"]) == (413, "body_too_large")  # type: ignore[index]
            assert await reader.read() == b""


async def test_old_pipelined_and_chunked_requests_are_answered_each_once_and_in_order():
    async def tell(heard: Heard, reply: Reply) -> None:
        await reply.json({"user": heard.json().get("user")})

    async with odd_server(tell) as engine, node_with(engine) as (local, _):
        bodies = [json.dumps(CHAT | {"user": user}).encode() for user in "abc"]
        async with wire(local) as (reader, writer, host):
            writer.write(b"".join(rows(host, f"Content-Length: {len(body)}") + body for body in bodies))
            assert [(await answer_on(reader))[1]["user"] for _ in bodies] == ["a", "b", "c"]
            dripped = b"".join(b"1\r\n%c\r\n" % byte for byte in bodies[1]) + b"0\r\n\r\n"
            writer.write(rows(host, "Transfer-Encoding: chunked") + dripped)
            assert (await answer_on(reader))[1]["user"] == "b"
        async with wire(local) as (reader, writer, host):
            writer.write(rows(host, f"Content-Length: {len(bodies[2])}", version="1.0") + bodies[2])
            assert (await answer_on(reader))[1]["user"] == "c"
            assert await reader.read() == b"", "an old client is told the end by the end of its connection"
        engine.script = stream([event("a"), DONE])
        async with wire(local) as (reader, writer, host):
            asked = json.dumps(STREAM).encode()
            writer.write(rows(host, f"Content-Length: {len(asked)}", version="1.0") + asked)
            whole = await reader.read()
            assert whole.partition(b"\r\n\r\n")[2] == event("a").replace(b"local", b"public") + DONE
            assert b"chunked" not in whole
        assert len(engine.heard) == 6
