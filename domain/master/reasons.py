"""Why a candidate did or did not get a lease: codes in rank order, the first that applies is the one shown.

"Never fits" and "does not fit now" are different codes. "Pending" is no reason.
"""

from typing import Final

LINK_REMOVED: Final = "link_removed"
NODE_RETIRED: Final = "node_retired"
MODEL_UNKNOWN: Final = "model_unknown"
CONTEXT_TOO_SMALL: Final = "context_too_small"
NODE_SILENT: Final = "node_silent"
HISTORY_INCOMPLETE: Final = "history_incomplete"
HELPER_NOT_ACCEPTING: Final = "helper_not_accepting"
HELPER_CLAIMED: Final = "helper_claimed"
LOAD_FORBIDDEN: Final = "load_forbidden"
NOTHING_LENDABLE: Final = "nothing_lendable"
OWNER_UNPRICED: Final = "owner_unpriced"
SERVICE_UNPRICED: Final = "service_unpriced"
SWITCH_UNPRICED: Final = "switch_unpriced"
COST_REJECTED: Final = "cost_rejected"
OUTRANKED: Final = "outranked"

REASONS: Final[dict[str, str]] = {
    LINK_REMOVED: "The link is gone, so its lease is cleared.",
    NODE_RETIRED: "An operator retired the helper's node.",
    MODEL_UNKNOWN: "The helper does not serve the linked model, or never registered.",
    CONTEXT_TOO_SMALL: "The mean held request does not fit the helper's context window.",
    NODE_SILENT: "The helper's heartbeats stopped.",
    HISTORY_INCOMPLETE: "Facts of the helper or of the owner are missing or late; its state is not known well enough.",
    HELPER_NOT_ACCEPTING: "The helper has work of its own, is draining, or its engine is down.",
    HELPER_CLAIMED: "Other owners hold all the slots that the helper can give.",
    LOAD_FORBIDDEN: "The linked model is not loaded there, and the link does not allow loading it.",
    NOTHING_LENDABLE: "Requests are held, but none of them may be lent (returned once, or not replayable).",
    OWNER_UNPRICED: "No request of this model has been measured at its owner yet, so there is no price for its backlog.",
    SERVICE_UNPRICED: "There is no measured service time to price the helper with.",
    SWITCH_UNPRICED: "The linked model would have to be loaded, and no load of it has been measured.",
    COST_REJECTED: "The owner alone drains its backlog sooner than this helper would hand back a first job.",
    OUTRANKED: "Faster candidates take all the held requests.",
}
"""Each code with its sentence, in rank order; docs/reference/reasons.md is made from it."""

RANK: Final[dict[str, int]] = {code: rank for rank, code in enumerate(REASONS)}

HELPER_FIT: Final = "helper"
OWNER_FALLBACK: Final = "owner_fallback"
