"""One long life: a server, a master as a process of its own, simulated nodes in real time, and what came of it."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from services.data_directory import make_data
from services.simulator.product.names import BEGIN_US, name_of
from tests.replay.million.bus import RealBus, pause
from tests.replay.million.plan import Lived, Plan, Progress
from tests.replay.million.scene import families
from tests.replay.million.world import World
from tests.support.nats import ServerUnderTest, provisioned_server

_AT_ONCE: Final = 200
"""Things that happen at the nodes before the bus is looked at again."""
_STEP_US: Final = 50_000
"""The nodes' time moves by so much at most between two looks, however long this process was not run."""
_IDLE_S: Final = 0.002
_MEMORY: Final = Path("/dev/shm")  # the system's folder in memory, where there is one
_MEMORY_LEAST: Final = 4 * 1024**3


def work_folder() -> str | None:
    """Return where a server syncs at no cost, if this machine has it: every message is synced, and so a disk sets the pace."""
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_LEAST
    return str(_MEMORY) if roomy else None


class MasterProcess:
    """`leaseway master`, to be killed and started again."""

    def __init__(self, server: ServerUnderTest) -> None:
        self._server = server
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it decides as soon as it has read what there is."""
        command = [sys.executable, "-m", "services.cli", "master", "--data", str(self._server.data)]
        with (self._server.data / "master.log").open("ab") as log:
            self._child = subprocess.Popen(
                [*command, "--bus", self._server.url, "--port", "0"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """kill -9."""
        assert self._child is not None
        self._child.kill()
        self._child.wait(10)

    def stop(self) -> None:
        """End it in order."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            self._child.wait(20)

    def check(self) -> None:
        """Fail if it has ended by itself."""
        assert self._child is not None
        if self._child.poll() is not None:
            words = (self._server.data / "master.log").read_text(errors="replace")[-2000:]
            raise AssertionError(f"the master ended with {self._child.returncode}: {words}")


class Pace:
    """The nodes' time: as fast as real time, but never ahead of a bus or a master that cannot follow."""

    def __init__(self, world: World, bus: RealBus) -> None:
        self._world, self._bus, self._loop = world, bus, asyncio.get_running_loop()
        self._now_us, self._looked_s = BEGIN_US, self._loop.time()
        self.stood_s = 0.0

    async def run(self, over: Callable[[], bool]) -> None:
        """Let things happen in their time until it is `over`."""
        timeline = self._world.timeline
        while not over():
            moved_s = self._loop.time() - self._looked_s
            self._looked_s += moved_s
            if self._bus.behind:
                self.stood_s += moved_s
            else:
                self._now_us += min(round(moved_s * 1e6), _STEP_US)
            happened = 0
            while happened < _AT_ONCE and (due_us := timeline.due_us()) is not None and due_us <= self._now_us:
                timeline.step()
                happened += 1
            if happened == _AT_ONCE:
                self._now_us = timeline.now_us
            await pause(_IDLE_S)


@asynccontextmanager
async def lived(data: Path, plan: Plan, progress: Progress) -> AsyncIterator[tuple[Lived, RealBus, ServerUnderTest]]:
    """Live until the master has decided about `plan.events` events; yield what came of it while the bus is still there."""
    names = [name_of(number) for number in range(plan.nodes)]
    nodes: dict[str, str] = {name: f"http://127.0.0.1:{20000 + number}" for number, name in enumerate(names)}
    async with AsyncExitStack() as stack:
        make_data(data)
        server = await stack.enter_async_context(provisioned_server(data, nodes=nodes, durability="relaxed"))
        async with asyncio.TaskGroup() as group:
            bus = RealBus(server, stack, group)
            await bus.open(names)
            came_of_it = await _live(bus, server, plan, progress, group)
            yield came_of_it, bus, server


async def _live(
    bus: RealBus, server: ServerUnderTest, plan: Plan, progress: Progress, group: asyncio.TaskGroup
) -> Lived:
    began_s = asyncio.get_running_loop().time()
    master = MasterProcess(server)
    master.start()
    world = World(families(plan.seed, plan.nodes, plan.job_s), bus, plan.seed)
    pace = Pace(world, bus)
    beside = [bus.send_decrees(), bus.look(), bus.listen(world.hear), bus.beat(world)]
    tasks = [group.create_task(each) for each in beside]
    try:
        for part in range(1, plan.kills + 2):
            goal = plan.events * part // (plan.kills + 1)
            await pace.run(lambda goal=goal: _reached(bus, master, goal, progress))  # type: ignore[misc]
            if part <= plan.kills:
                master.kill()
                master.start()
        world.ending = True
        until_s = asyncio.get_running_loop().time() + plan.end_s
        await pace.run(lambda: world.all_ended or asyncio.get_running_loop().time() > until_s)
        world.over = True
        await bus.drained()
        await _quiet(bus)
    finally:
        master.stop()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return Lived(
        events=bus.decided,
        commits=bus.commits,
        decisions=dict(sorted(bus.kinds.items())),
        troubles=dict(sorted(world.troubles.items())),
        requests=len(world.clients.jobs),
        lent=world.counts.lent,
        took_s=asyncio.get_running_loop().time() - began_s,
        stood_s=pace.stood_s,
    )


def _reached(bus: RealBus, master: MasterProcess, goal: int, progress: Progress) -> bool:
    master.check()
    progress(bus.decided, f"{bus.commits} commits, {bus.stored - bus.decided} not decided about")
    return bus.decided >= goal


async def _quiet(bus: RealBus) -> None:
    """Return once the master has decided all that follows from what is stored."""
    before = -1
    while before != bus.commits:
        before = bus.commits
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                bus.heard.clear()
                await bus.heard.wait()
