"""Stories and states as text: the answer first, columns aligned, nothing wider than a terminal, nothing that a terminal obeys."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from adapters.log.reader import Reader
from adapters.times import moment_of
from domain.errors import BadConfigError, BadLinkError
from domain.ids import ModelId, NodeId
from projections.why.commit import commit_story
from projections.why.lease import lease_story
from projections.why.model import model_story
from projections.why.moments import Moment
from projections.why.request import request_story
from projections.words import duration
from services.cli.parser import build_parser
from services.past.at import Streamed, cluster_then
from services.past.questions import STORIES, kind_of
from services.texts.at import lines_of as lines_of_state
from services.texts.why import WIDTH, lines_of
from tests.support.history import CLUSTER, SECRET
from tests.support.listed import stored
from tests.unit.test_why_stories import commits_of, facts_of, lent_story, told

ROOT = Path(__file__).parents[2]


def test_the_first_line_is_the_answer_and_all_lines_fit():
    story, lease = lent_story()
    request = told(story, "req_2")
    made = lease_story(lease.lease, commits_of(story), facts_of(story.recorder, lease.lease))
    commit = commit_story(commits_of(story)[-1])
    model = model_story(story.master.state, NodeId("a"), ModelId("m"), version=3)
    for each, begins in (
        (request, "req_2: finished 200 in "),
        (made, f"lease {lease.lease}: live: a/m to b, pays; 1 lent under it, 1 answered"),
        (commit, f"version {commit.version} of generation 00010000 decided "),
        (model, "a/m may lend now"),
    ):
        lines = list(lines_of(each))
        assert lines[0].startswith(begins), lines[0]
        assert max(map(len, lines)) <= WIDTH + 10


def test_the_story_of_a_request_shows_life_waits_candidates_and_both_sides_of_the_account():
    story, lease = lent_story()
    text = "\n".join(lines_of(told(story, "req_2")))
    for words in (
        "held first of its queue",
        f"lent to b under lease {lease.lease}, 1 of 2 slots taken",
        "<- its lease",
        f"-> lease {lease.lease} granted: 2 slots at b for 30 s (pays)",
        "its service at b",
        "won ",
    ):
        assert words in text, text
    assert "predicted    measured" in text


def test_columns_stand_below_each_other():
    story, _ = lent_story()
    lines = list(lines_of(told(story, "req_2")))
    begin = next(at for at, line in enumerate(lines) if line.startswith("Life"))
    life = lines[begin + 1 : begin + 8]
    assert len({line.index(f"  {who}  ") for line in life for who in ("a", "b") if f"  {who}  " in line}) == 1


def test_what_comes_from_outside_cannot_steer_a_terminal():
    story, _ = lent_story()
    made = told(story, "req_2")
    evil = Moment(t_us=1, at_ns=1, who="a", what="held", text="red \x1b[31m alert\x07", seq=1)
    lines = list(lines_of(msgspec.structs.replace(made, moments=(evil,))))
    assert all(line.isprintable() for line in lines)


def test_what_is_missing_of_a_story_is_said_at_its_end():
    story, _ = lent_story()
    made = msgspec.structs.replace(told(story, "req_2"), source="NATS", incomplete="message 9 is gone")
    assert list(lines_of(made))[-3:] == ["from NATS", "", "not all: message 9 is gone"]


def test_a_story_survives_json_as_the_projector_sends_it():
    story, lease = lent_story()
    made = {
        "request": told(story, "req_2"),
        "lease": lease_story(lease.lease, commits_of(story), []),
        "commit": commit_story(commits_of(story)[0]),
        "model": model_story(story.master.state, NodeId("a"), ModelId("m"), version=3),
    }
    for kind, each in made.items():
        assert msgspec.json.decode(msgspec.json.encode(each), type=STORIES[kind]) == each


def test_what_is_asked_for_is_known_by_the_form_of_its_name():
    request = "req_" + "0a" * 16
    assert kind_of(request) == ("request", request)
    assert kind_of("0001ab2f-812-1") == ("lease", "0001ab2f-812-1")
    assert kind_of("812") == ("commit", "812")
    assert kind_of("studio/qwen/7b") == ("model", "studio/qwen/7b")
    with pytest.raises(BadConfigError, match="x-request-id is in no event"):
        kind_of("my-own-id")
    with pytest.raises(BadLinkError):
        kind_of("studio/")


async def test_the_state_as_text_has_a_table_for_each_kind_of_thing():
    story, lease = lent_story()
    of = Streamed(stored(story.recorder, story.master.commits), Reader(CLUSTER, SECRET), None)
    lines = list(lines_of_state(await cluster_then(of)))
    text = "\n".join(lines)
    assert lines[0].startswith(f"version {story.master.position.version} of {story.master.position.version}")
    assert lease.lease in text
    for title in (
        "Queues",
        "Leases",
        "Nodes",
        "Links",
        "Measured",
        "Runtimes",
        "Breakers that are not closed: none",
    ):
        assert title in text, text
    assert "a/m" in text
    assert max(map(len, lines)) <= WIDTH + 10
    assert "Settings that are not at their default: none" in text


def test_the_commands_are_known_with_examples():
    parsed = build_parser().parse_args(["why", "studio/chat", "--json"])
    assert (parsed.module, parsed.what, parsed.json) == ("why", "studio/chat", True)
    parsed = build_parser().parse_args(["at", "5 minutes ago", "studio/chat"])
    assert (parsed.module, parsed.moment, parsed.only) == ("at", moment_of("5 minutes ago"), "studio/chat")


def test_the_reference_of_the_answers_is_what_its_script_makes():
    made = subprocess.run(
        [sys.executable, "docs/reference/history.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr


def test_a_duration_that_rounds_up_to_the_next_unit_is_shown_in_it():
    shown = [duration(us) for us in (0, 999, 1_000, 999_400, 999_600, 59_990_000, 3_600_000_000, -1)]
    assert shown == ["0 us", "999 us", "1 ms", "999 ms", "1 s", "1 min", "1 h", "-"]


def test_a_request_that_ran_at_home_says_what_stood_against_lending_it():
    story, _ = lent_story()
    made = request_story("req_9", facts_of(story.recorder, '"req_9"'), commits_of(story))
    assert made is not None
    assert "not lent so far, it waits for a slot at b" in made.headline
