"""kill -9 of the projector: rows are the streams' messages, each once, whenever it happens (reports A.52).

`LW_KILLS` and `LW_SEED` choose how many moments the campaign has (pytest -m long), and which.
"""

import os
import random
import signal

import pytest

from tests.support.lives import life
from tests.support.projector_child import EXPECTED

pytestmark = pytest.mark.real

CHILD = "tests.support.projector_child"
SEED = os.environ.get("LW_SEED") or str(random.SystemRandom().randrange(10**6))
INSERTS = 96
"""About as many as an undisturbed run needs."""


async def killed_then_whole(dsn: str, moments: list[tuple[str, int]]) -> None:
    """Kill at each of `moments` in turn; then the tables hold each message once."""
    database = f"kills_{os.urandom(4).hex()}"
    for at, (moment, number) in enumerate(moments):
        code, _ = await life(CHILD, dsn, database, moment, number)
        # fewer inserts are left from life to life: a late moment may not come any more
        assert code == -signal.SIGKILL or at > 0
    _, told = await life(CHILD, dsn, database, "never")
    told.pop("inserts")
    assert told == EXPECTED


async def test_a_killed_projector_goes_on_without_a_row_lost_or_doubled(killed_dsn: str):
    """The first kill is between a derived table and the checkpoint, which then lags behind it; the others are anywhere."""
    dice = random.Random(SEED)
    moments = [("after", 4), *((moment, dice.randrange(1, INSERTS // 3)) for moment in ("before", "during", "after"))]
    print(f"LW_SEED={SEED}: {moments}")
    await killed_then_whole(killed_dsn, moments)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("campaign", range(int(os.environ.get("LW_KILLS", "20")) // 4))
async def test_campaign_of_kills(killed_dsn: str, campaign: int):
    dice = random.Random(f"{SEED}/{campaign}")
    moments = [(dice.choice(["before", "during", "after"]), dice.randrange(1, INSERTS // 3)) for _ in range(4)]
    print(f"LW_SEED={SEED} campaign {campaign}: {moments}")
    await killed_then_whole(killed_dsn, moments)
