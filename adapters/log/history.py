"""From stored history to a state: snapshot, then every commit after it; and the checks that must hold before anyone decides."""

import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from adapters.headers import encode_headers
from adapters.log.chains import ProducerChains
from adapters.log.generations import GENERATION_CHARS_MAX, safe_mode_left
from adapters.log.reader import Reader
from domain.errors import ChainBrokenError, HistoryError, HistoryGapError, LedgerBehindError
from domain.events.commit import Commit, decode_commit, encode_commit, is_read_whole, is_sealed
from domain.ids import Generation
from domain.master.step import Position, Range, after, check_chain, is_genesis
from domain.policies import CURRENT, KNOWN, Policy, rules_of
from domain.ports import StoredMessage, Stream, Witnessed

_COMMITS_AT_ONCE = 500
_DIGEST: Final = re.compile("[0-9a-f]{32}")
_GENERATION: Final = re.compile(f"[0-9A-Za-z]{{1,{GENERATION_CHARS_MAX}}}")
_UNAPPLIED: Final = (LookupError, ValueError, ArithmeticError, TypeError, AttributeError, AssertionError)
"""What a rule runs into that applies a decision which no rule has taken; a bug would be one too, and decide as little."""
Complaint = Callable[[Commit, bytes], str]
"""(first commit of a generation, its stored bytes) -> why nobody who may has begun it; empty if somebody has."""


class Streams(msgspec.Struct, frozen=True):
    """The streams that the master's history stands in."""

    events: Stream
    control: Stream
    ledger: Stream


class Cursor:
    """Reads one stream forward, in the pieces that commits name, with one subscription for all of them.

    `endless`: the subscription goes on when all that stands there is read, for a follower that comes again soon.
    """

    def __init__(self, stream: Stream, *, after: int, endless: bool = False) -> None:
        self._stream, self._at, self._endless = stream, after, endless
        self._batches: AsyncGenerator[Sequence[StoredMessage], None] | None = None
        self._ahead: list[StoredMessage] = []
        self._begin = 0
        """How many of them were taken: a batch holds what many commits name, and is not moved for each."""

    async def take(self, high: int) -> list[StoredMessage]:
        """Return the messages from where the last call ended up to `high`.

        Raises:
            HistoryGapError: the stream does not hold them all.
        """
        while (have := self._at + len(self._ahead) - self._begin) < high:
            if self._batches is None or self._endless:
                last = await self._end(high)
                self._batches = self._batches or self._open(have, last)
            batch = await anext(self._batches, None)
            if batch is None:  # all that stood there when it was opened is read; the stream has grown since
                self._batches = None
            else:
                del self._ahead[: self._begin]
                self._begin = 0
                self._ahead += batch
        end = self._begin + high - self._at
        taken = self._ahead[self._begin : end]
        self._at, self._begin = high, end
        if end == len(self._ahead):
            self._ahead, self._begin = [], 0
        return taken

    async def _end(self, high: int) -> int:
        """Return where the stream ends now; it must not be before `high`, for nothing would ever come of waiting."""
        last = (await self._stream.bounds()).last
        if last < high:
            raise HistoryGapError(self._stream.name, f"ends at {last}, before message {high}")
        return last

    def _open(self, have: int, last: int) -> AsyncGenerator[Sequence[StoredMessage], None]:
        until = None if self._endless else last
        return cast("AsyncGenerator[Sequence[StoredMessage], None]", self._stream.read(after=have, until=until))

    async def close(self) -> None:
        """End the subscription."""
        if self._batches is not None:
            await self._batches.aclose()


class Cursors:
    """The inputs of commits, in step with the ledger; a new generation begins anew where its first commit says."""

    def __init__(self, streams: Streams, position: Position, *, endless: bool = False) -> None:
        self._streams, self._endless = streams, endless
        self.facts = Cursor(streams.events, after=position.hi, endless=endless)
        self.control = Cursor(streams.control, after=position.chi, endless=endless)
        self.commits = Cursor(streams.ledger, after=position.version, endless=endless)

    async def restart(self, stored: Commit) -> None:
        """Go on from the positions of a generation's first commit."""
        await self.facts.close()
        await self.control.close()
        self.facts = Cursor(self._streams.events, after=stored.hi, endless=self._endless)
        self.control = Cursor(self._streams.control, after=stored.chi, endless=self._endless)

    async def close(self) -> None:
        """End the subscriptions."""
        await self.facts.close()
        await self.control.close()
        await self.commits.close()


