"""The how-to of plan shows what its command prints of the trace that is shipped."""

import re

import pytest

from services.cli.main import main as leaseway
from tests.support.tidy import ROOT

PAGE = ROOT / "docs" / "how-to" / "plan.md"
[SHOWN] = re.findall(
    r"```bash\nleaseway (plan --trace [^\n]+)\n```\n\n```text\n(.*?)```\n", PAGE.read_text(), re.DOTALL
)


@pytest.mark.timeout(180)
def test_the_page_shows_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command, output = SHOWN
    assert leaseway([*command.split(), "--jobs", "1"]) == 0
    assert capsys.readouterr().out.split() == output.split(), "if that is right, copy it to the page"
