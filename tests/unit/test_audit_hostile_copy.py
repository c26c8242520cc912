"""A copy is somebody else's file: what lies in it is named, and nothing in it can fill the memory or leave its folder."""

import json
import random
import tracemalloc
import zipfile
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapters.log import bundle, bundle_format, bundle_writer
from adapters.log.copied import CopiedStream
from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.verify import verify
from domain.errors import BadConfigError
from domain.events.commit import encode_commit
from domain.ports import Bounds, StoredMessage
from tests.support.history import CLUSTER, SECRET, Master, random_history

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def history() -> Streams:
    recorder, master, dice = random_history(11, 300), Master(), random.Random(1)
    master.take_all(recorder, lambda: dice.randint(1, 20))
    ledger = [
        StoredMessage(made.version, recorder.now_ns, "lw.test.ledger", b"", encode_commit(made))
        for made in master.commits
    ]
    held = (("LW_EVENTS", recorder.facts), ("LW_CONTROL", recorder.control), ("LW_LEDGER", ledger))
    return Streams(*(CopiedStream(name, messages) for name, messages in held))


@pytest.fixture
async def exported(history: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bundle_writer, "_PIECE", 100)
    path = tmp_path / "copy.zip"
    await bundle.export(history, CLUSTER, path)
    assert bundle.load(path).damaged == []
    return path


def rewrite(path: Path, change: Callable[[Manifest, dict[str, bytes]], None]) -> bundle.Bundle:
    """Write a copy anew after `change` of its manifest and members, with each digest in the manifest mended."""
    with zipfile.ZipFile(path) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    manifest = json.loads(members.pop(bundle.MANIFEST))
    change(manifest, members)
    for each in manifest["members"]:
        if each["name"] in members:
            each["digest"] = bundle_format.digest_of(members[each["name"]])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in {**members, bundle.MANIFEST: json.dumps(manifest).encode()}.items():
            packed.writestr(name, content)
    return bundle.load(path)


def of(manifest: Manifest, stream: str) -> list[Manifest]:
    return [each for each in manifest["members"] if each["stream"] == stream]


def test_a_stream_that_is_left_out_of_the_manifest_is_named(exported: Path):
    def change(manifest: Manifest, _: dict[str, bytes]) -> None:
        del manifest["streams"]["LW_LEDGER"]

    assert ("manifest.json: LW_LEDGER", 0) in rewrite(exported, change).damaged


def test_a_manifest_that_says_less_than_the_file_holds_is_named(exported: Path):
    def change(manifest: Manifest, _: dict[str, bytes]) -> None:
        manifest["streams"]["LW_EVENTS"] = {"first": 201, "last": 300, "count": 100}

    assert ("manifest.json: LW_EVENTS/000000000001.jsonl", 0) in rewrite(exported, change).damaged


def test_a_piece_that_is_left_out_is_named(exported: Path):
    def change(manifest: Manifest, _: dict[str, bytes]) -> None:
        manifest["members"].remove(of(manifest, "LW_EVENTS")[1])

    damaged = rewrite(exported, change).damaged
    assert ("manifest.json: LW_EVENTS/000000000101.jsonl", 0) in damaged  # in the file, not in the manifest
    assert ("manifest.json: LW_EVENTS/000000000201.jsonl", 0) in damaged  # does not go on from the one before


def test_two_pieces_of_the_same_messages_are_named(exported: Path):
    """A reader that searches and one that goes forward would see different histories."""

    def change(manifest: Manifest, members: dict[str, bytes]) -> None:
        members["LW_EVENTS/b.jsonl"] = members["LW_EVENTS/000000000101.jsonl"]
        manifest["members"].append({**of(manifest, "LW_EVENTS")[1], "name": "LW_EVENTS/b.jsonl"})

    assert ("manifest.json: LW_EVENTS/b.jsonl", 0) in rewrite(exported, change).damaged


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_named(exported: Path):
    with zipfile.ZipFile(exported, "a") as packed:
        packed.writestr("LW_EVENTS/000000000101.jsonl", b"")
    assert ("manifest.json: LW_EVENTS/000000000101.jsonl", 0) in bundle.load(exported).damaged


def test_a_message_in_another_place_than_its_own_is_named(exported: Path):
    def change(_: Manifest, members: dict[str, bytes]) -> None:
        first, second, *rest = members["LW_LEDGER/000000000001.jsonl"].splitlines(keepends=True)
        members["LW_LEDGER/000000000001.jsonl"] = b"".join([second, first, *rest])

    assert rewrite(exported, change).damaged == [("LW_LEDGER", 2), ("LW_LEDGER", 1)]


def test_a_member_that_unpacks_to_more_than_is_allowed_is_not_unpacked(exported: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bundle, "MEMBER_BYTES_MAX", 200_000)

    def change(_: Manifest, members: dict[str, bytes]) -> None:
        members["LW_EVENTS/000000000101.jsonl"] = b" " * 1_000_000

    copy = rewrite(exported, change)
    member = next(each for each in copy.header.members if each.first == 101)
    assert copy.content(member) == b""
    assert ("LW_EVENTS/000000000101.jsonl", 0) in copy.damaged


