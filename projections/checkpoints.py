"""`checkpoints`: where the ledger stood, as the master signed it. Whoever reads a row checks its signature."""

from msgspec.structs import asdict

from domain.events import Checkpoint, Input
from projections.rows import Place, Row, row


def fact_rows(place: Place, fact: Input, router: str) -> list[Row]:
    """Return the row of a checkpoint, with every field that its signature covers; none for any other fact."""
    if not isinstance(fact, Checkpoint):
        return []
    return [row(place, asdict(fact) | {"generation": str(fact.generation), "router": router})]
