"""Writes a random-weight Llama as GGUF (5 MB, 0.3 s): the real engine with its real scheduler, at thousands of tokens a second.

The same bytes on every machine: nothing is trained or downloaded, the vocabulary is made of syllables and the weights of one
seed. The rows of the end token and of the bytes above ASCII are zero, so they are never among the likeliest tokens: an answer
is ASCII and has exactly `max_tokens` tokens. What it says means nothing; no test looks at it.
"""

import itertools
import os
import random
import struct
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

WIDTH, FEED_FORWARD, HEADS, CONTEXT = 128, 256, 2, 8192
VOCABULARY = 4096
SPECIALS = ("<unk>", "<s>", "</s>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
_U32, _F32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9
_I32 = 5
_ALIGNMENT = 32


def tiny_model(directory: Path | None = None, *, layers: int = 2) -> Path:
    """Return the model's path in `directory` (default: a folder of this user below the machine's temporary one), made if missing.

    More layers make it slower (and larger by 0.7 MB each): 2 layers give some 2,500 tokens/s.
    """
    if directory is None:
        directory = Path(tempfile.gettempdir()) / f"leaseway-tests-{os.getuid()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"tiny-{layers}-v1.gguf"
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as draft:
            write_tiny_model(draft, layers=layers)  # type: ignore[arg-type]
        Path(draft.name).replace(path)  # another process may have made the same bytes meanwhile
    return path


def write_tiny_model(file: BinaryIO, *, layers: int = 2) -> None:
    """Write the whole GGUF (version 3) into `file`."""
    tokens, merges = vocabulary()
    fields = list(_fields(tokens, merges, layers))
    tensors = list(_tensors(layers))
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(fields)
    offset = 0
    for name, shape in tensors:
        # GGUF names the fastest dimension first; type 0 is F32
        header += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, offset)
        offset += _padded(4 * _count(shape))
    file.write(header + bytes(_padded(len(header)) - len(header)))
    dice = random.Random(0)
    for name, shape in tensors:
        file.write(_weights(name, shape, tokens, dice))


def vocabulary() -> tuple[list[str], list[str]]:
    """Return (tokens, merges) of a byte-level BPE: special tokens, all bytes, syllables, and words of two syllables."""
    tokens = [*SPECIALS, *_byte_names().values()]
    merges = []
    syllables = ["".join(pair) for pair in itertools.product("bcdfghjklmnprstvwxyz", "aeiou")]
    for left, right in itertools.chain(
        ((syllable[0], syllable[1]) for syllable in syllables),
        (("Ġ", syllable) for syllable in syllables),
        itertools.product(("Ġ" + syllable for syllable in syllables), syllables),
    ):
        if len(tokens) == VOCABULARY:
            break
        tokens.append(left + right)
        merges.append(f"{left} {right}")
    return tokens, merges


def _byte_names() -> dict[int, str]:
    """Return GPT-2's printable name of every byte, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    return dict(sorted(names.items()))


def _fields(tokens: list[str], merges: list[str], layers: int) -> Iterator[bytes]:
    yield _field("general.architecture", _STRING, _text("llama"))
    yield _field("general.name", _STRING, _text("tiny-random"))
    for name, value in (
        ("context_length", CONTEXT),
        ("embedding_length", WIDTH),
        ("block_count", layers),
        ("feed_forward_length", FEED_FORWARD),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", HEADS),
        ("rope.dimension_count", WIDTH // HEADS),
        ("vocab_size", len(tokens)),
    ):
        yield _field(f"llama.{name}", _U32, struct.pack("<I", value))
    yield _field("llama.rope.freq_base", _F32, struct.pack("<f", 10000.0))
    yield _field("llama.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5))
    yield _field("tokenizer.ggml.model", _STRING, _text("gpt2"))
    yield _field("tokenizer.ggml.pre", _STRING, _text("gpt-2"))
    yield _field("tokenizer.ggml.tokens", _ARRAY, _array(_STRING, [_text(token) for token in tokens]))
    control, normal = struct.pack("<i", 3), struct.pack("<i", 1)
    kinds = [control if token in SPECIALS else normal for token in tokens]
    yield _field("tokenizer.ggml.token_type", _ARRAY, _array(_I32, kinds))
    yield _field("tokenizer.ggml.merges", _ARRAY, _array(_STRING, [_text(merge) for merge in merges]))
    yield _field("tokenizer.ggml.bos_token_id", _U32, struct.pack("<I", 1))
    yield _field("tokenizer.ggml.eos_token_id", _U32, struct.pack("<I", 2))
    yield _field("tokenizer.ggml.add_bos_token", _BOOL, struct.pack("<?", False))
    yield _field("tokenizer.chat_template", _STRING, _text(CHAT_TEMPLATE))


def _tensors(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor's name and shape (rows first)."""
    yield "token_embd.weight", (VOCABULARY, WIDTH)
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (VOCABULARY, WIDTH)
    for layer in range(layers):
        part = f"blk.{layer}."
        yield part + "attn_norm.weight", (WIDTH,)
        yield part + "ffn_norm.weight", (WIDTH,)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{part}{name}.weight", (WIDTH, WIDTH)
        yield part + "ffn_gate.weight", (FEED_FORWARD, WIDTH)
        yield part + "ffn_up.weight", (FEED_FORWARD, WIDTH)
        yield part + "ffn_down.weight", (WIDTH, FEED_FORWARD)


def _weights(name: str, shape: tuple[int, ...], tokens: list[str], dice: random.Random) -> bytes:
    """Return the tensor's bytes: ones for a norm, else uniform noise with a deviation of 0.05."""
    if "norm" in name:
        values = array("f", [1.0]) * _count(shape)
    else:
        values = array("f", ((dice.random() - 0.5) * 0.1732 for _ in range(_count(shape))))
    if name == "output.weight":
        silent = {*SPECIALS, *(sign for byte, sign in _byte_names().items() if byte >= 128 or byte < 32)}
        for row, token in enumerate(tokens):
            if token in silent:
                values[row * WIDTH : (row + 1) * WIDTH] = array("f", bytes(4 * WIDTH))
    raw = values.tobytes()
    return raw + bytes(_padded(len(raw)) - len(raw))


def _field(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _count(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) == 1 else shape[0] * shape[1]


def _padded(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT
