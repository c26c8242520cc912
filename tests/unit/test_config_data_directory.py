"""The data directory: who may use it, and what is refused without a change."""

import os
import signal
import subprocess
import sys

import pytest

from domain.errors import BadConfigError, DataInUseError
from services.data_directory import (
    Endpoints,
    check_data,
    held_data,
    holder_of,
    make_data,
    read_endpoints,
    write_endpoints,
)

HOLD = """
import sys
from pathlib import Path
from services.data_directory import held_data
with held_data(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def contents(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_new_directory_is_private_and_says_its_version(tmp_path):
    data = tmp_path / "share" / "leaseway"
    make_data(data)
    make_data(data)
    assert (data / "VERSION").read_text() == "1\n"
    assert {oct(path.stat().st_mode & 0o777) for path in (data, data / "keys", data / "logs")} == {"0o700"}


def test_a_directory_of_another_version_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "VERSION").write_text("2\n")
    before = contents(tmp_path)
    with (
        pytest.raises(BadConfigError, match="must be of version 1, is of version '2'; nothing was changed"),
        held_data(tmp_path),
    ):
        pass
    assert contents(tmp_path) == before


def test_a_directory_that_holds_something_else_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(BadConfigError, match=r"must be empty or hold a VERSION file, holds 'thesis\.tex'"):
        make_data(tmp_path)
    assert set(contents(tmp_path)) == {"thesis.tex"}


def test_a_file_is_no_data_directory(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadConfigError, match="must be a directory"):
        check_data(tmp_path / "file")


def test_a_place_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadConfigError, match="cannot be made"):
        make_data(tmp_path / "file" / "data")


def test_a_directory_in_use_names_its_holder_and_is_free_again_when_the_holder_is_killed(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert holder_of(tmp_path) == holder.pid
        with pytest.raises(DataInUseError, match=f"is in use by pid {holder.pid};"), held_data(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    assert holder_of(tmp_path) is None
    with held_data(tmp_path):
        assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"


def test_where_the_processes_listen_is_kept_beside_the_data(tmp_path):
    assert read_endpoints(tmp_path) == Endpoints()
    write_endpoints(tmp_path, Endpoints(master="http://127.0.0.1:1", nodes={"studio": "http://127.0.0.1:2"}))
    assert read_endpoints(tmp_path).nodes == {"studio": "http://127.0.0.1:2"}
    (tmp_path / "endpoints.json").write_text("{")
    assert read_endpoints(tmp_path) == Endpoints()
