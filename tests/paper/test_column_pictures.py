import base64

import pytest
import torch

from torchpfc.paper.column_pictures import APART, IN_A_ROW, draw_lines, draw_pairs, learned_last, spread_out

WEIGHT = torch.arange(1.0, 201).expand(4, 200) * torch.tensor([[0.25], [0.5], [0.75], [1.0]])


def size_of(png: str) -> tuple[int, int]:
    head = base64.b64decode(png)
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


@pytest.mark.parametrize(("position", "first"), [(0.0, 0), (30.0, 0), (120.5, 20), (1e6, 100)])
def test_a_hundred_columns_that_were_learned_last_lie_left_of_the_window(position: float, first: int) -> None:
    numbered = torch.zeros(200, 200).fill_diagonal_(3.0)
    images = learned_last(numbered, position)
    assert images.argmax(1).tolist() == list(range(first, first + 100)) and images.max() == 1


def test_a_frame_goes_from_the_first_column_to_the_last() -> None:
    numbered = torch.eye(200)
    columns = spread_out(numbered).argmax(1).tolist()
    assert columns[0] == 0 and columns[-1] == 199 and columns == sorted(set(columns)) and len(columns) == IN_A_ROW
    assert len(spread_out(torch.eye(7))) == 7


def test_columns_of_zeros_are_black() -> None:
    assert not spread_out(torch.zeros(4, 9)).any()


def test_lines_stand_below_each_other() -> None:
    lines = [spread_out(WEIGHT)] * 3
    found = draw_lines({"film": lines, "nothing": []}, (1, 2, 2))
    assert list(found) == ["film"]
    assert size_of(found["film"]) == (IN_A_ROW * 3 - 1, 3 * 3 - 1)


def test_columns_of_a_task_stand_together_in_lines() -> None:
    found = draw_lines({"tasks": [learned_last(WEIGHT, 0.0)] * 2}, (1, 2, 2))
    assert size_of(found["tasks"]) == (IN_A_ROW * 3 - 1, 2 * (4 * 3 - 1) + APART)


@pytest.mark.parametrize(("count", "lines"), [(7, 1), (30, 2), (50, 2)])
def test_an_image_stands_above_the_one_that_belongs_to_it(count: int, lines: int) -> None:
    width, pair = min(count, IN_A_ROW) * 3 - 1, 2 * 3 - 1
    found = size_of(draw_pairs(torch.zeros(count, 4), torch.ones(count, 4), (1, 2, 2)))
    assert found == (width, lines * pair + (lines - 1) * APART)
