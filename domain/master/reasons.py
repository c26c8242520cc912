"""Why a candidate did or did not get a lease: codes in rank order, the first that applies is the one shown.

"Never fits" and "does not fit now" are different codes. "Pending" is no reason.
"""

from typing import Final

from domain.catalogue.eligibility import INELIGIBLE

LINK_REMOVED: Final = "link_removed"
NODE_RETIRED: Final = "node_retired"
MODEL_UNKNOWN: Final = "model_unknown"
NO_VISION: Final = "no_vision"
CONTEXT_TOO_SMALL: Final = "context_too_small"
SIZE_UNKNOWN: Final = "size_unknown"
NODE_SILENT: Final = "node_silent"
HISTORY_INCOMPLETE: Final = "history_incomplete"
HELPER_NOT_ACCEPTING: Final = "helper_not_accepting"
QUARANTINED: Final = "quarantined"
HELPER_CLAIMED: Final = "helper_claimed"
LOAD_FORBIDDEN: Final = "load_forbidden"
NOTHING_LENDABLE: Final = "nothing_lendable"
SERVICE_UNPRICED: Final = "service_unpriced"
OWNER_UNPRICED: Final = "owner_unpriced"
SWITCH_UNPRICED: Final = "switch_unpriced"
RESTORE_UNPRICED: Final = "restore_unpriced"
HELPER_RECENTLY_BUSY: Final = "helper_recently_busy"
COST_REJECTED: Final = "cost_rejected"
OUTRANKED: Final = "outranked"

REASONS: Final[dict[str, str]] = {
    LINK_REMOVED: "The link is gone, so its lease is cleared.",
    NODE_RETIRED: "An operator retired the node.",
    MODEL_UNKNOWN: "The helper does not serve the linked model, or never registered.",
    **INELIGIBLE,
    NO_VISION: "All that may be lent holds images, and the linked model does not see them.",
    CONTEXT_TOO_SMALL: "The mean held request does not fit the helper's context window.",
    SIZE_UNKNOWN: "The helper has a context window, and the size of nothing that may be lent is known.",
    NODE_SILENT: "The node's heartbeats stopped.",
    HISTORY_INCOMPLETE: "Facts of the helper or of the owner are missing or late; its state is not known well enough.",
    HELPER_NOT_ACCEPTING: "The helper has work of its own, loads back what was driven out, drains, or its engine is down.",
    QUARANTINED: "The helper failed lent requests one after another and gets none for a while, probes included.",
    HELPER_CLAIMED: "Other owners hold all the slots that the helper can give, or lend to another model of its runtime.",
    LOAD_FORBIDDEN: "The linked model is not loaded there, and the link does not allow loading it.",
    NOTHING_LENDABLE: "Nothing is held that may be lent: nothing waits, or what waits came back from a helper once, "
    "is a stream while offload_streams is off, or is larger than 8 MiB.",
    SERVICE_UNPRICED: "Neither owner nor helper has been measured for this work, so there is no price for either.",
    OWNER_UNPRICED: "The helper has been measured, the owner has not: there is no price for its backlog.",
    SWITCH_UNPRICED: "The linked model would have to be loaded, and no load of it has been measured.",
    RESTORE_UNPRICED: "A model would be driven out, and no load of it has been measured: its way back has no price.",
    HELPER_RECENTLY_BUSY: "The switch would pay if the helper had no requests of its own, but it had one within the time of "
    "the switch and the way back.",
    COST_REJECTED: "The backlog is done before this helper's first answer (by the owner alone; with the helpers "
    "chosen before it, if it would have to switch), or the switch costs more than it saves.",
    OUTRANKED: "Faster candidates take all the held requests.",
}
"""Each code with its sentence, in rank order; docs/reference/reasons.md is made from it."""

PRICED_OUT: Final = frozenset(
    {
        SERVICE_UNPRICED,
        OWNER_UNPRICED,
        SWITCH_UNPRICED,
        RESTORE_UNPRICED,
        HELPER_RECENTLY_BUSY,
        COST_REJECTED,
        OUTRANKED,
    }
)
"""Codes of helpers that could take work, and were not chosen."""

RANK: Final[dict[str, int]] = {code: rank for rank, code in enumerate(REASONS)}

OUTCOMES: Final[dict[str, str]] = {
    "granted": "It has a lease: its slots, and what it saves.",
    "probe": "It is not measured and not chosen, but idle: one request goes there to be measured. The code says why it was "
    "not chosen.",
    "skipped": "It has no lease. The code says why.",
}
"""Each outcome of a verdict with its sentence."""

TRIGGERS: Final[dict[str, str]] = {
    "enqueued": "The owner holds or started a request.",
    "completed": "A request ended in the owner's own engine.",
    "borrowed_completed": "A lent request ended: answered, handed back, cut off or not passed on.",
    "drained": "The last held request was lent.",
    "slots_freed": "Another owner's lease of a linked helper was cleared.",
    "probe_due": "A linked helper has idled long enough for a probe.",
    "tick": "The refresh interval is over, or a lease is; or the owner gave a sign of life.",
    "link": "A link or a setting changed.",
    "health": "A node changed: its health, its models, whether it takes borrowed work, a breaker.",
}
"""What made the master look at an owner, with a sentence."""

PAYS: Final = "pays"
PROBE: Final = "probe"
HELPER_FIT: Final = "helper"
OWNER_FALLBACK: Final = "owner_fallback"
