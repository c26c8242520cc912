"""The supervisor: ports, children that come and go, and what is left when it is killed."""

import asyncio
import base64
import os
import signal
import socket
import sys

import msgspec
import pytest

from domain.errors import BadConfigError, ChildFailedError, PortInUseError
from services.config import Config, NodeConfig, NodeModel, WebhookConfig
from services.standalone.child import ProcessChild
from services.standalone.logs import Tail
from services.standalone.main import Standalone
from services.standalone.ports import endpoints, plan_ports, require_free
from tests.support.waiting import until

STARTED = NodeModel(id="m", command=("python3", "{port}"))
NODES = (NodeConfig(id="studio", models=(STARTED, STARTED)), NodeConfig(id="attic", models=(STARTED,)))
CHILD = """
import json, signal, sys, time
{before}
print(json.dumps({{"ready": "x", "url": "http://127.0.0.1:9"}}), flush=True)
{after}
"""
WAIT = "sys.stdin.read()"


def child(tmp_path, before="", after=WAIT, name="x"):
    """Return a child that runs a few lines of Python."""
    code = CHILD.format(before=before, after=after)
    return ProcessChild(name, [sys.executable, "-c", code], tmp_path / "logs" / f"{name}.log")


def test_the_default_ports_are_those_of_the_documentation():
    ports = plan_ports(8000, NODES)
    assert (ports.gateway, ports.projector, ports.master, ports.console) == (8000, 8200, 8300, 8500)
    assert (ports.nats, ports.monitor) == (4222, 8222)
    assert (ports.nodes, ports.engines) == ((8100, 8101), ((8400, 8401), (8402,)))
    assert plan_ports(8000, NODES, gateway=80).gateway == 80


def test_another_base_moves_every_port():
    ports = plan_ports(9000, NODES)
    assert {name: port for name, port in ports.named() if port < 9000} == {}
    assert len({port for _, port in ports.named()}) == len(list(ports.named()))


def test_base_0_takes_free_and_different_ports():
    ports = plan_ports(0, NODES)
    require_free(ports)
    assert len({port for _, port in ports.named()}) == 11
    assert endpoints(ports, NODES).engines["attic"] == (f"http://127.0.0.1:{ports.engines[1][0]}",)


def test_a_port_that_two_parts_would_have_is_named_before_anything_starts():
    first = plan_ports(0, ()).console
    with pytest.raises(
        PortInUseError, match=rf"console port {first}: must not be that of the gateway too; .*\[http\] port"
    ):
        require_free(plan_ports(first - 500, (), gateway=first))


def test_a_port_in_use_is_named_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = msgspec.structs.replace(plan_ports(0, ()), gateway=taken.getsockname()[1])
        with pytest.raises(
            PortInUseError, match=rf"gateway port {ports.gateway}: must be free on 127\.0\.0\.1: .*--port-base"
        ):
            require_free(ports)


async def test_a_child_is_ready_when_it_says_so(tmp_path):
    one = child(tmp_path)
    assert await one.start() == "http://127.0.0.1:9"
    pid = one.pid
    assert pid is not None
    await one.stop(5)
    await one.stop(5)
    assert one.pid is None


async def test_a_child_that_does_not_start_is_told_by_its_own_last_words(tmp_path):
    said = 'sys.stderr.write(\'{"event": "x"}\\nleaseway master: port 1: taken\\n{"event": "y"}\\n\'); sys.exit(%d)'
    with pytest.raises(ChildFailedError, match=r"^master: port 1: taken$"):
        await child(tmp_path, before=said % 1).start()
    with pytest.raises(BadConfigError, match=r"^master: port 1: taken$"):
        await child(tmp_path, before=said % 2).start()


async def test_a_child_that_does_not_listen_is_killed_with_what_it_started(tmp_path, monkeypatch):
    stubborn = "import os; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    one = child(tmp_path, before=stubborn, after="os.fork(); time.sleep(60)")
    await one.start()
    group = one.pid
    monkeypatch.setattr("services.standalone.child.KILL_S", 0.1)
    await one.stop(0.1)
    await until("its whole group to be gone", lambda: not group_lives(group))


def group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def another_than(one, pid):
    return lambda: one.pid not in {None, pid}


