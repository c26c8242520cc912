"""What is explained of rows is what is written: no word that nobody says, no kind that nobody explains."""

import pytest

from projections import decision_log, health, loads
from projections.codes import CODES
from tests.support.tidy import ROOT

SAID = "\n".join(
    path.read_text() for folder in ("domain", "services") for path in sorted((ROOT / folder).rglob("*.py"))
)
PAGE = (ROOT / "docs" / "reference" / "reasons.md").read_text()


@pytest.mark.parametrize("kind", CODES)
def test_every_explained_reason_is_one_that_the_machines_give(kind: str):
    assert [code for code in CODES[kind] if f'"{code}"' not in SAID] == []
    assert all(f"| {kind} | `{code}` |" in PAGE for code in CODES[kind]), "run python docs/reference/reasons.py"


def test_every_kind_of_row_is_explained_among_the_reasons():
    for kinds in (decision_log.KINDS, loads.KINDS, health.KINDS):
        assert all(f"| `{kind}` | {about} |" in PAGE for kind, about in kinds.items()), "run docs/reference/reasons.py"


def test_every_kind_that_has_explained_reasons_is_a_kind():
    kinds = {kind.strip() for names in CODES for kind in names.split(",")}
    assert kinds <= {*decision_log.KINDS, *loads.KINDS}
