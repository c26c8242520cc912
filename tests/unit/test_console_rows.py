"""What the console makes of a master's state: a row for each thing that somebody may have to act on, in words."""

from typing import Any

import pytest

from services.console import cluster
from services.console.pages import EVERY_S_MAX, every_of
from services.console.peers import Said
from services.console.trouble import troubles

MODEL: dict[str, Any] = {"id": "m", "engine": "openai", "ready": True, "not_accepting": "", "held": 3, "in_engine": 1}
NODE: dict[str, Any] = {
    "node": "n1",
    "health": "healthy",
    "silent_us": 0,
    "registered": True,
    "retired": False,
    "draining": False,
    "models": [MODEL],
}
LINK = {"link": "aa", "owner": "n1", "owner_model": "m", "helper": "n2", "helper_model": "m"}
LEASE = {
    "link": "aa",
    "lease": "00010000-3-1",
    "slots": 2,
    "out": 1,
    "age_us": -5,
    "job_us": 0,
    "gain_us": 0,
    "reason": "",
}


def test_a_node_has_a_row_for_each_of_its_models_and_one_without_any():
    [none, first, second] = cluster.nodes(
        {"nodes": [NODE | {"models": []}, NODE | {"models": [MODEL, MODEL | {"id": "o", "lent": 2, "token_us": 1500}]}]}
    )
    assert (none["node"], none["model"], none["state"], none["held"], none["token"]) == ("n1", "", "", 0, "-")
    assert (first["model"], first["held"], first["in_engine"], first["lent"]) == ("m", 3, 1, 0)
    assert (second["model"], second["lent"], second["token"]) == ("o", 2, "1.5 ms")


@pytest.mark.parametrize(
    ("more", "word", "good"),
    [
        ({}, "healthy", True),
        ({"health": "recovered", "silent_us": 9_000_000}, "recovered", True),
        ({"health": "stale", "silent_us": 9_000_000}, "stale, silent for 9 s", False),
        ({"health": "never_registered", "registered": False, "silent_us": 9}, "never_registered", False),
        ({"health": "offline", "retired": True}, "retired", True),
        ({"draining": True}, "draining", False),
    ],
)
def test_the_health_of_a_node_is_said_with_how_long_it_is_silent(more: dict[str, Any], word: str, good: bool):
    [row] = cluster.nodes({"nodes": [NODE | more]})
    assert (row["health"], row["good"]) == (word, good)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({}, "loaded"),
        ({"ready": False}, "not loaded"),
        ({"not_accepting": "engine_down"}, "not accepting: engine_down"),
    ],
)
def test_a_model_is_loaded_or_not_or_takes_no_borrowed_work_for_a_reason(more: dict[str, Any], word: str):
    [row] = cluster.nodes({"nodes": [NODE | {"models": [MODEL | more]}]})
    assert row["state"] == word


def test_a_link_stands_with_its_lease_or_without_one():
    free, leased = cluster.links({"links": [LINK | {"link": "bb"}, LINK], "leases": [LEASE]})
    assert (free["owner"], free["helper"], free["lease"]) == ("n1/m", "n2/m", None)
    assert leased["lease"] == {
        "lease": "00010000-3-1",
        "slots": 2,
        "out": 1,
        "age": "0 us",
        "job": "-",
        "gain": "-",
        "reason": "pays",
    }


def test_a_breaker_says_when_it_will_be_half_open():
    until = {"node": "n2", "model": "m", "state": "half_open", "failures": 3}
    rows = cluster.breakers(
        {"now_us": 4_000_000, "breakers": [until | {"until_us": us} for us in (9_000_000, 1, None)]}
    )
    assert [(row["model"], row["state"], row["left"]) for row in rows] == [
        ("n2/m", "half open", "5 s"),
        ("n2/m", "half open", "0 us"),
        ("n2/m", "half open", "-"),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 5),
        ("0", 0),
        ("30", 30),
        ("99999999", EVERY_S_MAX),
        ("9" * 30, 5),
        ("-1", 5),
        ("1.5", 5),
        ("\u0663", 5),
        ("x", 5),
    ],
)
def test_a_page_is_loaded_again_after_a_number_of_seconds_and_never_at_once(text: str, seconds: int):
    assert every_of({"every": text}, 5) == seconds
    assert every_of({}, 5) == 5


def master(status: str, **body: str) -> Said:
    return Said("master", "http://m", 200, {"status": status, **body})


OTHERS = [Said("gateway", "http://g", 200, {"status": "ok"}), Said("projector", "http://p", 200, {"status": "ok"})]


def test_a_cluster_that_is_well_is_said_nothing_of():
    assert list(troubles([*OTHERS, master("standby"), master("active")])) == []


def test_what_is_worst_is_said_first():
    silent = Said("projector", "http://p", 0, {}, "projector http://p: cannot be reached")
    waiting = Said("gateway", "http://g", 503, {"status": "draining", "error": "it was asked to stop"})
    said = list(troubles([waiting, silent, master("safe_mode", doubt="a hole", feed="full")]))
    assert [each.weight for each in said] == ["alarm", "notice", "notice", "notice"]
    assert "a hole" in said[0].text
    assert [each.text for each in said[1:]] == [
        "gateway: draining",
        "projector http://p: cannot be reached",
        "Decisions are not told on the feed: full",
    ]
    assert said[1].more == "it was asked to stop"
