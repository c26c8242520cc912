"""What a console must know before it shows anything."""

import asyncio
from pathlib import Path

import pytest

from domain.errors import NotYetError
from services.config import Config
from services.console import main
from tests.support.console_peers import console


async def test_a_console_that_nothing_tells_where_the_others_are_takes_nobody_elses_for_them(tmp_path: Path):
    config = Config(data=tmp_path / "none")
    with pytest.raises(NotYetError, match=r"none: nothing ever ran on it; .*\[urls\]"):
        await main.run(config, pytest.fail, asyncio.Event())


async def test_a_console_that_is_told_where_they_are_needs_no_data_directory(tmp_path: Path):
    async with console(tmp_path / "none") as url:
        assert url.startswith("http://127.0.0.1:")
    assert not (tmp_path / "none").exists()