class History:
    """A state at a position, and the way to move it on along stored commits."""

    def __init__(
        self,
        streams: Streams,
        reader: Reader,
        *,
        fold_max: int = 1 << 30,
        policies: Mapping[str, Policy] = KNOWN,
        complaint: Complaint | None = None,
    ) -> None:
        """`fold_max`: most facts folded at once; the result may not depend on it, and an audit can try that.

        `complaint`: says why the first commit of a generation that is met on the way is by nobody's word who may; empty if it is.
        """
        self._complaint = complaint
        self.streams, self.reader, self._fold_max, self._policies = streams, reader, fold_max, policies
        self.rules = CURRENT
        """The policy that `state` is of: that of the last commit applied."""
        self.state: Any = CURRENT.begun(0, 0)
        self.position = Position(Generation(""))
        self.chains: ProducerChains | None = None
        """Where it is set, the producers' own numbering is followed too."""

    def restore(self, snapshot: bytes, at: Commit, *, digest: str = "") -> bool:
        """Take a snapshot if commit `at` vouches for its bytes; tell whether it did.

        `digest`: of the state after `at`, from someone who has folded that far; it counts where the commit states none.
        """
        vouched = at.state or digest
        if not vouched or hashlib.blake2b(snapshot, digest_size=16).hexdigest() != vouched:
            return False
        rules = rules_of(at, self._policies)
        try:
            self.state = rules.decode_state(snapshot)
        except msgspec.DecodeError:  # of another version of the state; folding again gives the same
            return False
        self.rules, self.position = rules, after(at)
        return True

    def begin_before(self, first: Commit) -> None:
        """Stand before a generation's first commit, which is applied like any other: what came before it is another history.

        The very first generation begins with a claim over no input, where a fresh history stands by itself.
        """
        if safe_mode_left(first) is not None:
            # of no generation: what it names as the old one may be a forger's, of a name that sorts behind
            self.position = Position(Generation(""), version=first.version - 1, digest=first.prev)

    def begin_at(self, first: Commit) -> None:
        """Begin with a generation's first commit applied, if it is one that an operator has begun."""
        if safe_mode_left(first) is not None:
            self._begin(first)

    def _begin(self, first: Commit) -> None:
        self.rules = rules_of(first, self._policies)
        self.state, self.position = self.rules.begun(first.hi, first.chi), after(first)

    def adopt(self, rules: Policy) -> None:
        """Go over to other rules, and the state with them."""
        if rules.name != self.rules.name:
            if self.position.version == 0:  # nothing is folded
                self.state = rules.begun(0, 0)
            else:
                self.state = rules.take_over(self.rules, self.state)
            self.rules = rules

    def _go_over(self, stored: Commit) -> None:
        """Adopt the rules of `stored`; a switch is a commit over no input that states the digest of the state taken over.

        Raises:
            UnknownPolicyError: this version does not have them.
            ChainBrokenError: the policy changes without that.
        """
        if stored.policy == self.rules.name:
            return
        switches = stored.lo == stored.hi and stored.clo == stored.chi and bool(stored.state)
        rules = rules_of(stored, self._policies)
        if self.position.version and not switches:
            raise ChainBrokenError(
                f"commit {stored.version}: policy {self.rules.name} becomes {stored.policy}; that must be a commit over no "
                f"input that states the state taken over, it is not"
            )
        self.adopt(rules)

    async def catch_up(self, head: Commit, cursors: "Cursors | None" = None) -> None:
        """Apply stored commits up to `head`, checking the chain and every digest on the way.

        `cursors`: of this history's position, from an earlier call; whoever gave them closes them.

        Raises:
            HistoryError: the chain is broken, or an input is changed.
            HistoryGapError: an input is gone.
        """
        if head.version <= self.position.version:
            return
        using = cursors or Cursors(self.streams, self.position)
        try:
            while self.position.version < head.version:
                upto = min(head.version, self.position.version + _COMMITS_AT_ONCE)
                for message in await using.commits.take(upto):
                    await self._apply(message, using)
        finally:
            if cursors is None:
                await using.close()

    async def _apply(self, message: StoredMessage, cursors: Cursors) -> None:
        stored = stored_commit(message)
        if await self.began_anew(stored, message.body, cursors):
            return
        check_chain(self.position, stored)
        span = await self.fold(stored, cursors)
        if not is_sealed(stored, span.messages(), message.body):
            raise ChainBrokenError(f"commit {stored.version}: its digest does not match its inputs and decisions")
        try:
            self.rules.follow(self.state, stored)
        except _UNAPPLIED as error:
            why = f"{type(error).__name__}: {error}"
            raise ChainBrokenError(f"commit {stored.version}: its decisions cannot be applied ({why})") from error
        self.position = after(stored)

    async def began_anew(self, stored: Commit, body: bytes, cursors: Cursors) -> bool:
        """Begin a new generation if `stored`, of the bytes `body`, is the first commit of one; tell whether it is.

        Raises:
            HistoryError: by nobody's word who may.
        """
        if not is_genesis(self.position, stored, body):
            return False
        if self._complaint is not None and (why := self._complaint(stored, body)):
            raise HistoryError(f"{self.streams.ledger.name}: {why}")
        self._begin(stored)
        await cursors.restart(stored)
        return True

    async def fold(self, stored: Commit, cursors: Cursors) -> Range:
        """Fold the inputs of a stored commit, under the rules that it names, and return them."""
        self._go_over(stored)
        self.state.term = stored.term
        self.reader.told(stored.rejected)
        span = Range()
        fold_into = self.rules.fold_into
        decreed = [(self.reader.control(message), message) for message in await cursors.control.take(stored.chi)]
        fold_into(self.state, span, decreed, [])
        facts = await cursors.facts.take(stored.hi)
        for at in range(0, len(facts), self._fold_max):
            judged = self.reader.facts(facts[at : at + self._fold_max])
            if self.chains is not None:
                self.chains.take(judged)
            fold_into(self.state, span, [], judged)
        return span


