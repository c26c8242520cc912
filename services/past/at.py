"""The state of the cluster at a version or a time, and why a model lends nothing now: both read from the streams."""

from collections.abc import Sequence
from typing import Final

import msgspec

from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.snapshots import Snapshots
from adapters.log.travel import Fold, Traveled, state_at
from adapters.times import Moment
from domain.ids import ModelId, NodeId
from projections.why.cluster import ClusterAt, cluster_at, knows
from projections.why.model import ModelStory, model_story
from services.past.source import NotKnownError, Past
from services.past.why import last_plan

NOW: Final = Moment()


class Streamed(msgspec.Struct, frozen=True):
    """The streams of a cluster, and how to judge what stands in them."""

    streams: Streams
    reader: Reader
    snapshots: Snapshots | None
    source: str = "NATS"
    """As people know it: NATS, ClickHouse or a copy."""
    fold: Fold | None = None
    """How to move on along the ledger; None: along its stream."""


async def cluster_then(of: Streamed, moment: Moment = NOW, *, end_ns: int = 0, only: str = "") -> ClusterAt:
    """Return the state at a version or a time, narrowed to `only` (a node, or `node/model`).

    What is so long ago counts back from `end_ns`.

    Raises:
        NotYetError: nothing is decided yet.
        NothingThereError: there is no such version, or nothing as old.
        NotKnownError: the state knows nothing of `only`.
    """
    time_ns = None if moment.is_now or moment.number is not None else moment.stamp_ns(end_ns)
    then = await state_at(
        of.streams, of.reader, snapshots=of.snapshots, version=moment.number, time_ns=time_ns, fold=of.fold
    )
    if not knows(then.state, only):
        known = ", ".join(sorted({*then.state.nodes, *then.state.control.roster})) or "none"
        raise NotKnownError(f"{only}: was not known at version {then.commit.version}; nodes then were {known}")
    return msgspec.structs.replace(told(then, only), source=of.source)


def told(then: Traveled, only: str = "") -> ClusterAt:
    """Return a state as people read it."""
    made = then.commit
    return cluster_at(
        then.state,
        only=only,
        version=made.version,
        generation=made.generation,
        at_ns=then.at_ns,
        policy=made.policy,
        digest=made.digest,
        state=made.state if not then.facts and not then.control else "",
        facts=then.facts,
        control=then.control,
        head=then.head,
    )


async def why_model(of: Streamed, pasts: Sequence[Past], node: NodeId, model: ModelId) -> ModelStory:
    """Return why a model lends nothing now, from everything that is stored; its newest plan is looked for in `pasts`, in order.

    Raises:
        NotYetError: nothing at all is decided yet.
        NothingThereError: the streams do not reach back to where a state could begin.
        HistoryError, BusError: they are not what was decided, or cannot be read.
    """
    now = await state_at(of.streams, of.reader, snapshots=of.snapshots)
    plan = await last_plan(pasts, node, model)
    story = model_story(now.state, node, model, version=now.commit.version, last_plan=plan)
    return msgspec.structs.replace(story, source=of.source)


def known(story: ModelStory) -> ModelStory:
    """Return the story, if its node and model are known.

    Raises:
        NotKnownError: they are not: it is a name that nobody ever had, or misspelt.
    """
    if story.code in {"unknown_node", "unknown_model"}:
        raise NotKnownError(story.headline.replace(" lends nothing", "", 1))
    return story
