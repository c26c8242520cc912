"""Work of a request by its lane."""

import pytest

from domain.catalogue.work import WORK_MAX, Picture, picture_of, picture_work, size_work, text_work, work_of

PICTURE = Picture(width=512, height=512, steps=20, count=1)


def test_a_token_is_a_unit_of_text_and_no_text_is_no_less_than_one():
    assert [text_work(tokens) for tokens in (0, 1, 350)] == [1_000_000, 1_000_000, 350_000_000]


def test_a_step_over_a_megapixel_is_a_unit_of_pictures():
    assert picture_work(Picture(width=1024, height=1024, steps=1, count=1)) == 1_000_000
    assert picture_work(PICTURE) == 5_000_000


@pytest.mark.parametrize("field", ["width", "height", "steps", "count"])
def test_work_of_pictures_is_proportional_to_each_of_its_figures(field):
    doubled = {"width": 512, "height": 512, "steps": 20, "count": 1}
    doubled[field] *= 2
    assert picture_work(Picture(**doubled)) == 2 * picture_work(PICTURE)


def test_each_lane_counts_its_own_figure():
    lanes = ("text", "rerank", "image", "video", "speech", "unheard-of")
    work = {lane: work_of(lane, tokens=7, picture=PICTURE, size_bytes=4000) for lane in lanes}
    assert work == {
        "text": text_work(7),
        "rerank": text_work(7),
        "image": picture_work(PICTURE),
        "video": picture_work(PICTURE),
        "speech": size_work(4000),
        "unheard-of": 1_000_000_000,
    }


@pytest.mark.parametrize(
    ("document", "asked"),
    [
        ({"size": "512x768", "n": 2}, Picture(width=512, height=768, count=2)),
        ({"width": 640, "height": 480, "steps": 8, "batch_size": 4}, Picture(width=640, height=480, steps=8, count=4)),
        ({"size": " 256X256 ", "num_inference_steps": 30}, Picture(width=256, height=256, steps=30)),
        ({"size": "auto", "n": "3", "steps": -1, "width": True}, Picture()),
        ({"size": "0x0", "steps": 0, "n": None}, Picture(width=1, height=1)),
        ({}, Picture()),
    ],
)
def test_what_a_body_asks_for_is_read_and_nonsense_takes_a_default(document, asked):
    assert picture_of(document) == asked


def test_nothing_that_a_client_writes_makes_more_than_the_most_work():
    monstrous = picture_of({"size": "99999x99999", "steps": 10**30, "n": 10**30})
    assert picture_work(monstrous) == WORK_MAX
    assert text_work(10**30) == size_work(10**30) == WORK_MAX
    assert picture_work(Picture(width=1, height=1, steps=1, count=1)) == 1
