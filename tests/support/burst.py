"""Clients: many requests at once, each with exactly one outcome written down."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

PATIENCE_S = 90
CHAT = "/v1/chat/completions"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What one client asks for."""

    mark: str
    """Stands in the prompt, so that the taps know the request whatever is rewritten."""
    model: str
    tokens: int
    stream: bool = False

    def body(self) -> dict[str, Any]:
        """Return the request's JSON."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": f"[[{self.mark}]] tell me more"}],
            "max_tokens": self.tokens,
            "stream": self.stream,
            "temperature": 0,
        }


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one client got."""

    ask: Ask
    status: int
    """0: no HTTP answer at all."""
    whole: bool
    """The answer was complete: a JSON body with choices, or a stream that ended with [DONE]."""
    error: str
    """The error's code, or what happened to the connection; empty if all is well."""
    models: tuple[str, ...]
    """Every model id in the answer, once each."""
    request: str
    """The owner's id of the request, as facts name it (header leaseway-request)."""
    headers: dict[str, str]
    began_us: int
    ended_us: int

    @property
    def good(self) -> bool:
        """Tell whether the client got what it asked for."""
        return self.status == 200 and self.whole and not self.error


async def burst(url: str, asks: Sequence[Ask], *, gap_s: float = 0) -> list[Outcome]:
    """Ask for all at once (or `gap_s` apart) and return one outcome each, in the same order."""
    timeout = aiohttp.ClientTimeout(PATIENCE_S)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
        tasks = []
        async with asyncio.TaskGroup() as group:
            for ask in asks:
                tasks.append(group.create_task(asked(client, ask)))
                await asyncio.sleep(gap_s)
        return [task.result() for task in tasks]


async def asked(client: aiohttp.ClientSession, ask: Ask) -> Outcome:
    """Ask once and return what came, whatever it was; never asks again."""
    began_us = now_us()
    status, headers, raw, cut = 0, {}, b"", ""
    try:
        async with client.post(CHAT, json=ask.body()) as answer:
            status, headers = answer.status, {name.lower(): value for name, value in answer.headers.items()}
            async for piece in answer.content.iter_any():
                raw += piece
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        cut = f"{type(error).__name__}: {error}"
    parts, done = _parts(raw, stream="event-stream" in headers.get("content-type", ""))
    said = next((_code(part) for part in parts if "error" in part), "")
    return Outcome(
        ask=ask,
        status=status,
        whole=done and not cut,
        error=said or cut,
        models=tuple(sorted({part["model"] for part in parts if "model" in part})),
        request=headers.get("leaseway-request", ""),
        headers=headers,
        began_us=began_us,
        ended_us=now_us(),
    )


def _parts(raw: bytes, *, stream: bool) -> tuple[list[dict[str, Any]], bool]:
    """Return (JSON objects of an answer, whether it is whole)."""
    text = raw.decode(errors="replace")
    if stream:
        rows = [row[6:] for row in text.splitlines() if row.startswith("data: ")]
        return [json.loads(row) for row in rows if row.startswith("{")], rows[-1:] == ["[DONE]"]
    try:
        body = json.loads(text)
    except ValueError:
        return [], False
    return [body], isinstance(body, dict) and "choices" in body


def _code(part: dict[str, Any]) -> str:
    error = part["error"]
    return str(error.get("code") or error.get("type") or error) if isinstance(error, dict) else str(error)


def now_us() -> int:
    """Return the machine's monotonic clock, the one that taps and facts use."""
    return time.monotonic_ns() // 1000
