"""`leaseway at` where the bus no longer reaches back: what the projector folds from ClickHouse is what the bus had said."""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from adapters.nats.enrolment import key_path
from domain.events import LeaseGranted
from domain.subjects import CONTROL, EVENTS, LEDGER, SNAPSHOTS
from services.cli.main import main
from services.data_directory import Endpoints, make_data, write_endpoints
from services.projector.api import Api
from services.projector.health import Health
from services.projector.projector import Projector, Setup
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.history import finished, held, link, registered, started
from tests.support.nats import ServerUnderTest
from tests.support.projections import QUICK, caught_up, running
from tests.support.waiting import until

pytestmark = pytest.mark.real
APART_S = 1.5
"""Between the two halves of the history: the first one is aged away."""


class Scene:
    """A bus with a history of two bursts, its projector, and the command line pointed at both."""

    def __init__(self, cluster: ClusterUnderTest, here: Path) -> None:
        self.cluster, self.here = cluster, here
        self.middle_ns = 0
        """Between the bursts."""

    async def burst(self, number: int) -> None:
        names = [f"req_{number}{at}" for at in range(4)]
        await self.cluster.state(
            "n1", started(f"req_{number}s"), *(held(name, at + 1) for at, name in enumerate(names))
        )
        await self.cluster.decisions(LeaseGranted, count=number)
        for name in names:
            await self.cluster.state("n1", started(name), finished(name))
        await self.cluster.state("n1", finished(f"req_{number}s"))

    async def age(self, stream: str) -> None:
        """Let the bus drop what is as old as the first burst, as its age limit does in time."""
        jetstream = (await self.cluster.server.client("provisioner")).jetstream()
        config = (await jetstream.stream_info(stream)).config
        usual = config.max_age, config.duplicate_window
        config.max_age = time.time() - self.middle_ns / 1e9
        config.duplicate_window = 0.1
        await jetstream.update_stream(config)

        async def dropped() -> bool:
            return bool((await jetstream.stream_info(stream)).state.first_seq > 1)

        await until(f"{stream} has dropped its first half", dropped)
        config.max_age, config.duplicate_window = usual
        await jetstream.update_stream(config)

    async def at(self, moment: str, *more: str) -> tuple[int, Any]:
        """Return (exit code, what `leaseway at` says as JSON, or its error)."""

        def run() -> tuple[int, Any]:
            out, err = StringIO(), StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                code = main(["at", moment, *more, "--json", "--data", str(self.here)])
            return code, json.loads(out.getvalue()) if code == 0 else err.getvalue()

        return await asyncio.to_thread(run)


@pytest.fixture
async def scene(nats_server: ServerUnderTest, database: Callable[[], Store], tmp_path: Path) -> AsyncIterator[Scene]:
    async with cluster_on(nats_server) as cluster:
        made = Scene(cluster, tmp_path / "here")
        await cluster.master()
        await cluster.state("n1", registered(), finished("req_fit"))
        await cluster.state("n2", registered())
        await cluster.decree(link("n1", "n2"))
        await made.burst(1)
        later_s = time.time() + APART_S
        await until("the first burst is old", lambda: time.time() > later_s)
        made.middle_ns = time.time_ns() - int(APART_S / 2 * 1e9)
        await made.burst(2)
        await cluster.end("master")
        bus, clock = await cluster.bus("projector"), SystemClock()
        streams = {name: bus.stream(name) for name in (EVENTS, CONTROL, LEDGER, SNAPSHOTS)}
        setup = Setup(
            cluster=nats_server.cluster, router="t", streams=streams, open_store=database, clock=clock, limits=QUICK
        )
        projector = Projector(setup)
        async with running(projector):
            await projector.tried.wait()
            await caught_up(
                projector, {name: (await streams[name].bounds()).last for name in (EVENTS, CONTROL, LEDGER)}
            )
            server = HttpServer(Api(projector, Health(projector, "t"), clock).handle, connections_max=8, served_by="p")
            url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
            make_data(made.here)
            shutil.copy(key_path(nats_server.data, "operator"), key_path(made.here, "operator"))
            write_endpoints(made.here, Endpoints(nats=nats_server.url, projector=url))
            yield made
            await server.stop()


async def test_the_command_says_the_same_of_a_moment_that_only_clickhouse_reaches_back_to(scene: Scene):
    commits = await scene.cluster.commits()
    ledger = (await scene.cluster.streams()).ledger
    moments = [str(version) for version in range(2, len(commits) // 2, 2)]
    moments.append(str(len(commits) - 1))  # which the bus keeps, and not what its state is folded from
    for version in (3, 5):
        message = await ledger.get(version)
        assert message is not None
        moments.append(f"{message.stamp_ns // 10**9}.{message.stamp_ns % 10**9:09d}")
    before = {moment: await scene.at(moment) for moment in moments}
    assert {(code, said["source"]) for code, said in before.values()} == {(0, "NATS")}
    for stream in (EVENTS, LEDGER):
        await scene.age(stream)
    for moment, (_, said) in before.items():
        code, after = await scene.at(moment)
        assert (code, after["source"]) == (0, "ClickHouse"), after
        assert after | {"source": ""} == said | {"source": ""}, moment
    code, narrowed = await scene.at("5", "n2")
    assert (code, narrowed["only"], {row["node"] for row in narrowed["nodes"]}) == (0, "n2", {"n2"})


async def test_what_neither_reaches_back_to_is_one_line_of_what_each_holds(scene: Scene):
    for stream in (EVENTS, LEDGER):
        await scene.age(stream)
    code, said = await scene.at("2010-01-01")
    assert (code, said.count("must be within history"), "in ClickHouse it begins at version 1 " in said) == (
        2,
        1,
        True,
    ), said
    code, said = await scene.at("1990-01-01")
    assert (code, "time 1990-01-01T00:00:00.000Z: must be within history" in said) == (2, True), said
    write_endpoints(scene.here, Endpoints(nats=scene.cluster.server.url, projector="http://127.0.0.1:9"))
    code, said = await scene.at("3")
    assert (code, "version 3: must be within history" in said, "of ClickHouse nothing is known" in said) == (
        2,
        True,
        True,
    ), said
