"""A copy of history verifies as the streams do, and a changed byte in it is named by its place."""

import base64
import gzip
import json
import random
from pathlib import Path

import pytest

from adapters.log import bundle
from adapters.log.bundle import CopiedStream
from adapters.log.history import Streams
from adapters.log.reader import Reader
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
    path = tmp_path / "copy.jsonl"
    await bundle.export(history, CLUSTER, path)
    return path


def reader() -> Reader:
    return Reader(CLUSTER, SECRET)


async def test_a_copy_verifies_and_says_how_much_it_holds(exported: Path):
    copy = bundle.load(exported)
    report = await verify(copy.streams, reader())
    assert copy.damaged == []
    assert report.clean
    assert report.commits == copy.header.counts["LW_LEDGER"] > 20
    assert report.line() == f"audit verify: {report.commits} commits, 0 differences"


async def test_the_same_history_gives_the_same_compressed_file(history: Streams, tmp_path: Path):
    for name in ("a.gz", "b.gz"):
        await bundle.export(history, CLUSTER, tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()).startswith(b'{"format":"leaseway-audit/1"')
    assert bundle.load(tmp_path / "a.gz").damaged == []


@pytest.mark.parametrize("stream", ["LW_EVENTS", "LW_LEDGER", "LW_CONTROL"])
async def test_a_changed_byte_is_named_by_stream_and_sequence(exported: Path, stream: str):
    lines = exported.read_bytes().split(b"\n")
    index, line = next(
        (i, json.loads(line)) for i, line in enumerate(lines) if json.loads(line or "{}").get("stream") == stream
    )
    body = bytearray(base64.b64decode(line["body"]))
    body[len(body) // 2] ^= 1
    line["body"] = base64.b64encode(body).decode()
    lines[index] = json.dumps(line).encode()
    exported.write_bytes(b"\n".join(lines))
    assert bundle.load(exported).damaged == [(stream, line["seq"])]


async def test_a_changed_fact_with_a_mended_checksum_is_still_named(exported: Path):
    """Whoever changes a copy can mend its checksums, but has no node's key and no way to mend the chain."""
    copy = bundle.load(exported)
    events = copy.streams.events
    assert isinstance(events, CopiedStream)
    old = next(message for seq, message in sorted(events._messages.items()) if seq > 100 and b"req_" in message.body)
    events._messages[old.seq] = StoredMessage(
        old.seq, old.stamp_ns, old.subject, old.headers, old.body.replace(b"req_", b"req-", 1)
    )
    report = await verify(copy.streams, reader())
    assert f"LW_EVENTS message {old.seq} (bad_mac)" in report.differences[0].detail


async def test_a_commit_changed_with_its_digest_is_named_by_its_version(exported: Path):
    copy = bundle.load(exported)
    ledger = copy.streams.ledger
    assert isinstance(ledger, CopiedStream)
    old = ledger._messages[10]
    ledger._messages[10] = StoredMessage(
        old.seq, old.stamp_ns, old.subject, old.headers, old.body.replace(b'"n":', b'"n":1', 1)
    )
    report = await verify(copy.streams, reader())
    assert report.differences[0].version == 10
    assert report.commits == 9


async def test_a_missing_fact_is_named(exported: Path):
    copy = bundle.load(exported)
    events = copy.streams.events
    assert isinstance(events, CopiedStream)
    del events._messages[77]
    report = await verify(copy.streams, reader())
    assert "LW_EVENTS: message 77" in report.differences[0].detail


@pytest.mark.parametrize("content", [b"", b"hello", b'{"format":"x","cluster":"c","counts":{}}'])
def test_what_is_no_bundle_is_refused_in_one_line(tmp_path: Path, content: bytes):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(BadConfigError, match="audit bundle"):
        bundle.load(path)
