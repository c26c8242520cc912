"""Safe mode is entered before anything is decided, said until somebody hears it, and left by an operator's word alone."""

import random

import msgspec
import pytest

from adapters.keys import Signer
from domain.events import LinkPriced, SafeModeEntered, Witness, codec
from domain.events.commit import encode_commit
from domain.ids import Generation, LinkId, ModelId, NodeId
from domain.ports import Witnessed
from domain.subjects import ledger_subject
from tests.mutations.changes import begun_falsely
from tests.support.history import CLUSTER, registered
from tests.support.local_nodes import signed
from tests.support.scene import OPERATOR, SEED, Book, Scene, messages, play

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
        await scene.renew("the disk is gone")
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
        first = await scene.renew("a torn block")
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
        await scene.renew("a torn block")
        torn = scene.ledger._messages[middle - 1]
        assert torn is not None
        scene.ledger._messages[middle - 1] = msgspec.structs.replace(torn, body=b"{")
        loop = scene.master()
        await scene.beat("a", "b", seconds=5)
        assert loop.mode == "active"

    play(scenario)


async def begin_falsely(scene: Scene, seed: int) -> None:
    """Append what begins a generation in the operator's name without the operator's key."""
    last = await scene.ledger.last()
    assert last is not None
    _, first = begun_falsely(random.Random(seed), last, CLUSTER, OPERATOR.public)
    await scene.ledger.publish(SUBJECT, encode_commit(first), expected_last=last.seq)


@pytest.mark.parametrize("seed", range(6))
def test_safe_mode_is_left_by_the_operators_signed_word_alone(seed: int):
    """Whoever has the master's key on the bus can write to the ledger, and whoever can write to the disk too."""

    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        await scene.stop()
        scene.book.kept = Witnessed(generation=Generation("00010000"), version=500, digest="ab" * 16)
        doubting = scene.master()
        await scene.beat("a", "b", seconds=3)
        assert "has seen version 500" in doubting.doubt
        await begin_falsely(scene, seed)
        await scene.beat("a", "b", seconds=5)
        assert doubting.mode == "safe_mode"
        assert (
            "; not left: LW_LEDGER: generation 0002abcd: its first commit must be signed by the operator"
            in doubting.doubt
        )
        stood = (await scene.ledger.bounds()).last
        others = [scene.master(book) for book in (Book(), seen("00010000"))]
        await scene.beat("a", "b", seconds=5)
        assert ["must be signed by the operator" in other.doubt for other in others] == [True, True]
        assert (await scene.ledger.bounds()).last == stood
        await scene.renew("we looked", "0003abcd")
        await scene.beat("a", "b", seconds=5)
        modes = {each.mode for each in (doubting, *others)}
        assert ("active" in modes, "safe_mode" in modes) == (True, False)

    play(scenario)


@pytest.mark.parametrize("reason", ["we looked", "history_gap: LW_EVENTS: ends at 3"])
def test_the_masters_own_signature_ends_no_safe_mode_on_a_strict_bus(reason: str):
    async def scenario(scene: Scene) -> None:
        doubting = scene.master(seen("00018888"))
        await scene.beat(seconds=3)
        await scene.renew(reason, signer=Signer(SEED))
        await scene.beat(seconds=5)
        assert doubting.mode == "safe_mode"

    play(scenario)


def test_neither_who_decides_nor_who_follows_goes_over_to_a_generation_that_no_operator_began():
    async def scenario(scene: Scene) -> None:
        active = scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        standby = scene.master()
        await scene.beat("a", "b", seconds=3)
        assert (active.mode, standby.mode) == ("active", "standby")
        await begin_falsely(scene, 0)
        stood = (await scene.ledger.bounds()).last
        await scene.burst("x")
        await scene.beat("a", "b", seconds=8)
        assert (active.mode, standby.mode) == ("safe_mode", "safe_mode")
        assert (await scene.ledger.bounds()).last == stood

    play(scenario)


def test_a_standby_goes_over_to_a_generation_that_the_operator_began():
    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        standby = scene.master()
        await scene.beat("a", "b", seconds=3)
        first = await scene.renew("we looked")
        await scene.beat("a", "b", seconds=8)
        assert standby.mode in {"standby", "active"}
        assert standby.history.position.generation == first.generation

    play(scenario)


def witness(version: int) -> Witness:
    """Return what a node says that has seen a decision of a later commit."""
    priced = LinkPriced(
        link=LinkId("l"), owner=NodeId("a"), owner_model=ModelId("m"), helper=NodeId("b"), helper_model=ModelId("m"),
        faster=True,
    )  # fmt: skip
    generation = Generation("00010000")
    body = signed(priced, generation=generation, version=version, seed=SEED, cluster=CLUSTER)
    return Witness(generation=generation, version=version, signed=body.decode())


@pytest.mark.parametrize("live", [True, False], ids=["while a master decides", "while none runs"])
def test_what_a_node_has_seen_is_a_doubt_before_the_first_decision_of_every_later_master(live: bool):
    """No commit folds such a word: a master that claims the ledger first would decide what stands before it."""

    async def scenario(scene: Scene) -> None:
        first = scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        if not live:
            await scene.stop()
            await scene.burst("x")
        scene.recorder.restart("b")
        await scene.say("b", msgspec.structs.replace(registered(), witness=witness(500)))
        await scene.beat("a", "b", seconds=3)
        if live:
            assert (first.mode, "b has seen version 500" in first.doubt) == ("safe_mode", True)
            await scene.burst("x")
            await scene.stop()
        stood = (await scene.ledger.bounds()).last
        for _ in range(3):
            loop = scene.master(Book())
            await scene.beat("a", "b", seconds=5)
            assert (loop.mode, "b has seen version 500" in loop.doubt) == ("safe_mode", True), loop.doubt
            assert loop.behind == "00010000"  # what an operator begins must sort behind it, wherever that is done
            await scene.stop()
        assert (await scene.ledger.bounds()).last == stood
        loop = scene.master()
        await scene.renew("we looked")
        await scene.beat("a", "b", seconds=5)
        assert loop.mode == "active"

    play(scenario)


def test_what_a_node_says_to_a_standby_is_a_doubt_before_it_claims_the_ledger():
    async def scenario(scene: Scene) -> None:
        active = scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        standby = scene.master()
        await scene.beat("a", "b", seconds=3)
        assert (active.mode, standby.mode) == ("active", "standby")
        stood = (await scene.ledger.bounds()).last
        await scene.stop_one(active)
        scene.recorder.restart("b")
        await scene.say("b", msgspec.structs.replace(registered(), witness=witness(500)))
        await scene.beat("a", "b", seconds=8)
        assert standby.mode == "safe_mode"
        assert (await scene.ledger.bounds()).last == stood

    play(scenario)
