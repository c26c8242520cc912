"""The command line: one line and code 2 for what it does not know, help that teaches, tables or JSON."""

import argparse
import json
import subprocess
import sys

import pytest

from services.cli.main import main
from services.cli.parser import BadUsageError, build_parser, number, subparsers_of
from services.cli.show import Output, cell, duration
from tests.support.tidy import ROOT


def said(capsys, *arguments):
    """Return (exit code, standard output, standard error) of a command line."""
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["ups"], "leaseway: unknown command 'ups'; did you mean 'up'? (see `leaseway --help`)\n"),
        (["frobnicate"], "leaseway: unknown command 'frobnicate' (see `leaseway --help`)\n"),
        (
            ["audit", "what-if", "--against", "archiv"],
            (
                "leaseway: argument --against: must be one of stream, archive, copy, got 'archiv'; did you mean 'archive'? "
                "(see `leaseway audit what-if --help`)\n"
            ),
        ),
        (
            ["projections", "rebuild", "--from", "disk"],
            "leaseway: argument --from: must be one of archive, stream, got 'disk' (see `leaseway projections rebuild --help`)\n",
        ),
        (["links", "ad"], "leaseway: unknown command 'ad'; did you mean 'add'? (see `leaseway links --help`)\n"),
        (["links"], "leaseway: missing: ACTION (see `leaseway links --help`)\n"),
        (["links", "add", "a/b"], "leaseway: missing: HELPER/MODEL (see `leaseway links add --help`)\n"),
        (["status", "--foo"], "leaseway: unknown argument '--foo' (see `leaseway status --help`)\n"),
        (["status", "extra"], "leaseway: unknown argument 'extra' (see `leaseway status --help`)\n"),
        (
            ["status", "--josn"],
            "leaseway: unknown argument '--josn'; did you mean '--json'? (see `leaseway status --help`)\n",
        ),
        (
            ["status", "--js=1"],
            "leaseway: unknown argument '--js=1'; did you mean '--json'? (see `leaseway status --help`)\n",
        ),
        (
            ["up", "--port-base", "x"],
            "leaseway: argument --port-base: must be a whole number, 0 to 65000, got 'x' (see `leaseway up --help`)\n",
        ),
        (["engine", "--foo"], "leaseway: unknown argument '--foo' (see `leaseway engine --help`)\n"),
        (["provision", "--node", "a"], "leaseway: provision: --node and --url must be given together\n"),
    ],
)
def test_what_is_no_command_line_of_ours_gets_one_line_and_code_2(capsys, arguments, line):
    assert said(capsys, *arguments) == (2, "", line)


def test_a_wrong_since_is_refused_with_what_it_may_be(capsys):
    code, out, err = said(capsys, "events", "tail", "--since", "yesterday")
    assert (code, out) == (2, "")
    assert err.startswith("leaseway: argument --since: must be a sequence (1200), a time (2026-11-30T01:20:00Z; ")
    assert err.count("\n") == 1


def test_a_wrong_kind_of_decision_is_refused_with_those_there_are(capsys):
    code, _, err = said(capsys, "decisions", "--kind", "grant")
    assert code == 2
    assert err.startswith("leaseway decisions: --kind: must be one of plan, granted, ")


@pytest.mark.parametrize("end", ["studio", "studio/", "/chat", "Studio/chat"])
def test_an_end_of_a_link_that_is_no_node_and_model_is_refused_before_anything_is_asked(capsys, tmp_path, end):
    code, _, err = said(capsys, "links", "add", end, "attic/chat", "--data", str(tmp_path / "none"))
    assert code == 2
    assert err.startswith("leaseway links add: ")
    assert err.count("\n") == 1


def test_without_a_command_the_help_is_shown_and_teaches_the_first_steps(capsys):
    code, out, _ = said(capsys)
    assert code == 0
    assert "leaseway demo" in out
    assert "exit codes: 0 done" in out


def every_command(parser, words=()):
    """Yield (words, parser) of every command that does something."""
    below = subparsers_of(parser)
    if not below:
        yield words, parser
    for name, deeper in below.items():
        yield from every_command(deeper, (*words, name))


COMMANDS = list(every_command(build_parser()))