def stored_commit(message: StoredMessage) -> Commit:
    """Return the commit in a message of the ledger.

    Raises:
        ChainBrokenError: it is no commit, continues none, or its version is not its sequence.
    """
    try:
        stored = decode_commit(message.body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ChainBrokenError(f"ledger message {message.seq}: not a commit: {error}") from None
    if not _DIGEST.fullmatch(stored.prev):
        raise ChainBrokenError(
            f"commit {stored.version}: continues a commit of digest {stored.prev[:40]!r}, which is none"
        )
    if stored.hi < stored.lo or stored.chi < stored.clo:
        ranges = f"facts ({stored.lo}, {stored.hi}] and control events ({stored.clo}, {stored.chi}]"
        raise ChainBrokenError(f"commit {stored.version}: folds {ranges}: one of them is no range")
    if not _GENERATION.fullmatch(stored.generation):  # a dash or a dot in it would tear the order of its decisions
        raise ChainBrokenError(f"commit {stored.version}: generation {stored.generation[:40]!r} is no name of one")
    if stored.version != message.seq:
        raise ChainBrokenError(f"ledger message {message.seq}: holds version {stored.version}")
    return stored


def check_frame(message: StoredMessage, stored: Commit, subject: str) -> bytes:
    """Check what a commit's digest does not cover: the ledger's `subject`, its headers, and that its bytes say nothing else.

    Return the bytes as which we write it: those of the message, but where a version wrote them that knew fewer fields.

    Raises:
        ChainBrokenError: they are not those with which it was appended.
    """
    if message.subject != subject:
        raise ChainBrokenError(
            f"ledger message {message.seq}: stands under subject {message.subject!r}, not {subject!r}"
        )
    encoded = encode_commit(stored)
    if encoded != message.body and not is_read_whole(stored, message.body):
        raise ChainBrokenError(f"commit {stored.version}: its bytes are not those of what can be read from them")
    if message.headers:
        name = f"{stored.version}-{stored.digest}"
        if message.headers != encode_headers(None, message_id=name, expected_last=stored.version - 1):
            raise ChainBrokenError(f"ledger message {message.seq}: its headers are not those of commit {name}")
    return encoded


async def last_commit(ledger: Stream) -> Commit | None:
    """Return the newest commit, read from the leader; None if there is none."""
    message = await ledger.last()
    return stored_commit(message) if message is not None else None


async def first_of_generation(ledger: Stream, head: Commit) -> Commit:
    """Return the first commit of the generation that `head` is of. Generations only rise, so a bisection finds it."""
    low, high, first = 1, head.version, head
    while low < high:
        middle = (low + high) // 2
        message = await ledger.get(middle)
        if message is None or not _is_of(message, head.generation):
            low = middle + 1
        else:
            high = middle
    message = await ledger.get(low)
    if message is not None:
        first = stored_commit(message)
    return first


def _is_of(message: StoredMessage, generation: Generation) -> bool:
    """Tell whether a message holds a commit of that generation; what is no commit may stand in an older one, or be found out."""
    try:
        return stored_commit(message).generation == generation
    except ChainBrokenError:
        return False


def check_witness(witnessed: Witnessed | None, head: Commit | None, *, who: str = "the data directory") -> None:
    """Check that the ledger is not behind what a witness saw of it.

    Raises:
        LedgerBehindError: it is, or it is an older history.
        HistoryError: it has another commit there.
    """
    if witnessed is None:
        return
    seen = f"{who} has seen version {witnessed.version} of generation {witnessed.generation}"
    if head is None:
        raise LedgerBehindError(f"ledger: it is empty, but {seen}", witnessed.generation)
    if head.generation < witnessed.generation:
        raise LedgerBehindError(f"ledger: it is of generation {head.generation}, but {seen}", witnessed.generation)
    if head.generation > witnessed.generation:
        return
    if head.version < witnessed.version:
        raise LedgerBehindError(f"ledger: it ends at version {head.version}, but {seen}", witnessed.generation)
    if head.version == witnessed.version and witnessed.digest and head.digest != witnessed.digest:
        raise HistoryError(
            f"ledger: version {head.version} has digest {head.digest}, but {seen} with {witnessed.digest}"
        )
