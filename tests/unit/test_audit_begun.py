"""Who began a generation is checked by an audit: an operator's word that safe mode is over is signed with the operator's key."""

import asyncio
import json
from pathlib import Path

import pytest

from adapters.clock import SystemClock
from adapters.keys import Credentials, Signer, new_nkey, save_credentials
from adapters.log import bundle
from adapters.log.checkpoints import Kept, sign
from adapters.log.copied import CopiedStream
from adapters.log.generations import GAP, signed_begin
from adapters.log.history import Streams
from adapters.memory.stream import MemoryStream
from domain.events import Checkpoint
from domain.events.commit import Commit, decode_commit, encode_commit
from domain.ids import Generation
from domain.master.step import genesis
from services.cli.main import main
from services.data_directory import make_data
from tests.support.audited import Lived, lived_on
from tests.support.history import CLUSTER, SECRET

SEED = new_nkey()[0]
OPERATOR, MASTER, STRANGER = Signer(SEED), Signer(new_nkey()[0]), Signer(new_nkey()[0])
Told = tuple[int, str]


@pytest.fixture(scope="module")
def lived() -> Lived:
    return lived_on()


async def copied(lived: Lived, path: Path, reasons: dict[str, Signer | None], *, named: str = OPERATOR.public) -> Path:
    """Write a copy of a history in which generations were begun: reason -> who signed it."""
    ledger = MemoryStream("LW_LEDGER", SystemClock())
    async for batch in lived.streams.ledger.read(after=0, until=60):
        for message in batch:
            await ledger.publish(message.subject, message.body)
    kept: list[Kept] = []
    for number, (reason, signer) in enumerate(reasons.items(), start=2):
        last = await ledger.last()
        assert last is not None
        begun = Generation(f"{number:04x}abcd")
        first = genesis(decode_commit(last.body), begun, reason, events_first=1, control_first=1)
        first = signed_begin(first, CLUSTER, signer) if signer is not None else first
        await ledger.publish(last.subject, encode_commit(first))
        kept += [signed_checkpoint(first)] if reason == "vouched" else []
    messages = [message async for batch in ledger.read(after=0, until=60 + len(reasons)) for message in batch]
    streams = Streams(lived.streams.events, lived.streams.control, CopiedStream("LW_LEDGER", messages))
    extra = bundle.Extra(signer=MASTER, operator=named, checkpoints=kept)
    await bundle.export(streams, CLUSTER, path, extra=extra)
    return path


def signed_checkpoint(made: Commit) -> Kept:
    draft = Checkpoint(
        cluster=CLUSTER, generation=made.generation, version=made.version, digest=made.digest, hi=made.hi, chi=made.chi,
        state=made.state, at_us=1,
    )  # fmt: skip
    return Kept(checkpoint=sign(draft, MASTER), source="a book")


async def verified(path: Path, capsys: pytest.CaptureFixture[str], *flags: str, ours: bool = True) -> Told:
    data = path.parent / "data"
    make_data(data)
    if ours:
        operator = Credentials(
            name="operator", role="operator", cluster=CLUSTER, nkey_seed=SEED, cluster_mac_secret=SECRET,
            master_public=MASTER.public,
        )  # fmt: skip
        save_credentials(data / "keys" / "operator.json", operator)
    report = path.parent / "report.json"
    asked = ["audit", "verify", "--copy", str(path), "--data", str(data), "--report", str(report), *flags]
    code = await asyncio.to_thread(main, asked)
    told = capsys.readouterr()
    return code, told.out + told.err + json.dumps(json.loads(report.read_text())["begun"])


@pytest.mark.parametrize("ours", [True, False], ids=["with the operator's key", "with the copy's own word"])
async def test_a_generation_that_the_operator_began_is_said_to_be_one(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str], ours: bool
):
    path = await copied(lived, tmp_path / "copy.zip", {"disk was full": OPERATOR})
    code, told = await verified(path, capsys, ours=ours)
    assert (code, "the operator: disk was full (signed by" in told) == (0, True), told


@pytest.mark.parametrize("ours", [True, False], ids=["with the operator's key", "with the copy's own word"])
@pytest.mark.parametrize("who", [None, STRANGER, MASTER], ids=["nobody", "a stranger", "the master"])
async def test_a_generation_that_somebody_else_began_in_the_operators_name_is_a_difference(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str], who: Signer | None, ours: bool
):
    path = await copied(lived, tmp_path / "copy.zip", {"we looked": who})
    code, told = await verified(path, capsys, ours=ours)
    assert (code, "difference at version 61, ledger: generation 0002abcd: its first commit must be signed" in told) == (
        1,
        True,
    ), told


async def test_one_that_the_master_began_by_itself_after_lost_facts_is_told_as_such(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = await copied(lived, tmp_path / "copy.zip", {f"{GAP}LW_EVENTS": MASTER})
    code, told = await verified(path, capsys)
    assert (code, "the master itself, after lost facts" in told) == (0, True), told


async def test_who_began_one_is_told_by_the_key_and_not_by_the_words_of_the_reason(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = await copied(lived, tmp_path / "copy.zip", {f"{GAP}we looked": OPERATOR})
    code, told = await verified(path, capsys)
    assert (code, f"the operator: {GAP}we looked" in told) == (0, True), told


async def test_an_older_one_is_looked_at_where_older_generations_are_verified(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = await copied(lived, tmp_path / "copy.zip", {"we looked": None, "we looked again": OPERATOR})
    assert (await verified(path, capsys))[0] == 0
    code, told = await verified(path, capsys, "--whole")
    assert (code, "version 61, ledger: generation 0002abcd" in told) == (1, True), told


async def test_one_of_before_words_were_signed_is_no_difference_where_the_master_has_signed_what_stands_in_it(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = await copied(lived, tmp_path / "copy.zip", {"vouched": None})
    code, told = await verified(path, capsys)
    assert (code, "not checked: who began a generation: generation 0002abcd" in told) == (0, True), told


async def test_where_the_operators_key_is_not_known_it_is_said_that_nobody_can_tell(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = await copied(lived, tmp_path / "copy.zip", {"we looked": OPERATOR}, named="")
    code, told = await verified(path, capsys, ours=False)
    assert (code, "whose key is not known here" in told) == (0, True), told
