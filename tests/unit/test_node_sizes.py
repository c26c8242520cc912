"""What a node tells its machines of a request, and what it learns from answers."""

from typing import Any

import msgspec

from adapters.clock import SystemClock
from adapters.http.body import ReadRequest, parse
from domain.catalogue.tokens import WINDOW
from domain.ids import RequestId
from domain.inputs import EngineResult, NewRequest
from services.node.sizes import Sizes

REQUEST = RequestId(f"req_{1:032x}")
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}


def read(text: str = "word " * 200, **more: Any) -> ReadRequest:
    return parse(msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}], **more}))


def told(sizes: Sizes, **more: Any) -> NewRequest:
    return sizes.describe(REQUEST, read(**more))


def test_before_a_measurement_nobody_knows_whether_it_fits_and_work_is_a_guess_by_bytes():
    sizes = Sizes("text", lambda: 256, SystemClock())
    new = told(sizes, max_tokens=100)
    assert new.est_tokens == 0
    assert new.work == (-(-new.size_bytes // 4) + 100) * 1_000_000


def test_work_and_estimate_follow_what_the_models_own_answers_used():
    sizes = Sizes("text", lambda: 256, SystemClock())
    for _ in range(5):
        sizes.learn(read(max_tokens=100), EngineResult(tokens_in=500, tokens_out=40))
    new = told(sizes, max_tokens=100)
    assert abs(new.work - 540 * 1_000_000) <= 2_000_000
    assert 600 <= new.est_tokens <= 605
    assert told(sizes).est_tokens >= 490 + 256


def test_bodies_of_much_that_no_prompt_shows_do_not_make_a_real_one_seem_to_fit_any_window():
    sizes = Sizes("text", lambda: 256, SystemClock())
    blank = msgspec.structs.replace(read("hi"), body=read("hi").body + b" " * 1_000_000)
    for _ in range(WINDOW):
        sizes.learn(blank, EngineResult(tokens_in=12, tokens_out=1))
    new = told(sizes, text="word " * 20_000)
    assert new.est_tokens >= 100_000 // 16


class Hands(SystemClock):
    """A clock that a test sets."""

    now_us = 0

    def monotonic_us(self) -> int:
        return self.now_us


def test_of_dense_traffic_a_part_is_measured_once_the_window_is_full():
    clock = Hands()
    sizes = Sizes("text", lambda: 256, clock)
    for _ in range(WINDOW):
        sizes.learn(read(), EngineResult(tokens_in=500, tokens_out=40))
    for at_ms in range(0, 1000, 10):
        clock.now_us = at_ms * 1000
        sizes.learn(read(), EngineResult(tokens_in=250, tokens_out=41))
    assert sizes.profile.answers.count(41) == 9


def test_answers_that_failed_or_did_not_count_teach_nothing():
    sizes = Sizes("text", lambda: 256, SystemClock())
    for result in (EngineResult(status=500, tokens_in=500), EngineResult(), EngineResult(tokens_out=7)):
        sizes.learn(read(), result)
    sizes.learn(read(text=[IMAGE]), EngineResult(tokens_in=500, tokens_out=40))  # type: ignore[arg-type]
    assert told(sizes).est_tokens == 0


def test_a_request_with_an_image_is_lendable_and_says_that_it_needs_eyes():
    new = told(Sizes("text", lambda: 256, SystemClock()), text=[IMAGE])
    assert (new.vision, new.lendable, new.not_lendable) == (True, True, "")
    assert new.work < 3000 * 1_000_000  # its text and the image's own tokens, not the bytes of its base64


def test_the_work_of_pictures_is_size_by_steps_by_number():
    sizes = Sizes("image", lambda: 256, SystemClock())
    one = told(sizes, size="1024x1024", steps=20)
    four = told(sizes, size="512x512", steps=40, n=4)
    assert one.work == 20_000_000
    assert four.work == 40_000_000


def test_a_body_of_more_than_eight_megabytes_is_not_lent():
    new = told(Sizes("text", lambda: 256, SystemClock()), text="x" * (8 * 1024 * 1024 + 1))
    assert (new.lendable, new.not_lendable) == (False, "too_large")


def test_what_came_before_an_estimate_is_told_its_size_once_if_it_is_still_open():
    sizes = Sizes("text", lambda: 256, SystemClock())
    names = [RequestId(f"req_{number:032x}") for number in range(4)]
    for name in names[:3]:
        sizes.describe(name, read(max_tokens=100))
    sizes.describe(names[3], read(text=[IMAGE], max_tokens=100))  # type: ignore[arg-type]
    sizes.forget(names[0])
    assert sizes.sized() == {}
    sizes.learn(read(max_tokens=100), EngineResult(tokens_in=500, tokens_out=40))
    assert {new.est_tokens for new in sizes.sized().values()} == {0}
    assert sizes.sized() == {}
    sizes.learn(read(max_tokens=100), EngineResult(tokens_in=500, tokens_out=40))
    told_later = sizes.sized()
    assert list(told_later) == names[1:]
    assert told_later[names[1]].est_tokens == told(sizes, max_tokens=100).est_tokens > 0
    image = sizes.describe(REQUEST, read(text=[IMAGE], max_tokens=100))  # type: ignore[arg-type]
    assert told_later[names[3]].est_tokens == image.est_tokens > 1024
    assert sizes.sized() == {}


def test_the_sizes_of_a_long_queue_are_told_a_thousand_at_a_time():
    sizes = Sizes("text", lambda: 256, SystemClock())
    for number in range(1_100):
        sizes.describe(RequestId(f"req_{number:032x}"), read())
    for _ in range(2):
        sizes.learn(read(), EngineResult(tokens_in=500, tokens_out=40))
    assert [len(sizes.sized()) for _ in range(3)] == [1_000, 100, 0]


def test_the_first_answer_tells_open_requests_their_work_in_tokens_and_the_second_once_more():
    sizes = Sizes("text", lambda: 256, SystemClock())
    name, asked = RequestId(f"req_{2:032x}"), read(max_tokens=100)
    guessed = sizes.describe(name, asked).work
    rough = [sizes.is_rough]
    assert sizes.work_by_now(asked) == guessed
    for tokens_in in (500, 800):
        sizes.learn(asked, EngineResult(tokens_in=tokens_in, tokens_out=40))
        assert sizes.sized()[name].work == sizes.work_by_now(asked) == told(sizes, max_tokens=100).work != guessed
    rough.append(sizes.is_rough)
    assert rough == [True, False]
    assert sizes.sized() == {}


def test_the_first_answer_tells_no_more_than_a_thousand_works():
    sizes = Sizes("text", lambda: 256, SystemClock())
    for number in range(1_100):
        sizes.describe(RequestId(f"req_{number:032x}"), read())
    sizes.learn(read(), EngineResult(tokens_in=500, tokens_out=40))
    assert [len(sizes.sized()) for _ in range(2)] == [1_000, 0]


def test_the_work_of_pictures_has_one_unit_whatever_is_answered():
    sizes = Sizes("image", lambda: 256, SystemClock())
    name = RequestId(f"req_{2:032x}")
    sizes.describe(name, read(size="512x512"))
    assert not sizes.is_rough
    for _ in range(2):
        sizes.learn(read(), EngineResult(tokens_in=500, tokens_out=40))
        assert {new.work for new in sizes.sized().values()} <= {0}
    assert sizes.work_by_now(read()) == sizes.work_of_lent(read(), EngineResult(tokens_in=500)) == 0


def test_of_a_lent_request_that_its_owner_guessed_the_answer_itself_is_the_first_sample():
    sizes, asked = Sizes("text", lambda: 256, SystemClock()), read(max_tokens=100)
    assert abs(sizes.work_of_lent(asked, EngineResult(tokens_in=500, tokens_out=40)) - 540_000_000) <= 2_000_000
    assert sizes.work_of_lent(asked, EngineResult()) == 0
    assert not sizes.profile.answers  # it is another node's traffic
    sizes.learn(asked, EngineResult(tokens_in=300, tokens_out=10))
    assert sizes.work_of_lent(asked, EngineResult()) == sizes.work_by_now(asked)
