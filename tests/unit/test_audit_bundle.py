"""A copy of history verifies as the streams do, and a changed byte in it is named by its place."""

import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.keys import Signer, new_nkey
from adapters.log import bundle
from adapters.log.bundle import CopiedStream
from adapters.log.checkpoints import fingerprint
from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.unkeyed import UnkeyedReader
from adapters.log.verify import verify
from domain.errors import BadConfigError
from domain.events.commit import encode_commit
from domain.ports import StoredMessage
from tests.support.history import CLUSTER, SECRET, Master, random_history


@pytest.fixture(scope="module")
def history() -> Streams:
    recorder, master, dice = random_history(11, 400), Master(), random.Random(1)
    master.take_all(recorder, lambda: dice.randint(1, 20))
    ledger = [
        StoredMessage(made.version, recorder.now_ns, "lw.test.ledger", b"", encode_commit(made))
        for made in master.commits
    ]
    return Streams(
        CopiedStream("LW_EVENTS", recorder.facts),
        CopiedStream("LW_CONTROL", recorder.control),
        CopiedStream("LW_LEDGER", ledger),
    )


@pytest.fixture
async def exported(history: Streams, tmp_path: Path) -> Path:
    path = tmp_path / "copy.zip"
    await bundle.export(history, CLUSTER, path)
    return path


async def in_memory(path: Path) -> Streams:
    """Return the streams of a copy as messages that a test can change."""
    streams = bundle.load(path).streams
    held: list[CopiedStream] = []
    for stream in (streams.events, streams.control, streams.ledger):
        bounds = await stream.bounds()
        messages = [m async for batch in stream.read(after=bounds.first - 1) for m in batch]
        held.append(CopiedStream(stream.name, messages))
    return Streams(*held)


def rewrite(path: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Write a copy anew with other bytes in its members; its own sums of them all stay."""
    with zipfile.ZipFile(path) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, change(name, content))


def reader() -> Reader:
    return Reader(CLUSTER, SECRET)


async def test_a_copy_that_is_replaced_while_it_is_read_is_read_on_as_it_was(exported: Path):
    copy, whole = bundle.load(exported), bundle.load(exported)
    first, *later = copy.header.members
    expected = [whole.content(member) for member in later]
    assert copy.content(first)
    other = exported.with_name("other.zip")
    other.write_bytes(b"of somebody who exports anew under the same name")
    other.replace(exported)
    assert [copy.content(member) for member in later] == expected


async def test_a_copy_verifies_and_says_how_much_it_holds(exported: Path):
    copy = bundle.load(exported)
    report = await verify(copy.streams, reader())
    assert copy.damaged == []
    assert report.clean
    assert report.commits == copy.header.counts["LW_LEDGER"] > 20
    assert report.line() == f"audit verify: {report.commits} commits, 0 differences"


async def test_the_same_history_gives_the_same_compressed_file(history: Streams, tmp_path: Path):
    for name in ("a.zip", "b.zip"):
        await bundle.export(history, CLUSTER, tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert bundle.load(tmp_path / "a.zip").damaged == []


@pytest.mark.parametrize("stream", ["LW_EVENTS", "LW_LEDGER", "LW_CONTROL"])
async def test_a_changed_byte_is_named_by_stream_and_sequence(exported: Path, stream: str):
    def change(name: str, content: bytes) -> bytes:
        if not name.startswith(stream):
            return content
        first = json.loads(content.split(b"\n")[0])
        first["body"] = first["body"].replace(":", ";", 1)
        return b"\n".join([json.dumps(first).encode(), *content.split(b"\n")[1:]])

    rewrite(exported, change)
    assert bundle.load(exported).damaged == [(stream, 1)]


async def test_bytes_that_are_no_text_come_back_as_they_were(tmp_path: Path):
    odd = StoredMessage(1, 5, "lw.test.node.n1.x", b"NATS/1.0\r\n\xff\r\n\r\n", b"\x00\xfe")
    streams = Streams(*(CopiedStream(name, [odd]) for name in ("LW_EVENTS", "LW_CONTROL", "LW_LEDGER")))
    await bundle.export(streams, CLUSTER, tmp_path / "odd.zip")
    assert await bundle.load(tmp_path / "odd.zip").streams.events.get(1) == odd


async def test_a_signed_copy_names_its_key_and_a_changed_manifest_is_refused(history: Streams, tmp_path: Path):
    path, signer = tmp_path / "signed.zip", Signer(new_nkey()[0])
    await bundle.export(history, CLUSTER, path, extra=bundle.Extra(software="1", signer=signer))
    assert bundle.load(path).signed_by() == fingerprint(signer.public)
    rewrite(
        path,
        lambda name, content: (
            content.replace(b'"software": "1"', b'"software": "2"') if "manifest" in name else content
        ),
    )
    with pytest.raises(BadConfigError, match="manifest"):
        bundle.load(path).signed_by()


async def test_without_the_clusters_secret_a_copy_verifies_on_the_commits_own_word(exported: Path):
    assert (await verify(bundle.load(exported).streams, UnkeyedReader(CLUSTER))).clean


async def test_a_changed_fact_with_a_mended_checksum_is_still_named(exported: Path):
    """Whoever changes a copy can mend its checksums, but has no node's key and no way to mend the chain."""
    streams = await in_memory(exported)
    events = streams.events
    assert isinstance(events, CopiedStream)
    old = next(message for seq, message in sorted(events._messages.items()) if seq > 100 and b"req_" in message.body)
    events._messages[old.seq] = StoredMessage(
        old.seq, old.stamp_ns, old.subject, old.headers, old.body.replace(b"req_", b"req-", 1)
    )
    report = await verify(streams, reader())
    assert f"LW_EVENTS message {old.seq} (bad_mac)" in report.differences[0].detail


async def test_a_commit_changed_with_its_digest_is_named_by_its_version(exported: Path):
    streams = await in_memory(exported)
    ledger = streams.ledger
    assert isinstance(ledger, CopiedStream)
    old = ledger._messages[10]
    ledger._messages[10] = StoredMessage(
        old.seq, old.stamp_ns, old.subject, old.headers, old.body.replace(b'"n":', b'"n":1', 1)
    )
    report = await verify(streams, reader())
    assert report.differences[0].version == 10
    assert report.commits == 9


async def test_a_missing_fact_is_named(exported: Path):
    streams = await in_memory(exported)
    events = streams.events
    assert isinstance(events, CopiedStream)
    del events._messages[77]
    report = await verify(streams, reader())
    assert "LW_EVENTS: message 77" in report.differences[0].detail


@pytest.mark.parametrize("content", [b"", b"hello", b'{"format":"x","cluster":"c","counts":{}}'])
def test_what_is_no_bundle_is_refused_in_one_line(tmp_path: Path, content: bytes):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(BadConfigError, match="audit copy"):
        bundle.load(path)
