"""What is explained of rows is what is written: no word that nobody says, no word or kind that nobody explains."""

import ast

import msgspec
import pytest

from domain.events import LendBusy
from domain.master import reasons
from projections import decision_log, health, loads
from projections.codes import CODES
from tests.support.kinds import DECISIONS
from tests.support.reasons_said import said
from tests.support.tidy import ROOT, modules

PAGE = (ROOT / "docs" / "reference" / "reasons.md").read_text()


def explained() -> dict[str, set[str]]:
    """Return kind of row -> its explained reasons."""
    found: dict[str, set[str]] = {}
    for kinds, codes in CODES.items():
        for kind in kinds.split(", "):
            found.setdefault(kind, set()).update(codes)
    return found


def stated() -> dict[str, set[str]]:
    """Return kind of row -> every reason that is given for it: as a literal, or from one of the few tables."""
    found = said()
    found["busy"] = {field.default for field in msgspec.structs.fields(LendBusy) if field.name == "reason"}
    found["granted"] = found["changed"] = {reasons.PAYS, reasons.PROBE}
    return found


@pytest.mark.parametrize("kind", sorted(explained().keys() | stated().keys()))
def test_every_reason_that_can_be_stated_is_explained_and_no_other(kind: str):
    assert explained().get(kind, set()) == stated().get(kind, set())


@pytest.mark.parametrize("kinds", CODES)
def test_every_explanation_is_on_the_page(kinds: str):
    assert all(f"| {kinds} | `{code}` | {about} |" in PAGE for code, about in CODES[kinds].items()), (
        "run python docs/reference/reasons.py"
    )


def test_every_kind_of_row_is_explained_among_the_reasons():
    for kinds in (decision_log.KINDS, loads.KINDS, health.KINDS):
        assert all(f"| `{kind}` | {about} |" in PAGE for kind, about in kinds.items()), "run docs/reference/reasons.py"


def test_every_kind_that_has_explained_reasons_is_a_kind():
    assert explained().keys() <= {*decision_log.KINDS, *loads.KINDS, *health.KINDS}


def test_every_decision_that_has_a_kind_of_row_is_one_that_the_master_states():
    trees = [ast.parse(path.read_text()) for path in modules("domain/master")]
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert {type(decision).__name__ for decision in DECISIONS} - used == set()
