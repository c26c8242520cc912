"""The commands that change what operators decided: what they refuse before they ask anybody."""

import http.server
import json
import threading

import pytest

from services.cli.link_import import read_groups
from services.cli.main import main
from services.cli.parser import build_parser
from services.cli.settings import changes_of
from services.data_directory import Endpoints, make_data, write_endpoints

TOML = (
    '[[groups]]\nname = "chat"\nmembers = [{ node = "a", model = "m" }, { node = "b", model = "m", restore = true }]\n'
)
JSON = '{"groups":[{"name":"chat","members":[{"node":"a","model":"m"},{"node":"b","model":"m","restore":true}]}]}'


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["offload_lease_ttl=20s"], {"offload_lease_ttl": 20_000_000}),
        (
            ["cluster.offload_streams=off", "scheduling_backend_depth=3"],
            {"offload_streams": 0, "scheduling_backend_depth": 3},
        ),
    ],
)
def test_settings_are_read_from_words_with_or_without_their_prefix(words, values):
    assert changes_of(words) == values


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["offload_lease_ttl", "20s"],
            "setting 'offload_lease_ttl': must be NAME=VALUE, such as offload_lease_ttl=20s",
        ),
        (["nope=1"], "setting 'nope': unknown; known are "),
        (
            ["offload_streams=off", "scheduling_backend_depth=65"],
            "setting scheduling_backend_depth: must be 1 to 64, got 65",
        ),
        (["offload_lease_ttl="], "setting offload_lease_ttl: must be a duration with its unit"),
        (["offload_streams=on", "cluster.offload_streams=off"], "setting offload_streams: must be stated once only"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line_before_anybody_is_asked(capsys, tmp_path, words, line):
    code = main(["settings", "set", *words, "--data", str(tmp_path)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"leaseway settings set: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("name", "text"), [("groups.toml", TOML), ("groups.json", JSON)])
def test_groups_are_read_as_toml_or_json(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    (group,) = read_groups(file).groups
    assert [(one.node, one.model, one.restore) for one in group.members] == [("a", "m", False), ("b", "m", True)]


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("groups.toml", None, "cannot be read: No such file or directory"),
        ("groups.toml", "groups = [", "is not TOML"),
        ("groups.json", TOML, "is not JSON"),
        ("groups.toml", b"\xff\xfe", "is not TOML"),
        ("groups.toml", "[groups]\n", "is no file of groups: "),
        ("groups.toml", TOML.replace("restore", "restores"), "is no file of groups: .*restores"),
        ("groups.json", "[" * 5000, "is not JSON"),
        ("groups.toml", "a=" + "[" * 5000, "is not TOML"),
        ("groups.toml", "#" * (1 << 20) + "\n", "must have at most 1048576 bytes"),
    ],
)
def test_what_is_no_file_of_groups_is_refused_with_its_name(capsys, tmp_path, name, text, rule):
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    code = main(["links", "import", str(file), "--data", str(tmp_path)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    start, _, rest = rule.partition(".*")
    assert f"{file}: {start}" in err
    assert rest in err


def test_an_import_does_nothing_but_what_its_flags_say():
    parsed = build_parser().parse_args(["links", "import", "groups.toml"])
    assert (parsed.dry_run, parsed.skip_ineligible, parsed.different_weights) == (False, False, False)


@pytest.fixture
def unsure_master():
    """Give the URL of one who answers as a master that could not fold its history."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"safe_mode": True, "doubt": "ledger: of another policy", "links": [], "nodes": []})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("words", [["links", "list"], ["nodes"], ["links", "candidates", "a/m"]])
def test_what_a_master_in_safe_mode_has_not_folded_is_not_told_as_nothing(capsys, tmp_path, unsure_master, words):
    data = tmp_path / "data"
    make_data(data)
    write_endpoints(data, Endpoints(master=unsure_master, nats="nats://127.0.0.1:9"))
    code = main([*words, "--data", str(data)])
    out, err = capsys.readouterr()
    assert code != 0
    assert out == ""
    assert "is in safe mode (ledger: of another policy)" in err
