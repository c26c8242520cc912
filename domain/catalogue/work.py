"""How much work a request is, in millionths of its lane's unit, so that prices learn what one unit takes.

| lane | unit | from |
|---|---|---|
| text, embedding, rerank | a token | the model's token profile |
| image, video | a step over a megapixel (2**20 pixels) of one picture | width x height x steps x pictures, as asked for |
| others | four bytes of the body | its size |

Equal requests have equal work to the last bit: the same picture asked for twice is *the same work* (domain.master.fits).
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

MICRO: Final = 1_000_000
WORK_MAX: Final = 10**15
"""More work than this counts as this: the sums of a full queue stay inside 64 bits."""
TOKEN_LANES: Final = frozenset({"text", "embedding", "rerank"})
PICTURE_LANES: Final = frozenset({"image", "video"})
_MEGAPIXEL: Final = 1 << 20
_BYTES: Final = 4
_SIDE, _STEPS, _COUNT = 1024, 20, 1
"""What is taken where a request says nothing: such requests are all alike, and cost the mean of whatever the engine does."""
_SIDE_MAX, _STEPS_MAX, _COUNT_MAX = 1 << 16, 10_000, 10_000
_SIZE: Final = re.compile(r"([0-9]{1,5})[xX*]([0-9]{1,5})")


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """What a request for pictures asks for."""

    width: int = _SIDE
    height: int = _SIDE
    steps: int = _STEPS
    count: int = _COUNT
    """Pictures; of a video its frames."""


def text_work(tokens: int) -> int:
    """Return the work of so many tokens; at least one token's."""
    return min(max(1, tokens) * MICRO, WORK_MAX)


def picture_work(picture: Picture) -> int:
    """Return the work of drawing `picture`, at least 1: 1024 x 1024 at 20 steps is 20 units."""
    pixels = picture.width * picture.height
    return max(1, min(pixels * picture.steps * picture.count * MICRO // _MEGAPIXEL, WORK_MAX))


def size_work(size_bytes: int) -> int:
    """Return the work of a request of which only its size is known."""
    return min(max(1, size_bytes) * MICRO // _BYTES, WORK_MAX)


def work_of(lane: str, *, tokens: int, picture: Picture, size_bytes: int) -> int:
    """Return the work of a request of `lane`; of the three figures its own counts."""
    if lane in TOKEN_LANES:
        return text_work(tokens)
    return picture_work(picture) if lane in PICTURE_LANES else size_work(size_bytes)


def picture_of(document: Mapping[str, object]) -> Picture:
    """Return what the body of a request asks for, in the words of OpenAI, stable-diffusion.cpp and AUTOMATIC1111.

    What is missing or no sensible number takes a default: an engine may well refuse such a request, a price must bear it.
    """
    size = document.get("size")
    found = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    width, height = (int(found[1]), int(found[2])) if found else (_SIDE, _SIDE)
    return Picture(
        width=_number(document, ("width",), width, _SIDE_MAX),
        height=_number(document, ("height",), height, _SIDE_MAX),
        steps=_number(document, ("steps", "sample_steps", "num_inference_steps"), _STEPS, _STEPS_MAX),
        count=_number(
            document, ("n", "batch_size", "batch_count", "frames", "num_frames", "video_frames"), 1, _COUNT_MAX
        ),
    )


def _number(document: Mapping[str, object], names: tuple[str, ...], default: int, most: int) -> int:
    for name in names:
        value = document.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return min(value, most)
    return min(max(1, default), most)
