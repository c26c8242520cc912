"""Where a reader of the events begins: what `since`, `Last-Event-ID` and the configuration of a webhook may say."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from adapters.clickhouse.pages import BadQueryError
from adapters.log.place_ids import PlaceId, parse_id
from adapters.log.public import PUBLIC, Place, bounds_of, created_of, newest, place_at, place_before
from adapters.times import RULE, BadMomentError, Moment, moment_of
from domain.ports import Clock, Stream
from services.projector.now import BusTime

_SEQUENCE: Final = re.compile(rf"({'|'.join(PUBLIC)}):([0-9]{{1,18}})")
_RULE: Final = (
    "must be a place (the id of an event, 120-3-45@9f3a1c0b22d177aa10, or its numbers alone), 0 for the oldest, "
    f"a stream's sequence (LW_EVENTS:120), {RULE}"
)
_EITHER: Final = "a day must have an hour ({}T00:00:00Z); a place that reads as a day is taken from Last-Event-ID alone"


class Since(msgspec.Struct, frozen=True):
    """What was said; all of it empty means now."""

    id: PlaceId | None = None
    stream: str = ""
    seq: int = 0
    moment: Moment = Moment()


def since_of(text: str) -> Since:
    """Return what `text` says.

    Raises:
        BadQueryError: it says nothing of the kind.
    """
    if not text:
        return Since()
    if text == "0":
        return Since(id=PlaceId(Place()))
    if (found := parse_id(text)) is not None:
        if _is_moment(text):
            raise BadQueryError("since", f"since: {text} may be a day or a place: {_EITHER.format(text)}")
        return Since(id=found)
    if told := _SEQUENCE.fullmatch(text):
        return Since(stream=told[1], seq=int(told[2]))
    try:
        return Since(moment=moment_of(text))
    except BadMomentError:
        raise BadQueryError("since", f"since: {_RULE}, got {text[:80]!r}") from None


def _is_moment(text: str) -> bool:
    try:
        moment_of(text)
    except BadMomentError:
        return False
    return True


async def place_of(streams: Mapping[str, Stream], clock: Clock, text: str) -> Place:
    """Return the place after which a reader begins that says `text`.

    Raises:
        BadQueryError: it says nothing of the kind.
    """
    since = since_of(text)
    if since.id is not None:
        return await _in_these(streams, since.id)
    if since.stream:
        return await place_before(streams, since.stream, since.seq)
    if since.moment.is_now:
        return await newest(streams)
    return await place_at(streams, since.moment.stamp_ns(await BusTime(streams, clock).now_ns()))


async def _in_these(streams: Mapping[str, Stream], said: PlaceId) -> Place:
    """Return the place that is said, among the streams that are there: of one that was made anew nothing was read."""
    now, place = created_of(await bounds_of(streams)), said.place
    for name, meant, made in zip(PUBLIC, said.created_ns(now), now, strict=True):
        place = place if meant == made else place.at(name, 0)
    return place