@pytest.mark.parametrize(
    ("words", "parser"), COMMANDS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_every_command_has_help_for_each_argument_and_examples_that_parse(words, parser):
    for action in parser._actions:
        assert action.help, f"{words}: {action.dest} has no help"
    examples = [line.strip() for line in (parser.epilog or "").splitlines() if line.startswith("  leaseway")]
    whole = build_parser()
    assert examples or words == ("version",), f"{words}: shows no example"
    for example in examples:
        if words != ("engine",):  # its flags are added by the launcher
            assert whole.parse_args(example.split()[1:]).module == parser.get_default("module")


@pytest.mark.parametrize(
    "words",
    [
        "at 9 n1/chat --copy F --json",
        "at 9 --copy F n1/chat --json",
        "at --json 9 --copy F n1/chat",
        "at --copy F 9 --json n1/chat",
    ],
)
def test_flags_may_stand_before_between_and_behind_what_may_be_left_out(words):
    got = build_parser().parse_args(words.split())
    assert (got.moment.number, got.only, str(got.copy), got.json) == (9, "n1/chat", "F", True)


def test_what_may_be_left_out_is_left_out_however_many_flags_there_are(capsys):
    got = build_parser().parse_args(["at", "9", "--copy", "F", "--json"])
    assert (got.moment.number, got.only) == (9, "")
    more = said(capsys, "at", "9", "--copy", "F", "n1", "n2")
    assert more == (2, "", "leaseway: unknown argument 'n2' (see `leaseway at --help`)\n")


def test_the_version_is_said_in_both_ways(capsys):
    assert said(capsys, "version")[1] == said(capsys, "--version")[1] == "leaseway 0.1.0\n"


def test_numbers_on_the_command_line_have_a_range():
    assert number(1, 10)("10") == 10
    for text in ("0", "11", "1.5", "-1", "", "x"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be a whole number, 1 to 10, got"):
            number(1, 10)(text)


def test_a_broken_usage_is_a_caller_error():
    with pytest.raises(BadUsageError):
        build_parser().parse_args(["nothing"])


@pytest.mark.parametrize(
    "command", [("nodes",), ("links", "list"), ("decisions",), ("events", "tail"), ("audit", "verify"), ("status",)]
)
def test_a_stopped_cluster_is_named_in_one_line_with_how_to_start_it(capsys, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = said(capsys, *command, "--data", str(tmp_path / "none"))
    assert code in {1, 2}
    assert out == ""
    assert "leaseway up" in err
    assert err.splitlines()[-1].startswith(f"leaseway {' '.join(command)}: ")
    assert not (tmp_path / "none").exists(), "looking must change nothing"


def test_a_data_directory_of_another_version_is_refused_by_a_command_that_only_looks(capsys, tmp_path):
    (tmp_path / "VERSION").write_text("7\n")
    code, _, err = said(capsys, "status", "--data", str(tmp_path))
    assert code == 2
    assert err.endswith("must be of version 1, is of version '7'; nothing was changed\n")


def test_rows_are_one_json_object_a_line_when_nobody_looks(capsys):
    Output(as_json=False).rows("Nodes", [{"node": "ä", "depth": 2}, {"node": "b"}], {"node": "node"})
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"node": "ä", "depth": 2}, {"node": "b"}]


def test_rows_are_a_table_for_a_person(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out = Output(as_json=False)
    out.rows("Nodes", [{"node": "[red]a", "wait_us": 1_500_000}], {"node": "node", "wait_us": "wait"})
    out.rows("Links", [], {"link": "link"}, none="none yet")
    text = capsys.readouterr().out
    assert "[red]a" in text, "an id must not be read as markup"
    assert "1.5 s" in text
    assert "Links: none yet" in text


@pytest.mark.parametrize(
    ("us", "text"), [(0, "0 us"), (999, "999 us"), (1500, "1.5 ms"), (61_000_000, "1.02 min"), (-1, "-")]
)
def test_durations_are_shown_in_the_unit_that_people_would_take(us, text):
    assert duration(us) == text


def test_cells_say_yes_no_and_nothing():
    assert [cell("a", value) for value in (True, False, None, "", ("x", "y"))] == ["yes", "no", "-", "-", "x, y"]


def test_a_reader_that_has_seen_enough_ends_the_command_quietly():
    command = f"{sys.executable} -m services.cli settings --help | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_the_reference_of_the_command_line_is_what_its_script_makes():
    made = subprocess.run(
        [sys.executable, "docs/reference/cli.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
