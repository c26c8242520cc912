"""The state of the cluster at a version or a time, and why a model lends nothing now: both read from the streams."""

from collections.abc import Sequence

import msgspec

from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.snapshots import Snapshots
from adapters.log.travel import Fold, NothingThereError, Traveled, state_at
from domain.ids import ModelId, NodeId
from projections.why.cluster import ClusterAt, cluster_at, knows
from projections.why.model import ModelStory, model_story
from services.past.source import NotKnownError, Past
from services.past.why import last_plan


class Streamed(msgspec.Struct, frozen=True):
    """The streams of a cluster, and how to judge what stands in them."""

    streams: Streams
    reader: Reader
    snapshots: Snapshots | None
    fold: Fold | None = None
    """How to move on along the ledger; None: along its stream."""


async def cluster_then(
    of: Streamed, *, version: int | None = None, time_ns: int | None = None, only: str = ""
) -> ClusterAt:
    """Return the state at a version or a time (neither: now), narrowed to `only` (a node, or `node/model`).

    Raises:
        NothingThereError: there is no such version, or nothing as old.
        NotKnownError: the state knows nothing of `only`.
    """
    then = await state_at(of.streams, of.reader, snapshots=of.snapshots, version=version, time_ns=time_ns, fold=of.fold)
    if not knows(then.state, only):
        known = ", ".join(sorted({*then.state.nodes, *then.state.control.roster})) or "none"
        raise NotKnownError(f"{only}: was not known at version {then.commit.version}; nodes then were {known}")
    return told(then, only)


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
        NotKnownError: nothing at all is decided yet.
        HistoryError, HistoryGapError, BusError: the streams cannot be read, or are not whole.
    """
    try:
        now = await state_at(of.streams, of.reader, snapshots=of.snapshots)
    except NothingThereError as error:
        raise NotKnownError(f"{node}/{model}: {error}") from None
    plan = await last_plan(pasts, node, model)
    story = model_story(now.state, node, model, version=now.commit.version, last_plan=plan)
    return msgspec.structs.replace(story, source="NATS")
