"""Messages to rows: every variable of every decision is there, and no message can stop the projector."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from domain.events import (
    BorrowReturned,
    CutOff,
    Decision,
    FactsSummarised,
    HeartbeatMissed,
    Input,
    Kept,
    LeaseCleared,
    LeaseRefused,
    LeaseUpdated,
    LendAnswered,
    LendBusy,
    LendReturned,
    NativeWaited,
    NodeHealthChanged,
    Rejected,
    RelayRefused,
    RequestOrphaned,
    RequestPresumedLost,
    SafeModeEntered,
    SafeModeLeft,
    SettingChanged,
)
from domain.events.codec import encode
from domain.events.commit import encode_commit
from domain.ids import LeaseId
from domain.ports import StoredMessage
from domain.subjects import CONTROL, EVENTS, LEDGER
from projections.decision_log import KINDS
from projections.project import Context, Projected, project
from projections.tables import blank, column_names
from tests.support.facts import (
    HELPER,
    LINK,
    MODEL,
    OWNER,
    Ledger,
    Teller,
    changed_body,
    control,
    finished,
    granted,
    held,
    lease,
    lent,
    plan,
    request,
    verdict,
)

CANARY = "my prompt is a secret 7f3a"
CONTEXT = Context(router="0.1.0", events_epoch=3)
_LENDING: dict[str, Any] = {
    "request": request(1),
    "model": MODEL,
    "helper": HELPER,
    "link": LINK,
    "lease": lease(),
}


def shown(projected: Projected, table: str, *names: str) -> list[Any]:
    """Return the named columns of a table's rows; whole rows as dicts if none is named."""
    rows = [dict(zip(column_names(table), row, strict=True)) for row in projected.rows.get(table, ())]
    if not names:
        return rows
    return [tuple(row[name] for name in names) if len(names) > 1 else row[names[0]] for row in rows]


def of_facts(*facts: Any, node: str = OWNER) -> Projected:
    teller = Teller(node)
    return project(EVENTS, 3, [teller.tells(fact, seq) for seq, fact in enumerate(facts, 1)], CONTEXT)


def of_decisions(*decisions: Decision) -> Projected:
    return project(LEDGER, 2, [Ledger().commits(*decisions)], CONTEXT)


def differing(projected: Projected, table: str = "decisions") -> list[dict[str, Any]]:
    """Return what each row states, without what is blank and without its place."""
    place = {"stream", "epoch", "seq", "at_ns", "router", "incarnation", "pseq", "producer", "fold_id"}
    nothing = blank(table)
    return [
        {name: value for name, value in row.items() if value != nothing[name] and name not in place}
        for row in shown(projected, table)
    ]


def test_a_plan_gives_a_row_for_each_candidate_with_every_number_of_the_plan_and_of_the_verdict():
    skipped = verdict(helper="n3", outcome="skipped", code="cost_rejected", slots=0)
    rows = differing(of_decisions(plan(verdict(), skipped)))
    head = {
        "side": "master",
        "kind": "plan",
        "generation": "00010000",
        "version": 1,
        "term": 1,
        "policy": "1",
        "owner": "n1",
        "owner_model": MODEL,
        "trigger": "enqueued",
        "held": 8,
        "lendable": 7,
        "in_engine": 2,
        "drain_us": 11_000_000,
        "lent_drain_us": 5_500_000,
        "owner_job_us": 1_100_000,
        "link": LINK,
        "source": "helper",
        "repeats": 1,
        "quota": 3,
        "first_answer_us": 2_000_000,
        "job_us": 1_000_000,
        "gain_us": 5_000_000,
    }
    assert rows == [
        {**head, "helper": "n2", "outcome": "granted", "slots": 2},
        {**head, "helper": "n3", "outcome": "skipped", "reason": "cost_rejected", "item": 1},
    ]


def test_candidates_that_a_plan_left_out_are_counted_by_code_and_a_plan_without_any_still_has_a_row():
    rows = of_decisions(plan(left_out=(("outranked", 5), ("node_silent", 2))), plan())
    assert shown(rows, "decisions", "decision", "outcome", "reason", "repeats") == [
        (0, "left_out", "outranked", 5),
        (0, "left_out", "node_silent", 2),
        (1, "none", "", 0),
    ]


def test_a_lease_row_has_its_basis_its_price_and_its_lifetime():
    assert differing(of_decisions(granted())) == [
        {
            "side": "master",
            "kind": "granted",
            "generation": "00010000",
            "version": 1,
            "term": 1,
            "policy": "1",
            "owner": "n1",
            "owner_model": MODEL,
            "helper": "n2",
            "helper_model": MODEL,
            "link": LINK,
            "lease": lease(),
            "source": "helper",
            "slots": 2,
            "job_us": 1_000_000,
            "gain_us": 5_000_000,
            "ttl_us": 30_000_000,
            "basis_incarnation": "ab" * 16,
            "basis_pseq": 3,
        }
    ]


