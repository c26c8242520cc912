"""What the words in `reason` mean in rows that are no plan; docs/reference/reasons.md explains them from here."""

from typing import Final

CODES: Final[dict[str, dict[str, str]]] = {
    "returned, borrowed_returned": {
        "own_work": "The helper has a request of its own, or loads for one; borrowed ones that have not started go home.",
        "load_needed": "The linked model is not loaded there (any more), and the link does not allow loading it.",
        "restoring": "The helper loads back the model that borrowed work drove out.",
        "draining": "The helper's process ends what it has and takes nothing new.",
        "engine_down": "The helper's engine is not there.",
        "load_failed": "The linked model was to be loaded for it, and the load failed.",
    },
    "borrowed_returned": {
        "no_live_lease": "The helper knows of no lease under which the request may come; its owner states relay_refused.",
        "owner_gone": "The owner hung up, or its body broke off or was not the one it signed, before the request started.",
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
        "unwatched": "The helper said nothing for four times offload_lent_stall_timeout, and no master asked it what it runs.",
        "helper_failed": "The connection to the helper broke.",
        "helper_error": "The helper answered with an error of its own (5xx).",
        "client_gone": "The client left; its request ends with it. The helper can do nothing for it.",
    },
    "lease_refused": {
        "not_an_owner": "The node has no such link: a model that is only a helper never lends.",
        "expired": "The grant came later than its lifetime.",
        "unknown_basis": "The grant rests on a fact that this life of the owner did not state.",
        "bad_signature": "The grant is not signed by this cluster's master.",
    },
    "granted, changed": {
        "pays": "The lease ends the owner's backlog sooner; what it saves is its gain.",
        "probe": "The helper is not measured: one request goes there to learn what it takes.",
    },
    "not_accepting": {
        "own_work": "A request of the helper's own waits, for whichever model of the runtime.",
        "restoring": "What borrowed work drove out is loaded back.",
        "draining": "The node's process ends what it has and takes nothing new.",
        "engine_down": "The engine is not there, or the model could not be loaded and is not tried again yet.",
    },
    "load_failed": {
        "engine_down": "The engine of the loaded model ended. Any other text is what the start of the engine said.",
    },
    "restore_cancelled": {
        "own_work": "A request of the helper's own came first, or a model is loaded for one.",
        "loaded": "The model came back another way: for borrowed work, or by itself.",
        "load_failed": "Loading it back failed three times in a row.",
    },
}
"""Kinds of rows -> code -> sentence."""
