"""Where a reader of the events begins: what `since`, `Last-Event-ID` and the configuration of a webhook may say."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

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


async def place_of(streams: Mapping[str, Stream], clock: Clock, text: str) -> Place:
    """Return the place after which a reader begins that says `text`.

    Raises:
        BadQueryError: it says nothing of the kind.
    """
    if text in {"", "now"}:
        return await newest(streams)
    if text == "0":
        return Place()
    if (place := parse_place(text)) is not None:
        return place
    if found := _SEQUENCE.fullmatch(text):
        return await place_before(streams, found[1], int(found[2]))
    if found := _AGO.fullmatch(text):
        ago_ns = int(found[1]) * _SECONDS[found[2]] * 1_000_000_000
        return await place_at(streams, max(0, clock.wall_us() * 1000 - ago_ns))
    return await place_at(streams, _stamp_ns(text))


def _stamp_ns(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        seconds = moment.timestamp() if moment.tzinfo is not None else -1.0
    except (ValueError, OverflowError):
        seconds = -1.0
    if seconds < 0:
        raise BadQueryError("since", f"since: {RULE}, got {text[:80]!r}")
    return int(seconds * 1_000_000) * 1000
