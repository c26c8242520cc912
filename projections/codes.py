"""What the words in `reason` mean in rows that are no plan; docs/reference/reasons.md explains them from here."""

from typing import Final

CODES: Final[dict[str, dict[str, str]]] = {
    "returned, borrowed_returned": {
        "own_work": "The helper has a request of its own, or loads for one; borrowed ones that have not started go home.",
        "load_needed": "The linked model is not loaded there (any more), and the link does not allow loading it.",
        "restoring": "The helper loads back the model that borrowed work drove out.",
        "draining": "The helper's process ends what it has and takes nothing new.",
        "engine_down": "The helper's engine is not there.",
        "no_live_lease": "The helper knows of no lease under which the request may come.",
    },
    "relay_refused": {
        "no_live_lease": "Neither helper nor relay knows of a lease under which the request may go.",
        "helper_unreachable": "No connection to the helper came about.",
        "forward_failed": "The helper, or the relay on the way, did not take the request.",
    },
    "busy": {
        "desk_full": "The helper holds as much borrowed work as its engine takes; the request may go there later."
    },
    "cut_off": {
        "answer_late": "No answer began within three times the predicted switch and job, and 30 s.",
        "stalled": "The master asked the helper what it runs, and it did not say that it works.",
        "helper_failed": "The connection to the helper broke.",
        "helper_error": "The helper answered with an error of its own (5xx).",
    },
    "lease_refused": {
        "not_an_owner": "The node has no such link: a model that is only a helper never lends.",
        "expired": "The grant came later than its lifetime.",
        "unknown_basis": "The grant rests on a fact that this life of the owner did not state.",
        "bad_signature": "The grant is not signed by this cluster's master.",
    },
    "restore_cancelled": {
        "own_work": "A request of the helper's own came first.",
        "load_failed": "Loading it back failed.",
    },
}
"""Kinds of rows -> code -> sentence."""
