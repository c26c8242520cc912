"""Posts one event to somebody's endpoint, signed as Standard Webhooks has it: HMAC-SHA256 over id, time and body."""

import asyncio
import base64
import binascii
import hashlib
import hmac
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Final, Self

import aiohttp
import msgspec

from domain.errors import BadConfigError

PREFIX: Final = "whsec_"
KEY_BYTES_MIN, KEY_BYTES_MAX = 24, 64
_CONNECT_S, _TOTAL_S = 5.0, 15.0
_ANSWER_BYTES_MAX: Final = 4096
_ANSWER_S: Final = 1.0
"""For the body of an answer, which nobody reads: after it the connection is used again."""
_CONTENT_TYPE: Final = "application/cloudevents+json"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt went."""

    status: int = 0
    """HTTP status; 0 if there was no answer."""
    error: str = ""
    """Empty if the endpoint took the event."""
    retry_after_s: float = 0.0
    """What the endpoint asked for; 0 if nothing."""
    gone: bool = False
    """It wants no more (410)."""


def key_of(secret: str) -> bytes:
    """Return the bytes that `secret` (`whsec_` and base64) stands for.

    Raises:
        BadConfigError: it is none, or too short or long; the message does not show it.
    """
    rule = f"must be {PREFIX} and base64 of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} random bytes"
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise BadConfigError(f"secret of a webhook: {rule}, is not base64") from None
    if not secret.startswith(PREFIX) or not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX or len(set(key)) < 8:
        raise BadConfigError(f"secret of a webhook: {rule}, got {len(secret)} characters (not shown)")
    return key


def signature(key: bytes, message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp_s, body)
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class WebhookClient:
    """The way to one endpoint: its own connection, so that a slow one holds up nobody else. `async with` it."""

    def __init__(self, url: str, key: bytes) -> None:
        self._url, self._key = url, key
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # neither proxies nor credentials of the environment, no cookies: the endpoint gets the event and nothing else
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1),
            timeout=aiohttp.ClientTimeout(total=_TOTAL_S, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def post(self, message_id: str, timestamp_s: int, body: bytes, more: dict[str, str]) -> Outcome:
        """Post `body` once; only a 2xx means that it was taken. No redirect is followed: the event would go to strangers."""
        assert self._session is not None, "the client is used inside its context"
        headers = {
            "Content-Type": _CONTENT_TYPE,
            "User-Agent": "leaseway-webhooks",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature(self._key, message_id, timestamp_s, body),
            **more,
        }
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
                await _pass_body(answer)
                return _outcome(answer, timestamp_s)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return Outcome(error=f"no answer: {type(error).__name__}")


async def _pass_body(answer: aiohttp.ClientResponse) -> None:
    """Take a short body off the connection; one that is slow, cut or endless changes nothing: the status was the answer."""
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            await answer.content.read(_ANSWER_BYTES_MAX)


def _outcome(answer: aiohttp.ClientResponse, now_s: int) -> Outcome:
    status = answer.status
    if 200 <= status < 300:
        return Outcome(status=status)
    told = f"answered {status}" + (", a redirect, which is not followed" if 300 <= status < 400 else "")
    after_s = _retry_after_s(answer.headers.get("Retry-After", ""), now_s)
    return Outcome(status=status, error=told, retry_after_s=after_s, gone=status == 410)


def _retry_after_s(text: str, now_s: int) -> float:
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return 0.0
