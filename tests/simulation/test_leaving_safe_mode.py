"""Whatever has become of history, the operator's word leads out of safe mode, and nobody else's does."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from adapters.decisions import DecisionReader
from adapters.headers import encode_headers
from adapters.keys import Signer, new_nkey
from adapters.log.checkpoints import sign
from adapters.log.feed import ORDER, newest_signed, order_of
from adapters.log.generations import safe_mode_left
from adapters.log.renewal import later_than, newest_readable
from adapters.log.scan import AGE_SLACK_NS, Ages
from domain.errors import HistoryError
from domain.events import Checkpoint, NodeHealthChanged, SafeModeEntered, SettingChanged
from domain.events.commit import Commit, decode_commit, encode_commit, seal
from domain.ids import Generation, Incarnation, NodeId
from domain.ports import Witnessed
from domain.subjects import decision_subject, ledger_subject
from services.master.loop import MasterLoop
from services.master.observer import Observer
from services.master.witnesses import Archived
from tests.support.history import CLUSTER, SECRET
from tests.support.scene import SEED, Book, Scene, play
from tests.support.virtual_loop import pass_time

SUBJECT = ledger_subject(CLUSTER)
Damage = Callable[[Scene], Awaitable[None]]


async def lived(scene: Scene) -> None:
    """Let a master decide over facts and several control events, and stop it."""
    scene.master()
    await scene.begin()
    for name in "uvw":
        await scene.burst(name)
        await scene.beat("a", "b", seconds=3)
        stored = scene.recorder.decree(SettingChanged(name="cluster.scheduling_backend_depth", value=3))
        await scene.control.publish(stored.subject, stored.body)
    await scene.stop()


async def restarted(scene: Scene, book: Book | None = None) -> MasterLoop:
    loop = scene.master(book)
    await scene.beat("a", "b", seconds=5)
    return loop


async def head(scene: Scene) -> Commit:
    last = await scene.ledger.last()
    assert last is not None
    return decode_commit(last.body)


async def the_first_facts_are_purged(scene: Scene) -> None:
    scene.events.expire(5)


async def the_first_control_event_is_purged(scene: Scene) -> None:
    scene.control.expire(2)


async def the_first_commits_are_purged(scene: Scene) -> None:
    scene.ledger.expire(3)


async def all_commits_are_purged(scene: Scene) -> None:
    scene.ledger.expire((await scene.ledger.bounds()).last + 1)


async def the_newest_commits_are_deleted(scene: Scene) -> None:
    last = (await scene.ledger.bounds()).last
    scene.ledger.remove(last)
    scene.ledger.remove(last - 1)


async def a_control_event_is_gone(scene: Scene) -> None:
    scene.control.remove(2)


async def a_fact_is_gone(scene: Scene) -> None:
    scene.events.remove(3)


async def nothing_but_garbage_stands_in_the_ledger(scene: Scene) -> None:
    await all_commits_are_purged(scene)
    await scene.ledger.publish(SUBJECT, b"{")


async def a_generation_has_a_name_that_tears_the_order_of_its_decisions(scene: Scene) -> None:
    last = await head(scene)
    forged = msgspec.structs.replace(
        last, version=last.version + 1, prev=last.digest, generation=Generation("ffff-7.0")
    )
    await scene.ledger.publish(SUBJECT, encode_commit(seal(forged, ())))


async def a_generation_has_the_last_name_of_all(scene: Scene) -> None:
    last = await head(scene)
    forged = msgspec.structs.replace(last, version=last.version + 1, prev=last.digest, generation=Generation("z" * 16))
    await scene.ledger.publish(SUBJECT, encode_commit(seal(forged, ())))


async def the_witness_is_torn(scene: Scene) -> None:
    scene.book.torn = True


DAMAGES: tuple[Damage, ...] = (
    the_first_facts_are_purged,
    the_first_control_event_is_purged,
    the_first_commits_are_purged,
    all_commits_are_purged,
    the_newest_commits_are_deleted,
    a_control_event_is_gone,
    a_fact_is_gone,
    nothing_but_garbage_stands_in_the_ledger,
    a_generation_has_a_name_that_tears_the_order_of_its_decisions,
    a_generation_has_the_last_name_of_all,
    the_witness_is_torn,
)


@pytest.mark.parametrize("seen", [True, False], ids=["by who has seen it", "by who has seen nothing"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_the_operators_word_leads_out_of_safe_mode_whatever_has_become_of_history(damage: Damage, seen: bool):
    async def scenario(scene: Scene) -> None:
        await lived(scene)
        stood = (await scene.ledger.bounds()).last
        if not seen and damage is not the_witness_is_torn:
            scene.book = Book()
        await damage(scene)
        stood = (await scene.ledger.bounds()).last
        loop = await restarted(scene)
        assert loop.mode == "safe_mode"
        assert (await scene.ledger.bounds()).last == stood
        readable = await newest_readable(scene.ledger)
        claimed = [readable.generation] if readable is not None else []
        first = await scene.renew("we looked", later_than([Generation("00010000")], claimed))
        assert (first.version, first.generation.isalnum()) == (stood + 1, True)
        await scene.beat("a", "b", seconds=5)
        assert loop.mode == "active", loop.doubt
        await scene.stop()
        again = await restarted(scene)
        assert again.mode == "active", again.doubt
        await scene.burst("x")
        await scene.beat("a", "b", seconds=3)
        assert again.mode == "active", again.doubt
        assert (await scene.ledger.bounds()).last > first.version + 1
        assert await scene.clean()

    play(scenario)


def test_a_master_whose_witness_is_torn_stays_in_safe_mode_until_a_later_word_than_those_that_were_given():
    """An earlier word stands in the ledger: it must not be taken for one about this doubt."""

    async def scenario(scene: Scene) -> None:
        await lived(scene)
        await scene.renew("once before")
        await restarted(scene)
        await scene.stop()
        scene.book.torn = True
        loop, modes = scene.master(), set[tuple[str, bool]]()
        await scene.beat("a", "b", seconds=1)
        for _ in range(20):
            await scene.beat("a", "b", seconds=0.5)
            modes.add((loop.mode, "must be a witnessed commit" in loop.doubt))
        assert modes == {("safe_mode", True)}
        await scene.renew("we looked", "0003abcd")
        await scene.beat("a", "b", seconds=3)
        assert loop.mode == "active", loop.doubt

    play(scenario)


def test_a_master_whose_witness_cannot_be_put_aside_says_so_and_leaves_safe_mode_once_it_can():
    """Of a directory in which it may not write; its process must not end for that."""

    async def scenario(scene: Scene) -> None:
        await lived(scene)
        scene.book.torn = scene.book.stuck = True
        loop = await restarted(scene)
        await scene.renew("we looked")
        await scene.beat("a", "b", seconds=3)
        assert (loop.mode, "nor can it be put aside" in loop.doubt) == ("safe_mode", True)
        scene.book.stuck = False
        await scene.beat("a", "b", seconds=3)
        assert loop.mode == "active", loop.doubt

    play(scenario)


def test_a_word_that_sorts_before_what_was_seen_leads_nowhere_and_the_master_says_behind_what_it_must_sort():
    async def scenario(scene: Scene) -> None:
        await lived(scene)
        scene.book.kept = Witnessed(generation=Generation("0005abcd"), version=3, digest="ab" * 16)
        loop = await restarted(scene)
        assert (loop.mode, loop.behind) == ("safe_mode", "0005abcd")
        await scene.renew("we looked", "0002abcd")
        await scene.beat("a", "b", seconds=3)
        assert (loop.mode, "not left: generation 0002abcd was begun, but 0005abcd was seen" in loop.doubt) == (
            "safe_mode",
            True,
        )
        await scene.renew("we looked", later_than([], [loop.behind]))
        await scene.beat("a", "b", seconds=3)
        assert (loop.mode, loop.behind) == ("active", ""), loop.doubt

    play(scenario)


# ---- nobody else's ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("archived", [False, True], ids=["unseen", "ClickHouse has seen it"])
def test_a_forged_generation_whose_beginning_seems_gone_for_its_age_is_not_taken_for_an_operators(archived: bool):
    """A bus older than the ledger's age limit, and who can write to its disk: no word is there, and none seems due."""

    async def scenario(scene: Scene) -> None:
        scene.ages = Ages(events_ns=10**9, ledger_ns=10**9)
        await lived(scene)
        await pass_time(AGE_SLACK_NS / 1e9 + 10)
        last = await head(scene)
        forged = seal(
            msgspec.structs.replace(
                last, version=last.version + 1, prev=last.digest, generation=Generation("00020000"), lo=last.hi,
                clo=last.chi, decisions=(), rejected=(), state="",
            ),
            (),
        )  # fmt: skip
        await scene.ledger.publish(SUBJECT, encode_commit(forged))
        scene.ledger.expire(forged.version)
        if archived:
            scene.archive = Archived(Witnessed(generation=forged.generation, version=forged.version, digest=""))
        loop = await restarted(scene)
        assert loop.mode == "safe_mode"
        assert "begins without an operator's word" in loop.doubt
        assert (await scene.ledger.bounds()).last == forged.version
        await scene.renew("we looked", "0003abcd")
        await scene.beat("a", "b", seconds=5)
        assert loop.mode == "active", loop.doubt

    play(scenario)


