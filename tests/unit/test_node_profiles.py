"""What a node measured of its models' traffic, kept over a restart."""

import logging
from pathlib import Path

import pytest

from adapters.http.body import parse
from adapters.profiles import FileProfiles
from domain.ids import ModelId
from domain.inputs import EngineResult
from services.config import NodeModel
from services.node.own_work import Served
from services.node.profiles import Profiles
from tests.support.local_nodes import local_node, model_at

ASKED = parse(b'{"model": "public", "messages": [{"role": "user", "content": "hello there"}]}')
PUBLIC = ModelId("public")


def book(path: Path, served: Served) -> Profiles:
    return Profiles(FileProfiles(path), {PUBLIC: served})


async def measured(path: Path, model: NodeModel) -> list[int]:
    """Let a node's model measure two answers, and keep that; return the works before and after."""
    async with local_node([model], up=False) as local:
        served = local.node.models[PUBLIC]
        works = [served.sizes.work_by_now(ASKED)]
        for _ in range(2):
            served.sizes.learn(ASKED, EngineResult(tokens_in=50, tokens_out=40))
        await book(path, served).keep()
        return [*works, served.sizes.work_by_now(ASKED)]


async def work_after_load(path: Path, model: NodeModel) -> int:
    async with local_node([model], up=False) as local:
        served = local.node.models[PUBLIC]
        await book(path, served).load()
        return served.sizes.work_by_now(ASKED)


async def test_a_new_process_estimates_as_the_one_before_it(tmp_path: Path):
    path, model = tmp_path / "spool" / "n1.profiles.json", model_at("http://127.0.0.1:1")
    guessed, known = await measured(path, model)
    assert await work_after_load(path, model) == known != guessed
    assert [each.name for each in path.parent.iterdir()] == ["n1.profiles.json"]


@pytest.mark.parametrize("change", [{"local_id": "other"}, {"hash": "b" * 64}])
async def test_another_model_under_the_same_id_is_measured_anew(tmp_path: Path, change: dict[str, str]):
    path = tmp_path / "n1.profiles.json"
    guessed, _ = await measured(path, model_at("http://127.0.0.1:1"))
    assert await work_after_load(path, model_at("http://127.0.0.1:1", **change)) == guessed


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\0" * 4096,
        b'{"public": {"local_id": "local", "hash": "", "ratio_logs": [1e99], "answers": []}}',
        b'{"public": {"local_id": "local", "hash": "", "ratio_logs": [7], "answers": [-1]}}',
        b'{"public": {"of another version": ' + b"[" * 100_000,
    ],
    ids=["empty", "torn", "a list", "zeros", "no integer", "below zero", "too deep"],
)
async def test_a_file_that_is_no_profile_is_told_and_changes_nothing(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
):
    path, model = tmp_path / "n1.profiles.json", model_at("http://127.0.0.1:1")
    guessed, _ = await measured(tmp_path / "elsewhere.json", model)
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, logger="leaseway.node"):
        assert await work_after_load(path, model) == guessed
    assert [record.message for record in caplog.records] == ["profiles_unreadable"]


async def test_nothing_is_written_before_something_was_learned_or_where_nothing_was_since(tmp_path: Path):
    path = tmp_path / "n1.profiles.json"
    async with local_node([model_at("http://127.0.0.1:1")], up=False) as local:
        served = local.node.models[PUBLIC]
        kept = book(path, served)
        await kept.keep()
        assert not path.exists()
        served.sizes.learn(ASKED, EngineResult(tokens_in=50, tokens_out=40))
        await kept.keep()
        path.unlink()
        await kept.keep()
        assert not path.exists()
