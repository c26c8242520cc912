"""What a request body may be, and what it costs when it is hostile."""

import json
import time

import pytest

from adapters.http.body import DEPTH_MAX, IMAGE_TOKENS, ReadRequest, check_shape, parse
from adapters.http.errors import ApiError
from adapters.http.members import RepeatedKeyError, spans
from domain.catalogue.work import Picture


def refusal(body: bytes) -> tuple[int, str, str | None]:
    """Return (status, code, param) that `body` is refused with."""
    with pytest.raises(ApiError) as refused:
        parse(body)
    return refused.value.status, refused.value.code, refused.value.param


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b"[]", "invalid_json", None),
        (b'"model"', "invalid_json", None),
        (b"null", "invalid_json", None),
        (b'{"model":"a"}x', "invalid_json", None),
        (b'{"model":"a","t":NaN}', "invalid_json", None),
        (b'{"model":"a","t":1e999}', "invalid_json", None),
        (b'{"model":"a","t":"\\ud800"}', "invalid_json", None),
        (b'{"model":"a","t":"\xff"}', "invalid_json", None),
        (b'{"model":"a","t":"\x01"}', "invalid_json", None),
        (b'{"model":"a","model":"b"}', "invalid_json", None),
        (b'{"model":"a","\\u006dodel":"b"}', "invalid_json", None),
        (b'{"model":"a","model":"a"}', "invalid_json", None),
        (b'{"stream":true,"model":"a","stream":false}', "invalid_json", None),
        (b"{}", "invalid_model", "model"),
        (b'{"messages":[{"model":"a"}]}', "invalid_model", "model"),
        (b'{"model":null}', "invalid_model", "model"),
        (b'{"model":7}', "invalid_model", "model"),
        (b'{"model":""}', "invalid_model", "model"),
        (b'{"model":"a\\u0000b"}', "invalid_model", "model"),
        (b'{"model":"' + b"m" * 257 + b'"}', "invalid_model", "model"),
        (b'{"model":"a","stream":"yes"}', "invalid_body", "stream"),
        (b'{"model":"a","max_tokens":"9"}', "invalid_body", "max_tokens"),
        (b'{"model":"a","max_tokens":1.5}', "invalid_body", "max_tokens"),
        (b'{"model":"a","max_tokens":99999999999999999999}', "invalid_body", "max_tokens"),
    ],
)
def test_a_malformed_body_is_refused_with_its_parameter(body: bytes, code: str, param: str | None):
    assert refusal(body) == (400, code, param)


@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 200_000,
        b"[" * 5_000 + b"]" * 5_000,
        b'{"model":"a","tools":' + b'{"a":' * 3_000 + b"1" + b"}" * 3_001,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"{" + b",".join(b'"%d":1' % i for i in range(600_000)) + b"}",
        b'{"model":"a","x":[' + b"1," * 3_000_000 + b"1]}",
        b'{"model":"a","x":"' + b'\\"' * 4_000_000,
        b'"' * 8_000_000,
        b'"\\\\"' * 2_000_000,
        b"[]" * 4_000_000,
        b"\\" * 8_000_000,
        b'{"model":"a","x":' + b"1" * 2_000_000 + b"}",
    ],
    ids=(
        *(
            "open lists",
            "deep lists",
            "deep tools",
            "deep objects",
            "keys",
            "elements",
            "open string of quotes",
            "quotes",
        ),
        *("backslashes in strings", "empty lists", "backslashes", "long number"),
    ),
)
def test_a_json_bomb_is_refused_before_it_costs_more_than_a_moment(bomb: bytes):
    began = time.process_time()
    assert refusal(bomb)[:2] == (400, "invalid_json")
    assert time.process_time() - began < 0.5


def test_nesting_up_to_the_limit_is_taken_and_one_more_is_not():
    def nested(depth: int) -> bytes:
        return b'{"model":"a","x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert parse(nested(DEPTH_MAX)).model == "a"
    assert refusal(nested(DEPTH_MAX + 1)) == (400, "invalid_json", None)


