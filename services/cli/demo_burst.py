"""The demo's burst: the same prompts at once to one model, with the time, the server and the end of each."""

import asyncio
import re
from typing import Any, Final

import aiohttp
import msgspec

from adapters.clock import SystemClock
from domain.errors import UnreachableError

_TOPICS: Final = (
    "a river", "a lighthouse", "bread", "the moon", "an old bridge", "a violin", "snow", "a market", "the sea", "a garden",
    "a clock", "a train", "honey", "a storm", "a library", "chess", "a desert", "tea", "a forest", "a harbour",
)  # fmt: skip
_TIMEOUT_S: Final = 150.0
_COUNTER: Final = re.compile(r"^llamacpp:tokens_predicted_total (\d+)", re.MULTILINE)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a burst and how it ended."""

    number: int
    request: str
    status: int
    model: str
    """The model id that stands in the answer."""
    served_by: str
    """Node that did the work."""
    seconds: float
    error: str = ""

    @property
    def good(self) -> bool:
        """Tell whether the client has a whole answer."""
        return self.status == 200 and not self.error


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """A whole burst."""

    answers: tuple[Answer, ...]
    drain_s: float
    """From the first byte sent to the last answer."""


def prompt(number: int) -> str:
    """Return a prompt that no other number of a burst has, so that no cache of an engine can help."""
    return f"Tell me in a few sentences about {_TOPICS[number % len(_TOPICS)]}, part {number + 1}."


def body(model: str, number: int, tokens: int) -> dict[str, Any]:
    """Return a request for exactly `tokens` tokens, with the engine's prompt cache off."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt(number)}],
        "max_tokens": tokens,
        "temperature": 0,
        "cache_prompt": False,
        "ignore_eos": True,
    }


async def burst(url: str, model: str, requests: int, tokens: int) -> Burst:
    """Send `requests` requests at once to `url` and return once each has ended."""
    clock = SystemClock()
    began_us = clock.monotonic_us()
    timeout, pool = aiohttp.ClientTimeout(total=_TIMEOUT_S), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=pool) as session:
        answers = await asyncio.gather(*(_ask(session, url, model, at, tokens) for at in range(requests)))
    return Burst(answers=tuple(answers), drain_s=(clock.monotonic_us() - began_us) / 1e6)


async def _ask(session: aiohttp.ClientSession, url: str, model: str, number: int, tokens: int) -> Answer:
    clock = SystemClock()
    began_us = clock.monotonic_us()
    status, headers, text, error = 0, {}, "", ""
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body(model, number, tokens)) as response:
            status, headers = response.status, dict(response.headers)
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    said = _read(text)
    error = error or ("" if status == 200 else str(said.get("error", text))[:200])
    lower = {name.lower(): value for name, value in headers.items()}
    return Answer(
        number=number + 1,
        request=lower.get("leaseway-request", ""),
        status=status,
        model=str(said.get("model", "")),
        served_by=lower.get("leaseway-served-by", ""),
        seconds=(clock.monotonic_us() - began_us) / 1e6,
        error=error,
    )


def _read(text: str) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return said if isinstance(said, dict) else {}


async def tokens_counted(engine: str) -> int:
    """Return how many tokens the engine at `engine` says that it has made: its own counter, not ours."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{engine}/metrics") as response:
            found = _COUNTER.search(await response.text())
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UnreachableError(f"engine {engine}: /metrics cannot be read: {error}") from None
    if found is None:
        raise UnreachableError(f"engine {engine}: /metrics has no llamacpp:tokens_predicted_total")
    return int(found[1])
