"""Safe mode is entered before anything is decided, said until somebody hears it, and left by an operator's word alone."""

import msgspec
import pytest

from adapters.log.history import begin_generation
from domain.events import SafeModeEntered, codec
from domain.ids import Generation
from domain.ports import Witnessed
from domain.subjects import ledger_subject
from tests.support.history import CLUSTER
from tests.support.scene import Book, Scene, messages, play

SUBJECT = ledger_subject(CLUSTER)


def seen(generation: str) -> Book:
    book = Book()
    book.kept = Witnessed(generation=Generation(generation), version=500, digest="ab" * 16)
    return book


@pytest.mark.parametrize("begun", ["0001ffff", "00010000"], ids=["sorts later", "sorts earlier"])
def test_a_master_that_has_seen_nothing_frees_no_other_from_safe_mode(begun: str):
    """The ledger is lost. Who never saw it begins a history by itself; whoever saw it does not take that for its successor."""

    async def scenario(scene: Scene) -> None:
        doubting = scene.master(seen("00018888"), generation="00017777")
        await scene.beat(seconds=3)
        assert (doubting.mode, "is empty" in doubting.doubt) == ("safe_mode", True)
        scene.master(Book(), generation=begun)
        await scene.begin()
        await scene.beat("a", "b", seconds=5)
        assert (await scene.commits())[0].generation == begun
        assert doubting.mode == "safe_mode"
        await begin_generation(scene.streams, Generation("0002abcd"), "the disk is gone", publish_to=SUBJECT)
        await scene.beat("a", "b", seconds=5)
        assert doubting.mode in {"standby", "active"}
        assert await scene.clean()

    play(scenario)


def test_a_master_that_starts_on_a_history_of_nobodys_word_after_one_that_it_has_seen_is_in_safe_mode():
    async def scenario(scene: Scene) -> None:
        scene.master(Book(), generation="0001ffff")
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        await scene.stop()
        before = len(await scene.commits())
        loop = scene.master(seen("00018888"))
        await scene.beat("a", "b", seconds=3)
        assert loop.mode == "safe_mode"
        assert "begins without an operator's word" in loop.doubt
        assert len(await scene.commits()) == before

    play(scenario)


def test_a_ledger_whose_newest_message_is_no_commit_is_left_behind_by_an_operators_word():
    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        await scene.stop()
        before = await scene.commits()
        await scene.ledger.publish(SUBJECT, b'{"version":' + b"[" * 100_000)
        loop = scene.master()
        await scene.beat("a", "b", seconds=3)
        assert (loop.mode, "not a commit" in loop.doubt) == ("safe_mode", True)
        first = await begin_generation(scene.streams, Generation("0002abcd"), "a torn block", publish_to=SUBJECT)
        assert (first.version, first.prev) == (len(before) + 2, before[-1].digest)
        await scene.beat("a", "b", seconds=5)
        assert loop.mode == "active"
        await scene.burst("x")
        await scene.beat("a", "b", seconds=3)
        assert loop.mode == "active"
        assert (await scene.ledger.bounds()).last > first.version + 1
        assert await scene.clean()

    play(scenario)


def test_safe_mode_is_said_once_the_feed_takes_it_however_long_that_is():
    async def scenario(scene: Scene) -> None:
        scene.feed.faults.refuse(3)
        loop = scene.master(seen("00018888"))
        await scene.beat(seconds=10)
        assert loop.mode == "safe_mode"
        said = [codec.decode_decision(codec.decode_envelope(each.body).data) for each in await messages(scene.feed)]
        assert said == [SafeModeEntered(reason=loop.doubt)]

    play(scenario)


def test_a_message_that_is_no_commit_hides_no_generation_behind_it():
    """A search for a generation's beginning may come upon it."""

    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        for name in "uvw":
            await scene.burst(name)
            await scene.beat("a", "b", seconds=3)
        await scene.stop()
        middle = (await scene.ledger.bounds()).last // 2
        await begin_generation(scene.streams, Generation("0002abcd"), "a torn block", publish_to=SUBJECT)
        torn = scene.ledger._messages[middle - 1]
        assert torn is not None
        scene.ledger._messages[middle - 1] = msgspec.structs.replace(torn, body=b"{")
        loop = scene.master()
        await scene.beat("a", "b", seconds=5)
        assert loop.mode == "active"

    play(scenario)
