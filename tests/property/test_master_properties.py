"""Whatever nodes say, however it is read: leases stay inside the helpers' depth, nothing raises, nothing stays behind."""

import random
from collections import Counter
from functools import cache
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.log.reader import Reader
from domain.events import (
    Due,
    Fact,
    Input,
    LeaseChanged,
    LeaseCleared,
    LeaseGranted,
    ModelInfo,
    NodeSnapshot,
    OwnerPlanned,
    Registered,
    RequestOrphaned,
    codec,
)
from domain.events.base import EventBody
from domain.events.commit import COMMIT_BYTES_MAX, Commit, decode_commit, encode_commit
from domain.ids import Incarnation, LinkId, ModelId, NodeId, RequestId
from domain.master import slots
from domain.master.control import depth
from domain.master.decide import Head, decide
from domain.master.fold import fold_fact
from domain.master.health import is_live
from domain.master.inputs import FactInput
from domain.master.queue import Queue
from domain.master.state import State, decode_state, encode_state
from domain.master.step import Position, Range, after, check_chain, fold_into, follow, replay
from domain.subjects import fact_subject
from tests.support.history import CLUSTER, SECRET, Master, Recorder, envelope, link, random_history, registered
from tests.support.realistic import RealCluster

NODES = ["a", "b", "c"]
LINKS = [link("a", "b"), link("a", "c"), link("c", "b"), link("b", "a"), link("a", "b", "k"), link("b", "c", "k")]
WILD_TEXT = ["", "b>c", "a/m", "x" * 10_000, "\x1f", "ん" * 300, '"' * 256, "\u202e", "a.b.*.>", "\x00"]
WILD_NUMBERS = [-(2**70), -(2**63), -1, 0, 1, 2**53, 2**63, 2**64, 10**30, 10**400]


# ---- any fact at all -------------------------------------------------------------------------------------------------


def text(name: str, kind: object) -> st.SearchStrategy[str]:
    """Return likely and unlikely texts for a field."""
    likely: dict[object, list[str]] = {
        RequestId: [f"req_{i}" for i in range(5)],
        NodeId: NODES,
        ModelId: ["m", "k", "none"],
        LinkId: [each.link for each in LINKS],
    }
    known = NODES if name == "helper" else ["held", "engine", "lent", "running"] if name == "state" else ["x"]
    return st.sampled_from(likely.get(kind, known) * 4 + WILD_TEXT)


@cache
def values(name: str, kind: Any) -> st.SearchStrategy[Any]:
    if kind in {RequestId, NodeId, ModelId, LinkId} or kind is str or hasattr(kind, "__supertype__"):
        return text(name, kind)
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.one_of(st.integers(0, 3), st.integers(1, 10**8), st.sampled_from(WILD_NUMBERS))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return facts_of(kind)
    inner = [each for each in get_args(kind) if each is not Ellipsis]
    if type(None) in inner:
        return st.none() | values(name, next(each for each in inner if each is not type(None)))
    if kind.__origin__ is dict:
        return st.dictionaries(text("", str), values("", inner[1]), max_size=2)
    return st.lists(values("", inner[0]), max_size=3).map(tuple)


@cache
def facts_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{field.name: values(field.name, field.type) for field in msgspec.structs.fields(kind)})


ANY = st.one_of([facts_of(kind) for kind in get_args(Input)])
SAID = st.tuples(
    st.sampled_from([*NODES, NODES[0], ""]),
    ANY,
    st.sampled_from([1, 1, 1, 1, 1, 1, 2, 0]),
    st.sampled_from([-(10**9), 1, 1_000, 2_000_000, 45_000_000]),
)


def serving(name: str) -> Registered:
    """Return a registration with two models; those of b share a runtime."""
    infos = tuple(
        ModelInfo(id=ModelId(each), local_id=each, context=8192, runtime="gpu" if name == "b" else "") for each in "mk"
    )
    return Registered(url="http://h", models=infos, version="1", depth=2)


