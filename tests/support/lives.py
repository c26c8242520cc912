"""A projector as a process that may be killed, and what a life of it told."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from adapters.clock import SystemClock
from tests.support.chdb import ON_SERVER
from tests.support.facts import DAY_NS

ROOT = Path(__file__).parents[2]
DAY = SystemClock().wall_us() * 1000 // DAY_NS - 1
"""Of the rows: the retention is not to drop them."""
_LIFE_S = 240


@pytest.fixture
def killed_dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where the projector that is killed writes: an engine that dies with it, or a server that lives on."""
    return str(request.getfixturevalue("engine_dsn")) if ON_SERVER else f"chdb://{tmp_path / 'clickhouse'}"


async def life(module: str, dsn: str, database: str, moment: str, number: int = 0) -> tuple[int, dict[str, Any]]:
    """Return (exit code, what it told) of one life of the projector in `module`; it may be killed, and not fail."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, dsn, database, moment, str(number), str(DAY)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    out, err = await asyncio.wait_for(process.communicate(), _LIFE_S)
    assert process.returncode in {0, -signal.SIGKILL}, err.decode()
    return process.returncode or 0, json.loads(out) if out else {}