async def test_a_child_that_ends_is_started_again(tmp_path):
    standalone = Standalone(Config(nodes=NODES, data=tmp_path), plan_ports(0, NODES))
    one = child(tmp_path)
    await one.start()
    standalone._started.append((one,))
    keeper = asyncio.ensure_future(standalone.keep())
    try:
        for _ in range(2):
            pid = one.pid
            os.kill(pid, signal.SIGKILL)
            await until("another process", another_than(one, pid))
        assert standalone.pids() == {"x": one.pid}
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await standalone.stop(grace_s=5)
    assert standalone.pids() == {}


async def test_a_child_that_the_machine_has_no_room_for_is_started_once_it_has(tmp_path, caplog):
    standalone = Standalone(Config(nodes=NODES, data=tmp_path), plan_ports(0, NODES))
    one = child(tmp_path)
    await one.start()
    standalone._started.append((one,))
    one._log.unlink()
    one._log.mkdir()  # its log cannot be opened
    pid = one.pid
    keeper = asyncio.ensure_future(standalone.keep())
    try:
        os.kill(pid, signal.SIGKILL)
        await until("a second try", lambda: [each.message for each in caplog.records].count("child_not_ready") >= 2)
        one._log.rmdir()
        await until("another process", another_than(one, pid))
        assert not keeper.done()
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await standalone.stop(grace_s=5)


async def test_stopping_goes_in_reverse_order_of_starting(tmp_path):
    standalone = Standalone(Config(nodes=NODES, data=tmp_path), plan_ports(0, NODES))
    note = f"open({str(tmp_path / 'order')!r}, 'a').write"
    for name in ("bus", "master", "gateway"):
        end = f"signal.signal(signal.SIGTERM, lambda *_: ({note}({name!r} + ' '), sys.exit(0)))"
        one = child(tmp_path, before=end, after="time.sleep(60)", name=name)
        await one.start()
        standalone._started.append((one,))
    await standalone.stop(grace_s=5)
    assert (tmp_path / "order").read_text() == "gateway master bus "


def test_nothing_to_run_is_refused_with_what_to_write(tmp_path):
    nameless = (NodeConfig(id="a"),)
    with pytest.raises(BadConfigError, match=r"nodes: at least one must be stated as \[node\] or \[\[nodes\]\]"):
        Standalone(Config(data=tmp_path), plan_ports(0, ())).check()
    with pytest.raises(BadConfigError, match="node a: models: must hold at least one"):
        Standalone(Config(nodes=nameless, data=tmp_path), plan_ports(0, nameless)).check()


def test_a_missing_engine_program_is_refused_by_name(tmp_path):
    node = NodeConfig(id="a", models=(NodeModel(id="m", command=("no-such-engine",)),))
    with pytest.raises(BadConfigError, match=r"node a: models\[0\]\.command: .* got 'no-such-engine'"):
        Standalone(Config(nodes=(node,), data=tmp_path), plan_ports(0, (node,))).check()


def test_a_webhook_that_cannot_be_signed_or_begun_is_refused_before_anything_starts(tmp_path):
    node = NodeConfig(id="a", models=(NodeModel(id="m", url="http://127.0.0.1:9"),))
    weak, good = tmp_path / "weak", tmp_path / "good"
    weak.write_text("hunter2")
    good.write_text("whsec_" + base64.b64encode(bytes(range(32))).decode())
    for file in (weak, good):
        file.chmod(0o600)

    def check(**hook: object) -> None:
        webhooks = (WebhookConfig(name="tickets", url="http://127.0.0.1:9", **hook),)  # type: ignore[arg-type]
        Standalone(Config(nodes=(node,), webhooks=webhooks, data=tmp_path / "data"), plan_ports(0, (node,))).check()

    for hook, told in (
        ({"secret_file": tmp_path / "none"}, "cannot be read"),
        ({"secret_file": weak}, "must be whsec_ and base64 of 24 to 64 random bytes"),
        ({"secret_file": good, "since": "yesterdayish"}, "since: must be"),
    ):
        with pytest.raises(BadConfigError, match=f"^webhooks: tickets: .*{told}") as raised:
            check(**hook)
        assert "hunter2" not in str(raised.value)
    check(secret_file=good, since="2h")


def test_the_tail_of_the_logs_gives_whole_lines_of_what_is_new(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("old\n")
    tail = Tail(tmp_path)
    with log.open("a") as file:
        file.write("one\ntwo")
    assert tail.more() == "one\n"
    with log.open("a") as file:
        file.write("!\n")
    assert tail.more() == "two!\n"
    log.write_text("new\n")
    assert tail.more() == "new\n"
    assert tail.more() == ""