def test_every_decision_of_a_commit_has_at_least_one_row_and_rows_of_a_message_are_numbered():
    cleared = msgspec.convert(msgspec.to_builtins(granted()) | {"event": "lease.cleared", "slots": 0}, LeaseCleared)
    decisions: Sequence[Decision] = (
        plan(verdict(), verdict()),
        granted(),
        cleared,
        NodeHealthChanged(node=HELPER, state="stale", reason="heartbeat_missed"),
        RequestPresumedLost(node=OWNER, model=MODEL, request=request(1)),
        RequestOrphaned(node=OWNER, model=MODEL, request=request(1)),
        SafeModeEntered(reason="history_gap"),
        SafeModeLeft(reason="looked", old_generation="a", old_version=1, old_digest="b"),
    )
    rows = of_decisions(*decisions)
    assert shown(rows, "decisions", "item", "decision", "kind") == [
        (0, 0, "plan"),
        (1, 0, "plan"),
        (2, 1, "granted"),
        (3, 2, "cleared"),
        (4, 3, "health"),
        (5, 4, "presumed_lost"),
        (6, 5, "orphaned"),
        (7, 6, "safe_mode_entered"),
        (8, 7, "safe_mode_left"),
    ]
    assert shown(rows, "commits", "decisions", "void") == [(8, False)]


