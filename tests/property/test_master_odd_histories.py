"""Given nodes that come, go, say anew what they are and state the oddest numbers, when a master has lived it, then all agree.

Agree must: who decides again, in whatever batches and through snapshots; who only follows; a master that heard of control events
last; and the state with itself.
"""

import random
from collections.abc import Iterator

import pytest

from domain.events import (
    Accepting,
    BorrowAccepted,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    Cancelled,
    CutOff,
    DeskState,
    Draining,
    Expired,
    Fact,
    FactsSummarised,
    LendAnswered,
    LendReturned,
    Lent,
    LinkAdded,
    LinkRemoved,
    Loaded,
    LoadStarted,
    ModelInfo,
    NodeEnrolled,
    NodeRetired,
    NodeSnapshot,
    NotAccepting,
    OpenRequest,
    OwnerPlanned,
    QueueState,
    Registered,
    RestoreCancelled,
    RuntimeState,
    SettingChanged,
    Stopped,
    Unloaded,
)
from domain.ids import ModelId, NodeId, RequestId
from domain.master.state import State, encode_state, owner_key
from domain.master.step import Range, fold_into, follow
from tests.replay.test_replay_is_bit_for_bit import verify
from tests.support.history import Master, Recorder, borrow, finished, held, lend, link

NAMES, MODELS = ("a", "b", "c", "d"), (ModelId("k"), ModelId("m"))
LINKS = tuple(link(owner, helper, model) for owner in "ab" for helper in "bcd" if owner != helper for model in MODELS)
NUMBERS = (0, 1, 1_000, 64_000_000, 10**15)
ODDITIES = 12


def infos(dice: random.Random) -> tuple[ModelInfo, ...]:
    """Return models as a node may state them, sensible or not."""
    return tuple(
        ModelInfo(
            id=model,
            local_id="x",
            hash=dice.choice(("", "", "", "another")),
            context=dice.choice((0, 128, 8192, 8192, 10**15)),
            runtime=dice.choice(("", "", "gpu")),
            ready=dice.random() < 0.7,
            lane=dice.choice(("text", "text", "text", "image", "speech")),
            slots=dice.choice((1, 1, 1, 0, 2, 1024)),
        )
        for model in MODELS
        if dice.random() < 0.85
    )


def lent(dice: random.Random, on: LinkAdded, request: str) -> Iterator[tuple[str, Fact]]:
    """Yield a lend that ends one way or another."""
    number = dice.choice(NUMBERS)
    yield on.owner, lend(Lent, request, on, work=number, out=1, waited_us=number)
    yield on.helper, borrow(BorrowAccepted, request, on, position=0)
    match dice.randrange(4):
        case 0:
            yield on.helper, borrow(BorrowReturned, request, on, reason="load_failed", after_arrival=True)
            yield on.owner, lend(LendReturned, request, on, reason="load_failed")
        case 1:
            status = dice.choice((200, 200, 200, 400, 404, 500, 10**15))
            yield on.helper, borrow(BorrowStarted, request, on, load_us=number)
            done = {"work": number, "service_us": dice.choice(NUMBERS), "status": status, "ok": status == 200}
            yield on.helper, borrow(BorrowFinished, request, on, **done)
            yield on.owner, lend(LendAnswered, request, on, status=status, service_us=number)
        case 2:
            yield on.owner, lend(CutOff, request, on, reason="helper_failed", may_have_run=True)
        case _:
            pass  # nobody says any more of it


def snapshot(dice: random.Random, on: LinkAdded) -> NodeSnapshot:
    """Return a snapshot of requests that may be anywhere."""
    open_ = tuple(
        OpenRequest(
            request=RequestId(f"req_{dice.randrange(40)}"),
            state=dice.choice(("held", "engine", "lent", "running", "waiting")),
            work=dice.choice(NUMBERS),
            lendable=dice.random() < 0.7,
            age_us=dice.choice(NUMBERS),
            link=on.link if dice.random() < 0.5 else None,
            owner=on.owner if dice.random() < 0.5 else None,
            est_tokens=dice.choice(NUMBERS),
            helper=on.helper if dice.random() < 0.5 else NodeId(""),
        )
        for _ in range(dice.randrange(5))
    )
    runtime = RuntimeState(runtime="gpu", loading=dice.choice((*MODELS, None)), loading_us=dice.choice(NUMBERS))
    model = dice.choice(MODELS)
    desks = (DeskState(model=model, requests=open_),)
    queues = (QueueState(model=model, requests=open_),)
    return NodeSnapshot(part=1, parts=1, queues=queues, desks=desks, reason="gap", runtimes=(runtime,))


