"""Who may begin a generation of the ledger: the operator by a signature, and a master by itself where lost facts let it."""

from pathlib import Path

import msgspec
import pytest

from adapters.clock import SystemClock
from adapters.keys import Signer, new_nkey
from adapters.log.begun import check_generations
from adapters.log.checkpoints import Kept
from adapters.log.copied import CopiedStream
from adapters.log.generations import GAP, Beginners, safe_mode_left, signed_begin
from adapters.log.renewal import later_than
from adapters.log.report import Report
from domain.events import LinkPriced
from domain.events.commit import Commit, decode_commit, encode_commit, seal
from domain.events.decision import SafeModeLeft
from domain.ids import Generation, LinkId, ModelId, NodeId
from domain.master.step import genesis
from tests.mutations.life import Life, doubt_of_a_master, lived, signed, stored
from tests.support.history import CLUSTER, START_NS

OPERATOR, MASTER, STRANGER = (Signer(new_nkey()[0]) for _ in range(3))
STRICT = Beginners(cluster=CLUSTER, operator=OPERATOR.public)
RELAXED = msgspec.structs.replace(STRICT, master=MASTER.public)


def begun(reason: str = "we looked", signer: Signer | None = OPERATOR, *, cluster: str = CLUSTER) -> Commit:
    first = genesis(None, Generation("0002abcd"), reason, events_first=1, control_first=1)
    return signed_begin(first, cluster, signer) if signer is not None else first


def complaint(first: Commit, who: Beginners = STRICT) -> str:
    return who.complaint(first, encode_commit(first))


def word(first: Commit) -> SafeModeLeft:
    left = safe_mode_left(first)
    assert left is not None
    return left


def test_the_operators_word_is_believed_for_its_signature():
    assert complaint(begun()) == ""
    assert complaint(begun(), RELAXED) == ""


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (begun(signer=None), "is signed by nobody"),
        (begun(signer=STRANGER), f"is signed by {STRANGER.public[:12]}"),
        (begun(signer=MASTER), f"is signed by {MASTER.public[:12]}"),
        (begun(cluster="elsewhere"), f"is not what {OPERATOR.public[:12]} signed"),
        (begun(f"{GAP}LW_EVENTS", MASTER), "on a bus of relaxed durability alone"),
    ],
    ids=["nobody", "a stranger", "the master", "for another cluster", "the master after lost facts"],
)
def test_nobody_elses_word_is_believed_for_the_operators(first: Commit, why: str):
    assert why in complaint(first)


def test_a_master_begins_one_by_itself_after_lost_facts_alone():
    assert complaint(begun(f"{GAP}LW_EVENTS", MASTER), RELAXED) == ""
    assert complaint(begun("we looked", MASTER), RELAXED) != ""
    assert complaint(begun(f"{GAP}LW_EVENTS", STRANGER), RELAXED) != ""
    assert complaint(begun(f"{GAP}LW_EVENTS", OPERATOR), RELAXED) == ""


def test_where_the_operators_key_is_not_known_nobody_is_taken_for_the_operator():
    unknown = Beginners(cluster=CLUSTER, operator="")
    assert "not known here" in complaint(begun(signer=None), unknown)
    assert "not known here" in complaint(begun(), unknown)


def test_nothing_of_a_signed_beginning_can_be_changed_though_its_digest_is_mended():
    first = begun()
    priced = LinkPriced(
        link=LinkId("l"), owner=NodeId("a"), owner_model=ModelId("m"), helper=NodeId("b"), helper_model=ModelId("m"),
        faster=True,
    )  # fmt: skip
    changes = {
        "version": 7, "generation": "0003abcd", "term": 9, "policy": "x", "lo": 5, "hi": 5, "clo": 5, "chi": 5, "n": 1,
        "now_us": 1, "rejected": ((1, "x"),), "state": "ab" * 16, "prev": "ab" * 16,
        "decisions": (word(first), priced),
    }  # fmt: skip
    assert set(changes) == set(Commit.__struct_fields__) - {"digest"}
    for field, value in changes.items():
        assert complaint(seal(msgspec.structs.replace(first, **{field: value}), ())) != "", field
    for field in ("reason", "old_generation", "old_digest", "public", "signature"):
        other = msgspec.structs.replace(word(first), **{field: "00"})
        assert complaint(seal(msgspec.structs.replace(first, decisions=(other,)), ())) != "", field
    assert complaint(msgspec.structs.replace(first, digest="ab" * 16)) != ""


def test_a_reason_that_looks_like_a_signature_is_a_reason():
    assert complaint(begun('"signature":"' + "ab" * 64 + '","digest":""}')) == ""


# ---- what it is called -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "claimed", "begins"),
    [
        ([], [], "0001"),
        (["0001beef", "0007abcd"], ["0003abcd"], "0008"),
        (["0001beef"], ["00fffff"], "0100"),
        (["0001beef"], ["ffffffff"], "ffffffff1"),
        (["ffffffff"], [], "ffffffff1"),
        (["0001beef"], ["f" * 16], "0002"),
        (["0001beef"], ["not a name of ours"], "0002"),
    ],
)
def test_a_new_generation_sorts_behind_all_that_is_known_and_behind_what_is_claimed_as_far_as_a_name_is_left(
    known: list[str], claimed: list[str], begins: str
):
    later = later_than([Generation(each) for each in known], [Generation(each) for each in claimed])
    assert later.startswith(begins)
    assert later > max(known, default="")
    assert len(later) <= 16


# ---- what was begun before words were signed --------------------------------------------------------------------------


def followed(life: Life, *, checked: bool) -> Life:
    """Return the life with a generation of nobody's signature, in which the master has signed a checkpoint if `checked`."""
    commits = [decode_commit(message.body) for message in life.ledger]
    first = genesis(commits[-1], Generation("0002abcd"), "before signatures", events_first=1, control_first=1)
    more = life.with_stream("LW_LEDGER", stored([*commits, first], START_NS))
    return msgspec.structs.replace(
        more, checkpoints=(*life.checkpoints, signed(first)) if checked else life.checkpoints
    )


async def test_that_nobody_can_tell_any_more_who_began_a_generation_is_said_where_nothing_signed_is_of_it():
    """A forger may have taken the beginning away; what the master has signed in it speaks for the rest."""
    life, report = lived(3), Report(generation=Generation("00010000"))
    newest = Kept(checkpoint=signed(decode_commit(life.ledger[-1].body)), source="a book")
    await check_generations(CopiedStream("LW_LEDGER", list(life.ledger)), STRICT, report)
    cut = CopiedStream("LW_LEDGER", list(life.ledger[10:]))
    await check_generations(cut, STRICT, report, [newest])
    assert report.unchecked == []
    await check_generations(cut, STRICT, report)
    assert "generation 00010000: its first commit is not kept any more" in report.unchecked[0]


async def test_a_generation_of_before_is_gone_on_with_by_a_master_that_has_signed_what_stands_in_it(tmp_path: Path):
    assert await doubt_of_a_master(followed(lived(3), checked=True), tmp_path / "a", SystemClock()) == "decides"
    doubt = await doubt_of_a_master(followed(lived(3), checked=False), tmp_path / "b", SystemClock())
    assert "must be signed by the operator" in doubt
