"""The how-to of what-if shows what its commands print, and the command says what cannot be asked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.main import main as leaseway
from tests.support import what_if_page

SHOWN = what_if_page.shown()


@pytest.fixture(scope="module", autouse=True)
def _copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with what_if_page.beside_a_copy(tmp_path_factory.mktemp("what-if")):
        yield


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_page_shows_what_its_command_prints(command: str, output: str):
    assert what_if_page.output_of(command) == output, "if that is right: python -m tests.support.what_if_page"


def test_the_page_shows_a_link_left_out_and_another_one_made():
    assert any("--without-link" in command and " --link" in command and "now " in output for command, output in SHOWN)


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = leaseway(["audit", "what-if", "--copy", "history.zip", "--data", "data", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_answer_as_json_holds_the_same_and_the_report_is_a_page(capsys: pytest.CaptureFixture[str]):
    code, out, _ = asked(capsys, "--from", "90s", "--policy", "none", "--json", "--report", "what-if.html")
    answer = json.loads(out)
    assert code == 0
    assert answer["redecided"]["differing"] == 41
    assert [column["ground"] for column in answer["changed"]] == ["fits", "recorded"]
    assert f"{answer['changed'][1]['figures']['studio/chat']['drain_s']:.2f}" in Path("what-if.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "cluster.offload_lease=3s"), "setting 'cluster.offload_lease': unknown; known are "),
        (("--set", "cluster.offload_lease_ttl=1s"), "setting offload_lease_ttl: must be 3s to 10m, got 1s"),
        (("--link", "studio/chat"), "--link 'studio/chat': must be OWNER/MODEL=HELPER/MODEL"),
        (
            ("--link", "studio/chat=loft/chat,fast"),
            "helper loft/chat,fast is served by nobody; there are attic/chat, loft/chat",
        ),
        (("--link", "studio/chat=studio/chat"), "studio"),
        (
            ("--without-link", "studio/chat=loft/chat"),
            "there is no such link in that time; there are studio/chat -> attic/chat",
        ),
        (("--policy", "fair"), "--policy 'fair'"),
        (("--from", "soon"), "must be a version (812), a time (2026-11-30T01:20:00Z; without a zone it is UTC)"),
        (("--from", "900"), "version 900 is not in the ledger's newest generation"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
):
    code, out, err = asked(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
