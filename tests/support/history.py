"""Made-up histories of a cluster, as stored messages: a seed gives the same bytes on every machine and Python."""

import random
from collections.abc import Callable, Iterator

from adapters.keys import derive_mac_key, mac
from adapters.log.reader import Reader
from domain.events import (
    BorrowAccepted,
    BorrowBusy,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    Cancelled,
    ControlEvent,
    CutOff,
    Due,
    Envelope,
    Fact,
    Finished,
    HeartbeatMissed,
    HeartbeatSeen,
    Held,
    Input,
    LendAnswered,
    LendBusy,
    LendReturned,
    Lent,
    LinkAdded,
    LinkRemoved,
    Loaded,
    LoadFailed,
    LoadStarted,
    ModelInfo,
    NodeSnapshot,
    QueueSnapshot,
    Registered,
    RelayRefused,
    Restored,
    SettingChanged,
    Started,
    StillRunning,
    codec,
)
from domain.events.base import tag_of
from domain.events.commit import Commit
from domain.ids import Generation, Incarnation, LeaseId, ModelId, NodeId, RequestId, link_id
from domain.master.decide import Head, decide
from domain.master.state import State
from domain.master.step import Position, Range, after, commit, fold_into
from domain.ports import StoredMessage
from domain.subjects import control_aggregate, control_subject, fact_subject, observation_subject

CLUSTER = "test"
SECRET = "ab" * 32
START_NS = 1_790_000_000_000_000_000


def envelope(node: str, incarnation: str, pseq: int, body: Input, *, late: bool = False) -> bytes:
    """Return a fact's bytes with its MAC."""
    encoded = codec.encode(
        Envelope(
            id=f"{incarnation}/{pseq}",
            source=f"/{CLUSTER}/node/{node}",
            type=tag_of(body),
            cluster=CLUSTER,
            producer=node,
            incarnation=Incarnation(incarnation),
            pseq=str(pseq),
            late=late,
            data=codec.raw(body),
        )
    )
    return codec.with_tag(encoded, "mac", mac(bytes.fromhex(derive_mac_key(SECRET, node)), encoded[:-1]))


class Recorder:
    """Collects stored messages of both streams, stamping them as a server would."""

    def __init__(self) -> None:
        self.facts: list[StoredMessage] = []
        self.control: list[StoredMessage] = []
        self.now_ns = START_NS
        self.pseq: dict[str, int] = {}
        self.incarnation: dict[str, str] = {}

    def state(self, node: str, body: Fact, *, after_us: int = 1000, late: bool = False) -> StoredMessage:
        """Store a fact of `node`, `after_us` later than the last one."""
        self.pseq[node] = self.pseq.get(node, 0) + 1
        data = envelope(node, self.incarnation.setdefault(node, f"{node}-1"), self.pseq[node], body, late=late)
        return self._store(fact_subject(CLUSTER, NodeId(node), body), data, after_us)

    def observe(self, term: int, body: Input, *, after_us: int = 1000) -> StoredMessage:
        """Store an observation of the master."""
        return self._store(observation_subject(CLUSTER, term, body), envelope("master", "m", 1, body), after_us)

    def raw(self, subject: str, body: bytes, *, after_us: int = 1000) -> StoredMessage:
        """Store any bytes."""
        return self._store(subject, body, after_us)

    def restart(self, node: str) -> None:
        """Begin a new incarnation."""
        self.incarnation[node] = f"{node}-{int(self.incarnation.get(node, f'{node}-1').rsplit('-', 1)[1]) + 1}"
        self.pseq[node] = 0

    def decree(self, event: ControlEvent) -> StoredMessage:
        """Store a control event."""
        body = codec.encode(
            Envelope(
                id="c",
                source=f"/{CLUSTER}/control",
                type=tag_of(event),
                cluster=CLUSTER,
                producer="op",
                data=codec.raw(event),
            )
        )
        self.now_ns += 1_000_000
        stored = StoredMessage(
            len(self.control) + 1, self.now_ns, control_subject(CLUSTER, control_aggregate(event)), b"", body
        )
        self.control.append(stored)
        return stored

    def _store(self, subject: str, body: bytes, after_us: int) -> StoredMessage:
        self.now_ns += after_us * 1000
        stored = StoredMessage(len(self.facts) + 1, self.now_ns, subject, b"", body)
        self.facts.append(stored)
        return stored