def test_brackets_and_quotes_within_text_are_not_structure():
    text = '[{"' * 1_000 + "\\" * 3
    check_shape(json.dumps({"model": "a", "messages": [{"role": "user", "content": text}]}).encode())


def test_what_a_router_must_know_is_read_and_the_bytes_stay():
    body = b' {"messages":[{"role":"user","content":"hi"}], "stream" : true,\n"model" : "org\\/m:7b", "max_tokens":64 }'
    read = parse(body)
    assert (read.model, read.stream, read.answer_tokens, read.images) == ("org/m:7b", True, 64, False)
    assert read.body is body
    assert body[slice(*read.model_span)] == b'"org\\/m:7b"'
    assert read.est_tokens == -(-len(body) // 4) + 64


def test_an_id_in_another_unicode_form_names_the_same_model():
    assert (
        parse(json.dumps({"model": "mod\u0065\u0301le"}).encode()).model == parse('{"model":"modéle"}'.encode()).model
    )


def test_an_image_part_is_seen_by_structure_and_never_by_text():
    def seen(content: object) -> bool:
        return parse(json.dumps({"model": "a", "messages": [{"role": "user", "content": content}]}).encode()).images

    assert seen([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:,"}}])
    assert not seen("image_url")
    assert not seen([{"type": "text", "text": "image_url"}])


def test_ollamas_images_beside_the_content_are_images_too():
    def read(**more: object) -> ReadRequest:
        return parse(
            json.dumps({"model": "a", "messages": [{"role": "user", "content": "what is this?", **more}]}).encode()
        )

    two = read(images=["A" * 50_000, "B" * 50_000])
    assert (two.image_parts, two.image_tokens, two.text_bytes < 200) == (2, 2 * IMAGE_TOKENS, True)
    others: list[object] = [[], "text", {"a": 1}, None]
    assert [read(images=said).images for said in others] == [False] * 4


def test_an_image_counts_as_one_and_not_as_text_of_its_length():
    def read(content: object) -> ReadRequest:
        return parse(json.dumps({"model": "a", "messages": [{"role": "user", "content": content}]}).encode())

    text = {"type": "text", "text": "what is this?"}
    with_image = read([text, {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}])
    also = read([text, {"type": "input_image", "image_url": "B" * 50_000}])
    assert [(one.image_parts, one.image_tokens) for one in (with_image, also)] == [(1, IMAGE_TOKENS)] * 2
    assert [one.text_bytes < 200 for one in (with_image, also)] == [True, True]
    assert read([text]).text_bytes == len(read([text]).body)
    assert read([{"type": "image_url", "image_url": 7}, {"type": "image"}]).image_parts == 2


@pytest.mark.parametrize(("said", "most"), [({}, None), ({"max_tokens": 5}, 5), ({"max_tokens": -1}, None)])
def test_a_bound_of_the_answer_is_known_or_not(said, most):
    assert parse(json.dumps({"model": "a", **said}).encode()).max_tokens == most


def test_what_a_request_for_pictures_asks_for_is_read():
    assert parse(b'{"model":"a","size":"512x256","n":2}').picture == Picture(width=512, height=256, count=2)


def test_a_key_that_stands_twice_is_found_wherever_it_stands():
    with pytest.raises(RepeatedKeyError):
        spans(b'{"a":1,"b":{"a":1},"a":1}')
    assert spans(b'{"a":1,"b":{"a":1}}') == {"a": (5, 6), "b": (11, 18)}


def test_no_error_quotes_the_body():
    secret = "my-prompt-text"
    for body in (
        f'{{"model":"a","x":{secret}}}',
        f'{{"model":7,"x":"{secret}"}}',
        f'{{"model":"a","stream":"{secret}"}}',
    ):
        with pytest.raises(ApiError) as refused:
            parse(body.encode())
        assert secret not in str(refused.value)
