"""Which of several masters is believed, whichever of them hangs, follows or is gone."""

import asyncio
from typing import Any

import pytest

from domain.errors import UnreachableError
from services.asking import deciding

ACTIVE, STANDBY = {"mode": "active"}, {"mode": "standby"}


class Masters:
    """Masters that answer with a state, with an error, or (None) never."""

    def __init__(self, **answers: dict[str, Any] | str | None) -> None:
        self.answers = answers
        self.left: set[str] = set()
        """Who was not waited for any more."""

    async def state_of(self, name: str) -> dict[str, Any]:
        answer = self.answers[name]
        try:
            while answer is None:
                await asyncio.Event().wait()
        finally:
            self.left |= {name} if answer is None else set()
        if isinstance(answer, str):
            raise UnreachableError(answer)
        return answer

    async def told(self) -> dict[str, Any]:
        return await deciding(self.answers, self.state_of)


async def test_a_master_that_hangs_keeps_nobody_from_the_one_that_decides():
    masters = Masters(one=None, two=STANDBY, three=ACTIVE, four=None)
    assert await masters.told() == ACTIVE
    assert masters.left == {"one", "four"}, "they are not asked on"


async def test_where_none_decides_the_first_that_follows_is_told():
    assert await Masters(one="gone", two=STANDBY | {"n": 2}, three=STANDBY | {"n": 3}).told() == STANDBY | {"n": 2}


async def test_where_none_answers_the_error_is_that_of_the_first():
    with pytest.raises(UnreachableError, match="first"):
        await Masters(one="first", two="second").told()