def registered(
    model: str = "m", *, depth: int = 2, url: str = "http://h", ready: bool = True, context: int = 8192
) -> Registered:
    """Return a registration with one model."""
    return Registered(
        url=url,
        models=(ModelInfo(id=ModelId(model), local_id=model, ready=ready, context=context),),
        version="1",
        depth=depth,
    )


def link(owner: str, helper: str, model: str = "m", **flags: bool) -> LinkAdded:
    """Return a link between two nodes' models of the same name."""
    ids = (NodeId(owner), ModelId(model), NodeId(helper), ModelId(model))
    return LinkAdded(link=link_id(*ids), owner=ids[0], owner_model=ids[1], helper=ids[2], helper_model=ids[3], **flags)


def held(
    request: str,
    waiting: int = 1,
    *,
    work: int = 64_000_000,
    lendable: bool = True,
    model: str = "m",
    est_tokens: int = 64,
) -> Held:
    """Return a held fact."""
    return Held(
        request=RequestId(request), model=ModelId(model), lane="text", work=work, size_bytes=300, est_tokens=est_tokens,
        streaming=False, replayable=True, lendable=lendable, waiting=waiting,
    )  # fmt: skip


def started(request: str, *, work: int = 64_000_000, model: str = "m") -> Started:
    """Return a started fact."""
    return Started(request=RequestId(request), model=ModelId(model), work=work, wait_us=0, in_engine=1)


def finished(
    request: str, *, service_us: int = 1_000_000, work: int = 64_000_000, helper: str = "", model: str = "m"
) -> Finished:
    """Return a finished fact."""
    return Finished(
        request=RequestId(request), model=ModelId(model), work=work, service_us=service_us, status=200, helper=helper
    )


def lend(kind: Callable[..., Fact], request: str, on: LinkAdded, **fields: object) -> Fact:
    """Return a lend fact over a link."""
    return kind(
        request=RequestId(request), model=on.owner_model, helper=on.helper, link=on.link, lease=LeaseId("l"), **fields
    )


def borrow(kind: Callable[..., Fact], request: str, on: LinkAdded, **fields: object) -> Fact:
    """Return a borrow fact over a link."""
    return kind(
        request=RequestId(request), model=on.helper_model, owner=on.owner, link=on.link, lease=LeaseId("l"), **fields
    )


# ---- random histories ------------------------------------------------------------------------------------------------


