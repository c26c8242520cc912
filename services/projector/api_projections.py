"""The projections themselves: how far they are, how large, which schema; and making them again."""

from typing import Any, Final

import msgspec

from adapters.clickhouse.pages import BadQueryError
from adapters.clickhouse.sizes import migrations, sizes
from adapters.http.errors import ApiError
from adapters.http.server import Call
from projections.rollups import ROLLUPS
from projections.tables import TABLES
from services.projector.follow import Progress
from services.projector.health import stream_state
from services.projector.parameters import Parameters, none_left
from services.projector.projector import Projector
from services.projector.rebuild import SOURCES
from services.projector.routes import Desk, Routes

STATUS: Final = "/admin/v1/projections"
REBUILD: Final = "/admin/v1/projections/rebuild"


def add(routes: Routes, desk: Desk) -> None:
    """Add the paths of this part."""

    async def status(_: Call, said: Parameters) -> Any:
        none_left(said)
        projector = desk.projector
        now_ns = await desk.now_ns()
        return {
            "schema": projector.schema,
            "migrations": await desk.ask(migrations),
            "streams": [await _stream(projector, progress, now_ns) for progress in projector.progress.values()],
            "tables": await desk.ask(sizes, tuple(TABLES)),
            "rollups": {"tables": [rollup.table for rollup in ROLLUPS], **msgspec.structs.asdict(projector.counted)},
            "rebuild": msgspec.structs.asdict(projector.rebuilt),
        }

    async def rebuild(call: Call, said: Parameters) -> Any:
        # a page of some site could send a plain POST here; what needs this header asks first, and is refused
        if call.request.content_type != "application/json":
            raise ApiError("unsupported_content_type", "Content-Type: must be application/json")
        source = said.pop("from", "archive")
        none_left(said)
        if source not in SOURCES:
            raise BadQueryError("from", f"from: must be {' or '.join(SOURCES)}, got {source[:80]!r}")
        desk.opened()
        if not desk.projector.rebuild(source):
            raise ApiError("rebuild_under_way", "a rebuild is under way; one at a time", status=409)
        return msgspec.structs.asdict(desk.projector.rebuilt)

    routes.add(STATUS, status)
    routes.add(REBUILD, rebuild, method="POST")


async def _stream(projector: Projector, progress: Progress, now_ns: int) -> dict[str, Any]:
    """Return how far one stream is, and how old its newest stored message is while there are newer ones."""
    state = await stream_state(projector, progress)
    behind_us = max(0, now_ns - progress.at_ns) // 1000 if state["lag"] and progress.at_ns else 0
    return state | {"behind_us": behind_us}