@pytest.mark.parametrize(
    ("signer", "cluster", "mode"),
    [(SEED, CLUSTER, "active"), (new_nkey()[0], CLUSTER, "safe_mode"), (SEED, "elsewhere", "safe_mode")],
    ids=["the master", "a stranger", "the master of another cluster"],
)
def test_a_generation_whose_word_is_gone_for_its_age_is_known_by_what_the_master_has_signed_in_it(
    signer: str, cluster: str, mode: str
):
    """A standby whose machine was off for weeks."""

    async def scenario(scene: Scene) -> None:
        scene.ages = Ages(events_ns=10**9, ledger_ns=10**9)
        await lived(scene)
        first = await scene.renew("we looked")
        scene.master(Book())
        await scene.beat("a", "b", seconds=3)
        await scene.stop()
        await pass_time(AGE_SLACK_NS / 1e9 + 10)
        newest = await head(scene)
        draft = Checkpoint(
            cluster=cluster, generation=newest.generation, version=newest.version, digest=newest.digest, hi=newest.hi,
            chi=newest.chi, state=newest.state, at_us=1,
        )  # fmt: skip
        observer = Observer(
            scene.air, scene.events, CLUSTER, SECRET, Incarnation("other"), scene.clock  # type: ignore[arg-type]
        )  # fmt: skip
        await observer.state(newest.term, sign(draft, Signer(signer)))
        scene.ledger.expire(first.version + 1)
        scene.feed.expire((await scene.feed.bounds()).last + 1)
        loop = await restarted(scene)
        assert loop.mode == mode, loop.doubt

    play(scenario)


