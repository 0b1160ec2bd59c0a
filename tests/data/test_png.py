import struct
import zlib

import pytest
import torch
from torch import Tensor

from torchpfc.data.png import encode_png, image_grid


def decode(data: bytes) -> Tensor:
    """Reads a PNG file of 8 bits a channel without filters, and checks every length and checksum in it."""
    assert data[:8] == bytes([137, 80, 78, 71, 13, 10, 26, 10])
    chunks, place = [], 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        (checksum,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert checksum == zlib.crc32(kind + body)
        chunks.append((kind, body))
        place += 12 + length
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert depth == 8 and rest == [0, 0, 0] and chunks[2][1] == b""
    channels = {0: 1, 2: 3, 6: 4}[colour]
    rows = torch.tensor(list(zlib.decompress(chunks[1][1])), dtype=torch.uint8).view(height, 1 + width * channels)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 1), (3, 5, 3), (4, 4, 4), (2, 300, 1)])
def test_pixels_come_back(shape: tuple[int, int, int]) -> None:
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(decode(encode_png(pixels)), pixels)


def test_pixels_may_lie_anyhow_in_memory() -> None:
    pixels = torch.arange(24, dtype=torch.uint8).view(3, 2, 4).permute(2, 1, 0)
    assert torch.equal(decode(encode_png(pixels)), pixels)


@pytest.mark.parametrize(
    "pixels", [torch.zeros(2, 3, 1), torch.zeros(2, 3, 2, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8)]
)
def test_pixels_of_another_kind_are_refused(pixels: Tensor) -> None:
    with pytest.raises(ValueError, match=r"pixels must be uint8 of shape \(height, width, channels\) .* got torch\."):
        encode_png(pixels)


def test_a_grid_puts_images_row_after_row_with_white_between() -> None:
    x = torch.tensor([[0.0, 0.5, 1.0, 0.25], [1.0, 1.0, 0.0, 0.0], [0.2, 0.4, 0.6, 0.8]])
    grid = image_grid(x, (1, 2, 2), columns=2)[..., 0]
    white = 255
    expected = [
        [0, 128, white, 255, 255],
        [255, 64, white, 0, 0],
        [white] * 5,
        [51, 102, white, white, white],
        [153, 204, white, white, white],
    ]
    assert grid.tolist() == expected


def test_a_grid_keeps_colours_and_takes_what_is_beyond_for_black_and_white() -> None:
    red_then_blue = torch.stack([torch.tensor([2.0, -1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])])
    grid = image_grid(red_then_blue, (3, 1, 1), columns=2, gap=0)
    assert grid.tolist() == [[[255, 0, 0], [0, 0, 255]]]
    assert grid.dtype == torch.uint8


def test_a_grid_takes_a_view() -> None:
    weight = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 1, 0])
    assert torch.equal(
        image_grid(weight.T[order], (1, 2, 2), columns=3), image_grid(weight.T[order].clone(), (1, 2, 2), columns=3)
    )
