"""/admin/v1/archive: stored messages as they were, for an audit that reaches back further than the streams."""

from typing import Any, Final

from adapters.clickhouse import archived, checkpoints
from adapters.clickhouse.pages import BadQueryError
from adapters.http.server import Call
from domain.events import Checkpoint
from domain.events.base import tag_of
from domain.subjects import CONTROL, EVENTS, LEDGER
from services.projector.parameters import NS_MAX, Parameters, none_left, take_number, take_switch
from services.projector.routes import Desk, Routes

CHECKPOINTS_MAX: Final = 50_000
"""Some five weeks of one a minute."""


def add(routes: Routes, desk: Desk) -> None:
    """Add the paths of this part."""

    async def archive(_: Call, said: Parameters) -> Any:
        stream = said.pop("stream", EVENTS)
        if stream not in {EVENTS, CONTROL, LEDGER}:
            raise BadQueryError("stream", f"stream: must be {EVENTS}, {CONTROL} or {LEDGER}, got {stream[:80]!r}")
        after = take_number(said, "after", 0, NS_MAX, least=0)
        limit = take_number(said, "limit", 1000, archived.PAGE_MAX, least=0)
        none_left(said)
        reach = await desk.ask(archived.reach, stream)
        found = await desk.ask(archived.messages, stream, after, limit) if limit else []
        return {"stream": stream, "first": reach.first, "last": reach.last, "messages": found}

    async def signed(_: Call, said: Parameters) -> Any:
        limit = take_number(said, "limit", CHECKPOINTS_MAX, CHECKPOINTS_MAX, least=1)
        unlisted = take_switch(said, "unlisted")
        none_left(said)
        answer = {"checkpoints": await desk.ask(checkpoints.newest, limit)}
        if unlisted:
            answer["unlisted"] = await desk.ask(checkpoints.unlisted, _CHECKPOINT, limit)
        return answer

    routes.add("/admin/v1/archive", archive)
    routes.add("/admin/v1/archive/checkpoints", signed)


_CHECKPOINT: Final = tag_of(Checkpoint)