def folded(said: list[tuple[str, Input, int, int]]) -> State:
    """Fold facts that no reader has judged, in a cluster with links, deciding now and then."""
    master = Master()
    story = Recorder()
    for name in NODES:
        story.state(name, serving(name))
    for each in LINKS:
        story.decree(each)
    master.take(story.facts, story.control)
    state, seq, stamp_us = master.state, state_hi(master), master.state.stamp_us
    for speaker, fact, ahead, step_us in said:
        seq, stamp_us = seq + 1, max(0, stamp_us + step_us)
        node = state.nodes.get(NodeId(speaker))
        pseq = node.pseq + ahead if node is not None else ahead
        living = Incarnation(f"{speaker}-2") if isinstance(fact, Registered) else node.incarnation if node else ""
        pseq = 1 if isinstance(fact, Registered) else pseq
        given_ = codec.decode_input(codec.raw(fact))  # it is what a stored message could decode to
        fold_fact(state, FactInput(seq, stamp_us, NodeId(speaker), Incarnation(living), pseq, seq % 11 == 0, 1, given_))
        if seq % 7 == 0:
            decided(master)
    decided(master)
    return state


def state_hi(master: Master) -> int:
    return master.state.hi


def decided(master: Master) -> None:
    for _ in range(200):
        if master.take([]) is None:
            return
    raise AssertionError("decisions never end")


@given(st.lists(SAID, max_size=40))
@settings(max_examples=150, deadline=None)
def test_nothing_that_decodes_makes_the_fold_or_a_plan_raise(said: list[tuple[str, Input, int, int]]):
    folded(said)


