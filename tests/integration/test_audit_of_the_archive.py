"""History is audited from ClickHouse as from the bus: what was projected is decided again, and what was signed is compared."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from adapters.keys import Credentials, save_credentials
from adapters.log.checkpoints import sign
from adapters.log.copied import CopiedStream
from adapters.log.report import Report
from adapters.log.verify import Part
from domain.errors import HistoryGapError
from projections.project import Context, project
from services.cli.audit_source import Source, archived_checkpoints, opened
from services.cli.audit_workers import verified
from services.projector.api import Api
from services.projector.health import Health
from services.projector.projector import Projector, Setup
from tests.mutations.life import SIGNER, Life, lived
from tests.support.history import CLUSTER, SECRET, START_NS, envelope
from tests.support.projections import QUICK, caught_up, running

pytestmark = pytest.mark.real
DAY_NS = 86_400 * 10**9


@pytest.fixture(scope="module")
def life() -> Life:
    """A history of yesterday (older ones are not kept), with a checkpoint among its newest facts."""
    made = lived(3, later_ns=SystemClock().wall_us() * 1000 - START_NS - DAY_NS)
    newest = made.facts[-1]
    said = msgspec.structs.replace(
        newest,
        seq=newest.seq + 1,
        subject=f"lw.{CLUSTER}.obs.1.checkpoint",
        body=envelope("master", "m", 1, made.checkpoints[0]),
    )
    return made.with_stream("LW_EVENTS", (*made.facts, said))


@pytest.fixture
async def url(life: Life, database: Callable[[], Store]) -> AsyncIterator[str]:
    """Project the history into a real ClickHouse and serve it."""
    streams = {name: CopiedStream(name, list(messages)) for name, messages in life.streams().items()}
    clock = SystemClock()
    setup = Setup(cluster=CLUSTER, router="t", streams=streams, open_store=database, clock=clock, limits=QUICK)
    projector = Projector(setup)
    async with running(projector):
        await projector.tried.wait()
        await caught_up(projector, {name: messages[-1].seq for name, messages in life.streams().items()}, timeout_s=60)
        api = Api(projector, Health(projector, "t"), clock)
        server = HttpServer(api.handle, connections_max=8, served_by="projector")
        yield f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
        await server.stop()


async def audit(url: str, folder: Path) -> Report:
    secrets = Credentials(name="o", role="operator", cluster=CLUSTER, nkey_seed="", cluster_mac_secret=SECRET)
    save_credentials(folder / "o.json", secrets)
    source = Source(kind="archive", cluster=CLUSTER, key=str(folder / "o.json"), projector_url=url)
    part = Part(checkpoints=await archived_checkpoints(url))
    async with opened(source) as place:
        return await verified(source, place, part, workers=1, fold_max=1000, progress=lambda _, __: None)


async def test_the_archive_verifies_as_the_streams_do_and_meets_what_was_signed(url: str, life: Life, tmp_path: Path):
    report = await audit(url, tmp_path)
    assert report.clean, report.differences
    assert report.commits == len(life.ledger)
    assert [met.source for met in report.checkpoints] == ["ClickHouse"]


async def test_what_was_signed_is_met_though_its_message_is_too_old_to_be_kept(
    url: str, database: Callable[[], Store], tmp_path: Path
):
    database().command("ALTER TABLE events DELETE WHERE event = 'obs.checkpoint' SETTINGS mutations_sync = 2")
    report = await audit(url, tmp_path)
    assert report.clean, report.differences
    assert [met.source for met in report.checkpoints] == ["ClickHouse"]


@pytest.mark.parametrize("resigned", [True, False])
async def test_a_checkpoint_of_the_archive_that_states_another_commit_is_a_difference_and_so_is_a_false_signature(
    url: str, life: Life, database: Callable[[], Store], tmp_path: Path, resigned: bool
):
    other = msgspec.structs.replace(life.checkpoints[1], digest="ab" * 16)
    body = envelope("master", "m", 2, sign(other, SIGNER) if resigned else other)
    forged = msgspec.structs.replace(life.facts[-1], seq=10**6, body=body)
    rows = project("LW_EVENTS", 1, [forged], Context(router="t")).rows["checkpoints"]
    database().insert_columns("checkpoints", rows.columns, token="forged")
    [difference] = (await audit(url, tmp_path)).differences
    assert difference.detail.startswith(
        (f"commit {other.version}:", f"checkpoint of version {other.version} in ClickHouse:")
    )
    assert ("was signed for digest abab" if resigned else "its signature is not that of its key") in difference.detail


async def test_a_message_that_the_archive_lacks_is_named(url: str):
    source = Source(kind="archive", cluster=CLUSTER, projector_url=url)
    async with opened(source) as place:
        held = await place.streams.events.bounds()
        with pytest.raises(HistoryGapError, match=f"message {held.last + 1} is not in the archive"):
            async for _ in place.streams.events.read(after=held.last - 2, until=held.last + 5):
                pass
