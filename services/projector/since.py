"""Where a reader of the events begins: what `since`, `Last-Event-ID` and the configuration of a webhook may say."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from adapters.clickhouse.pages import BadQueryError
from adapters.log.public import PUBLIC, Place, newest, parse_place, place_at, place_before
from domain.ports import Clock, Stream

_AGO: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SEQUENCE: Final = re.compile(rf"({'|'.join(PUBLIC)}):([0-9]{{1,18}})")
RULE: Final = (
    "must be a place (the id of an event, 120-3-45), 0 for the oldest, now, a duration (90s, 10m, 2h, 1d), a time "
    "(2026-11-30T12:00:00Z) or a stream's sequence (LW_EVENTS:120)"
)


class Since(msgspec.Struct, frozen=True):
    """What was said; all of it empty means now."""

    place: Place | None = None
    ago_ns: int = -1
    stream: str = ""
    seq: int = 0
    stamp_ns: int = -1


def since_of(text: str) -> Since:
    """Return what `text` says.

    Raises:
        BadQueryError: it says nothing of the kind.
    """
    if text in {"", "now"}:
        return Since()
    if text == "0":
        return Since(place=Place())
    if (place := parse_place(text)) is not None:
        return Since(place=place)
    if found := _SEQUENCE.fullmatch(text):
        return Since(stream=found[1], seq=int(found[2]))
    if found := _AGO.fullmatch(text):
        return Since(ago_ns=int(found[1]) * _SECONDS[found[2]] * 1_000_000_000)
    return Since(stamp_ns=_stamp_ns(text))


async def place_of(streams: Mapping[str, Stream], clock: Clock, text: str) -> Place:
    """Return the place after which a reader begins that says `text`.

    Raises:
        BadQueryError: it says nothing of the kind.
    """
    since = since_of(text)
    if since.place is not None:
        return since.place
    if since.stream:
        return await place_before(streams, since.stream, since.seq)
    if since.ago_ns >= 0:
        return await place_at(streams, max(0, clock.wall_us() * 1000 - since.ago_ns))
    return await place_at(streams, since.stamp_ns) if since.stamp_ns >= 0 else await newest(streams)


def _stamp_ns(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        seconds = moment.timestamp() if moment.tzinfo is not None else -1.0
    except (ValueError, OverflowError):
        seconds = -1.0
    if seconds < 0:
        raise BadQueryError("since", f"since: {RULE}, got {text[:80]!r}")
    return int(seconds * 1_000_000) * 1000
