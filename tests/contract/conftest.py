"""The rig that every contract test runs on: once in memory, once on a real server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.rigs import MemoryRig, Rig, nats_rig


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.real)])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    if request.param == "memory":
        yield MemoryRig()
    else:
        async with nats_rig(tmp_path) as real:
            yield real
