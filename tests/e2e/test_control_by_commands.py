"""What operators decide by commands on a running cluster, and what its file states, reaches every process without a restart."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Cluster, Node, cluster, written_config
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]
DEPTH = "scheduling_backend_depth"
NODES = [Node(id="attic", stub=True), Node(id="studio", stub=True)]
GROUPS = """\
[[groups]]
name = "chat"
members = [
  { node = "studio", model = "studio-chat" },
  { node = "attic", model = "attic-chat", restore = true },
  { node = "cellar", model = "chat" },
]
"""


async def depth(running: Cluster) -> tuple[int, str]:
    """Return the value of the depth and where it comes from."""
    rows = (await running.cli("settings", "list", "--json")).rows
    return next((row["value"], row["source"]) for row in rows if row["name"] == DEPTH)


async def links(running: Cluster) -> list[dict[str, Any]]:
    """Return every link."""
    return (await running.cli("links", "list", "--json")).rows


async def test_settings_are_the_override_else_the_files_value_which_provisioning_states_again(tmp_path: Path):
    async with cluster(tmp_path, NODES, settings={DEPTH: 3}) as running:
        assert await depth(running) == (3, "file")

        told = await running.cli("settings", "set", f"{DEPTH}=4", "offload_streams=off")
        assert [(row["name"], row["value"], row["changed"]) for row in told.rows] == [
            ("offload_streams", 0, True),
            (DEPTH, 4, True),
        ]
        refused = await running.cli("settings", "set", f"{DEPTH}=6", "offload_probe_idle=2d")
        assert (refused.code, refused.out) == (2, "")
        assert await depth(running) == (4, "override")

        file = tmp_path / "leaseway.toml"
        urls = {node: front.url for node, front in running.taps.items()}
        file.write_text(written_config(NODES, urls, {DEPTH: 5}, ""))
        stated = await running.cli("provision", "--config", str(file))
        assert stated.code == 0, stated.err
        assert await depth(running) == (4, "override")
        cleared = await running.cli("settings", "clear", DEPTH, "offload_streams")
        assert [row["source"] for row in cleared.rows] == ["default", "file"]
        assert await depth(running) == (5, "file")

        without_a_file = await running.cli("provision")
        assert without_a_file.code == 0, without_a_file.err
        assert await depth(running) == (5, "file")

        file.write_text(written_config(NODES, urls, {DEPTH: 65}, ""))
        bad = await running.cli("provision", "--config", str(file))
        assert bad.code == 2
        assert await depth(running) == (5, "file")


async def test_groups_are_imported_whole_or_not_at_all_and_once_only(tmp_path: Path):
    file = tmp_path / "groups.toml"
    file.write_text(GROUPS)
    async with cluster(tmp_path, NODES) as running:
        told = await running.cli("links", "candidates", "studio/studio-chat", "--json")
        assert [(row["helper"], row["helper_model"], row["weights"], row["eligible"]) for row in told.rows] == [
            ("attic", "attic-chat", "unknown", True)
        ]

        refused = await running.cli("links", "import", str(file))
        assert refused.code == 2
        assert "4 of 6 links may not be, so none is made: mend what the rows above say" in refused.err
        assert sorted(row["outcome"] for row in refused.rows) == ["made"] * 2 + ["refused"] * 4
        tried = await running.cli("links", "import", str(file), "--skip-ineligible", "--dry-run")
        assert (tried.code, await links(running)) == (0, [])

        made = await running.cli("links", "import", str(file), "--skip-ineligible")
        assert made.code == 0, made.err
        found = {(row["owner"], row["load_if_unloaded"], row["restore_after_borrow"]) for row in await links(running)}
        assert found == {("studio", True, True), ("attic", True, False)}
        again = await running.cli("links", "import", str(file), "--skip-ineligible")
        assert {row["outcome"] for row in again.rows} == {"stands", "refused"}

        async def is_known() -> bool:
            rows = (await running.cli("links", "candidates", "studio/studio-chat", "--json")).rows
            return [row["linked"] for row in rows] == [True]

        await until("the links at the master", is_known)


async def test_unknown_weights_need_no_word_and_both_commands_label_them_and_say_so(tmp_path: Path):
    async with cluster(tmp_path, NODES) as running:
        told = await running.cli("links", "candidates", "studio/studio-chat", "--json")
        assert [(row["weights"], row["label"]) for row in told.rows] == [("unknown", "unknown weights")]
        made = await running.cli("links", "add", "studio/studio-chat", "attic/attic-chat")
        assert made.code == 0, made.err
        assert [(row["added"], row["weights"], row["label"]) for row in made.rows] == [
            (True, "unknown", "unknown weights")
        ]
        for said in (told.err, made.err):
            assert "needs no --different-weights; whether clients get the same answers" in said