def test_a_commit_that_a_witness_has_seen_must_stand_there_though_others_came_behind_it():
    """Between two checkpoints a ledger can be written anew, and made longer than it was."""

    async def scenario(scene: Scene) -> None:
        await lived(scene)
        scene.book.kept = Witnessed(generation=Generation("00010000"), version=2, digest="ab" * 16)
        loop = await restarted(scene)
        assert (loop.mode, "has seen version 2" in loop.doubt) == ("safe_mode", True)

    play(scenario)


def unknown_node(last: Commit) -> Commit:
    changed = NodeHealthChanged(node=NodeId("zz"), state="offline", reason="silent")
    return msgspec.structs.replace(last, lo=last.hi, clo=last.chi, decisions=(changed,), rejected=(), state="")


def no_range(last: Commit) -> Commit:
    return msgspec.structs.replace(last, lo=last.hi, hi=last.hi - 2, clo=last.chi, decisions=(), rejected=(), state="")


def no_range_of_control_events(last: Commit) -> Commit:
    return msgspec.structs.replace(
        last, lo=last.hi, clo=last.chi, chi=last.chi - 1, decisions=(), rejected=(), state=""
    )


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (unknown_node, "cannot be applied"),
        (no_range, "one of them is no range"),
        (no_range_of_control_events, "and control events (0, -1]: one of them is no range"),
    ],
    ids=["an unknown node", "no range", "no range of control events"],
)
def test_a_commit_that_no_master_can_apply_is_a_doubt_and_no_end_of_the_process(
    forged: Callable[[Commit], Commit], why: str
):
    """Its digest is right: whoever has the master's key on the bus can store it, and every start would come upon it."""

    async def scenario(scene: Scene) -> None:
        loop = scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        last = await head(scene)
        made = forged(msgspec.structs.replace(last, version=last.version + 1, prev=last.digest))
        await scene.ledger.publish(SUBJECT, encode_commit(seal(made, ())))
        await scene.burst("x")
        await scene.beat("a", "b", seconds=5)
        assert loop.mode == "safe_mode"
        assert why in loop.doubt
        again = await restarted(scene)
        assert again.mode == "safe_mode"
        await scene.renew("we looked")
        await scene.beat("a", "b", seconds=5)
        assert {loop.mode, again.mode} == {"active", "standby"}, (loop.doubt, again.doubt)

    play(scenario)


