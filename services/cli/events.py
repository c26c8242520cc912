"""`leaseway events tail`: the stored facts of all nodes, as they are and as they come."""

import argparse
import asyncio
import sys
from typing import Any, Final

import msgspec

from adapters.log.travel import last_until
from adapters.times import Moment, utc
from domain.ports import Bounds, StoredMessage, Stream
from domain.subjects import EVENTS
from services.cli.history import bus_of
from services.cli.moments import now_ns
from services.cli.reach import Here, here
from services.cli.rows import printer
from services.cli.show import Output, duration, note
from services.lifecycle import EXIT_OK, one_line
from services.texts.plain import Row, printable

_MICRO: Final = 1_000_000
_NOTHING: Final[tuple[object, ...]] = ("", None, [])
"""Values that say no more than that the field is there."""


def run(parsed: argparse.Namespace) -> int:
    """Print facts until Ctrl-C, or to the newest one if `--no-follow`."""
    asyncio.run(_tail(here(parsed), Output(as_json=parsed.json), parsed.since, follow=not parsed.no_follow))
    return EXIT_OK


async def _tail(place: Here, out: Output, since: Moment, *, follow: bool) -> None:
    async with bus_of(place) as bus:
        stream = bus.stream(EVENTS)
        bounds = await stream.bounds()
        after = await _first_after(stream, bounds, since)
        if not follow and bounds.last <= after:
            printer(out, "events", line_of)([])
            return
        if bounds.last <= after and sys.stderr.isatty():
            note("waiting for new events; `--since 10m` shows those of the last ten minutes first")
        async for batch in stream.read(after=after, until=None if follow else bounds.last):
            for message in batch:
                row = row_of(message)
                out.say(line_of(row), row)


async def _first_after(stream: Stream, bounds: Bounds, since: Moment) -> int:
    """Return the sequence before the first one to print."""
    if since.is_now:
        return bounds.last
    if since.number is not None:
        return max(since.number, bounds.first, 1) - 1
    return max(bounds.first - 1, await last_until(stream, since.stamp_ns(bounds.now_ns or now_ns()) - 1))


def row_of(message: StoredMessage) -> dict[str, Any]:
    """Return a stored fact as a program reads it: where it stands, and the event as it was published."""
    try:
        event: Any = msgspec.json.decode(message.body)
    except msgspec.DecodeError:
        event = None
    return {"seq": message.seq, "at_ns": message.stamp_ns, "subject": message.subject, "event": event}


def line_of(row: Row) -> str:
    """Return a stored fact as a person reads it: when, where, who, what, and its fields."""
    at = utc(row["at_ns"])
    event = row["event"] if isinstance(row["event"], dict) else {}
    data = event.get("data")
    named = data.items() if isinstance(data, dict) else ()
    fields = " ".join(_field(name, value) for name, value in named if name != "event" and value not in _NOTHING)
    return printable(
        f"{at} {row['seq']:>7} {event.get('producer', '?'):<12} {event.get('type', 'not an event'):<23} {fields}"
    )


def _field(name: str, value: object) -> str:
    """Return a field with its value, durations and work in their units; `--json` has them as they are stored."""
    if name == "work" and isinstance(value, int):
        return f"work={value / _MICRO:g}"
    if name.endswith("_us") and isinstance(value, int):
        return f"{name.removesuffix('_us')}={duration(value).replace(' ', '')}"
    return f"{name}={_short(value)}"


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode() if isinstance(value, dict | list) else str(value)
    return one_line(text if len(text) <= 60 else text[:57] + "...")
