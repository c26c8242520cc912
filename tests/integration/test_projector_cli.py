"""The command line on what a real projector holds: decisions, loads, and a plan made from history."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from domain.events import Finished, LendReturned
from domain.ids import NodeId
from services.cli.main import main
from services.data_directory import Endpoints, make_data, write_endpoints
from services.projector.api import Api
from services.projector.api_telemetry import NAMES
from services.projector.health import Health
from services.projector.projector import Projector
from services.texts.telemetry import COLUMNS, QUESTIONS
from tests.support.facts import HELPER, LINK, MODEL, Teller, finished, lent, plan, request, verdict
from tests.support.kinds import LENDING, LOADS
from tests.support.projections import Bus, SteppedClock, a_projector, caught_up, running

pytestmark = pytest.mark.real

BURSTS, JOBS, JOB_S = 5, 12, 10
WORK = 64_000_000


class Rig:
    """A projector with its API, and the command line pointed at it."""

    def __init__(self, bus: Bus, clock: SteppedClock, projector: Projector, data: Path) -> None:
        self.bus, self.clock, self.projector, self.data = bus, clock, projector, data
        self.begin_us = clock.now_us

    async def caught_up(self) -> None:
        """Return once everything that was said is in the tables."""
        await caught_up(self.projector, await self.bus.ends())

    async def at(self, second: float, teller: Teller, *facts: Any) -> None:
        """Let facts be stored at a second of the history."""
        self.clock.now_us = self.begin_us + round(second * 1_000_000)
        await self.bus.tell(teller, *facts)

    async def cli(self, *arguments: str) -> tuple[int, str, str]:
        """Return (exit code, standard output, standard error) of a command."""

        def run() -> tuple[int, str, str]:
            out, err = StringIO(), StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                code = main([*arguments, "--data", str(self.data)])
            return code, out.getvalue(), err.getvalue()

        return await asyncio.to_thread(run)

    async def rows(self, *arguments: str) -> list[dict[str, Any]]:
        code, out, err = await self.cli(*arguments)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
async def rig(database: Callable[[], Store], tmp_path: Path) -> AsyncIterator[Rig]:
    clock = SteppedClock(SystemClock().wall_us() - 20 * 3_600_000_000)
    bus = Bus(clock)
    projector = a_projector(bus, database)
    async with running(projector):
        await projector.tried.wait()
        api = Api(projector, Health(projector, "test"), SystemClock())
        server = HttpServer(api.handle, connections_max=8, served_by="projector")
        port = await server.start("127.0.0.1", 0)
        data = tmp_path / "data"
        make_data(data)
        write_endpoints(data, Endpoints(projector=f"http://127.0.0.1:{port}"))
        yield Rig(bus, clock, projector, data)
        await server.stop()


def ended(number: int, wait_s: float, service_s: float = JOB_S, *, helper: str = "") -> Finished:
    stated = {"wait_us": round(wait_s * 1e6), "service_us": round(service_s * 1e6), "helper": helper}
    return msgspec.structs.replace(finished(number), work=WORK, **stated)


async def served(rig: Rig, *, lent_from: int = BURSTS) -> None:
    """Let the owner serve bursts one after the other; from burst `lent_from` on every third request was lent."""
    teller = Teller("studio")
    for turn in range(BURSTS):
        for place in range(JOBS):
            number, end_s = turn * JOBS + place, 2000 * turn + JOB_S * (place + 1)
            helper = "attic" if turn >= lent_from and place % 3 == 0 else ""
            fact = ended(number, JOB_S * place, JOB_S / 4, helper=helper) if helper else ended(number, JOB_S * place)
            await rig.at(end_s, teller, fact)
    await rig.caught_up()


async def the_plan(rig: Rig, *arguments: str) -> dict[str, Any]:
    out = rig.data.parent / "plan.json"
    code, said, err = await rig.cli("plan", "--from-history", "1d", "--jobs", "1", "--json", str(out), *arguments)
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out.read_text())
    assert answer["sentence"] in " ".join(said.split())
    return answer


async def test_a_plan_from_history_says_what_a_machine_brings_and_that_the_simulation_is_what_happened(rig: Rig):
    await served(rig)
    answer = await the_plan(rig, "--helper-speed", "2")
    assert (answer["traffic"], answer["requests"]) == (f"studio/{MODEL}", BURSTS * JOBS)
    checked = answer["calibration"]
    assert checked["requests"] == BURSTS * JOBS
    assert checked["happened_mean_s"] == pytest.approx(JOB_S * (JOBS + 1) / 2)
    assert checked["simulated_mean_s"] == pytest.approx(checked["happened_mean_s"], rel=0.02)
    assert answer["helped"]["mean_s"] < 0.6 * answer["alone"]["mean_s"]
    assert 0.4 < answer["helped"]["lent_share"] < 0.8


async def test_a_machine_like_a_node_has_the_speed_that_was_measured_there_and_its_loads(rig: Rig):
    await served(rig, lent_from=2)
    await rig.at(10_000, Teller("attic"), *(msgspec.structs.replace(LOADS[1], load_us=us) for us in (7_000_000,) * 3))
    await rig.caught_up()
    answer = await the_plan(rig, "--like", "attic", "--load-if-unloaded")
    assert answer["candidate"] == {"speed": pytest.approx(4.0), "load_s": 7.0, "like": "attic"}
    assert answer["calibration"]["requests"] == 2 * JOBS, "only the bursts that nothing was lent from"
    assert any("were lent to helpers already" in remark for remark in answer["notes"])
    assert answer["sentence"].startswith("A machine like attic would have taken ")


async def test_a_history_of_two_owners_asks_which_one_is_meant_and_an_empty_one_says_so(rig: Rig):
    code, _, err = await rig.cli("plan", "--from-history", "1d", "--helper-speed", "2")
    assert (code, "holds no request that ended in that time" in err) == (1, True), err
    for name in ("studio", "attic"):
        teller = Teller(name)
        await rig.at(100, teller, *(ended(number, 0) for number in range(6)))
    await rig.caught_up()
    code, _, err = await rig.cli("plan", "--from-history", "1d", "--helper-speed", "2")
    assert code == 2
    assert f"say --owner and --model, there are requests of attic/{MODEL} (6), studio/{MODEL} (6)" in err
    code, _, err = await rig.cli("plan", "--from-history", "1d", "--like", "desk", "--owner", "attic")
    assert "--like desk: must have served at least 5 requests of the model in that time, has 0" in err


def kinds(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [row["kind"] for row in rows]


async def test_decisions_are_filtered_by_request_link_kind_and_reason(rig: Rig):
    await rig.bus.commit(plan(verdict(outcome="skipped", code="outranked"), verdict()))
    owner = Teller("n1")
    await rig.bus.tell(owner, lent(1), LendReturned(**LENDING, reason="own_work"), lent(2))
    await rig.caught_up()
    assert kinds(await rig.rows("decisions", "--request", request(1))) == ["lent", "returned"]
    assert kinds(await rig.rows("decisions", "--link", LINK, "--kind", "lent")) == ["lent", "lent"]
    [row] = await rig.rows("decisions", "--reason", "outranked")
    assert (row["kind"], row["outcome"]) == ("plan", "skipped")
    assert kinds(await rig.rows("decisions", "--outcome", "granted")) == ["plan"]
    code, _, err = await rig.cli("decisions", "--request", "nonsense")
    assert code == 2
    assert "request" in err


async def test_loads_are_listed_by_node(rig: Rig):
    await rig.bus.tell(Teller(HELPER), *LOADS)
    await rig.bus.tell(Teller(NodeId("n3")), LOADS[0])
    await rig.caught_up()
    assert {row["node"] for row in await rig.rows("loads")} == {"n2", "n3"}
    assert kinds(await rig.rows("loads", "--node", "n2", "--kind", "restored")) == ["restored"]
    code, _, err = await rig.cli("loads", "--kind", "lent")
    assert code == 2
    assert err.startswith("leaseway loads: --kind: must be one of load_started, loaded")


async def test_telemetry_is_shown_step_by_step_and_projections_can_be_looked_at_and_made_again(rig: Rig):
    await served(rig, lent_from=3)
    rows = await rig.rows("telemetry", "requests", "--since", "21h", "--step", "3600", "--json")
    assert sum(row["requests"] for row in rows) == BURSTS * JOBS
    assert {row["lent"] for row in rows} == {False, True}
    code, _, err = await rig.cli("telemetry", "requests", "--step", "90")
    assert (code, err) == (2, "leaseway telemetry: --step: must be whole minutes in seconds, got 90\n")
    code, _, err = await rig.cli("telemetry", "--since", "2026-11-30T02:00:00Z", "--until", "2026-11-30")
    rule = "must be before the end of the window, 2026-11-30T00:00:00Z, got 2026-11-30T02:00:00Z"
    assert (code, err) == (2, f"leaseway telemetry: --since: {rule}\n")
    code, _, err = await rig.cli("telemetry", "--since", "2026-11-01", "--until", "2026-11-30", "--step", "60")
    rule = "must give at most 1440 steps from 2026-11-01T00:00:00Z to 2026-11-30T00:00:00Z, got 60 s"
    assert (code, err) == (2, f"leaseway telemetry: --step: {rule}\n")
    code, nothing, err = await rig.cli("telemetry", "waits", "--node", "nope", "--since", "2h", "--until", "1h")
    assert (code, nothing, "nothing of that from 20" in err) == (0, "", True), err
    [told] = await rig.rows("projections", "rebuild", "--from", "archive", "--json")
    assert (told["state"], told["messages"]) == ("done", BURSTS * JOBS)
    [status] = await rig.rows("projections", "status", "--json")
    assert {table["name"]: table["rows"] for table in status["tables"]}["requests"] == BURSTS * JOBS
    assert status["rebuild"] == told


def test_every_question_of_the_api_can_be_asked_and_has_a_table():
    assert QUESTIONS.keys() == NAMES.keys() == COLUMNS.keys()
