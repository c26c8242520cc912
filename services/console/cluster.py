"""The state of a master as a person looks at it: nodes and their models, links and their leases, breakers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from projections.words import duration
from services.texts.plain import Row

_GOOD: Final = frozenset({"healthy", "recovered"})


def nodes(state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield one row for each model of each node; a node without models has one row."""
    for node in state["nodes"]:
        word, good = _health(node)
        models: Sequence[Row] = node["models"] or ({},)
        for model in models:
            token_us = model.get("token_us")
            yield {
                "node": node["node"],
                "health": word,
                "good": good,
                "model": model.get("id", ""),
                "engine": model.get("engine", ""),
                "state": _state(model),
                "held": model.get("held", 0),
                "in_engine": model.get("in_engine", 0),
                "lent": model.get("lent", 0),
                "samples": model.get("samples", 0),
                "token": duration(token_us) if token_us else "-",
            }


def _health(node: Mapping[str, Any]) -> tuple[str, bool]:
    """Return (word for how a node is, whether that is well)."""
    if node["retired"]:
        return "retired", True
    word = str(node["health"])
    if node["draining"]:
        return "draining", False
    if word not in _GOOD and node["silent_us"] > 0 and node["registered"]:
        word = f"{word}, silent for {duration(node['silent_us'])}"
    return word, str(node["health"]) in _GOOD


def _state(model: Mapping[str, Any]) -> str:
    if not model:
        return ""
    if model["not_accepting"]:
        return f"not accepting: {model['not_accepting']}"
    return "loaded" if model["ready"] else "not loaded"


def links(state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield each link with its lease, if it has one."""
    leases = {lease["link"]: lease for lease in state["leases"]}
    for link in state["links"]:
        yield {
            "owner": f"{link['owner']}/{link['owner_model']}",
            "helper": f"{link['helper']}/{link['helper_model']}",
            "link": link["link"],
            "lease": _lease(leases.get(link["link"])),
        }


def _lease(lease: Mapping[str, Any] | None) -> Row | None:
    if lease is None:
        return None
    return {
        "lease": lease["lease"],
        "slots": lease["slots"],
        "out": lease["out"],
        "age": duration(max(0, lease["age_us"])),
        "job": duration(lease["job_us"]) if lease["job_us"] > 0 else "-",
        "gain": duration(lease["gain_us"]) if lease["gain_us"] > 0 else "-",
        "reason": lease["reason"] or "pays",
    }


def breakers(state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the helper models that are kept away from."""
    for each in state["breakers"]:
        until_us = each["until_us"]
        yield {
            "model": f"{each['node']}/{each['model']}",
            "state": each["state"].replace("_", " "),
            "failures": each["failures"],
            "left": "-" if until_us is None else duration(max(0, until_us - state["now_us"])),
        }
