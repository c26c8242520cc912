"""Orders to a server that holds several models: load this one, give that one's memory back."""

import asyncio
from typing import Final

from adapters.engines.port import Poster
from domain.errors import UpstreamError

_ANSWER_BYTES_MAX: Final = 1024 * 1024


async def order(client: Poster, url: str, body: bytes, *, timeout_s: float) -> str:
    """Post `body`, JSON, to `url`; return the empty text once the server says that it is done, else why it is not."""
    try:
        async with asyncio.timeout(timeout_s):
            reply = await client.post(url, body, {"Content-Type": "application/json"})
            await reply.read(_ANSWER_BYTES_MAX)
    except TimeoutError:
        return f"the order was not done within {timeout_s:g} s"
    except UpstreamError as error:
        return f"the order failed: {error}"
    return "" if reply.status < 300 else f"the order was answered {reply.status}"