def test_a_member_that_states_less_than_it_unpacks_to_fills_no_memory(exported: Path):
    with zipfile.ZipFile(exported) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(exported, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for name, content in {**members, "LW_EVENTS/000000000101.jsonl": bytes(64 * 1024**2)}.items():
            packed.writestr(name, content)
        packed.getinfo("LW_EVENTS/000000000101.jsonl").file_size = 100
    copy = bundle.load(exported)
    tracemalloc.start()
    try:
        assert ("LW_EVENTS/000000000101.jsonl", 0) in copy.damaged
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024**2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_a_member_that_is_packed_in_a_way_whose_growth_has_no_bound_is_not_unpacked(exported: Path, packing: int):
    with zipfile.ZipFile(exported) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(exported, "w", packing) as packed:
        for name, content in members.items():
            packed.writestr(name, content, zipfile.ZIP_DEFLATED if name == bundle.MANIFEST else None)
    copy = bundle.load(exported)
    assert copy.content(copy.header.members[0]) == b""
    assert copy.damaged


def test_a_manifest_that_unpacks_to_more_than_is_allowed_is_refused(exported: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bundle, "MEMBER_BYTES_MAX", 100)
    with pytest.raises(BadConfigError, match="cannot be read"):
        bundle.load(exported)


@pytest.mark.parametrize("cluster", ["../../etc/cron.d/x", "", "a/b", "x" * 40, "A\n"])
def test_a_copy_of_a_cluster_whose_name_is_none_is_refused(exported: Path, cluster: str):
    """The name becomes part of a file's name where it is imported."""

    def change(manifest: Manifest, _: dict[str, bytes]) -> None:
        manifest["cluster"] = cluster

    with pytest.raises(BadConfigError, match="is no cluster's name"):
        rewrite(exported, change)


@pytest.mark.parametrize("number", [-1, 10**15, 2**63])
def test_absurd_numbers_in_a_manifest_are_named_and_do_no_harm(exported: Path, number: int):
    def change(manifest: Manifest, _: dict[str, bytes]) -> None:
        manifest["streams"]["LW_EVENTS"]["last"] = number
        of(manifest, "LW_EVENTS")[0]["first"] = number

    assert ("manifest.json: LW_EVENTS", 0) in rewrite(exported, change).damaged


async def test_large_messages_are_copied_in_pieces_of_bounded_size(
    history: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bundle_writer, "_PIECE_BYTES", 10_000)
    header = await bundle.export(history, CLUSTER, tmp_path / "copy.zip")
    assert max(each.size for each in header.members) < 30_000
    assert bundle.load(tmp_path / "copy.zip").damaged == []


class Living(CopiedStream):
    """A stream that is added to, as is every other, once an end was read."""

    def __init__(self, name: str, now: list[StoredMessage], grow: Callable[[], None]) -> None:
        super().__init__(name, now)
        self._grow = grow

    async def bounds(self) -> Bounds:
        held = await super().bounds()
        self._grow()
        return held

    def take(self, later: list[StoredMessage]) -> None:
        self._messages.update({each.seq: each for each in later})


async def test_a_copy_that_is_made_while_a_master_decides_is_whole(history: Streams, tmp_path: Path):
    """The ledger's end is read before that of its inputs, else a commit may have folded what is not copied."""
    facts = [message async for batch in history.events.read(after=0) for message in batch]
    commits = [message async for batch in history.ledger.read(after=0) for message in batch]

    def grow() -> None:
        events.take(facts)
        ledger.take(commits)

    events = Living("LW_EVENTS", facts[: json.loads(commits[-20].body)["hi"]], grow)
    ledger = Living("LW_LEDGER", commits[:-19], grow)
    await bundle.export(Streams(events, history.control, ledger), CLUSTER, tmp_path / "copy.zip")
    report = await verify(bundle.load(tmp_path / "copy.zip").streams, Reader(CLUSTER, SECRET))
    assert report.clean
    assert report.commits == len(commits) - 19


class Failing(CopiedStream):
    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        async for batch in super().read(after=after, until=until):
            yield batch[:1]
            raise ConnectionResetError("the bus is gone")


async def test_a_copy_that_breaks_off_leaves_nothing_and_spares_the_one_before(history: Streams, exported: Path):
    before, folder = exported.read_bytes(), exported.parent
    ledger = Failing("LW_LEDGER", [message async for batch in history.ledger.read(after=0) for message in batch])
    with pytest.raises(ConnectionResetError):
        await bundle.export(Streams(history.events, history.control, ledger), CLUSTER, exported)
    assert exported.read_bytes() == before
    assert list(folder.iterdir()) == [exported]
