"""The errors that domain code raises. Each names the subject, the rule and the value, and whose fault it is.

LeasewayError
+-- CallerError            what was asked can never be right: the caller's fault
|   +-- BadIdError
|   +-- BadSettingError
|   +-- BadLinkError
|   +-- BadConfigError
+-- BusError               the event log said no, or said nothing
|   +-- PublishUnknownError
|   +-- WrongLastSequenceError
|   +-- PublishRefusedError
|   +-- HistoryGapError
+-- HistoryError           stored history is not what it should be: safe mode
    +-- ChainBrokenError
    +-- ReplayDiffersError
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


class BadConfigError(CallerError):
    """A configuration file, variable or flag breaks a rule."""


class BusError(LeasewayError):
    """The event log did not take, or did not give, what was asked."""


class PublishUnknownError(BusError):
    """No answer came in time: the message may be stored already, or later, or never."""


class WrongLastSequenceError(BusError):
    """Another message was stored first: the expectation of the publish does not hold."""


class PublishRefusedError(BusError):
    """The log refused the message for good (rights, size, or a full stream); it is not stored."""


class HistoryGapError(BusError):
    """A message that must exist could not be read."""


class HistoryError(LeasewayError):
    """Stored history is not what it should be; no decision may be taken on it."""


class ChainBrokenError(HistoryError):
    """A commit does not continue the one before it, or its bytes do not have its digest."""


class ReplayDiffersError(HistoryError):
    """Deciding again from the same input gave other bytes than are stored."""
