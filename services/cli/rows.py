"""Rows of the projector as a command prints them: the newest ones in order of time, and on with what comes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from domain.errors import UnreachableError
from services.cli.reach import Here, get
from services.cli.show import Output, note
from services.texts.plain import Row, printable

_POLL_S: Final = 0.5


async def show(
    place: Here, table: str, query: dict[str, str], show_rows: Callable[[Sequence[Row]], None], *, follow: bool
) -> None:
    """Give the rows of /v1/`table` that `query` asks for to `show_rows`; with `follow` go on for ever."""
    answer = await _page(place, table, query)
    show_rows(answer[table])
    quiet = False
    while follow:
        await asyncio.sleep(_POLL_S)
        try:
            answer = await _page(place, table, {**query, "limit": "1000", "after": answer["next"]})
        except UnreachableError as error:
            if not quiet:
                note(f"{error}; going on when it is back")
            quiet = True
            continue
        quiet = False
        if answer[table]:
            show_rows(answer[table])


async def _page(place: Here, table: str, query: dict[str, str]) -> dict[str, Any]:
    answer: dict[str, Any] = await get(place, "projector", place.endpoints.projector, f"/v1/{table}", query)
    return answer


def printer(
    out: Output, title: str, line_of: Callable[[Row], str], filters: Mapping[str, str] | None = None
) -> Callable[[Sequence[Row]], None]:
    """Return what prints rows by `line_of`, and says to a person that there are none, and with which filters."""
    said = "".join(f" --{name} {value}" for name, value in (filters or {}).items())

    def print_rows(rows: Sequence[Row]) -> None:
        if not rows and not out.as_json:
            out.say(printable(f"{title}: none" + (f" with{said}" if said else "")), {})
        for row in rows:
            out.say(line_of(row), row)

    return print_rows
