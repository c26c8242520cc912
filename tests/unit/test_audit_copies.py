"""Copies as the commands make, keep and trust them: evidence is copied as it stands, and only the trusted key is believed."""

import asyncio
import json
import zipfile
from pathlib import Path

import msgspec
import pytest

from adapters.keys import Credentials, Signer, new_nkey, save_credentials
from adapters.log import bundle
from adapters.log.checkpoints import Kept, fingerprint, sign
from adapters.log.copied import CopiedStream
from adapters.log.history import Streams
from adapters.times import utc
from domain.errors import BadConfigError
from domain.events import Checkpoint
from domain.events.commit import decode_commit
from domain.ports import StoredMessage
from services.cli.audit_copies import newest_copy
from services.cli.main import main
from services.data_directory import make_data
from tests.support.audited import Lived, lived_on
from tests.support.history import CLUSTER, SECRET

SIGNER, STRANGER = Signer(new_nkey()[0]), Signer(new_nkey()[0])
OURS = fingerprint(SIGNER.public)


@pytest.fixture(scope="module")
def lived() -> Lived:
    return lived_on()


async def messages(stream: object) -> list[StoredMessage]:
    assert isinstance(stream, CopiedStream)
    return [message async for batch in stream.read(after=0) for message in batch]


async def checkpoint(lived: Lived, signer: Signer = SIGNER, **changes: object) -> Kept:
    message = await lived.streams.ledger.get(lived.last)
    assert message is not None
    made = decode_commit(message.body)
    draft = Checkpoint(
        cluster=CLUSTER,
        generation=made.generation,
        version=made.version,
        digest=made.digest,
        hi=made.hi,
        chi=made.chi,
        at_us=1,
    )
    return Kept(checkpoint=sign(msgspec.structs.replace(draft, **changes), signer), source="a book")


async def written(lived: Lived, path: Path, *checkpoints: Kept, signer: Signer | None = SIGNER) -> Path:
    await bundle.export(lived.streams, CLUSTER, path, extra=bundle.Extra(checkpoints=list(checkpoints), signer=signer))
    return path


