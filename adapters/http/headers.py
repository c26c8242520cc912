"""Which headers cross a proxy. Allow-lists both ways: what is not named here stays on its side."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from multidict import CIMultiDict

_TO_ENGINE: Final = ("Content-Type", "Accept", "traceparent", "tracestate")
_TO_CLIENT: Final = ("Content-Type", "Retry-After", "openai-processing-ms", "openai-version", "x-should-retry")
_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_ADDRESS_MASK: Final = b"engine"


def to_engine(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a client's request that an engine gets: none with a credential, none that is hop-by-hop."""
    return _allowed(headers, _TO_ENGINE)


def to_client(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an engine's answer that a client gets."""
    return _allowed(headers, _TO_CLIENT)


def client_request_id(headers: Mapping[str, str]) -> str:
    """Return the client's own `x-request-id` if it is fit to be echoed; else the empty text."""
    stated = headers.get("x-request-id", "")
    return stated if _CLIENT_ID.fullmatch(stated) else ""


def host_is_sound(host: str) -> bool:
    """Tell whether a Host header is a name or address and perhaps a port: no path, no user, no space."""
    return _HOST.fullmatch(host) is not None


def scrub(body: bytes, addresses: Iterable[str]) -> bytes:
    """Return `body` without internal addresses (`host:port`): what an engine says of itself in an error."""
    for address in addresses:
        if address:
            body = body.replace(address.encode(), _ADDRESS_MASK)
    return body


def _allowed(headers: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    present = headers if isinstance(headers, CIMultiDict) else CIMultiDict(headers)
    # a sender may name any header hop-by-hop
    hop = {name.strip().lower() for name in present.get("Connection", "").split(",")}
    return {name: present[name] for name in names if name in present and name.lower() not in hop}
