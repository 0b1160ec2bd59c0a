import base64
import dataclasses
import math
import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn.functional import pad

import torchpfc.demo
from torchpfc import PFCBlock, RMSprop, RMSpropSLW
from torchpfc.cli import build_parser
from torchpfc.data.images import Images
from torchpfc.data.png import encode_png
from torchpfc.data.streams import SPLIT_PAIRS
from torchpfc.demo import run_demo
from torchpfc.demo.measure import (
    SMOKE,
    TRAININGS,
    Splits,
    Training,
    count_right,
    find_out,
    learn,
    learn_and_forget,
    load_splits,
    make_mlp,
    measure,
    percent,
    recognise,
)
from torchpfc.demo.page import choose_examples, draw, draw_equation, picture, round_to_sum
from torchpfc.interpret import describe_columns, explain
from torchpfc.progress import Progress

pytest.importorskip("sklearn")

MADE = {
    "torchpfc": "0.0",
    "torch": "0.0",
    "sklearn": "0.0",
    "python": "0.0",
    "seconds": "12",
    "machine": "a <machine> & its cores",
}
WINDOW = TRAININGS["Teaching a PFC block through a window"].window
ROOT = Path(__file__).parent.parent


class Page(HTMLParser):
    """Reads a page, and fails where a tag is left open or closed twice."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.cells, self.pieces, self.words = [], [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.words += data
        self.pieces.append(data)
        if "td" in self.open:
            self.cells[-1] += data


@pytest.fixture(scope="module")
def found():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as `run_demo` does
    yield find_out(SMOKE, seed=0, progress=Progress(1.0, show=False))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def text(found):
    return draw(found, MADE)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture
def no_training(found, monkeypatch):
    monkeypatch.setattr(torchpfc.demo, "find_out", lambda *_, **__: found)


def test_the_same_seed_gives_the_same_page(text, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert run_demo(out, seed=0, smoke=True) == out
    above, _, last = out.read_text(encoding="utf-8").partition("<p>Made with")
    assert above == text.partition("<p>Made with")[0]
    assert f"torch {torch.__version__}" in last
    assert re.search(r"on one thread of \w+.* \(\d+ cores\)", last)
    assert list(tmp_path.iterdir()) == [out]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Accuracy on 360 test digits (seed 0)"
    assert sum(line.endswith(" %") for line in lines) == 8
    assert f"Wrote {out}" in lines
    assert_next_steps_are_true("\n".join(lines[lines.index("What to do next") :]))


def test_another_seed_changes_all_but_the_test_digits():
    first, second = load_splits(0), load_splits(1)
    assert torch.equal(first.test.x, second.test.x)
    assert not torch.equal(first.validation.x, second.validation.x)
    for splits in (first, second):
        parts = [splits.train, splits.validation, splits.test]
        assert [len(part) for part in parts] == [1077, 360, 360]
        assert len({tuple(x.tolist()) for part in parts for x in part.x}) == 1797
        assert all(part.label.bincount().min() >= 0.09 * len(part) for part in parts)
        assert 0 <= splits.train.x.min() < splits.train.x.max() <= 1


def test_the_page_needs_nothing_else(text, page):
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "a"})
    for tag, attributes in page.tags:
        assert "href" not in attributes
        if "src" in attributes:
            assert tag == "img"
            assert attributes["src"].startswith("data:image/png;base64,")
    assert not re.search(r"https?:|@import|url\(", text)


def test_the_page_speaks_to_everyone(text, page):
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) > 100
    assert all(attributes["alt"].strip() for attributes in images)
    assert all(attributes["aria-label"] for tag, attributes in page.tags if tag == "svg")
    names = [tag for tag, _ in page.tags]
    assert names.count("table") == names.count("caption") == 4
    assert names.count("h1") == 1
    levels = [int(name[1]) for name in names if re.fullmatch("h[1-6]", name)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert 'lang="en"' in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_every_gap_in_the_page_is_filled(text, page):
    assert not re.search(r"[{}]", re.sub(r"<(style|pre).*?</\1>", "", text, flags=re.DOTALL))
    assert "nan" not in page.words.lower()
    assert "a <machine> & its cores" in page.words


def test_the_page_shows_the_accuracies_that_were_measured(found, page):
    for network in found.at_once.values():
        assert percent(network.test.share) in page.cells
        assert f"{network.parameters:,}" in page.cells
        assert percent(network.test.share) in page.words
    for name, taught in found.in_tasks.items():
        assert f"{name}{percent(taught.final.share)}" in page.words


def test_the_page_shows_how_many_were_not_recognised(found, page):
    assert list(map(len, found.kinds.values())) == [360] * 3
    digits, shuffled, noise = (int((kind.unexplained > found.limit).sum()) for kind in found.kinds.values())
    words = " ".join(page.words.split())
    assert f"{digits} of the 360 test digits, {shuffled} of the 360 shuffled ones and {noise} of the 360" in words


def test_the_page_shows_what_was_forgotten(found, page):
    forgetting = found.forgetting
    for count in (forgetting.before, forgetting.after, forgetting.never):
        assert percent(count.share) in page.words
    alts = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    columns = [int(alt.split()[3].rstrip(",")) for alt in alts if alt.startswith("before forgetting")]
    assert columns == list(range(forgetting.learned.weight_x.shape[1]))


def test_what_wrong_labels_wrote_is_found_and_removed():
    training = dataclasses.replace(TRAININGS["Teaching a PFC block some wrong labels"], max_epochs=4)
    forgetting = learn_and_forget(training, load_splits(0), 0, lambda done: None)
    ends = forgetting.corrupted.start, forgetting.corrupted.stop - 1
    first, last = (training.window.advance(k).columns for k in ends)
    assert forgetting.columns == range(first.start, last.stop)
    assert forgetting.before.share + 0.1 < forgetting.after.share
    assert forgetting.before.share + 0.1 < forgetting.never.share


def test_the_page_shows_each_matrix_up_to_what_was_taught(found, page):
    cells = [cell for cell in page.cells if re.fullmatch(r"\d+|·", cell)][
        2:
    ]  # after the best epochs of the two networks
    expected = [
        f"{100 * count.share:.0f}" if j <= k else "·"
        for taught in found.in_tasks.values()
        for k, row in enumerate(taught.tests)
        for j, count in enumerate(row)
    ]
    assert cells == expected


def test_each_matrix_is_tasks_by_tasks_and_covers_the_test_digits(found):
    for taught in found.in_tasks.values():
        assert [len(row) for row in taught.tests] == [len(SPLIT_PAIRS)] * len(SPLIT_PAIRS)
        assert taught.final.total == 360
        assert all(0 <= count.right <= count.total for row in taught.tests for count in row)


def test_the_strip_shows_every_column_that_the_window_reached_once(found, page):
    alts = [alt for tag, attributes in page.tags if tag == "img" and (alt := attributes["alt"]).startswith("column")]
    *others, taught = found.in_tasks.values()
    assert [int(re.search(r"\d+", alt)[0]) for alt in alts] == [i for columns in taught.columns for i in columns]
    assert taught.columns[0].start == 0
    assert all(before.stop == after.start for before, after in pairwise(taught.columns))
    assert taught.columns[-1].stop <= found.windowed.weight_x.shape[1]
    assert not any(lessons.columns for lessons in others)


def test_the_parts_are_all_shown_with_the_class_that_the_library_names(found, page):
    alts = [attributes["alt"] for tag, attributes in page.tags if tag == "img" and "speaks for" in attributes["alt"]]
    shown = {int(alt.split()[1].rstrip(",")): int(alt.split()[4]) for alt in alts if alt.startswith("part")}
    seen = found.kinds["Test digits"]
    profiles = [column.profile for column in describe_columns(seen, seen.h).columns]
    assert shown == {r: profile.index(max(profile)) for r, profile in enumerate(profiles)}


def test_the_sums_on_the_page_add_up(text):
    equations = text.split('<div class="equation">')[1:]
    assert len(equations) == text.count('class="example"') + 1  # one more at the top
    for equation in equations:
        total, *terms = [float(value) for value in re.findall(r"<b>([\d.]+)</b>", equation.partition("</figure>")[0])]
        assert math.isclose(total, sum(terms), abs_tol=1e-9)


def planted():
    """A block of ten parts that do not overlap: part c is a piece of the class c, all in dark pixels."""
    x = torch.eye(10).repeat_interleave(6, dim=1)  # (10, 60)
    return PFCBlock.from_examples(pad(x, (0, 4)), torch.arange(10))


def test_an_equation_shows_what_a_digit_was_made_of():
    block = planted()
    x = 0.75 * block.weight_x[:, 3] + 0.25 * block.weight_x[:, 8]
    equation = Page(draw_equation(explain(block, x.detach()), 3))
    assert " ".join(equation.pieces) == "score of 3 0.75 = × 0.75 0.75 + 1 others 0.00 + the rest"
    alts = [attributes["alt"] for tag, attributes in equation.tags if tag == "img"]
    assert alts[:2] == ["a handwritten 3", "part 3"]


def test_examples_are_the_first_right_ones_of_three_classes_and_the_first_wrong_one():
    parts = planted().weight_x.T.detach()
    seen = explain(planted(), parts[[4, 4, 7, 7, 0, 9, 1]])
    assert choose_examples(seen, [4, 4, 2, 7, 0, 9, 3]) == [0, 3, 4, 2]


def test_what_is_made_of_parts_is_recognised_and_noise_is_not():
    block = planted()
    digits = Images(block.weight_x.T.detach(), torch.arange(10), (1, 8, 8))
    kinds, limit = recognise(block, Splits(digits, digits, digits), torch.Generator().manual_seed(0))
    made_of_parts, shuffled, noise = (kind.unexplained for kind in kinds.values())
    assert made_of_parts.max() <= limit < 0.01
    assert shuffled.min() > 0.2
    assert noise.min() > 0.2
    assert torch.equal(kinds["The same digits, pixels shuffled"].x.sort(1).values, digits.x.sort(1).values)


def test_one_validation_digit_in_twenty_is_not_recognised():
    splits, block = load_splits(0), planted()
    _, limit = recognise(block, splits, torch.Generator().manual_seed(0))
    unexplained = explain(block, splits.validation.x).unexplained
    assert abs(int((unexplained > limit).sum()) - 0.05 * len(unexplained)) <= 1


def test_a_page_without_a_mistake_says_so(found):
    answers = torch.tensor([int(answer) for answer in found.kinds["Test digits"].answers])
    test = dataclasses.replace(found.splits.test, label=answers)
    text = draw(dataclasses.replace(found, splits=found.splits._replace(test=test)), MADE)
    assert "it got none wrong" in " ".join(text.split())
    assert "mistaken" not in text


def test_a_class_without_parts_has_an_empty_row(found):
    seen = found.kinds["Test digits"]
    weight_y = torch.zeros_like(seen.weight_y)
    weight_y[4] = 1
    seen = dataclasses.replace(seen, weight_y=weight_y, y=seen.h @ weight_y.T)
    text = draw(dataclasses.replace(found, kinds=found.kinds | {"Test digits": seen}), MADE)
    assert text.count("<dd>none</dd>") == 10


def test_the_code_on_the_page_runs(text):
    learning, forgetting, *_ = map(unescape, re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL))
    names = {}
    exec(learning, names)
    before = names["block"].weight_x.detach().clone()
    names["learn"](torch.rand(5, 64), torch.eye(10)[:5])
    changed = (names["block"].weight_x != before).any(0).nonzero().flatten().tolist()
    assert changed == list(range(WINDOW.width))
    assert isinstance(names["optimizer"], RMSpropSLW)
    exec(forgetting, names)
    names["learn_batch"](7, torch.rand(5, 64), torch.eye(10)[:5])
    assert names["take_out"]([7]).num_columns == WINDOW.width
    assert not names["block"].weight_x[:, : WINDOW.width].any()


def assert_next_steps_are_true(steps):
    """The commands exist, the extra too, and so does the page of the documentation."""
    commands = re.findall(r"torchpfc (\w+)$", steps, re.MULTILINE)
    assert commands == ["explore"]
    build_parser().parse_args(commands)
    assert re.findall(r"pip install .torchpfc\[(\w+)\]", steps) == ["explorer"]
    assert re.search(r"^explorer = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert (ROOT / re.search(r"docs/\w+\.md", steps)[0]).is_file()
    assert "from torchpfc.sklearn import PFCClassifier" in steps


def test_the_page_ends_with_what_to_do_next(text):
    steps = unescape(text.partition("<h2>What to do next</h2>")[2].partition("</main>")[0])
    assert "<h2>" not in steps
    assert_next_steps_are_true(re.sub("<.*?>", "", steps))


def test_the_code_for_a_table_of_your_own_runs(text, tmp_path):
    *_, code = map(unescape, re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL))
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
    lines = ["a,b,c,class", *(f"{a},{b},{c},{int(a > b)}" for a, b, c in x.tolist())]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    command = [sys.executable, "-W", "error", "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert 0.5 < float(printed.splitlines()[0]) <= 1
    assert "Not explained" in printed


def test_a_failed_write_leaves_the_old_page_and_nothing_else(no_training, tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    out.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        run_demo(out)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_page_replaces_the_old_one(no_training, tmp_path):
    out = tmp_path / "page.html"
    out.write_text("old")
    run_demo(out)
    assert out.read_text(encoding="utf-8").endswith("</html>\n")


def test_wrong_arguments_are_named_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(torchpfc.demo, "find_out", lambda *_, **__: pytest.fail("started to work"))
    with pytest.raises(ValueError, match=r"out must lie in an existing folder, got '.*nowhere.page\.html'"):
        run_demo(tmp_path / "nowhere" / "page.html")
    with pytest.raises(ValueError, match="out must name a file, got the folder"):
        run_demo(tmp_path)
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=f"seed must be from 0 to 4294967295, got {seed}"):
            run_demo(tmp_path / "page.html", seed=seed)


def test_a_failure_gives_the_threads_back(tmp_path, monkeypatch):
    def fail(*_, **__):
        assert torch.get_num_threads() == 1
        raise RuntimeError("stop")

    monkeypatch.setattr(torchpfc.demo, "find_out", fail)
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="stop"):
        run_demo(tmp_path / "page.html")
    assert torch.get_num_threads() == before
    assert list(tmp_path.iterdir()) == []


def test_learning_returns_to_its_best_epoch_and_stops_when_nothing_gets_better():
    splits = load_splits(0)
    training = Training(lr=0.01, max_epochs=200, patience=2, batch_size=5)
    few = splits._replace(train=splits.train.select(torch.arange(10)))  # so few that it soon learns them by heart
    model, shares, losses = make_mlp(8, 0), [], []

    def tick(share):
        shares.append(share)
        losses.append(measure(model, splits.validation).loss.item())

    best = learn(model, RMSprop(model.parameters(), lr=training.lr), training, few, 0, tick)
    assert shares == [(k + 1) / 200 for k in range(best + training.patience)]
    assert losses.index(min(losses)) + 1 == best
    assert measure(model, splits.validation).loss.item() == min(losses)


def test_counting():
    splits = load_splits(0)
    block = PFCBlock.from_examples(splits.train.x, splits.train.label)
    count = count_right(block, splits.train.select(torch.arange(20)))
    assert count.total == 20
    assert count.right >= 18


def test_rounded_terms_add_up_to_the_rounded_sum():
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 5) * 50:
        values = (2 * torch.rand(size, generator=generator, dtype=torch.float64)).tolist()
        rounded = [float(value) for value in round_to_sum(values)]
        assert sum(rounded) == pytest.approx(round(sum(values), 2), abs=1e-9)
        assert all(abs(before - after) < 0.01 for before, after in zip(values, rounded, strict=True))


def test_a_picture_is_black_ink_on_nothing_and_coloured_below_zero():
    html = picture(torch.tensor([0.0, 1.0, 0.2, -0.4, 3.0, -2.0]).repeat(11)[:64], "a picture")
    ink, below = (0, 0, 0), (11, 110, 105)
    pixels = [(*ink, 0), (*ink, 255), (*ink, 51), (*below, 102), (*ink, 255), (*below, 255)]
    expected = encode_png(torch.tensor((pixels * 11)[:64], dtype=torch.uint8).view(8, 8, 4))
    assert base64.b64encode(expected).decode() in html
    assert 'alt="a picture"' in html


@pytest.mark.slow
def test_the_demo_shows_what_it_promises():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = find_out(TRAININGS, seed=0, progress=Progress(1.0, show=False))
    torch.set_num_threads(threads)
    pfc, mlp = (network.test.share for network in found.at_once.values())
    task_mlp, task_pfc, task_window = (lessons.final.share for lessons in found.in_tasks.values())
    digits, _, noise = ((kind.unexplained > found.limit).double().mean() for kind in found.kinds.values())
    assert pfc > 0.95
    assert mlp > 0.95
    assert task_window > 0.9
    assert max(task_mlp, task_pfc) < 0.75
    assert noise > 0.95
    assert digits < 0.15
