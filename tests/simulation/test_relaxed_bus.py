"""What a bus of relaxed durability may lose is its newest facts: anything else is safe mode there too."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.keys import Signer, new_nkey
from adapters.log.checkpoints import CheckpointBook, sign
from adapters.log.generations import GAP, safe_mode_left
from domain.events import Checkpoint, SettingChanged
from domain.events.commit import decode_commit
from domain.ports import Witnessed
from services.master.checkpoints import Checkpoints
from services.master.loop import MasterLoop
from tests.support.history import CLUSTER, finished, held
from tests.support.scene import SEED, Book, Scene, play


async def lived(scene: Scene) -> int:
    """Let a master on a relaxed bus decide, and stop it; return the last fact that it has folded."""
    scene.relaxed = True
    scene.master()
    await scene.begin()
    for name in "xyz":
        await scene.burst(name)
        await scene.beat("a", "b", seconds=3)
        stored = scene.recorder.decree(SettingChanged(name="cluster.scheduling_backend_depth", value=3))
        await scene.control.publish(stored.subject, stored.body)
    await scene.stop()
    last = await scene.ledger.last()
    assert last is not None
    return decode_commit(last.body).hi


async def restarted(scene: Scene) -> MasterLoop:
    loop = scene.master()
    await scene.beat("a", "b", seconds=5)
    return loop


def change(scene: Scene, seq: int) -> None:
    """Change a stored fact."""
    message = scene.events._messages[seq - 1]
    assert message is not None
    assert b"req_" in message.body
    scene.events.replace(msgspec.structs.replace(message, body=message.body.replace(b"req_", b"req-")))


@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "others in their places"])
def test_lost_newest_facts_begin_a_new_generation_that_the_master_signs(replaced: bool):
    async def scenario(scene: Scene) -> None:
        hi = await lived(scene)
        before = len(await scene.commits())
        scene.events.truncate(hi - 5)
        await scene.beat(seconds=1)
        if replaced:
            scene.recorder.restart("a")
            await scene.say("a", *(held(f"req_late{i}", i + 1) for i in range(9)))
        loop = await restarted(scene)
        assert loop.mode == "active", loop.doubt
        left = safe_mode_left((await scene.commits())[before])
        assert left is not None
        assert left.reason.startswith(GAP)
        assert left.public == Signer(SEED).public
        assert await scene.clean()

    play(scenario)


def hole(scene: Scene, hi: int) -> None:
    scene.events.remove(hi // 2)


def hole_and_tail(scene: Scene, hi: int) -> None:
    scene.events.truncate(hi - 3)
    scene.events.remove(hi // 2)


def hole_before_the_last_one(scene: Scene, hi: int) -> None:
    scene.events.remove(hi - 1)


def changed_and_tail(scene: Scene, hi: int) -> None:
    scene.events.truncate(hi - 3)
    change(scene, hi // 2)


def front(scene: Scene, _: int) -> None:
    scene.events.expire(4)


def front_and_tail(scene: Scene, hi: int) -> None:
    scene.events.truncate(hi - 3)
    front(scene, hi)


def changed_commit_and_tail(scene: Scene, hi: int) -> None:
    scene.events.truncate(hi - 3)
    message = scene.ledger._messages[2]
    assert message is not None
    scene.ledger.replace(msgspec.structs.replace(message, body=message.body.replace(b'"term":1', b'"term":2')))


def control_and_tail(scene: Scene, hi: int) -> None:
    scene.events.truncate(hi - 3)
    scene.control.truncate(0)


def newest_control_and_long_tail(scene: Scene, hi: int) -> None:
    scene.events.truncate(hi // 3)
    last = scene.ledger._messages[-1]
    assert last is not None
    scene.control.truncate(decode_commit(last.body).chi - 1)


@pytest.mark.parametrize(
    "lost",
    [
        hole,
        hole_and_tail,
        hole_before_the_last_one,
        changed_and_tail,
        front,
        front_and_tail,
        changed_commit_and_tail,
        control_and_tail,
        newest_control_and_long_tail,
    ],
    ids=lambda lost: lost.__name__,
)
def test_whatever_else_is_lost_or_changed_is_safe_mode_also_where_newest_facts_are_lost(
    lost: Callable[[Scene, int], None],
):
    async def scenario(scene: Scene) -> None:
        hi = await lived(scene)
        before = len(await scene.commits())
        lost(scene, hi)
        for _ in range(2):
            loop = await restarted(scene)
            assert loop.mode == "safe_mode"
            assert (await scene.ledger.bounds()).last == before
            await scene.stop()

    play(scenario)


def test_a_hole_in_what_no_commit_has_folded_yet_is_safe_mode():
    async def scenario(scene: Scene) -> None:
        hi = await lived(scene)
        before = len(await scene.commits())
        await scene.say("a", *(finished(f"req_w{i}") for i in range(5)))
        last = (await scene.events.bounds()).last
        assert last > hi + 3
        scene.events.remove(last - 2)
        loop = await restarted(scene)
        assert (loop.mode, f"message {last - 2}" in loop.doubt) == ("safe_mode", True), loop.doubt
        assert (await scene.ledger.bounds()).last == before

    play(scenario)


def test_a_master_that_has_seen_commits_is_not_led_out_of_its_doubt_by_another_that_begins_by_itself():
    """A ledger is synced there too: what it has lost no power cut took, and that is for the operator to pass over."""

    async def scenario(scene: Scene) -> None:
        hi = await lived(scene)
        seen, newest = Book(), (await scene.commits())[-1]
        seen.kept = Witnessed(generation=newest.generation, version=newest.version + 200, digest="ab" * 16)
        doubting = scene.master(seen)
        await scene.beat("a", "b", seconds=3)
        assert doubting.mode == "safe_mode"
        scene.events.truncate(hi - 5)
        scene.book = Book()
        other = await restarted(scene)
        assert other.mode == "active"
        assert (doubting.mode, f"version {newest.version + 200} was seen" in doubting.doubt) == ("safe_mode", True)
        await scene.stop()
        again = scene.master(seen)
        await scene.beat("a", "b", seconds=3)
        assert again.mode == "safe_mode"
        await scene.renew(f"{GAP}we looked", "0009abcd")  # by the operator's key, whatever the words are
        await scene.beat("a", "b", seconds=5)
        assert again.mode == "active"

    play(scenario)


def test_what_a_master_begins_by_itself_sorts_also_behind_a_generation_of_an_operator_whose_key_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is believed for a checkpoint that was signed in it, though nobody knows any more who began it."""

    async def at_once(call: Callable[..., Any], *given: object) -> Any:
        return call(*given)

    async def scenario(scene: Scene) -> None:
        book = Checkpoints(CheckpointBook(tmp_path), Signer(SEED), CLUSTER, scene.clock)

        async def restarted_with_book() -> MasterLoop:
            loop = scene.master()
            loop.parts = msgspec.structs.replace(loop.parts, checkpoints=book)
            await scene.beat("a", "b", seconds=5)
            return loop

        await lived(scene)
        first = await scene.renew("before the key was lost", "0002ffff", signer=Signer(new_nkey()[0]))
        signed = Checkpoint(
            cluster=CLUSTER, generation=first.generation, version=first.version, digest=first.digest, hi=first.hi,
            chi=first.chi, state=first.state, at_us=1,
        )  # fmt: skip
        await book.book.add(sign(signed, Signer(SEED)))
        loop = await restarted_with_book()
        assert (loop.mode, loop.history.position.generation) == ("active", "0002ffff"), loop.doubt
        await scene.burst("w")
        await scene.beat("a", "b", seconds=3)
        await scene.stop()
        scene.events.truncate((await scene.commits())[-1].hi - 3)
        loop = await restarted_with_book()
        assert loop.mode == "active", loop.doubt
        assert loop.history.position.generation.startswith("0003")

    monkeypatch.setattr(asyncio, "to_thread", at_once)  # virtual time waits for no thread
    play(scenario)
