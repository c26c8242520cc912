"""How a process lives: its log lines, its signals, and its way from an error to one line and an exit code."""

import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from domain.errors import BadConfigError, ChildFailedError, PortInUseError
from services.lifecycle import JsonLines, PlainLines, configure_logging, explain, one_line, translate

SERVICE = """
import asyncio, sys
from domain.errors import BadConfigError, MachineError
from services.config import Config
from services.lifecycle import run_service

async def serve(config, ready, stop):
    ready("http://127.0.0.1:1")
    await stop.wait()
    print("drained", flush=True)

async def drain_for_ever(config, ready, stop):
    ready("http://127.0.0.1:1")
    await stop.wait()
    print("draining", flush=True)
    await asyncio.Event().wait()

async def refuse(config, ready, stop):
    raise BadConfigError("node a: depth must be 1 to 64, got 65")

async def fail(config, ready, stop):
    async with asyncio.TaskGroup() as group:
        group.create_task(explode())

async def explode():
    raise MachineError("clickhouse: away\\nfor long")

async def crash(config, ready, stop):
    {}["prompt"]

async def bind(config, ready, stop):
    await asyncio.start_server(lambda r, w: None, "127.0.0.1", int(sys.argv[2]))

run = globals()[sys.argv[1]]
sys.exit(run_service("node", run, Config(), supervised="--supervised" in sys.argv))
"""


@contextmanager
def service(*arguments):
    """Yield a running process of SERVICE."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    with process:
        yield process
        process.kill()


def ended(*arguments):
    """Return (exit code, last line on standard error) of a SERVICE that ends by itself."""
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, *arguments], capture_output=True, text=True, check=False, timeout=30
    )
    return done.returncode, done.stderr.splitlines()[-1]


def test_sigterm_drains_and_ends_with_0():
    with service("serve") as process:
        assert json.loads(process.stdout.readline()) == {"ready": "node", "url": "http://127.0.0.1:1"}
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "drained\n"
        assert process.wait(10) == 0
        assert [json.loads(line)["event"] for line in process.stderr] == ["ready", "draining"]


def test_a_second_signal_ends_a_drain_at_once():
    with service("drain_for_ever") as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "draining\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM


def test_a_supervised_process_drains_when_its_supervisor_is_gone():
    with service("serve", "--supervised") as process:
        process.stdout.readline()
        process.stdin.close()
        assert process.stdout.readline() == "drained\n"
        assert process.wait(10) == 0


def test_a_caller_error_is_one_line_and_code_2():
    assert ended("refuse") == (2, "leaseway node: node a: depth must be 1 to 64, got 65")


def test_a_failure_of_ours_or_of_the_machine_is_one_line_and_code_1():
    assert ended("fail") == (1, "leaseway node: clickhouse: away for long")


def test_a_bug_is_said_to_be_ours_and_leaves_its_traceback_in_the_log():
    code, line = ended("crash")
    assert (code, line) == (1, "leaseway node: KeyError: 'prompt'; this is a fault of ours")


def test_a_port_in_use_is_named_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = ended("bind", str(port))
    assert code == 1
    assert line.startswith(f"leaseway node: address 127.0.0.1:{port}: must be free, another process listens there")


def record(event, **fields):
    made = logging.LogRecord("leaseway.node", logging.INFO, __file__, 1, event, (), None)
    vars(made).update(fields)
    return made


def test_a_log_line_is_one_json_object_with_the_event_and_its_ids():
    line = JsonLines("node").format(record("lease_taken", lease="0001abcd-7-0", slots=3, path=os.curdir))
    said = json.loads(line)
    assert "\n" not in line
    assert said.pop("at").endswith("Z")
    assert said == {
        "level": "info",
        "event": "lease_taken",
        "process": "node",
        "lease": "0001abcd-7-0",
        "slots": 3,
        "path": ".",
    }


def test_a_person_gets_the_same_as_text():
    assert PlainLines().format(record("lease_taken", lease="7-0")).endswith("Z info    lease_taken lease=7-0")


def test_a_log_goes_to_the_stream_it_was_configured_for():
    out, before = io.StringIO(), logging.getLogger().handlers[:]
    try:
        configure_logging("master", out)
        logging.getLogger("x").warning("bus_lost", extra={"why": "closed"})
    finally:
        logging.getLogger().handlers[:] = before
    assert json.loads(out.getvalue())["why"] == "closed"


def test_the_first_error_of_a_group_is_what_it_is_about():
    inner = BadConfigError("a: b")
    assert translate(ExceptionGroup("g", [ExceptionGroup("h", [inner]), ValueError()])) is inner
    assert isinstance(translate(OSError(98, "('127.0.0.1', 80): address already in use")), PortInUseError)


@pytest.mark.parametrize(
    ("error", "code"), [(BadConfigError("a"), 2), (ChildFailedError("a"), 1), (OSError(2, "a"), 1)]
)
def test_the_exit_code_says_whose_turn_it_is(capsys, error, code):
    assert explain("up", error) == code
    assert capsys.readouterr().err.startswith("leaseway up: ")


def test_a_line_stays_one_line_and_obeys_no_terminal():
    assert one_line("a\nb\x1b[31m\tc  d") == "a b [31m c d"
