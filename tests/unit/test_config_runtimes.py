"""What the configuration may say of models that share a runtime, and of relays: each refusal names place, rule and value."""

import pytest

from domain.errors import BadConfigError
from services.config_file import load_config

HEAD = '[node]\nid = "n1"\n'


def model(name: str, **keys: str) -> str:
    rows = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return f'[[node.models]]\nid = "{name}"\n{rows}'


COMMAND = {"command": '["engine", "{port}"]', "runtime": '"gpu0"'}
AT_URL = {"url": '"http://127.0.0.1:1"', "runtime": '"gpu0"'}


def load(tmp_path, text):
    file = tmp_path / "leaseway.toml"
    file.write_text(text)
    return load_config(file, data=tmp_path / "data", environment={})


def test_two_models_share_a_runtime_and_one_is_there_at_the_start(tmp_path):
    text = HEAD + model("a", **COMMAND) + model("b", **COMMAND, startup="true") + model("c", url='"http://127.0.0.1:2"')
    config = load(tmp_path, text)
    assert [(one.id, one.runtime, one.startup) for one in config.node.models] == [
        ("a", "gpu0", False),
        ("b", "gpu0", True),
        ("c", "", False),
    ]


def test_a_server_that_swaps_by_itself_needs_no_orders(tmp_path):
    config = load(tmp_path, HEAD + model("a", **AT_URL) + model("b", **AT_URL))
    assert {one.load_url for one in config.node.models} == {""}


def test_relays_are_asked_in_the_stated_order(tmp_path):
    config = load(tmp_path, HEAD + 'relays = ["http://gateway:1", "https://other:2"]\n')
    assert config.node.relays == ("http://gateway:1", "https://other:2")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            model("a", **COMMAND, startup="true") + model("b", **COMMAND, startup="true"),
            "node.models.startup: must be stated by at most one model of runtime 'gpu0', got 'a, b'",
        ),
        (
            model("a", url='"http://h:1"', startup="true"),
            "node.models[0].startup: needs `runtime`: an engine of its own is always loaded, got True",
        ),
        (
            model("a", **AT_URL) + model("b", **COMMAND),
            (
                "node.models: a: unload_url: must be stated: runtime 'gpu0' has engines elsewhere too, "
                "and this one would keep its memory, got ''"
            ),
        ),
        (
            model("a", **AT_URL) + model("b", url='"http://127.0.0.1:2"', runtime='"gpu0"'),
            (
                "node.models: a: unload_url: must be stated: runtime 'gpu0' has engines elsewhere too, "
                "and this one would keep its memory, got ''"
            ),
        ),
        (
            model("a", **COMMAND, load_url='"http://h:1/load"'),
            "node.models[0].load_url: must not stand beside `command`, which loads by starting, got 'http://h:1/load'",
        ),
        (
            model("a", url='"http://h:1"', unload_url='"http://h:1/x"'),
            "node.models[0].unload_url: needs `runtime`: an engine of its own is always loaded, got 'http://h:1/x'",
        ),
        (
            model("a", **AT_URL, load_url='"ftp://h/x"'),
            (
                "node.models[0].load_url: must be http://host:port or https://host:port, "
                "without user, password, query or fragment, got 'ftp://h/x'"
            ),
        ),
        (model("a", **AT_URL, load_body="'{}'"), "node.models[0].load_body: needs `load_url`, got '{}'"),
        (
            model("a", **AT_URL, load_url='"http://h:1/x"', load_body="'{'"),
            "node.models[0].load_body: must be JSON, got '{'",
        ),
        (
            model("a", command='["x"]', port="9") + model("b", **COMMAND, port="9"),
            "node.models.port: must be of one engine at a time, is stated for model a and runtime gpu0, got 9",
        ),
        (model("a", url='"http://h:1"', runtime='"gpu 0"'), "node.models[0].runtime: "),
        (
            'relays = ["gateway:1"]\n',
            (
                "node.relays[0]: must be http://host:port or https://host:port, "
                "without user, password, query or fragment, got 'gateway:1'"
            ),
        ),
    ],
    ids=lambda text: text[-40:],
)
def test_what_cannot_be_is_refused_and_named(tmp_path, text, told):
    with pytest.raises(BadConfigError) as caught:
        load(tmp_path, HEAD + text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_engines_that_take_turns_may_listen_at_one_port(tmp_path):
    config = load(tmp_path, HEAD + model("a", **COMMAND, port="9") + model("b", **COMMAND, port="9"))
    assert [one.port for one in config.node.models] == [9, 9]