@given(st.lists(SAID, max_size=40), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_what_passes_the_reader_keeps_every_promise_whoever_signed_it(
    said: list[tuple[str, Input, int, int]], seed: int
):
    story, master = Recorder(), Master()
    for name in NODES:
        story.state(name, serving(name))
    for each in LINKS:
        story.decree(each)
    for speaker, fact, ahead, step_us in said:
        if not speaker:
            story.observe(1, fact, after_us=step_us)
            continue
        story.pseq[speaker] = story.pseq.get(speaker, 0) + ahead
        if isinstance(fact, Registered):
            story.restart(speaker)
            story.pseq[speaker] = 1
        body = envelope(speaker, story.incarnation[speaker], story.pseq[speaker], fact)
        story.raw(fact_subject(CLUSTER, NodeId(speaker), fact), body, after_us=step_us)
    live(story, master, random.Random(seed))
    state = master.state
    assert decode_state(encode_state(state)).hi == len(story.facts)
    assert all(len(made_bytes) <= COMMIT_BYTES_MAX for made_bytes in map(encode_commit, master.commits))
    verified(story, master.commits, 1000)


# ---- what holds at every commit --------------------------------------------------------------------------------------


def live(story: Recorder, master: Master, dice: random.Random) -> None:
    """Let the master live through a history, and check each commit against the state right after it."""
    at, control = 0, list(story.control)
    while at < len(story.facts) or control:
        chunk = story.facts[at : at + dice.randint(1, 25)]
        at += len(chunk)
        limit_ns = chunk[-1].stamp_ns if chunk else control[-1].stamp_ns
        due = [message for message in control if message.stamp_ns <= limit_ns]
        control = control[len(due) :]
        before = len(master.commits)
        master.take(chunk, due, each=lambda made: kept(master.state, made))
        assert len(master.commits) - before < 200


def kept(state: State, made: Commit) -> None:
    planned: set[tuple[str, str]] = set()
    given_now: list[LeaseGranted | LeaseChanged] = []
    for index, decision in enumerate(made.decisions):
        if isinstance(decision, OwnerPlanned):
            planned.add((decision.owner, decision.model))
        elif isinstance(decision, LeaseGranted | LeaseChanged | LeaseCleared):
            assert (decision.owner, decision.owner_model) in planned
            if isinstance(decision, LeaseGranted):
                assert decision.lease == f"{made.generation}-{made.version}-{index}"
            if not isinstance(decision, LeaseCleared):
                given_now.append(decision)
    for each in state.queues.values():
        counted_by_hand(each)
    for lease in given_now:
        helper = state.nodes[lease.helper]
        assert not helper.silent_us
        assert not helper.draining
        assert not helper.incomplete
        assert not helper.late
        assert lease.helper_model not in helper.not_accepting
        assert lease.link in state.control.links
        assert lease.slots >= 1
        assert taken_by_others(state, lease) + lease.slots <= depth(state.control, helper.depth)
        assert taken_by_others(state, lease, sibling=True) == 0
        assert not any(
            queue.held or queue.engine
            for model in siblings(state, lease)
            if (queue := state.queues.get(f"{lease.helper}/{model}")) is not None
        )
        breaker = state.breakers.get(f"{lease.helper}/{lease.helper_model}")
        assert breaker is None or (breaker.state == "half_open" and lease.slots == 1)
        assert lease.slots == 1 or not lease.probe
    for key, links in state.control.by_helper.items():
        owed = sum(
            state.leases[on].event.slots for on in links if on in state.leases and is_live(state, state.leases[on])
        )
        assert owed <= 1024, key


def counted_by_hand(queue: Queue) -> None:
    """Check the running sums of what is held."""
    jobs = list(queue.held.values())
    lendable = [job for job in jobs if job.lendable]
    assert (queue.held_work, queue.held_tokens) == (sum(job.work for job in jobs), sum(job.tokens for job in jobs))
    assert (queue.lendable, queue.seeing) == (len(lendable), sum(job.vision for job in lendable))
    assert (queue.sized, queue.unsized) == (
        sum(job.tokens > 0 for job in jobs),
        sum(not job.tokens for job in lendable),
    )
    assert queue.unsized_seeing == sum(job.vision and not job.tokens for job in lendable)
    assert (queue.lendable_us > 0) is bool(lendable)


def siblings(state: State, lease: LeaseGranted | LeaseChanged) -> list[ModelId]:
    """Return the models that share the runtime of a lease's helper, itself among them, as they were registered."""
    models = state.nodes[lease.helper].models
    runtime = models[lease.helper_model].runtime
    return [
        model for model, info in models.items() if model == lease.helper_model or (runtime and info.runtime == runtime)
    ]


def taken_by_others(state: State, lease: LeaseGranted | LeaseChanged, *, sibling: bool = False) -> int:
    """Count every other link to the same helper's model by hand, over all that the state knows, linked or not.

    `sibling`: count those to the other models of its runtime instead.
    """
    known = {**state.control.gone, **state.control.links}
    models = {lease.helper_model}
    if sibling:
        models = set(siblings(state, lease)) - models
    total = 0
    for on, added in known.items():
        if on != lease.link and added.helper == lease.helper and added.helper_model in models:
            uses = state.uses.get(slots.key_of(added), {})
            out = sum(
                max(u.lent, u.accepted) > max(u.lent_closed, u.accepted_closed)
                and (u.accepted > 0 or state.now_us - u.opened_us < 60_000_000)  # else it never came there
                for u in uses.values()
            )
            other = state.leases.get(on)
            total += max(out, other.event.slots if other is not None and is_live(state, other) else 0)
    return total


def verified(story: Recorder, commits: list[Commit], batch: int) -> State:
    """Decide it all again, through stored bytes, folding in batches; and let a follower only apply it."""
    reader = Reader(CLUSTER, SECRET)
    state, followed = State(), State()
    position = Position(commits[0].generation) if commits else None
    for stored in [decode_commit(encode_commit(made)) for made in commits]:
        assert position is not None
        check_chain(position, stored)
        control = [(reader.control(message), message) for message in story.control[stored.clo : stored.chi]]
        for each in (state, followed):
            each.term = stored.term
            span = Range()
            fold_into(each, span, control, [])
            for at in range(stored.lo, stored.hi, batch):
                fold_into(each, span, [], reader.facts(story.facts[at : min(at + batch, stored.hi)]))
            if each is state:
                replay(state, position, stored, span)
            else:
                follow(followed, stored)
        position = after(stored)
        state = decode_state(encode_state(state)) if stored.version % 5 == 0 else state
    assert encode_state(state) == encode_state(followed)
    return state


@given(st.integers(0, 2**32), st.sampled_from([1, 2]), st.sampled_from([1, 7, 1000]))
@settings(max_examples=25, deadline=None)
def test_in_any_history_leases_stay_inside_the_depth_and_the_same_comes_out_again(seed: int, models: int, batch: int):
    story, master = random_history(seed, 400, nodes=5, models=models), Master()
    live(story, master, random.Random(seed))
    leases = [d.lease for made in master.commits for d in made.decisions if isinstance(d, LeaseGranted)]
    assert len(leases) == len(set(leases))
    orphans = Counter(
        (d.node, d.model, d.request)
        for made in master.commits
        for d in made.decisions
        if isinstance(d, RequestOrphaned)
    )
    assert not [each for each, times in orphans.items() if times > 1]
    verified(story, master.commits, batch)


@given(st.integers(0, 2**32))
@settings(max_examples=6, deadline=None)
def test_when_all_requests_have_ended_nothing_of_them_is_left(seed: int):
    cluster = RealCluster(seed, nodes=6, models=2, linked=8)
    cluster.run(1500)
    for _ in range(3):  # the leases that were left run out
        cluster.recorder.observe(1, Due(elapsed_us=1), after_us=40_000_000)
        cluster.look()
    state = cluster.master.state
    assert not [key for key, queue in state.queues.items() if queue.held or queue.engine or queue.lent]
    assert (state.uses, state.orphans, state.leases, state.leased, state.planned_us) == ({}, {}, {}, {}, {})
    assert {node.uses for node in state.nodes.values()} == {0}
    assert len(encode_state(state)) < 40_000


# ---- one node's share ------------------------------------------------------------------------------------------------


FLOODS: list[tuple[str, Any]] = [
    ("held requests", lambda i: _made("queue.held", request=f"req_{i}", model="m")),
    ("models", lambda i: _made("queue.held", request=f"req_{i}", model=f"m{i}")),
    ("fits", lambda i: _made("queue.finished", request=f"req_{i}", model=f"m{i}", work=5, service_us=5, status=200)),
    ("started", lambda i: _made("queue.started", request=f"req_{i}", model="m")),
    (
        "lends of one request over links",
        lambda i: _made("lend.lent", request="req_1", model="m", helper="b", link=f"{i}"),
    ),
    (
        "lends over one link",
        lambda i: _made("lend.lent", request=f"req_{i}", model="m", helper="b", link=LINKS[0].link),
    ),
    (
        "traffic over links, one after another",
        lambda i: _made(("lend.lent", "lend.answered")[i % 2], request="r", model="m", helper="b", link=f"{i // 2}"),
    ),
    ("failures", lambda i: _made("borrow.finished", request=f"r{i}", model=f"m{i}", owner="c", link="x", ok=False)),
    ("loads", lambda i: _made("model.load_started", model=f"m{i}", cause="own")),
    ("borrowing", lambda i: _made("borrow.accepted", request=f"req_{i}", model="m", owner="c", link=f"{i}")),
    ("not accepting", lambda i: _made("status.not_accepting", model=f"m{i}", reason="x")),
    (
        "parts of a snapshot",
        lambda i: _parts(i),  # noqa: PLW0108  # defined below
    ),
]


def _made(tag: str, **fields: object) -> Input:
    kind = next(each for each in get_args(Input) if each.__struct_config__.tag == tag)
    defaults = {f.name: {int: 1, bool: True}.get(f.type, "x") for f in msgspec.structs.fields(kind) if f.required}
    made: EventBody = kind(**{**defaults, **fields})
    return made  # type: ignore[return-value]


def _parts(i: int) -> Input:
    requests = tuple({"request": f"req_{i}_{j}", "state": "held", "work": 1} for j in range(500))
    queue = {"model": "m", "requests": requests}
    return msgspec.convert(
        {"event": "status.snapshot", "part": i + 1, "parts": 9_000, "queues": [queue], "desks": [], "reason": "x"},
        NodeSnapshot,
    )


@pytest.mark.parametrize(("what", "make"), FLOODS, ids=[name for name, _ in FLOODS])
def test_one_node_fills_no_more_of_the_master_than_its_share(what: str, make: Any):
    state, count = State(term=1), 300 if what == "parts of a snapshot" else 20_000
    for at, name in enumerate(NODES):
        fold_fact(state, FactInput(at + 1, 1, NodeId(name), Incarnation(name), 1, False, 0, registered()))
    for i in range(count):
        fact: Fact = make(i)
        fold_fact(state, FactInput(10 + i, 1, NodeId("a"), Incarnation("a"), i + 2, False, 0, fact))
    queues = state.queues.values()
    assert sum(len(queue.held) + len(queue.engine) + len(queue.lent) for queue in queues) <= 17_000
    assert sum(len(uses) for uses in state.uses.values()) <= 4_096
    assert len(state.fits) + len(state.queues) + len(state.nodes[NodeId("a")].not_accepting) <= 3
    node = state.nodes[NodeId("a")]
    assert len(node.parts) <= 65_000
    assert len(state.traffic) <= 4_096
    assert len(node.rooms) + len(node.borrowed) + len(state.refit) + len(state.failing) <= 10_000
    assert encode_state(state)


def test_a_decision_is_the_same_whether_or_not_the_master_looked_in_between():
    story = random_history(77, 300, nodes=4)
    often, once = Master(), Master()
    for fact in story.facts[:200]:
        fold_into(often.state, often.span, [], often.reader.facts([fact]))
        decide(State(), Head(often.position.generation, 1))
    fold_into(once.state, once.span, [], once.reader.facts(story.facts[:200]))
    assert encode_state(often.state) == encode_state(once.state)
