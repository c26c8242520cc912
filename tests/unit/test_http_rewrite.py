"""Model ids rewritten both ways, and every other byte left as it came."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.http.body import parse
from adapters.http.rewrite import (
    EVENT_BYTES_MAX,
    EventTooLargeError,
    StreamRewriter,
    Usage,
    answer_for_client,
    request_for_engine,
    usage_in,
)
from domain.ids import ModelId

PUBLIC = ModelId("org/big:7b")


def chunk(text: str, **more: object) -> str:
    return json.dumps(
        {"choices": [{"index": 0, "delta": {"content": text, "model": "local"}}], "id": "c1", "model": "local", **more},
        ensure_ascii=False,
    )


TEXTS = ["Hello local", "data: [DONE]\n\n", "日本語 🦙 漢字", 'say "model":"local"', "\r\n\r\n", "[DONE]"]
STREAM = "".join(
    (
        ": welcome\n\n",
        f"data: {chunk(TEXTS[0])}\n\n",
        f"data:{chunk(TEXTS[1])}\r\n\r\n",
        f"event: message\ndata: {chunk(TEXTS[2])}\nid: 7\n\n",
        f"data: {chunk(TEXTS[3])}\r\r",
        f"data: {chunk(TEXTS[4])}\n\n",
        'data: {"choices":[],\ndata: "model":\ndata: "local"}\n\n',
        f"data: {chunk(TEXTS[5], usage={'prompt_tokens': 11, 'completion_tokens': 7})}\n\n",
        "data: [DONE]\n\n",
    )
).encode()
EXPECTED = STREAM.replace(b'"id": "c1", "model": "local"', b'"id": "c1", "model": "org/big:7b"').replace(
    b'data: "local"}', b'data: "org/big:7b"}'
)


def run(parts: list[bytes]) -> tuple[bytes, StreamRewriter]:
    rewriter = StreamRewriter(PUBLIC)
    out = b"".join([*(rewriter.feed(part) for part in parts), rewriter.end()])
    return out, rewriter


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


@given(st.lists(st.integers(min_value=0, max_value=10_000), max_size=30))
def test_a_stream_is_the_same_bytes_but_for_the_model_id_however_it_is_cut(places: list[int]):
    out, rewriter = run(cut(STREAM, places))
    assert out == EXPECTED
    assert rewriter.done
    assert rewriter.usage == Usage(tokens_in=11, tokens_out=7)


def test_one_byte_a_write_gives_the_same_stream_and_only_whole_events():
    rewriter = StreamRewriter(PUBLIC)
    outs = [rewriter.feed(bytes([byte])) for byte in STREAM]
    assert b"".join(outs) == EXPECTED
    for out in filter(None, outs):
        out.decode()  # no character is split
        assert out.endswith((b"\n", b"\r"))


def test_done_within_text_does_not_end_the_stream():
    before_the_end = STREAM[: -len(b"data: [DONE]\n\n")]
    _, rewriter = run([before_the_end])
    assert not rewriter.done


def test_a_terminator_without_its_blank_line_still_counts_and_a_cut_event_never_comes_out():
    assert run([b"data: {}\n\n", b"data: [DONE]"])[0] == b"data: {}\n\ndata: [DONE]\n\n"
    out, rewriter = run([b"data: {}\n\n", b'data: {"model":"lo'])
    assert (out, rewriter.done) == (b"data: {}\n\n", False)


def test_an_error_event_of_the_engine_is_known_as_one():
    assert run([b'data: {"error":{"message":"no"}}\n\n'])[1].failed
    assert not run([b'data: {"choices":[{"delta":{"content":"\\"error\\""}}]}\n\n'])[1].failed


def test_an_event_without_end_is_given_up():
    rewriter = StreamRewriter(PUBLIC)
    assert rewriter.feed(b"x" * EVENT_BYTES_MAX) == b""
    with pytest.raises(EventTooLargeError):
        rewriter.feed(b"x")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"id":"x","model":"local","choices":[{"text":"local \\"model\\":\\"local\\""}]}',) * 2,
        (b'{"choices":[{"model":"local"}]}',) * 2,
        (b'{"model": null}',) * 2,
        (b'{"model": {"name":"local"}}',) * 2,
        (b'["model","local"]',) * 2,
        (b"no json \xff model",) * 2,
        (b'{"a":1, "model" : "/models/x.gguf" }', b'{"a":1, "model" : "org/big:7b" }'),
        (b'{"\\u006dodel":"local"}', b'{"\\u006dodel":"org/big:7b"}'),
    ],
)
def test_an_answer_is_the_same_bytes_but_for_its_own_model_id(answer: bytes, expected: bytes):
    expected = expected.replace(b'"id":"x","model":"local"', b'"id":"x","model":"org/big:7b"')
    assert answer_for_client(answer, PUBLIC) == expected


def test_a_request_reaches_the_engine_with_its_own_id_and_else_unchanged():
    body = b'{ "messages" : [{"role":"user","content":"org/big:7b"}],"model":"org/big:7b", "x":1.0 }'
    assert request_for_engine(parse(body), 'lo"cal') == body.replace(b'"model":"org/big:7b"', b'"model":"lo\\"cal"')


def test_tokens_are_taken_from_usage_or_from_llama_cpps_timings():
    assert usage_in(b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}') == Usage(tokens_in=3, tokens_out=4)
    timings = b'{"usage":null,"timings":{"cache_n":40,"prompt_n":5,"predicted_n":6}}'
    assert usage_in(timings) == Usage(tokens_in=45, tokens_out=6)
    assert usage_in(b'{"usage":{"prompt_tokens":"x"}}') is None
    assert usage_in(b'{"text":"\\"usage\\""}') is None


@pytest.mark.parametrize("tokens", [-1, 1 << 31, 10**30])
def test_tokens_that_no_engine_can_mean_are_not_stated(tokens: int):
    assert usage_in(b'{"usage":{"prompt_tokens":%d,"completion_tokens":4}}' % tokens) is None
    assert usage_in(b'{"timings":{"prompt_n":1,"cache_n":1,"predicted_n":%d}}' % tokens) is None


def test_a_prompt_of_which_a_cached_part_may_be_left_out_is_not_counted():
    assert usage_in(b'{"timings":{"prompt_n":1,"predicted_n":6}}') == Usage(tokens_in=0, tokens_out=6)


def test_an_engine_may_be_asked_what_a_stream_used_and_the_rest_of_the_request_stays():
    body = b'{"stream":true, "model":"org/big:7b", "x":1.0 }'
    asked = b'{"stream":true, "model":"l","stream_options":{"include_usage":true}, "x":1.0 }'
    assert request_for_engine(parse(body), "l", ask_usage=True) == asked


def test_the_event_that_only_states_the_usage_is_kept_from_a_client_that_did_not_ask_and_no_other_one():
    text = b'data: {"choices":[{"delta":{"content":"\\"usage\\""}}],"usage":null}\n\n'
    last = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}\n\n'
    alone = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
    done = b"data: [DONE]\n\n"
    for hide, expected in ((True, text + last + done), (False, text + last + alone + done)):
        rewriter = StreamRewriter(PUBLIC, hide_usage=hide)
        assert rewriter.feed(text + last + alone + done) == expected
        assert (rewriter.usage, rewriter.done) == (Usage(tokens_in=7, tokens_out=2), True)
