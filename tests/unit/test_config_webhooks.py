"""`[[webhooks]]`: what may be said, and that no refusal shows a secret."""

import base64
from pathlib import Path

import pytest

from domain.errors import BadConfigError
from services.config_file import load_config

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
GOOD = f'name = "tickets"\nurl = "https://example.test/hook?token=1"\nsecret = "{SECRET}"\n'


def load(tmp_path: Path, text: str):
    path = tmp_path / "leaseway.toml"
    path.write_text(text)
    return load_config(path, environment={"HOME": str(tmp_path)})


def test_a_webhook_is_read_whole(tmp_path: Path) -> None:
    more = 'events = ["lease.*", "lend.*"]\nsubjects = ["lw.local.>"]\nowner = "studio"\nsince = "0"\ngive_up_h = 5\n'
    [hook] = load(tmp_path, f"[[webhooks]]\n{GOOD}{more}").webhooks
    assert (hook.events, hook.subjects, hook.owner, hook.give_up_h) == (
        ("lease.*", "lend.*"),
        ("lw.local.>",),
        "studio",
        5,
    )
    assert load(tmp_path, "").webhooks == ()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (GOOD.replace("tickets", "Not An Id"), r"webhooks\[0\]\.name: "),
        (GOOD.replace("https://example.test", "ftp://example.test"), r"webhooks\[0\]\.url: must be http"),
        (GOOD.replace("https://", "https://user:word@"), r"webhooks\[0\]\.url: must be http"),
        (GOOD.replace(f'secret = "{SECRET}"', ""), r"webhooks\[0\]\.secret: must be stated, or `secret_file`"),
        (GOOD + 'secret_file = "x"\n', r"webhooks\[0\]\.secret: must be stated, or `secret_file`, and not both"),
        (
            GOOD.replace(SECRET, SECRET[:20]),
            r"webhooks\[0\]\.secret: must be whsec_ and base64 of 24 to 64 random bytes",
        ),
        (GOOD + 'events = ["lease.>.x"]\n', r"webhooks\[0\]\.events: must be patterns"),
        (GOOD + "give_up_h = 0\n", r"webhooks\[0\]\.give_up_h: must be 1 to 8760"),
        (GOOD + 'owner = "Nobody!"\n', r"webhooks\[0\]\.owner: "),
        (GOOD + "[[webhooks]]\n" + GOOD, r"webhooks\.name: must be stated once only"),
    ],
)
def test_what_can_never_be_right_is_refused(tmp_path: Path, said: str, told: str) -> None:
    with pytest.raises(BadConfigError, match=told) as raised:
        load(tmp_path, f"[[webhooks]]\n{said}")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["https://user:w0rd@example.test/hook?token=1", "ftp://example.test/hook?token=w0rd", "https://w0rd@"]
)
def test_a_url_that_is_refused_is_shown_without_what_may_be_secret_in_it(tmp_path: Path, url: str) -> None:
    for text in (
        f"[[webhooks]]\n{GOOD}".replace("https://example.test/hook?token=1", url),
        f'[telemetry]\notlp_url = "{url}"\n',
    ):
        with pytest.raises(BadConfigError) as raised:
            load(tmp_path, text)
        assert "url: must be http" in str(raised.value)
        assert "w0rd" not in str(raised.value)
