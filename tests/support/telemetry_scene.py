"""A stage for telemetry: a bus whose stamps the test sets, a real projector, and a client of its API.

from tests.support.telemetry_scene import Scene, ended, scene   # `scene` is a fixture
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from domain.events import Finished, Input, NodeHealthChanged, Registered
from domain.events.status import ModelInfo
from domain.ids import ModelId, NodeId
from tests.integration.test_projector_api import Client
from tests.support.facts import MODEL, Teller, finished
from tests.support.projections import Bus, SteppedClock, a_projector, caught_up, running

BEGIN_S = SystemClock().wall_us() // 1_000_000 // 86_400 * 86_400 - 43_200
"""Noon of yesterday."""


class Scene:
    """A bus whose stamps the test sets, and a client of its projector's API."""

    def __init__(self, client: Client, clock: SteppedClock) -> None:
        self.client, self.clock = client, clock
        self.n1, self.n2 = Teller("n1"), Teller("n2")

    def at(self, second: float) -> "Scene":
        self.clock.now_us = round((BEGIN_S + second) * 1_000_000)
        return self

    async def n1_says(self, *facts: Input) -> "Scene":
        await self.client.bus.tell(self.n1, *facts)
        return self

    async def n2_says(self, *facts: Input) -> "Scene":
        await self.client.bus.tell(self.n2, *facts)
        return self

    async def silent(self, node: str) -> "Scene":
        await self.client.bus.commit(NodeHealthChanged(node=NodeId(node), state="stale", reason="silent"))
        return self

    async def asked(self, name: str, **said: Any) -> list[dict[str, Any]]:
        """Return the rows of an answer about the scene's ten minutes, in minutes from its beginning."""
        await caught_up(self.client.projector, await self.client.bus.ends())
        window = {"from": BEGIN_S, "to": BEGIN_S + 600, "step": 60}
        status, body, _ = await self.client.get(f"/admin/v1/telemetry/{name}", **(window | said))
        assert status == 200, body
        return [row | {"t": (row["t"] - BEGIN_S) // 60} for row in body[name]]


@pytest.fixture
async def scene(database: Callable[[], Store]) -> AsyncIterator[Scene]:
    clock = SteppedClock(BEGIN_S * 1_000_000)
    bus = Bus(clock)
    projector = a_projector(bus, database)
    async with running(projector), Client(projector, bus) as client:
        await projector.tried.wait()
        yield Scene(client, clock)


def ended(number: int, *, helper: str = "", model: ModelId = MODEL, wait_us: int = 0, service_us: int = 0) -> Finished:
    return msgspec.structs.replace(
        finished(number, helper=helper),
        model=model,
        wait_us=wait_us,
        service_us=service_us,
        tokens_in=100,
        tokens_out=50,
    )


def registered(model: ModelId) -> Registered:
    info = ModelInfo(id=model, local_id=model, lane="text")
    return Registered(url="http://127.0.0.1:1", models=(info,), version="1", depth=1)
