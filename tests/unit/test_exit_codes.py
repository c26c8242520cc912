"""The exit code of every command: 1 for what may work later, 2 for what is wrong as it stands; one line says so."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.main import main
from services.cli.parser import EPILOG, build_parser
from services.config_file import load_config
from services.data_directory import Endpoints, make_data, write_endpoints
from services.standalone.provisioning import make_keys
from tests.unit.test_cli_parser import every_command

NOWHERE = "nothing ever ran there"
STOPPED = "what ran there has stopped"
WRONG, LATER, DONE = 2, 1, 0

TABLE: list[tuple[str, str, int, str]] = [
    ("up --config bad.toml", NOWHERE, WRONG, "slotz: unknown key"),
    ("up --port-base x", NOWHERE, WRONG, "must be a whole number"),
    ("up --config good.toml --port-base {taken}", NOWHERE, LATER, "must be free"),
    ("demo --model none.gguf", NOWHERE, WRONG, "must be a GGUF file that exists"),
    ("status", STOPPED, LATER, "start it with `leaseway up`"),
    ("status --config bad.toml", NOWHERE, WRONG, "slotz: unknown key"),
    ("status --config none.toml", NOWHERE, WRONG, "none.toml"),
    ("nodes", NOWHERE, LATER, "has no operator's key yet; `leaseway up` or `leaseway provision` makes it"),
    ("nodes", STOPPED, LATER, "cannot be reached"),
    ("decisions", STOPPED, LATER, "cannot be reached; start it with `leaseway up`"),
    ("decisions --kind grant", NOWHERE, WRONG, "--kind: must be one of plan, granted"),
    ("decisions --limit 0", NOWHERE, WRONG, "must be a whole number, 1 to 1000"),
    ("loads", STOPPED, LATER, "cannot be reached"),
    ("loads --kind lent", NOWHERE, WRONG, "--kind: must be one of load_started"),
    ("telemetry", STOPPED, LATER, "cannot be reached"),
    ("telemetry savigns", NOWHERE, WRONG, "; did you mean 'savings'?"),
    ("telemetry --step x", NOWHERE, WRONG, "--step: must be a whole number, got 'x'"),
    ("telemetry --since yesterday", NOWHERE, WRONG, "--since: must be a time"),
    ("projections status", STOPPED, LATER, "cannot be reached"),
    ("projections rebuild", STOPPED, LATER, "cannot be reached"),
    ("projections rebuild --from disk", STOPPED, WRONG, "must be one of archive, stream"),
    ("projections schema", NOWHERE, DONE, ""),
    ("projections schema --cluster a.b", NOWHERE, WRONG, "--cluster: must be letters"),
    ("why 812", STOPPED, LATER, "nats-server nats://"),
    ("why studio", NOWHERE, WRONG, "must be a request"),
    ("why 1234567890123456", NOWHERE, WRONG, "must be a request"),
    ("at now", NOWHERE, LATER, "has no operator's key yet"),
    ("at 812", STOPPED, LATER, "nats-server nats://"),
    ("at yesterday", NOWHERE, WRONG, "must be a version (812), a time"),
    ("at 812 --copy none.zip", NOWHERE, WRONG, "cannot be read: No such file or directory; must be a file that"),
    ("events tail", NOWHERE, LATER, "has no operator's key yet"),
    ("events tail --since yesterday", NOWHERE, WRONG, "--since: must be a sequence (1200), a time"),
    ("audit verify", NOWHERE, LATER, "has no operator's key yet"),
    ("audit verify", STOPPED, LATER, "cannot be reached"),
    ("audit verify --against copy", STOPPED, LATER, "holds no imported copy; `leaseway audit import FILE` keeps one"),
    ("audit verify --from yesterday", NOWHERE, WRONG, "--from: must be a version (812), a time"),
    ("audit verify --copy none.zip", NOWHERE, WRONG, "cannot be read"),
    ("audit verify --copy none.zip --against stream", NOWHERE, WRONG, "a copy is read with --copy alone"),
    ("audit export history.zip", NOWHERE, LATER, "has no operator's key yet"),
    ("audit export", NOWHERE, WRONG, "missing: FILE"),
    ("audit import none.zip", NOWHERE, WRONG, "cannot be read: No such file or directory; must be a file that"),
    ("audit import bad.toml", NOWHERE, WRONG, "cannot be read: File is not a zip file; must be a file that"),
    ("audit what-if", STOPPED, LATER, "cannot be reached"),
    ("audit what-if --policy nope", NOWHERE, WRONG, "--policy 'nope': there are"),
    ("links add studio/chat attic/chat", NOWHERE, LATER, "has no operator's key yet"),
    ("links add studio attic/chat", NOWHERE, WRONG, "must be NODE/MODEL"),
    ("links remove studio/chat attic/chat", NOWHERE, LATER, "has no operator's key yet"),
    ("links remove studio/chat attic", NOWHERE, WRONG, "must be NODE/MODEL"),
    ("links list", NOWHERE, LATER, "has no operator's key yet"),
    ("links candidates studio/chat", STOPPED, LATER, "master http://"),
    ("links candidates studio", STOPPED, WRONG, "must be NODE/MODEL"),
    ("links import groups.toml", NOWHERE, LATER, "has no operator's key yet"),
    ("links import bad.toml", NOWHERE, WRONG, "`leaseway links import --help` shows the form of one"),
    ("settings list", NOWHERE, LATER, "has no operator's key yet"),
    ("settings set offload_lease_ttl=20s", NOWHERE, LATER, "has no operator's key yet"),
    ("settings set offload_lease_ttl=20", NOWHERE, WRONG, "must be a duration with its unit"),
    ("settings set offload_lese_ttl=20s", NOWHERE, WRONG, "unknown"),
    ("settings clear offload_lease_ttl", NOWHERE, LATER, "has no operator's key yet"),
    ("provision --config remote.toml", NOWHERE, LATER, "nats://127.0.0.1:9"),
    ("provision --node attic", NOWHERE, WRONG, "must be given together"),
    ("subscribe --list", STOPPED, DONE, ""),
    ("subscribe --add dashboard --config remote.toml", NOWHERE, LATER, "then run this again"),
    ("subscribe --add Dash.Board", STOPPED, WRONG, "tool id 'Dash.Board'"),
    ("subscribe --remove dashboard", STOPPED, WRONG, "must be an enrolled tool; there are: none"),
    ("version", NOWHERE, DONE, ""),
    ("simulate", NOWHERE, WRONG, "say either --suite or --scenario"),
    ("simulate --scenario none.toml", NOWHERE, WRONG, "none.toml"),
    ("simulate --suite drain --policies nope", NOWHERE, WRONG, "nope"),
    ("plan", NOWHERE, WRONG, "say either --from-history or --trace"),
    ("plan --from-history 7d --helper-speed 2", STOPPED, LATER, "cannot be reached"),
    ("plan --trace none.csv --helper-speed 2", NOWHERE, WRONG, "none.csv"),
    ("master", NOWHERE, LATER, "keys/master.json: no such file; `leaseway provision` makes it"),
    ("master --config bad.toml", NOWHERE, WRONG, "slotz: unknown key"),
    ("node --config good.toml --node studio", NOWHERE, LATER, "keys/studio.json: no such file"),
    ("node --config good.toml --node nope", NOWHERE, WRONG, "nope"),
    ("gateway", NOWHERE, LATER, "no such file"),
    ("gateway --port x", NOWHERE, WRONG, "must be a whole number"),
    ("projector", NOWHERE, LATER, "no such file"),
    ("projector --credentials bad.toml", NOWHERE, WRONG, "bad.toml"),
    ("console", NOWHERE, LATER, "nothing ever ran on it"),
    ("console --port {taken}", STOPPED, LATER, "address 127.0.0.1:{taken}: must be free, another process"),
    ("console --config bad.toml", NOWHERE, WRONG, "slotz: unknown key"),
    ("console --credentials bad.toml", NOWHERE, WRONG, "--credentials"),
    (
        "engine --model none.gguf --api-key-env NO_SUCH_KEY",
        NOWHERE,
        WRONG,
        "environment variable NO_SUCH_KEY must be set",
    ),
    ("engine --parallel x", NOWHERE, WRONG, "--parallel"),
]
GOOD = '[[nodes]]\nid = "studio"\n[[nodes.models]]\nid = "chat"\nurl = "http://127.0.0.1:9"\n'
GROUPS = '[[groups]]\nname = "g"\nmembers = [{ node = "a", model = "m" }, { node = "b", model = "m" }]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with a few files; nothing there is to be waited for."""
    (tmp_path / "good.toml").write_text(GOOD)
    (tmp_path / "bad.toml").write_text(GOOD + "slotz = 2\n")
    (tmp_path / "remote.toml").write_text('[bus]\nurl = "nats://127.0.0.1:9"\n' + GOOD)
    (tmp_path / "groups.toml").write_text(GROUPS)
    monkeypatch.chdir(tmp_path)
    for module in ("services.cli.history", "services.cli.audit_source"):
        monkeypatch.setattr(f"{module}._WAIT_S", 0.05)
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield tmp_path
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def data_of(folder: Path, where: str) -> Path:
    """Return a data directory of that kind."""
    data = folder / "data"
    if where == STOPPED:
        make_data(data)
        config = load_config(None, data=data, environment={})
        make_keys(config, {"studio": "http://127.0.0.1:9"}, {})
        gone = "http://127.0.0.1:9"
        write_endpoints(data, Endpoints(gateway=gone, projector=gone, master=gone, nats="nats://127.0.0.1:9"))
    return data


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """Take a port."""
    for port in range(20_013, 32_000, 977):
        with socket.socket() as held:
            try:
                held.bind(("127.0.0.1", port))
            except OSError:
                continue
            held.listen()
            yield port
            return


@pytest.mark.parametrize(("line", "where", "code", "said"), TABLE, ids=[f"{row[0]} ({row[1]})" for row in TABLE])
def test_a_command_ends_with_the_code_that_says_whose_turn_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str], taken: int, line: str, where: str, code: int, said: str
):
    data = data_of(folder, where)
    words = line.format(taken=taken).split()
    takes_data = words[0] not in {"version", "engine", "demo", "simulate"} and words[:2] != ["projections", "schema"]
    got = main([*words, *(["--data", str(data)] if takes_data else [])])
    out, err = capsys.readouterr()
    assert (got, said.format(taken=taken) in err) == (code, True), err
    if code:
        assert out == ""
        assert err.splitlines()[-1].startswith(("leaseway: ", f"leaseway {words[0]}")), err
        assert "Traceback" not in err


def test_every_command_stands_in_the_table():
    told = {tuple(row[0].split()) for row in TABLE}
    for words, _ in every_command(build_parser()):
        assert any(line[: len(words)] == words for line in told), f"{words}: what are its exit codes?"


def test_the_rule_is_in_the_help():
    assert "exit codes: 0 done" in EPILOG
