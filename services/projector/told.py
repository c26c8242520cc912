"""What outside tools may be told: events of ours, and of decisions only those that the master has signed.

Whoever stole the bus key of a master may store anything as a decision. Nodes and gateways believe one for its signature; so do
those who tell of it.
"""

import hashlib
import logging
from collections import OrderedDict
from typing import Final

from adapters.decisions import DecisionReader
from adapters.log.public import Came
from domain.subjects import DECISIONS
from projections.feed import PublicEvent, public_event

_LOG: Final = logging.getLogger("leaseway.projector")
_KNOWN_MAX: Final = 4096
"""Messages remembered: decisions that were checked, and refused ones that were counted."""
_LOGGED_MAX: Final = 100
"""Subjects of which a refusal is logged; whoever forges may invent as many as it likes."""


class Told:
    """Tells what of the public streams is told to anybody; one for all who tell, so that each forgery is counted once."""

    def __init__(self, reader: DecisionReader | None = None) -> None:
        """Believe the decisions that `reader` does; without one, none."""
        self._reader = reader
        self._checked: OrderedDict[bytes, bool] = OrderedDict()
        self._counted: OrderedDict[int, None] = OrderedDict()
        self._logged: set[str] = set()
        self.refused = 0
        """Messages among the decisions that are told to nobody."""

    def event(self, came: Came) -> PublicEvent | None:
        """Return the event in a message; None if it is none of ours, or stands among the decisions and is not the master's."""
        if came.stream == DECISIONS and not self._is_signed(came.message.body):
            self._refuse(came)
            return None
        return public_event(came.message)

    def _is_signed(self, body: bytes) -> bool:
        """Tell whether a decision is the master's; several readers ask of the same one, and a check costs 0.1 ms."""
        name = hashlib.blake2b(body, digest_size=16).digest()
        known = self._checked.get(name)
        if known is None:
            known = self._reader is not None and self._reader.is_signed(body)
            self._checked[name] = known
            if len(self._checked) > _KNOWN_MAX:
                self._checked.popitem(last=False)
        return known

    def _refuse(self, came: Came) -> None:
        seq = came.message.seq
        if seq in self._counted:
            return
        self._counted[seq] = None
        if len(self._counted) > _KNOWN_MAX:
            self._counted.popitem(last=False)
        self.refused += 1
        subject = came.message.subject
        if subject not in self._logged and len(self._logged) < _LOGGED_MAX:
            self._logged.add(subject)
            _LOG.warning("decision_refused", extra={"why": "signature", "seq": seq, "subject": subject[:256]})