@pytest.mark.parametrize(
    ("fact", "stated"),
    [
        (lent(1), {"kind": "lent", "out": 1, "wait_us": 1500, "work": 64_000_000, "request": request(1)}),
        (
            LendAnswered(**_LENDING, status=200, service_us=7, load_us=3),
            {"kind": "answered", "status": 200, "service_us": 7, "load_us": 3},
        ),
        (LendReturned(**_LENDING, reason="own_work"), {"kind": "returned", "reason": "own_work"}),
        (LendBusy(**_LENDING), {"kind": "busy", "reason": "desk_full"}),
        (
            CutOff(**_LENDING, reason="stalled", may_have_run=True),
            {"kind": "cut_off", "reason": "stalled", "may_have_run": True},
        ),
        (RelayRefused(**_LENDING, reason="no_live_lease"), {"kind": "relay_refused", "reason": "no_live_lease"}),
        (
            LeaseUpdated(link=LINK, lease=lease(), model=MODEL, helper=HELPER, slots=2, out=1),
            {"kind": "lease_updated", "slots": 2, "out": 1, "helper": "n2", "lease": lease()},
        ),
        (
            LeaseRefused(link=LINK, lease=lease(), reason="stale"),
            {"kind": "lease_refused", "reason": "stale", "lease": lease()},
        ),
        (
            Kept(
                request=request(1),
                model=MODEL,
                helper=HELPER,
                link=LINK,
                owner_finish_us=9,
                helper_finish_us=5,
                waited_us=2,
            ),
            {"kind": "held_for_helper", "owner_finish_us": 9, "helper_finish_us": 5, "wait_us": 2, "helper": "n2"},
        ),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_an_owners_dispatch_has_a_row_with_what_it_states(fact: Input, stated: dict[str, Any]):
    [row] = differing(of_facts(fact))
    assert row["side"] == "owner"
    assert row["owner"] == "n1"
    assert row["link"] == LINK
    assert {name: row.get(name) for name in stated} == stated


def test_a_helper_says_what_its_own_request_waited_for_and_what_it_handed_back():
    waited = NativeWaited(request=request(1), model=MODEL, borrowed_in_engine=2, wait_us=4000)
    handed = BorrowReturned(
        request=request(2), model=MODEL, owner=OWNER, link=LINK, lease=lease(), reason="own_work", after_arrival=True
    )
    assert differing(of_facts(waited, handed, node=HELPER)) == [
        {
            "side": "helper",
            "kind": "native_waited_behind_borrowed",
            "helper": "n2",
            "helper_model": MODEL,
            "request": request(1),
            "borrowed_in_engine": 2,
            "wait_us": 4000,
        },
        {
            "side": "helper",
            "kind": "borrowed_returned",
            "helper": "n2",
            "helper_model": MODEL,
            "request": request(2),
            "owner": "n1",
            "link": LINK,
            "lease": lease(),
            "reason": "own_work",
            "after_arrival": True,
        },
    ]


def test_every_kind_that_is_written_is_in_the_list_of_kinds():
    kinds = {
        *shown(
            of_decisions(plan(), granted(), NodeHealthChanged(node=HELPER, state="s", reason="r")), "decisions", "kind"
        ),
        *shown(
            of_facts(lent(1), LendBusy(**_LENDING), LendReturned(**_LENDING, reason="own_work")), "decisions", "kind"
        ),
    }
    assert kinds <= set(KINDS)


def test_a_request_has_one_row_for_its_terminal_fact_and_none_for_what_came_before():
    projected = of_facts(
        held(1), lent(1), finished(1, helper="n2"), Rejected(request=request(2), model=MODEL, status=503)
    )
    assert shown(projected, "requests", "request", "outcome", "owner", "helper", "status", "wait_us", "service_us") == [
        (request(1), "finished", "n1", "n2", 200, 2000, 900_000),
        (request(2), "rejected", "n1", "", 503, 0, 0),
    ]


def test_an_orphaned_request_ends_in_the_ledger():
    projected = of_decisions(plan(), RequestOrphaned(node=OWNER, model=MODEL, request=request(9)))
    assert shown(projected, "requests", "request", "outcome", "owner", "version") == [(request(9), "orphaned", "n1", 1)]


def test_every_message_is_kept_byte_for_byte_whatever_it_is():
    messages = [
        Teller("n1").tells(held(1), 1, at_ns=77),
        StoredMessage(
            2, 78, "lw.local.node.n1.queue.x.held", b"NATS/1.0\r\nA: \xff\r\n\r\n", b"\xff\x00 not an envelope"
        ),
    ]
    projected = project(EVENTS, 3, messages, CONTEXT)
    assert shown(projected, "events", "seq", "at_ns", "headers", "body") == [
        (1, 77, b"", messages[0].body),
        (2, 78, messages[1].headers, messages[1].body),
    ]
    assert shown(projected, "events", "event", "producer", "pseq") == [("queue.held", "n1", 1), ("queue.held", "", 0)]
    assert projected.unreadable == (2,)


def test_control_events_and_commits_are_kept_too():
    subject, body = control(SettingChanged(name="offload_streams", value=1))
    kept = project(CONTROL, 1, [StoredMessage(1, 5, subject, b"", body)], CONTEXT)
    assert shown(kept, "events", "event", "stream") == [("control.setting_changed", CONTROL)]
    assert shown(of_decisions(plan()), "events", "event", "stream", "epoch") == [("commit", LEDGER, 2)]


def test_a_fact_in_another_nodes_name_is_kept_but_nothing_is_made_of_it():
    message = changed_body(Teller("n1").tells(lent(1), 1), b'"producer":"n1"', b'"producer":"n2"')
    projected = project(EVENTS, 3, [message], CONTEXT)
    assert list(projected.rows) == ["events"]


def test_an_observation_of_the_master_is_no_decision_but_a_row_about_the_nodes_health():
    body = Teller("master").body(HeartbeatMissed(node=HELPER, silent_us=1))
    seen = StoredMessage(1, 1, "lw.local.obs.1.heartbeat_missed", b"", body)
    projected = project(EVENTS, 3, [seen], CONTEXT)
    assert sorted(projected.rows) == ["events", "health"]
    assert differing(projected, "health") == [{"kind": "heartbeat_missed", "node": "n2", "silent_us": 1}]
    assert projected.unreadable == ()


def test_a_summary_of_lost_facts_is_a_row_that_counts_them_and_repeats_no_word_that_is_no_tag():
    lost = {"queue.held": 17, "lend.lent": 2, CANARY: 3}
    projected = of_facts(FactsSummarised(counts=lost, first_pseq=1, last_pseq=1))
    assert differing(projected, "health") == [
        {"kind": "facts_summarised", "node": "n1", "reason": "2 lend.lent, 17 queue.held, 3 others"}
    ]
    many = {f"a.{chr(97 + i % 26)}{chr(97 + i // 26)}": 1 for i in range(40)}
    [reason] = shown(of_facts(FactsSummarised(counts=many, first_pseq=1, last_pseq=1)), "health", "reason")
    assert reason.count(",") == 32
    assert reason.endswith(", 8 others")


def test_an_observation_that_a_node_claims_to_have_made_is_kept_and_nothing_is_made_of_it():
    body = Teller("n1").body(HeartbeatMissed(node=HELPER, silent_us=1))
    claimed = StoredMessage(1, 1, "lw.local.node.n1.obs.x.heartbeat_missed", b"", body)
    assert list(project(EVENTS, 3, [claimed], CONTEXT).rows) == ["events"]


@pytest.mark.parametrize("number", [b"99999999999999999999999999", b"-99999999999999999999999999"])
def test_a_number_that_no_column_can_hold_is_clamped(number: bytes):
    message = changed_body(Teller("n1").tells(finished(1), 1), b'"service_us":900000', b'"service_us":' + number)
    [service_us] = shown(project(EVENTS, 3, [message], CONTEXT), "requests", "service_us")
    assert service_us in {2**63 - 1, -(2**63)}


@pytest.mark.parametrize("pseq", ["-1", "", "1e3", "\uff19", "9" * 40])
def test_a_pseq_that_is_none_counts_as_zero(pseq: str):
    message = changed_body(Teller("n1").tells(lent(1), 1), b'"pseq":"1"', b'"pseq":' + encode(pseq))
    assert shown(project(EVENTS, 3, [message], CONTEXT), "events", "pseq") == [0]


def test_a_text_that_is_too_long_is_clipped_in_derived_rows_and_whole_in_the_raw_one():
    message = changed_body(Teller("n1").tells(LendBusy(**_LENDING), 1), b"desk_full", b"x" * 5000)
    projected = project(EVENTS, 3, [message], CONTEXT)
    assert shown(projected, "decisions", "reason") == ["x" * 512]
    assert shown(projected, "events", "body") == [message.body]


def test_an_engines_words_in_place_of_a_code_do_not_reach_the_requests():
    projected = of_facts(finished(1, code=f"invalid: {CANARY}"))
    assert shown(projected, "requests", "code") == ["not_a_code"]


def test_members_that_an_event_does_not_have_reach_no_derived_row():
    message = changed_body(Teller("n1").tells(lent(1), 1), b'"out":1', b'"out":1,"prompt":' + encode(CANARY))
    projected = project(EVENTS, 3, [message], CONTEXT)
    assert CANARY not in repr([projected.rows["decisions"], projected.rows.get("requests")])


def test_a_commit_that_does_not_continue_the_ledger_is_named_and_its_decisions_are_left_out():
    ledger = Ledger()
    first, second = ledger.commits(granted()), ledger.commits(granted(), prev="11" * 16)
    projected = project(LEDGER, 1, [first, second], CONTEXT)
    assert projected.void == (2,)
    assert shown(projected, "commits", "seq", "void") == [(1, False), (2, True)]
    assert shown(projected, "decisions", "seq") == [1]
    assert projected.chain.seq == 2


def test_the_end_of_the_ledger_goes_from_batch_to_batch():
    ledger = Ledger()
    first, second, third = ledger.commits(plan()), ledger.commits(plan()), ledger.commits(plan(), prev="22" * 16)
    before = project(LEDGER, 1, [first, second], CONTEXT)
    after = project(LEDGER, 1, [third], msgspec.structs.replace(CONTEXT, chain=before.chain))
    assert after.void == (3,)


def test_a_commit_that_nobody_can_read_is_kept_and_does_not_condemn_the_next_one():
    ledger = Ledger()
    first = ledger.commits(plan())
    second = msgspec.structs.replace(ledger.commits(plan()), body=b"{}")
    third = ledger.commits(plan())
    projected = project(LEDGER, 1, [first, second, third], CONTEXT)
    assert projected.unreadable == (2,)
    assert projected.void == ()
    assert shown(projected, "events", "seq") == [1, 2, 3]


def test_what_the_master_did_not_believe_is_listed_with_its_place():
    message = Ledger().commits(plan(), rejected=((4, "bad_mac"), (6, "wrong_subject")))
    projected = project(LEDGER, 1, [message], CONTEXT)
    assert shown(projected, "rejected", "item", "event_epoch", "event_seq", "code") == [
        (0, 3, 4, "bad_mac"),
        (1, 3, 6, "wrong_subject"),
    ]


def test_projecting_again_gives_the_same_rows():
    ledger, teller = Ledger(), Teller("n1")
    messages = [ledger.commits(plan(verdict()), granted(lease_id=LeaseId("a-1-1"))) for _ in range(5)]
    told: list[Input] = [held(1), lent(1), finished(1)]
    facts = [teller.tells(fact, seq) for seq, fact in enumerate(told, 1)]
    assert project(LEDGER, 1, messages, CONTEXT) == project(LEDGER, 1, messages, CONTEXT)
    assert project(EVENTS, 1, facts, CONTEXT) == project(EVENTS, 1, facts, CONTEXT)
    assert encode_commit(Ledger().commit(plan())) == encode_commit(Ledger().commit(plan()))


def test_a_fact_that_is_not_about_lending_is_in_events_alone():
    assert list(of_facts(held(1)).rows) == ["events"]
