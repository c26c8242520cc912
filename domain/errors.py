"""The errors that domain code raises. Each names the subject, the rule and the value, and whose fault it is.

LeasewayError
+-- CallerError            what was asked can never be right: the caller's fault
|   +-- BadIdError
|   +-- BadSettingError
|   +-- BadLinkError
|   +-- BadNodeError
|   +-- BadConfigError
+-- BusError               the event log said no, or said nothing
|   +-- PublishUnknownError
|   +-- WrongLastSequenceError
|   +-- PublishRefusedError
|   +-- NotAllowedError
|   +-- NoAnswerError
|   +-- HistoryGapError
+-- UpstreamError          an engine or node that was asked over HTTP did not answer
|   +-- NotStartedError
|   |   +-- NotConnectedError
|   +-- MayHaveRunError
+-- MachineError           this machine is not as it must be just now: it may be right later
|   +-- DataInUseError
|   +-- PortInUseError
|   +-- UnreachableError
|   +-- ChildFailedError
|   +-- BrokenSetupError
|   +-- NotYetError
+-- StoreError             ClickHouse did not take, or did not give, what was asked
|   +-- StoreTakenError
|   +-- StoreAwayError
|       +-- StoreSlowError
+-- HistoryError           stored history is not what it should be: safe mode
    +-- ChainBrokenError
    +-- ReplayDiffersError
    +-- UnknownPolicyError
    +-- FactsLostError
    +-- LedgerBehindError
    +-- HistoryLostError
"""


class LeasewayError(Exception):
    """The root of all errors that Leaseway raises on purpose."""


class CallerError(LeasewayError, ValueError):
    """What was asked can never be right, whatever the state; nothing has changed."""


class BadIdError(CallerError):
    """An id does not have the form that ids of its kind have."""

    def __init__(self, kind: str, value: str, rule: str) -> None:
        self.kind, self.value, self.rule = kind, value, rule
        super().__init__(f"{kind} id {value[:80]!r}: {rule}")


class BadSettingError(CallerError):
    """A setting's name is unknown or its value is outside its range."""


class BadLinkError(CallerError):
    """A link may not be made or removed as asked."""


class BadNodeError(CallerError):
    """A node may not be enrolled or retired as asked."""


class BadConfigError(CallerError):
    """A configuration file, variable or flag breaks a rule."""


class BusError(LeasewayError):
    """The event log did not take, or did not give, what was asked."""


class PublishUnknownError(BusError):
    """No answer came in time: the message may be stored already, or later, or never."""


class WrongLastSequenceError(BusError):
    """Another message was stored first: the expectation of the publish does not hold."""


class PublishRefusedError(BusError):
    """The log refused the message (rights, size, or a full stream); it is not stored."""

    def __init__(self, message: str, *, reason: str = "refused") -> None:
        self.reason = reason
        """too_large, full, not_allowed, or refused for anything else."""
        super().__init__(message)


class NotAllowedError(BusError):
    """The bus' permissions do not let this process listen or ask there."""


class NoAnswerError(BusError):
    """The bus was asked something that changes nothing, and said nothing; it may be asked again."""


class HistoryGapError(BusError):
    """A message that must exist could not be read."""

    def __init__(self, stream: str, detail: str) -> None:
        self.stream = stream
        super().__init__(f"{stream}: {detail}")


class UpstreamError(LeasewayError):
    """An engine or another node did not give a whole answer."""


class NotStartedError(UpstreamError):
    """No byte of the request's body was sent (refused, DNS, connect, TLS): it provably did not start."""


class NotConnectedError(NotStartedError):
    """Nobody could be reached there at all: another way to the same party may exist."""


class MayHaveRunError(UpstreamError):
    """The request was sent, at least in part, and its end is unknown: it must not be sent again unasked."""


class MachineError(LeasewayError):
    """This machine or its processes are not as they must be just now; the same may be asked again later."""


class DataInUseError(MachineError):
    """Another process holds the data directory."""


class PortInUseError(MachineError):
    """Another process listens where this one should."""


class UnreachableError(MachineError):
    """A process that must answer cannot be reached, or its answer is none of ours."""


class ChildFailedError(MachineError):
    """A supervised process did not start, or ended for good."""


class BrokenSetupError(MachineError):
    """The bus is not set up as it must be; deciding on it would promise what it cannot keep."""


class NotYetError(MachineError):
    """What was asked for is not there yet: nothing is wrong with the question, and the message says how it comes to be."""


class StoreError(LeasewayError):
    """ClickHouse refused a statement, or gave up on it; `code` is its own number for why, 0 if it said none."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        self.code = code
        super().__init__(message)


class StoreTakenError(StoreError):
    """Another projector writes to these tables: two of them would do everything twice."""


class StoreAwayError(StoreError):
    """ClickHouse cannot be reached just now: whether it took the last insert is unknown."""


class StoreSlowError(StoreAwayError):
    """ClickHouse was reached and did not answer in time."""


class HistoryError(LeasewayError):
    """Stored history is not what it should be; no decision may be taken on it."""


class ChainBrokenError(HistoryError):
    """A commit does not continue the one before it, or its bytes do not have its digest."""


class ReplayDiffersError(HistoryError):
    """Deciding again from the same input gave other bytes than are stored."""

    def __init__(self, message: str, *, stored: str = "", decided: str = "") -> None:
        self.stored, self.decided = stored, decided
        """The first field that differs, as it is stored and as it is decided again."""
        super().__init__(message)


class UnknownPolicyError(HistoryError):
    """A commit was decided by rules that this version does not have; another version can tell whether it is right."""

    def __init__(self, version: int, policy: str, known: tuple[str, ...]) -> None:
        self.version, self.policy, self.known = version, policy, known
        super().__init__(
            f"commit {version}: was decided by policy {policy}; a version of Leaseway that has it is needed, "
            f"this one has {', '.join(known)}"
        )


class FactsLostError(HistoryError):
    """The newest facts that a commit folded are gone: what a power cut does to a bus of relaxed durability."""


class LedgerBehindError(HistoryError):
    """The ledger is behind what somebody has seen of it."""

    def __init__(self, message: str, generation: str) -> None:
        self.generation = generation
        """Which somebody has seen: what an operator begins has to sort behind it."""
        super().__init__(message)


class HistoryLostError(HistoryError):
    """A stream that has existed is gone; making an empty one in its place would hide that."""

    def __init__(self, stream: str, evidence: str) -> None:
        self.stream, self.evidence = stream, evidence
        super().__init__(
            f"stream {stream}: is missing although {evidence}; it is not made anew unless asked for by name"
        )