def verified(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    code = main(["audit", "verify", "--copy", str(path), "--data", str(path.parent / "data"), *flags])
    told = capsys.readouterr()
    return code, told.out + told.err


async def test_a_copy_of_the_key_that_is_trusted_is_believed_and_says_no_more_is_missing_than_is(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = await written(lived, tmp_path / "copy.zip", await checkpoint(lived))
    code, told = await asyncio.to_thread(verified, path, capsys, "--fingerprint", OURS)
    assert (code, "signed" in told) == (0, False), told


@pytest.mark.parametrize("signer", [None, STRANGER], ids=["nobody", "a stranger"])
async def test_a_copy_of_another_signature_than_the_one_that_is_trusted_is_a_difference(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str], signer: Signer | None
):
    """Else whoever cuts off a copy's end had only to take its signature and its checkpoints away."""
    path = await written(lived, tmp_path / "copy.zip", signer=signer)
    code, told = await asyncio.to_thread(verified, path, capsys, "--fingerprint", OURS)
    assert (code, f"trusted is {OURS}" in told) == (1, True), told


async def test_a_copy_signed_by_a_key_that_the_cluster_never_had_is_said_to_be_one_in_these_words(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, theirs = await written(lived, tmp_path / "copy.zip", signer=STRANGER), fingerprint(STRANGER.public)
    code, told = await asyncio.to_thread(verified, path, capsys, "--fingerprint", OURS)
    assert code == 1
    assert f"signed by a key that this cluster never had, {theirs}; trusted is {OURS}" in told
    code = await asyncio.to_thread(
        main, ["audit", "import", str(path), "--data", str(tmp_path / "i"), "--fingerprint", OURS]
    )
    assert (code, "a key that this cluster never had" in capsys.readouterr().err) == (1, True)


async def test_a_copy_whose_signer_nobody_was_told_of_is_said_to_be_one(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Its key comes with it, so that its signature says no more than that one hand has made it."""
    path = await written(lived, tmp_path / "copy.zip")
    words = f"not checked: who made the copy: it is signed by {OURS}, whose key comes with the copy"
    code, told = await asyncio.to_thread(verified, path, capsys)
    assert (code, words in told, "--fingerprint" in told) == (0, True, True), told
    code = await asyncio.to_thread(main, ["audit", "import", str(path), "--data", str(tmp_path / "i")])
    assert (code, words in capsys.readouterr().err) == (0, True)


async def test_a_copy_that_nobody_signed_is_said_to_be_one(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = await written(lived, tmp_path / "copy.zip", signer=None)
    code, told = await asyncio.to_thread(verified, path, capsys)
    assert (code, "who made the copy: it is signed by nobody" in told) == (0, True), told


@pytest.mark.parametrize(
    ("signer", "changes", "why"),
    [(SIGNER, {"cluster": "other"}, "of cluster 'other'"), (STRANGER, {}, "trusted is")],
    ids=["another cluster", "another key"],
)
async def test_a_checkpoint_of_another_cluster_or_key_is_a_difference(
    lived: Lived,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    signer: Signer,
    changes: dict[str, object],
    why: str,
):
    path = await written(lived, tmp_path / "copy.zip", await checkpoint(lived, signer, **changes))
    code, told = await asyncio.to_thread(verified, path, capsys, "--fingerprint", OURS)
    assert (code, why in told) == (1, True), told


async def test_the_outcome_is_told_though_the_report_cannot_be_written(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = await written(lived, tmp_path / "copy.zip")
    code, told = await asyncio.to_thread(verified, path, capsys, "--report", str(tmp_path / "nowhere" / "x.html"))
    assert code == 2
    assert f"audit verify: {lived.last} commits, 0 differences" in told
    assert "cannot be written" in told


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--from", "2026-12-31"), "--from: nothing was stored since then"),
        (("--to", "2026-01-01"), "--to: nothing was stored until then"),
    ],
)
async def test_a_range_in_which_nothing_was_stored_is_answered_with_what_there_is(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, str], why: str
):
    code, told = await asyncio.to_thread(verified, await written(lived, tmp_path / "copy.zip"), capsys, *flags)
    assert (code, f"{why}; stored are versions 1 to {lived.last}, from 2026-" in told) == (2, True), told


async def test_a_range_between_two_commits_is_said_to_hold_none_and_one_that_is_turned_round_to_be_that(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = await written(lived, tmp_path / "copy.zip")
    early, late = (utc(lived.stamp_ns + tenths * 10**8) for tenths in (72, 78))
    code, told = await asyncio.to_thread(verified, path, capsys, "--from", early, "--to", late)
    nothing = f"--from, --to: nothing was decided between {early} and {late}; stored are versions 1 to {lived.last}"
    assert (code, nothing in told) == (2, True), told
    code, told = await asyncio.to_thread(verified, path, capsys, "--from", late, "--to", early)
    assert (code, "--from: must not be after --to, they are versions 8 and 7" in told) == (2, True), told


async def test_how_long_ago_counts_back_from_the_newest_message_of_a_copy(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = await written(lived, tmp_path / "copy.zip")
    code, told = await asyncio.to_thread(verified, path, capsys, "--from", "1d")
    assert (code, f"audit verify: {lived.last} commits, 0 differences" in told) == (0, True), told
    code, told = await asyncio.to_thread(verified, path, capsys, "--to", "1d")
    assert (code, "--to: nothing was stored until then" in told) == (2, True), told


def imported(path: Path, data: Path) -> int:
    return main(["audit", "import", str(path), "--data", str(data)])


async def test_an_import_that_is_refused_keeps_nothing_and_says_what_to_do_next(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, data = await written(lived, tmp_path / "copy.zip"), tmp_path / "data"
    assert main(["audit", "import", str(path), "--data", str(data), "--fingerprint", fingerprint(STRANGER.public)]) == 1
    assert (
        "by another way than the file's, for the fingerprint that `leaseway audit export` printed"
        in capsys.readouterr().err
    )
    with zipfile.ZipFile(path) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content if name == bundle.MANIFEST else content.replace(b"started", b"begun__"))
    assert imported(path, data) == 1
    err = capsys.readouterr().err
    assert f"Ask its sender for it again, and whether its SHA-256 is {bundle.file_digest(path)}" in err
    assert f"`leaseway audit verify --copy {path}`" in err
    assert not data.exists()


async def test_an_import_never_takes_the_place_of_another_copy_of_the_same_versions(lived: Lived, tmp_path: Path):
    first = await written(lived, tmp_path / "a.zip")
    other = await written(lived, tmp_path / "b.zip", signer=None)
    data = tmp_path / "data"
    assert imported(first, data) == 0
    assert imported(first, data) == 0
    assert imported(other, data) == 2
    kept = list((data / "audit").iterdir())
    assert [each.read_bytes() for each in kept] == [first.read_bytes()]
    assert imported(kept[0], data) == 0


async def test_copies_of_several_clusters_are_not_taken_for_each_other(lived: Lived, tmp_path: Path):
    data = tmp_path / "data"
    assert imported(await written(lived, tmp_path / "a.zip"), data) == 0
    (data / "audit" / "zoo-000000000001.zip").write_bytes(b"")
    with pytest.raises(BadConfigError, match=f"clusters {CLUSTER}, zoo"):
        newest_copy(data, sorted((data / "audit").glob("*.zip")))


async def test_a_history_with_holes_is_copied_as_it_stands_and_an_audit_names_the_first(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """What is in doubt is evidence: a copy of it must not ask for a history that is whole."""
    gone = {65, 66, 68, 200}  # where a search for the beginning does not look
    ledger = CopiedStream("LW_LEDGER", [each for each in await messages(lived.streams.ledger) if each.seq not in gone])
    holed = Streams(lived.streams.events, lived.streams.control, ledger)
    path = tmp_path / "copy.zip"
    header = await bundle.export(holed, CLUSTER, path)
    assert header.streams["LW_LEDGER"].missing == ((65, 66), (68, 68), (200, 200))
    assert header.counts["LW_LEDGER"] == lived.last - len(gone)
    copy = bundle.load(path)
    assert copy.damaged == []
    assert (await copy.streams.ledger.get(67)) == (await ledger.get(67))
    code, told = await asyncio.to_thread(verified, path, capsys)
    assert (code, "message 65 is not there" in told) == (1, True), told


async def test_a_hole_that_the_manifest_does_not_tell_of_is_named(lived: Lived, tmp_path: Path):
    path = await written(lived, tmp_path / "copy.zip", signer=None)
    with zipfile.ZipFile(path) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    manifest = json.loads(members[bundle.MANIFEST])
    manifest["streams"]["LW_LEDGER"]["missing"] = [[1, lived.last]]
    members[bundle.MANIFEST] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    assert ("manifest.json: LW_LEDGER", 0) in bundle.load(path).damaged


async def test_a_copy_of_another_cluster_of_the_same_name_is_not_judged_with_this_ones_secret(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Whoever has a cluster of the default name and audits another one had every fact called forged."""
    path = await written(lived, tmp_path / "copy.zip", await checkpoint(lived))
    operator = Credentials(
        name="operator",
        role="operator",
        cluster=CLUSTER,
        nkey_seed="",
        cluster_mac_secret="cd" * 32,
        master_public=STRANGER.public,
    )
    make_data(tmp_path / "data")
    save_credentials(tmp_path / "data" / "keys" / "operator.json", operator)
    code, told = await asyncio.to_thread(verified, path, capsys)
    assert (code, "MACs of facts: the cluster's secret is not here" in told) == (0, True), told
    theirs = fingerprint(STRANGER.public)
    assert (
        f"signed by {OURS}, a key that the cluster {CLUSTER} of this data directory never had; that one's is {theirs}"
        in told
    )


async def test_the_state_in_a_copy_is_the_same_to_whoever_looks_at_it(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A cluster of the same name has another secret: by that one every fact is forged, and the state would be empty."""
    path = await written(lived, tmp_path / "copy.zip")
    seen: list[str] = []
    for name, secret, public in (
        ("ours", SECRET, SIGNER.public),
        ("a stranger's", "cd" * 32, STRANGER.public),
        ("nobody's", "", ""),
    ):
        data = tmp_path / name
        make_data(data)
        if secret:
            operator = Credentials(
                name="operator",
                role="operator",
                cluster=CLUSTER,
                nkey_seed="",
                cluster_mac_secret=secret,
                master_public=public,
            )
            save_credentials(data / "keys" / "operator.json", operator)
        code = await asyncio.to_thread(main, ["at", "120", "--copy", str(path), "--data", str(data), "--json"])
        told = capsys.readouterr()
        assert code == 0, told.err
        seen.append(told.out)
    assert '"version":120' in seen[0]
    assert '"n0"' in seen[0]
    assert seen == [seen[0]] * 3


def spoilt(path: Path, name: str, then: bytes, now: bytes) -> None:
    """Change a member of a copy, and leave its sum as it was."""
    with zipfile.ZipFile(path) as packed:
        members = {each: packed.read(each) for each in packed.namelist()}
    assert then in members[name]
    members[name] = members[name].replace(then, now, 1)
    with zipfile.ZipFile(path, "w") as packed:
        for each, content in members.items():
            packed.writestr(each, content)


USES = {"what-if": ("audit", "what-if", "--policy", "none"), "at": ("at", "120")}


@pytest.mark.parametrize("use", USES)
async def test_a_copy_that_is_not_as_it_was_exported_is_used_for_nothing(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str], use: str
):
    path = await written(lived, tmp_path / "copy.zip")
    asked = [*USES[use], "--copy", str(path), "--data", str(tmp_path / "data")]
    assert await asyncio.to_thread(main, asked) == 0
    capsys.readouterr()
    spoilt(path, "LW_EVENTS/000000000001.jsonl", b"req_", b"req-")
    code = await asyncio.to_thread(main, asked)
    told = capsys.readouterr()
    assert (code, "is not as it was exported" in told.err, told.out) == (1, True, ""), told
    again = await written(lived, tmp_path / "copy.zip")
    spoilt(again, bundle.MANIFEST, b'"software": ""', b'"software": "9"')
    code = await asyncio.to_thread(main, asked)
    told = capsys.readouterr()
    assert (code, f"is not what {OURS} signed" in told.err, told.out) == (1, True, ""), told
