"""How one process asks another over HTTP, on an operator's behalf."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import aiohttp

from domain.errors import UnreachableError

_TIMEOUT_S: Final = 10.0


async def fetch(
    who: str, url: str, path: str, query: Mapping[str, str] | None = None, *, hint: Callable[[], str]
) -> tuple[int, Any]:
    """Return (status, JSON) of what `who` answers at `url` + `path`.

    Raises:
        UnreachableError: it does not answer (`hint` says what to do about that), or with something that is not JSON.
    """
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url + path, params=query) as answer:
            return answer.status, json.loads(await answer.text())
    except (aiohttp.ClientError, TimeoutError, OSError):
        raise UnreachableError(f"{who} {url}: cannot be reached; {hint()}") from None
    except ValueError:
        raise UnreachableError(
            f"{who} {url}: answers {path} with something that is not JSON; is it leaseway's?"
        ) from None


def error_of(said: Any) -> tuple[str, str, str]:
    """Return (code, message, parameter) of an answer that is an error; its beginning as the message if it has not our form."""
    error = said.get("error") if isinstance(said, dict) else None
    if not isinstance(error, dict):
        return "", str(said)[:300], ""
    return str(error.get("code") or ""), str(error.get("message", said)), str(error.get("param") or "")


async def deciding(masters: Iterable[str], state_of: Callable[[str], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Return the folded state of the master that decides, else of one that follows it. All are asked at once: one may hang.

    Raises:
        UnreachableError: none answers.
    """
    asked = [asyncio.ensure_future(state_of(url)) for url in masters]
    try:
        for one in asyncio.as_completed(asked):
            with contextlib.suppress(UnreachableError):
                state = await one
                if state.get("mode") == "active":
                    return state
    finally:
        for each in asked:
            each.cancel()
        said = await asyncio.gather(*asked, return_exceptions=True)
    follow = [state for state in said if not isinstance(state, BaseException)]
    return follow[0] if follow else await asked[0]
