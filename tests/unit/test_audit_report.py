"""The report that an auditor keeps: it says what was verified and what was not, and nothing in it can act."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from adapters.log.chains import Chain
from adapters.log.report import Difference, Met, Report
from domain.errors import BadConfigError
from services.cli.audit_report import text, write


def a_report() -> Report:
    return Report(
        cluster="lab",
        source="stream nats://here",
        commits=41,
        last_version=41,
        policies={"water-3": 41},
        versions={"0.1.0": 2},
        producers={"studio": Chain(facts=12, incarnations=1, missing=3)},
        checkpoints=[
            Met(version=9, digest="ab", at_us=1_790_000_000_000_000, fingerprint="1f0c-77aa", source="a file")
        ],
        checkpoints_met=1,
        keys={"1f0c-77aa": "UABC"},
        differences=[Difference(42, "ledger", "<script>alert(1)</script>", stored="now_us 7", decided="now_us 8")],
        unchecked=["MACs of facts: no secret"],
    )


def test_as_text_it_names_range_counts_policies_checkpoints_keys_and_both_sides_of_the_difference():
    told = "\n".join(text(a_report()))
    for expected in (
        "audit verify: 41 commits, 1 differences, 3 facts numbered by their nodes and never stored",
        "stored: now_us 7",
        "decided again: now_us 8",
        "water-3: 41",
        "0.1.0: 2",
        "1f0c-77aa: UABC",
        "version 9: ab signed 2026-09-21",
        "3 missing",
        "MACs of facts: no secret",
    ):
        assert expected in told


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]


def test_as_a_page_it_needs_nothing_from_outside_and_what_comes_from_outside_is_only_text(tmp_path: Path):
    write(a_report(), tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text()
    seen = Seen()
    seen.feed(page)
    assert "script" not in seen.tags
    assert seen.addresses == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "now_us 8" in page


def test_as_a_page_it_is_as_dark_as_the_reader_s_screen_and_states_no_colour_besides(tmp_path: Path):
    write(a_report(), tmp_path / "audit.html")
    style = (tmp_path / "audit.html").read_text().split("<style>")[1].split("</style>")[0]
    light, dark = re.findall(r":root\{([^}]*)\}", style)
    named = set(re.findall(r"(--\w+):#", light))
    assert named == set(re.findall(r"(--\w+):#", dark)) == set(re.findall(r"var\((--\w+)\)", style))
    assert style.count("#") == 2 * len(named), "a colour of its own is the same in the dark"


def test_as_json_it_has_all_of_it(tmp_path: Path):
    write(a_report(), tmp_path / "audit.json")
    said = json.loads((tmp_path / "audit.json").read_text())
    assert said["format"] == "leaseway-report/1"
    assert said["clean"] is False
    assert said["differences"][0]["decided"] == "now_us 8"
    assert said["checkpoints"][0]["version"] == 9


def test_where_it_cannot_be_written_one_line_says_so(tmp_path: Path):
    with pytest.raises(BadConfigError, match="cannot be written"):
        write(a_report(), tmp_path / "nowhere" / "audit.html")
