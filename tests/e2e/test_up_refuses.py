"""What `leaseway up` refuses: one line that names subject, rule and value, the exit code, and nothing changed."""

import os
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from services.data_directory import held_data

pytestmark = pytest.mark.real
GOOD = '[[nodes]]\nid = "studio"\n[[nodes.models]]\nid = "chat"\nurl = "http://127.0.0.1:9"\n'


def up(folder: Path, text: str = GOOD, *flags: str, **environment: str) -> tuple[int, str]:
    """Return (exit code, standard error) of a `leaseway up` that is expected to refuse."""
    (folder / "leaseway.toml").write_text(text)
    given = ("--config", "leaseway.toml", "--data", "data", *(flags or ("--port-base", "0")))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LEASEWAY_")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "services.cli", "up", *given],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (GOOD + "slotz = 2\n", 2, "leaseway up: leaseway.toml: nodes[0].models[0].slotz: unknown key; known here: "),
        (
            '[cluster]\ntoken = "changeme"\n' + GOOD,
            2,
            "leaseway up: leaseway.toml: cluster.token: must have at least 32",
        ),
        ('[http]\nhost = "0.0.0.0"\n' + GOOD, 2, "leaseway up: leaseway.toml: cluster.token: must have at least 32"),
        (
            '[http]\npublic_url = "http://studio.lan:8000"\n' + GOOD,
            2,
            "leaseway up: http.public_url: must not be stated for `leaseway up`, ",
        ),
        ("", 2, "leaseway up: nodes: at least one must be stated as [node] or [[nodes]], got none; "),
        (
            GOOD.replace('url = "http://127.0.0.1:9"', 'command = ["llama-sewer"]'),
            2,
            "leaseway up: node studio: models[0].command: must start with a program that is on this machine, got 'llama-sewer'",
        ),
    ],
)
def test_a_wrong_configuration_is_one_line_and_changes_nothing(tmp_path: Path, text: str, code: int, said: str):
    got, line = up(tmp_path, text)
    assert (got, line.count("\n")) == (code, 1), line
    assert line.startswith(said)
    assert not (tmp_path / "data").exists()


def take_a_port(taken: socket.socket) -> int:
    """Bind a port from below those that the kernel gives out, so that the other ports of the plan are nobody's by chance."""
    for port in range(20_011, 32_000, 977):
        with suppress(OSError):
            taken.bind(("127.0.0.1", port))
            taken.listen()
            return port
    raise AssertionError("no port is free")


def test_a_port_in_use_is_one_line_and_changes_nothing(tmp_path: Path):
    with socket.socket() as taken:
        base = take_a_port(taken)
        code, line = up(tmp_path, GOOD, "--port-base", str(base))
    assert (code, line.count("\n")) == (1, 1), line
    assert line.startswith(f"leaseway up: gateway port {base}: must be free on 127.0.0.1: Address already in use; ")
    assert not (tmp_path / "data").exists()


def test_a_data_directory_in_use_is_one_line_that_names_its_holder(tmp_path: Path):
    with held_data(tmp_path / "data"):
        code, line = up(tmp_path)
    held = f"leaseway up: data directory {tmp_path / 'data'}: is in use by pid {os.getpid()}"
    assert (code, line) == (1, f"{held}; stop it or name another with --data\n")
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"VERSION", "LOCK", "keys", "logs"}


def test_a_data_directory_of_another_version_is_one_line_and_left_as_it_is(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "VERSION").write_text("0\n")
    code, line = up(tmp_path)
    assert (code, line.count("\n")) == (2, 1), line
    assert "must be of version 1, is of version '0'; nothing was changed" in line
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["VERSION"]


def test_an_older_nats_server_is_one_line_and_changes_nothing(tmp_path: Path):
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho nats-server: v2.10.29\n")
    old.chmod(old.stat().st_mode | stat.S_IXUSR)
    code, line = up(tmp_path, NATS_SERVER_BIN=str(old))
    assert (code, line) == (
        2,
        f"leaseway up: nats-server {old}: must be version 2.15.1 or newer, found 2.10.29\n",
    )
    assert not (tmp_path / "data").exists()


def test_a_missing_nats_server_is_one_line_and_changes_nothing(tmp_path: Path):
    code, line = up(tmp_path, NATS_SERVER_BIN=str(tmp_path / "none"))
    assert (code, line.count("\n")) == (2, 1), line
    assert line.startswith("leaseway up: nats-server: NATS_SERVER_BIN must name an executable file, got ")
    assert not (tmp_path / "data").exists()