def random_history(seed: int, events: int, *, nodes: int = 4, models: int = 1) -> Recorder:
    """Return a plausible, sometimes hostile history of `events` facts over `nodes` nodes with a ring of links.

    The first half of the nodes has most of the work; the models of every second node share one runtime.
    """
    dice = random.Random(seed)
    recorder = Recorder()
    names = [f"n{i}" for i in range(nodes)]
    ids = [f"m{i}" for i in range(models)]
    links = [
        link(names[i], names[(i + j) % nodes], model)
        for i in range(nodes)
        for j in (1, 2)
        if j < nodes
        for model in ids
    ]
    for name in names:
        recorder.state(name, _registration(name, ids))
    for added in links[: max(1, len(links) // 2)]:
        recorder.decree(added)
    later = links[max(1, len(links) // 2) :]
    open_requests: dict[str, list[tuple[str, str, str]]] = {name: [] for name in names}
    counter = iter(range(10**9))
    while len(recorder.facts) < events:
        _one(dice, recorder, names, ids, links, later, open_requests, counter)
    return recorder


def _registration(node: str, ids: list[str]) -> Registered:
    runtime = "gpu" if len(ids) > 1 and int(node[1:]) % 2 else ""
    infos = tuple(ModelInfo(id=ModelId(model), local_id=model, context=8192, runtime=runtime) for model in ids)
    return Registered(url="http://h", models=infos, version="1", depth=2)


def _one(  # the dice and the tables of one simulation
    dice: random.Random,
    recorder: Recorder,
    names: list[str],
    ids: list[str],
    links: list[LinkAdded],
    later: list[LinkAdded],
    open_requests: dict[str, list[tuple[str, str, str]]],
    counter: Iterator[int],
) -> None:
    busy = dice.random() < 0.9
    node, model = dice.choice(names[: (len(names) + 1) // 2] if busy else names), dice.choice(ids)
    mine = open_requests[node]
    roll = dice.random()
    step_us = dice.choice((10, 1000, 50_000, 2_000_000))
    if (roll < 0.35 and busy) or not mine:
        request = f"req_{next(counter):032x}"
        work, lendable = dice.randint(1, 500) * 1_000_000, dice.random() < 0.9
        recorder.state(
            node,
            held(request, work=work, lendable=lendable, model=model, est_tokens=dice.choice((64, 0))),
            after_us=step_us,
        )
        mine.append((request, model, "held"))
    elif roll < 0.96:
        index = dice.randrange(len(mine))
        _advance_request(dice, recorder, node, links, mine, index, step_us)
    else:
        _rare(dice, recorder, node, names, links, later, open_requests)


def _advance_request(
    dice: random.Random,
    recorder: Recorder,
    node: str,
    links: list[LinkAdded],
    mine: list[tuple[str, str, str]],
    index: int,
    step_us: int,
) -> None:
    request, model, where = mine[index]
    own = [on for on in links if on.owner == node and on.owner_model == model]
    if where == "held" and dice.random() < 0.2:  # its size is known now
        sized = held(request, lendable=dice.random() < 0.9, model=model, est_tokens=dice.choice((64, 64, 5000)))
        recorder.state(node, sized, after_us=step_us)
    elif where == "held" and dice.random() < 0.5 and own:
        on = dice.choice(own)
        recorder.state(node, lend(Lent, request, on, work=64_000_000, out=1, waited_us=5), after_us=step_us)
        mine[index] = (request, model, on.link)
    elif where == "held":
        recorder.state(node, started(request, work=dice.randint(1, 500) * 1_000_000, model=model), after_us=step_us)
        mine[index] = (request, model, "engine")
    elif where == "engine":
        kind: Callable[..., Fact] = Finished if dice.random() < 0.9 else Cancelled
        body = kind(
            request=RequestId(request),
            model=ModelId(model),
            work=64_000_000,
            service_us=dice.randint(1, 5_000_000),
            status=200,
        )
        recorder.state(node, body, after_us=step_us)
        del mine[index]
    else:
        _end_lending(dice, recorder, node, next(on for on in links if on.link == where), mine, index)


def _end_lending(
    dice: random.Random, recorder: Recorder, node: str, on: LinkAdded, mine: list[tuple[str, str, str]], index: int
) -> None:
    request, model, _ = mine[index]
    steps: list[tuple[str, Fact]] = []
    match dice.randrange(6):
        case 0:
            steps = [
                (on.helper, borrow(BorrowReturned, request, on, reason="own_work", after_arrival=False)),
                (node, lend(LendReturned, request, on, reason="own_work")),
                (node, held(request, lendable=False, model=model)),
            ]
            mine[index] = (request, model, "held")
        case 1:
            steps = [
                (on.helper, borrow(BorrowBusy, request, on, borrowed=2, depth=2)),
                (node, lend(LendBusy, request, on)),
                (node, held(request, model=model)),
            ]
            mine[index] = (request, model, "held")
        case 2:
            steps = [
                (on.helper, borrow(BorrowAccepted, request, on, position=0)),
                (node, lend(CutOff, request, on, reason="helper_failed", may_have_run=True)),
            ]
            steps.append((node, held(request, lendable=False, model=model)))
            mine[index] = (request, model, "held")
        case 3:
            steps = [
                (node, lend(RelayRefused, request, on, reason=dice.choice(("helper_unreachable", "no_live_lease"))))
            ]
            steps.append((node, held(request, model=model)))
            mine[index] = (request, model, "held")
        case _:
            service_us = dice.randint(1, 3_000_000)
            steps = [
                (on.helper, borrow(BorrowAccepted, request, on, position=0)),
                (on.helper, borrow(BorrowStarted, request, on)),
                (
                    on.helper,
                    borrow(BorrowFinished, request, on, work=64_000_000, service_us=service_us, status=200, ok=True),
                ),
                (node, lend(LendAnswered, request, on, status=200, service_us=service_us)),
                (node, finished(request, helper=on.helper, model=model)),
            ]
            del mine[index]
    for speaker, body in steps:
        recorder.state(speaker, body, after_us=dice.choice((10, 1000)))


def _rare(
    dice: random.Random, recorder: Recorder, node: str, names: list[str], links: list[LinkAdded], later: list[LinkAdded],
    open_requests: dict[str, list[tuple[str, str, str]]],
) -> None:  # fmt: skip
    match dice.randrange(11):
        case 0:
            recorder.restart(node)
            open_requests[node] = []
            recorder.state(node, _registration(node, sorted({on.owner_model for on in links})))
        case 1:
            recorder.observe(1, HeartbeatMissed(node=NodeId(node), silent_us=dice.choice((3_000_000, 12_000_000))))
        case 2:
            recorder.observe(1, HeartbeatSeen(node=NodeId(node)))
        case 3:
            stood_us = (recorder.now_ns - START_NS) // 1000  # about where domain time stands
            rung = Due(elapsed_us=dice.choice((1, 40_000_000, 180_000_000)), since_us=stood_us - dice.randrange(10**6))
            recorder.observe(dice.choice((1, 2)), rung, after_us=40_000_000)
        case 4 if later:
            recorder.decree(later.pop())
        case 5:
            on = dice.choice(links)
            recorder.decree(LinkRemoved(link=on.link, owner=on.owner, owner_model=on.owner_model))
            later.append(on)
        case 6:
            recorder.raw(f"lw.{CLUSTER}.node.{node}.queue.x.held", b"{broken")
        case 7:
            recorder.pseq[node] += dice.choice(
                (0, 0, 1)
            )  # a lost fact: the node speaks on with a gap until its snapshot
            recorder.state(node, NodeSnapshot(part=1, parts=1, queues=(), desks=(), reason="gap"))
            open_requests[node] = []
        case 8:
            recorder.decree(SettingChanged(name="cluster.offload_probe_idle", value=dice.randint(1, 10) * 1_000_000))
            recorder.decree(SettingChanged(name="cluster.scheduling_backend_depth", value=dice.randint(1, 4)))
        case _:
            on = dice.choice(links)
            recorder.state(on.helper, _of_engine(dice, on))
    recorder.state(dice.choice(names), QueueSnapshot(model=ModelId("m0"), held=0, in_engine=0, lent=0))


def _of_engine(dice: random.Random, on: LinkAdded) -> Fact:
    """Return what a helper may say of its engine, and of what it borrowed."""
    model, load_us = on.helper_model, dice.randint(1, 9) * 1_000_000
    return dice.choice(
        [
            LoadStarted(model=model, cause=dice.choice(("own", "borrowed", "restore"))),
            Loaded(model=model, load_us=load_us, cause=dice.choice(("own", "borrowed"))),
            Restored(model=model, load_us=load_us),
            LoadFailed(model=model, cause="own", reason="exit 1"),
            borrow(StillRunning, "req_any", on, running_us=load_us),
        ]
    )


# ---- a master over a recorded history ------------------------------------------------------------------------------


class Master:
    """The live master's folding and committing, without a bus."""

    def __init__(self, generation: str = "00010000", term: int = 1, *, control_last: bool = False) -> None:
        self.control_last = control_last
        """The control stream reached this master later than the facts did."""
        self.reader = Reader(CLUSTER, SECRET)
        self.state = State(term=term)
        self.position = Position(Generation(generation), term=term)
        self.span = Range()
        self.commits: list[Commit] = []

    def take(
        self,
        facts: list[StoredMessage],
        control: list[StoredMessage] | None = None,
        *,
        with_state: bool = False,
        each: Callable[[Commit], None] | None = None,
    ) -> Commit | None:
        """Fold and commit what follows until nothing does; return the last commit, if there is one. `each` sees every one."""
        decrees = [(self.reader.control(m), m) for m in control or ()]
        if self.control_last:
            fold_into(self.state, self.span, [], self.reader.facts(facts))
            fold_into(self.state, self.span, decrees, [])
        else:
            fold_into(self.state, self.span, decrees, self.reader.facts(facts))
        made = None
        while (decided := decide(self.state, Head(self.position.generation, self.position.version + 1))).decisions:
            made = commit(self.state, self.position, self.span, decided, with_state=with_state)
            self.position, self.span = after(made), Range()
            self.commits.append(made)
            if each is not None:
                each(made)
        return made

    def take_all(self, recorder: Recorder, batch: Callable[[], int]) -> None:
        """Take a whole history in batches of `batch()` facts; control events come when their stamp is reached."""
        at = 0
        control = list(recorder.control)
        while at < len(recorder.facts) or control:
            chunk = recorder.facts[at : at + max(1, batch())]
            at += len(chunk)
            limit_ns = chunk[-1].stamp_ns if chunk else control[-1].stamp_ns
            due = [m for m in control if m.stamp_ns <= limit_ns]
            control = control[len(due) :]
            self.take(chunk, due, with_state=len(self.commits) % 7 == 0)