# ---- what somebody else has put into the feed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    ["ffffffff-1.0", "00010000-999.0", "a-b-1.0", None],
    ids=["a later generation", "a later version", "no order", "no header"],
)
def test_what_stands_in_the_feed_and_is_not_ours_stops_nobody_and_moves_nothing_on(header: str | None):
    async def scenario(scene: Scene) -> None:
        async def put() -> int:
            headers = {ORDER: header} if header is not None else None
            return (await scene.feed.publish("lw.local.safe_mode.entered", b"{}", headers=headers)).seq

        async def newest() -> tuple[str, int, int]:
            signed, _ = await newest_signed(scene.feed, DecisionReader(CLUSTER, Signer(SEED).public))
            assert signed is not None
            return signed.order

        loop = scene.master()
        await scene.begin()
        await scene.burst("w")
        await scene.beat("a", "b", seconds=3)
        stood, before = await put(), await newest()
        await scene.beat("a", seconds=15)  # b falls silent: that is decided, and published
        assert (loop.mode, loop.doubt) == ("active", "")
        assert (await scene.feed.bounds()).last > stood
        assert await newest() > before
        before = await newest()
        await scene.stop()
        await put()
        again = await restarted(scene)  # and b is back
        await scene.beat("a", "b", seconds=5)
        assert (again.mode, again.doubt) == ("active", "")
        assert await newest() > before

    play(scenario)


def test_safe_mode_is_said_at_the_place_of_our_newest_decision_not_where_somebody_else_says():
    """Signed by us at a place of a forger's choice it would be a witness of what never was."""

    async def scenario(scene: Scene) -> None:
        await lived(scene)
        await scene.feed.publish("lw.local.safe_mode.entered", b"{}", headers={ORDER: "ffffffff-999.0"})
        scene.book.kept = Witnessed(generation=Generation("00010000"), version=999, digest="ab" * 16)
        loop = await restarted(scene)
        assert loop.mode == "safe_mode"
        signed, strange = await newest_signed(scene.feed, DecisionReader(CLUSTER, Signer(SEED).public))
        assert signed is not None
        assert (signed.order[0], strange) == ("00010000", 0)

    play(scenario)


def test_the_word_is_in_the_feed_once_the_master_has_left_safe_mode():
    async def scenario(scene: Scene) -> None:
        await lived(scene)
        await all_commits_are_purged(scene)
        await restarted(scene)
        first = await scene.renew("we looked")
        await scene.beat("a", "b", seconds=3)
        left = safe_mode_left(first)
        assert left is not None
        reader, last = DecisionReader(CLUSTER, Signer(SEED).public), (await scene.feed.bounds()).last
        bodies = [message.body for seq in range(1, last + 1) if (message := await scene.feed.get(seq)) is not None]
        assert left in [signed.decision for body in bodies if (signed := reader.read(body)) is not None]

    play(scenario)


# ---- what somebody else has put elsewhere ------------------------------------------------------------------------------


def test_a_header_of_more_digits_than_are_read_is_no_place_in_the_feed():
    with pytest.raises(HistoryError, match="must be <generation>-<version>"):
        order_of(encode_headers({ORDER: f"00010000-{'9' * 5000}.0"}))


def test_what_stands_among_the_snapshots_and_is_none_ends_no_master():
    async def scenario(scene: Scene) -> None:
        await lived(scene)
        many = "9" * 5000
        await scene.snap.publish("lw.test.snap.1.0", b"x", headers={"Lw-Snapshot": f"{many} ab 0 1"})
        loop = await restarted(scene)
        assert loop.mode == "active"

    play(scenario)


def test_what_stands_in_the_feed_as_safe_mode_and_is_nested_too_deep_ends_no_master():
    async def scenario(scene: Scene) -> None:
        await lived(scene)
        deep = b'{"data":' + b"[" * 50_000
        await scene.feed.publish(decision_subject(CLUSTER, SafeModeEntered(reason="x")), deep)
        scene.book.torn = True
        loop = await restarted(scene)
        assert loop.mode == "safe_mode"
        await scene.renew("we looked")
        await scene.beat("a", "b", seconds=3)
        assert loop.mode == "active"

    play(scenario)
