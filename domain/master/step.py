"""One commit as a function of the one before it: fold and `commit` (decide), `replay` (decide again), `follow` (only apply).

The live master folds inputs as they come and cuts a commit whenever a decision follows; a verifier is given the ranges that
the commit names. Both call the same functions, and both get the same bytes, because folding in pieces or at once is the same.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from domain.errors import ChainBrokenError, ReplayDiffersError
from domain.events import SafeModeLeft
from domain.events.commit import GENESIS_DIGEST, Commit, encode_commit, is_sealed, seal
from domain.ids import Generation
from domain.master.control import fold_control
from domain.master.decide import Decided, Head, decide, evolve, finish, merge_touched
from domain.master.fold import fold_fact
from domain.master.inputs import NOT_A_FACT, ControlInput, FactOrRejected, Rejected
from domain.master.state import POLICY, State, encode_state
from domain.ports import StoredMessage


class Position(msgspec.Struct, frozen=True, gc=False):
    """The end of the ledger: what the next commit continues."""

    generation: Generation
    """Empty before the first commit: any generation may begin."""
    version: int = 0
    term: int = 0
    digest: str = GENESIS_DIGEST
    hi: int = 0
    chi: int = 0


class Range(msgspec.Struct):
    """What was folded since the last commit: judged, and as stored (for the digest)."""

    facts: list[StoredMessage] = []
    control: list[StoredMessage] = []
    rejected: list[tuple[int, str]] = []
    size_bytes: int = 0

    def messages(self) -> Iterable[StoredMessage]:
        """Yield the stored messages in the order of the digest: control first, then facts."""
        yield from self.control
        yield from self.facts


def fold_into(
    state: State,
    span: Range,
    control: Sequence[tuple[ControlInput, StoredMessage]],
    facts: Sequence[tuple[FactOrRejected, StoredMessage]],
) -> None:
    """Fold inputs into the state and note them in the range."""
    for event, stored in control:
        fold_control(state, event)
        span.control.append(stored)
    folded, size_bytes = span.facts, span.size_bytes
    for fact, stored in facts:
        fold_fact(state, fact)
        folded.append(stored)
        size_bytes += len(stored.body) + len(stored.headers)
        if type(fact) is Rejected and fact.code != NOT_A_FACT:
            span.rejected.append((fact.seq, fact.code))
    span.size_bytes = size_bytes


def commit(
    state: State, position: Position, span: Range, decided: Decided, *, with_state: bool, digest: str = ""
) -> Commit:
    """Finish the state and return the sealed commit over `span`.

    `with_state`: carry the digest of the state after it. `digest`: seal it with this one, which is known to be right if the
    commit is.
    """
    finish(state, said=decided.said)
    draft = Commit(
        version=position.version + 1,
        generation=position.generation,
        term=state.term,
        policy=state.policy,
        lo=position.hi,
        hi=state.hi,
        clo=position.chi,
        chi=state.chi,
        n=decided.n,
        now_us=state.now_us,
        rejected=tuple(span.rejected),
        decisions=tuple(decided.decisions),
        state=state_digest(state) if with_state else "",
        prev=position.digest,
        digest=digest,
    )
    return draft if digest else seal(draft, span.messages())


def state_digest(state: State) -> str:
    """Return blake2b-16 over the state's bytes, in hex."""
    return hashlib.blake2b(encode_state(state), digest_size=16).hexdigest()


def after(stored: Commit) -> Position:
    """Return the position after a commit."""
    return Position(stored.generation, stored.version, stored.term, stored.digest, stored.hi, stored.chi)


def check_chain(position: Position, stored: Commit) -> None:
    """Check that `stored` continues `position`.

    Raises:
        ChainBrokenError: its generation, version, ranges or prev do not.
    """
    expected = (
        position.generation or stored.generation,
        position.version + 1,
        position.hi,
        position.chi,
        position.digest,
    )
    found = (stored.generation, stored.version, stored.lo, stored.clo, stored.prev)
    if expected != found:
        names = "generation, version, lo, clo, prev"
        raise ChainBrokenError(f"commit {stored.version}: continues ({names}) {found}, expected {expected}")


def genesis(
    head: Commit | None, generation: Generation, reason: str, *, events_first: int, control_first: int
) -> Commit:
    """Return the commit that begins a new generation after `head`, which it names.

    The state begins empty and folds again all that the streams still hold, from `events_first` and `control_first` on.
    """
    left = SafeModeLeft(
        reason=reason,
        old_generation=head.generation if head is not None else "",
        old_version=head.version if head is not None else 0,
        old_digest=head.digest if head is not None else "",
    )
    draft = Commit(
        version=head.version + 1 if head is not None else 1,
        generation=generation,
        term=0,
        policy=POLICY,
        lo=events_first - 1,
        hi=events_first - 1,
        clo=control_first - 1,
        chi=control_first - 1,
        n=0,
        now_us=0,
        decisions=(left,),
        state=state_digest(begun(events_first - 1, control_first - 1)),
        prev=head.digest if head is not None else GENESIS_DIGEST,
        digest="",
    )
    return seal(draft, ())


def begun(hi: int, chi: int) -> State:
    """Return the state with which a generation begins."""
    return State(hi=hi, chi=chi)


def is_genesis(position: Position, stored: Commit, body: bytes) -> bool:
    """Tell whether `stored`, of these bytes, begins a generation rightly: named by an operator, after exactly this position."""
    return (
        bool(stored.decisions)
        and isinstance(stored.decisions[0], SafeModeLeft)
        and stored.generation > position.generation
        and (stored.version, stored.prev) == (position.version + 1, position.digest)
        and is_sealed(stored, (), body)
    )


def replay(
    state: State, position: Position, stored: Commit, span: Range, *, sealed: bool = False, encoded: bytes = b""
) -> Commit:
    """Decide again what `stored` decided, from the inputs of its range (already folded), and return the commit that results.

    `sealed`: the caller has checked the stored digest against the same inputs, so that it need not be made again. `encoded`: what
    `encode_commit` gives of `stored`, where the caller has it.

    Raises:
        ReplayDiffersError: other bytes result.
    """
    if not position.generation:  # the first commit of all names its generation itself
        position = msgspec.structs.replace(position, generation=stored.generation)
    decided = decide(state, Head(stored.generation, stored.version), stored.n)
    with_state = bool(stored.state)
    again = commit(state, position, span, decided, with_state=with_state, digest=stored.digest if sealed else "")
    if encode_commit(again) != (encoded or encode_commit(stored)):
        place, mine, theirs = first_difference(again, stored)
        text = f"commit {stored.version}: {place}: decided {mine}, stored {theirs}"
        raise ReplayDiffersError(text, stored=theirs, decided=mine)
    return again


def first_difference(again: Commit, stored: Commit) -> tuple[str, str, str]:
    """Return the first field in which two commits differ, with both sides: (field, decided again, stored)."""
    for name in Commit.__struct_fields__:
        left, right = getattr(again, name), getattr(stored, name)
        if left == right:
            continue
        if name == "decisions":
            for index, (mine, theirs) in enumerate(zip(left, right, strict=False)):
                if mine != theirs:
                    return f"decision {index}", repr(mine), repr(theirs)
            return "decisions", str(len(left)), str(len(right))
        return name, repr(left), repr(right)
    return "bytes", "the same fields", "the same fields in other bytes"


def follow(state: State, stored: Commit) -> None:
    """Apply a stored commit's decisions to a state that has folded its range: what a standby does; it never decides.

    The state is the same to the last bit as that of the master that decided.
    """
    merge_touched(state)
    for decision in stored.decisions:
        evolve(state, decision)
    finish(state)