def odd(dice: random.Random, recorder: Recorder) -> Iterator[tuple[str, Fact]]:
    """Do or say something that is seldom done or said."""
    node, model, on = dice.choice(NAMES), dice.choice(MODELS), dice.choice(LINKS)
    match dice.randrange(ODDITIES):
        case 0 if dice.random() < 0.5:
            recorder.decree(NodeRetired(node=NodeId(node)))
        case 0 | 1:
            recorder.decree(NodeEnrolled(node=NodeId(node), public_key="k", url="u"))
            recorder.restart(node)
            yield node, Registered(url="http://h", models=infos(dice), version="1", depth=2)
        case 2 | 3:
            yield node, Registered(url="http://x", models=infos(dice), version="1", depth=dice.choice((0, 2, 1024)))
        case 4:
            recorder.decree(LinkRemoved(link=on.link, owner=on.owner, owner_model=on.owner_model))
        case 5:
            recorder.decree(on)
        case 6:
            name, value = dice.choice((("offload_lease_ttl", 3_000_000), ("scheduling_sample_window", 60_000_000)))
            recorder.decree(SettingChanged(name=f"cluster.{name}", value=value))
        case 7:
            recorder.pseq[node] = recorder.pseq.get(node, 0) + dice.choice((0, 0, 3))
            yield node, snapshot(dice, on)
        case 8:
            yield node, dice.choice((Draining(), Stopped(), FactsSummarised(counts={}, first_pseq=1, last_pseq=2)))
        case 9:
            yield node, dice.choice((Accepting(model=model), NotAccepting(model=model, reason="own_work")))
        case 10:
            kind = dice.choice((Expired, Cancelled))
            yield node, kind(request=RequestId(f"req_{dice.randrange(40)}"), model=model, work=dice.choice(NUMBERS))
        case _:
            load_us = dice.choice(NUMBERS)
            facts: tuple[Fact, ...] = (
                LoadStarted(model=model, cause="borrowed"),
                Loaded(model=model, load_us=load_us, cause="borrowed", displaced=dice.choice((*MODELS, None))),
                Unloaded(model=model, cause="own"),
                RestoreCancelled(model=model, reason="own_work"),
            )
            yield node, dice.choice(facts)


def odd_history(seed: int, steps: int) -> Recorder:
    """Return a history in which every second thing is odd, and the server's clock is set back now and then."""
    dice, recorder = random.Random(seed), Recorder()
    for name in NAMES:
        both = tuple(ModelInfo(id=model, local_id="x", context=8192) for model in MODELS)
        recorder.state(name, Registered(url="http://h", models=both, version="1", depth=2))
        for model in MODELS:
            recorder.state(name, finished(f"req_fit_{name}_{model}", model=model))
    for added in LINKS:
        recorder.decree(added)
    for _ in range(steps):
        request = f"req_{dice.randrange(40)}"
        sets: list[tuple[str, Fact]] = []
        match dice.randrange(4):
            case 0 | 1:
                sets += [(dice.choice("ab"), held(request, work=dice.choice(NUMBERS[2:]), model=dice.choice(MODELS)))]
            case 2:
                sets += lent(dice, dice.choice(LINKS), request)
            case _:
                sets += odd(dice, recorder)
        for who, fact in sets:
            recorder.state(who, fact, after_us=dice.choice((0, 10, 1_000, 2_000_000)), late=dice.random() < 0.02)
        if dice.random() < 0.02:
            newest_ns = recorder.control[-1].stamp_ns
            recorder.now_ns = max(newest_ns, recorder.now_ns - 5_000_000_000)
    return recorder


def agrees_with_itself(state: State) -> None:
    """Look whether what is counted is what is there, and nothing is known of what nobody serves."""
    served = {owner_key(name, model) for name, node in state.nodes.items() for model in node.models}
    assert state.fits.keys() | state.breakers.keys() <= served | state.failing.keys()
    assert state.planned_us.keys() <= {key for key, queue in state.queues.items() if queue.held}
    for name, node in state.nodes.items():
        assert node.uses == sum(use.maker == name for uses in state.uses.values() for use in uses.values())
        assert node.traffic == sum(traffic.maker == name for traffic in state.traffic.values())
        assert {owner_key(name, model) for model in node.queues} == {
            key for key in state.queues if key.partition("/")[0] == name
        }
    for queue in state.queues.values():
        jobs = queue.held.values()
        assert (queue.held_work, queue.held_tokens) == (sum(j.work for j in jobs), sum(j.tokens for j in jobs))
        assert queue.lendable == sum(job.lendable for job in jobs)


@pytest.mark.parametrize("control_last", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_nodes_do_all_that_read_the_history_have_the_same_state(seed: int, control_last: bool):
    recorder, master, dice = odd_history(seed, 500), Master(control_last=control_last), random.Random(seed)
    master.take_all(recorder, lambda: dice.randint(1, 12))
    plans = [d for made in master.commits for d in made.decisions if isinstance(d, OwnerPlanned)]
    assert {verdict.outcome for row in plans for verdict in row.verdicts} >= {"granted", "skipped"}
    again = verify(recorder, master.commits, 1000)
    followed, reader = State(), master.reader
    for made in master.commits:
        followed.term = made.term
        control = [(reader.control(each), each) for each in recorder.control[made.clo : made.chi]]
        fold_into(followed, Range(), control, reader.facts(recorder.facts[made.lo : made.hi]))
        follow(followed, made)
    through = verify(recorder, master.commits, 7, through_snapshots=True)
    assert encode_state(again) == encode_state(followed) == encode_state(through)
    agrees_with_itself(again)
