"""The house style that no linter knows. Each failure names the file, the line and the remedy."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from domain.events import Event
from domain.events.base import EventBody, tag_of
from tests.support import tidy
from tests.support.tidy import ROOT

TESTS = [path for path in tidy.modules("tests") if "support" not in path.parts]


def told(findings: list[str]) -> None:
    """Fail with one line a finding."""
    if findings:
        pytest.fail("\n" + "\n".join(findings), pytrace=False)


def test_modules_and_functions_are_short_enough_to_read_at_a_sitting():
    told([finding for path in tidy.modules(*tidy.PACKAGES, "tests") for finding in tidy.oversized(path)])


def test_the_domain_counts_in_integers_only():
    told([finding for path in tidy.exact_modules() for finding in tidy.floats(path, tidy.tree_of(path))])


@pytest.mark.parametrize(
    "code",
    ["x = 0.5", "x = 1 / 2", "x /= 2", "def f(x: float): ...", "import math", "from math import exp", "round(x)"],
)
def test_the_check_for_floats_sees_every_way_to_make_one(code: str):
    assert list(tidy.floats(ROOT / "x.py", ast.parse(code)))


def test_the_domain_imports_nothing_but_itself_msgspec_and_pure_parts_of_the_standard_library():
    told([f for path in tidy.modules("domain", "projections") for f in tidy.impure_imports(path, allowed_tree(path))])


def allowed_tree(path: Path) -> ast.Module:
    """Return the module's syntax; a projection may import its neighbours."""
    tree = tidy.tree_of(path)
    tree.body = [node for node in tree.body if "projections" not in set(tidy.imported(node))]
    return tree


@pytest.mark.parametrize("event", get_args(Event), ids=lambda event: event.__name__)
def test_an_event_is_frozen_and_has_a_tag_of_its_own(event: type[EventBody]):
    assert issubclass(event, EventBody), f"{event.__name__}: derive it from EventBody"
    assert event.__struct_config__.frozen, f"{event.__name__}: declare it frozen=True"
    same = [other.__name__ for other in get_args(Event) if tag_of(other) == tag_of(event)]
    assert same == [event.__name__], f"tag {tag_of(event)!r} is on several: {same}"
    family, _, name = tag_of(event).partition(".")
    assert family, f"{event.__name__}: a tag is <family>.<event>, got {tag_of(event)!r}"
    assert name, f"{event.__name__}: a tag is <family>.<event>, got {tag_of(event)!r}"


def test_every_test_says_what_must_hold_and_neither_mocks_nor_sleeps():
    told([finding for path in TESTS for finding in tidy.untold_tests(path, tidy.tree_of(path))])


def test_no_file_names_a_machine_or_a_registry_or_what_is_not_here():
    findings: list[str] = []
    for path in tidy.tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        findings += tidy.outside_names(path, text)
    told(findings)


@pytest.mark.parametrize(
    "line", ["cd /wo" + "rk/main", "open('/ro" + "ot/x')", "--index-" + "url x", "see design." + "md"]
)
def test_the_check_for_outside_names_sees_each_kind(line: str):
    assert list(tidy.outside_names(ROOT / "x", line))


def test_links_between_pages_lead_somewhere():
    told([f for path in tidy.tracked_files() if path.suffix == ".md" for f in tidy.dead_links(path)])


def test_changelog_fragments_can_be_printed_as_they_are():
    fragments = (path for path in sorted((ROOT / "docs/changes").iterdir()) if not path.name.startswith("."))
    told([finding for path in fragments for finding in tidy.bad_fragment(path)])


def test_the_index_of_decision_records_is_what_its_script_makes():
    made = subprocess.run(
        [sys.executable, "docs/adr/index.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr


def test_no_installed_distribution_takes_the_names_of_our_packages(tmp_path: Path):
    # an installed package of the same name would win over an editable install
    assert tidy.origins(tmp_path) == [ROOT / package for package in tidy.PACKAGES]
