import dataclasses
import math
import os
import re
import struct
import zlib
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch
from scipy.stats import binomtest

import torchpfc.demo
from torchpfc import PFCBlock, RMSprop, RMSpropSLW
from torchpfc.demo import run_demo
from torchpfc.demo.digits import Digits, load_splits
from torchpfc.demo.markup import percent, round_to_sum
from torchpfc.demo.measure import STAGES, choose_examples, count_right, explain, find_out, learn_and_forget, recognise
from torchpfc.demo.page import Made, draw, name_lessons
from torchpfc.demo.png import encode
from torchpfc.demo.progress import Progress
from torchpfc.demo.results import Count
from torchpfc.demo.settings import SMOKE, TASKS, Training
from torchpfc.demo.training import fit, loss, mlp

pytest.importorskip("sklearn")
pytest.importorskip("rich")

MADE = Made(seconds=12.3, versions={"torchpfc": "0.0", "torch": "0.0"}, machine="a <machine> & its cores")


class Page(HTMLParser):
    """Reads a page, and fails where a tag is left open or closed twice."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.cells, self.words = [], [], [], ""
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
        if "td" in self.open:
            self.cells[-1] += data


@pytest.fixture(scope="module")
def found():
    with torchpfc.demo._one_thread(), Progress(STAGES) as progress:
        return find_out(SMOKE, seed=0, progress=progress)


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
    assert list(tmp_path.iterdir()) == [out]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Accuracy on 360 test digits (seed 0)"
    assert sum(line.endswith(" %") for line in lines) == 8


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
    assert "$" not in text
    assert "nan" not in page.words.lower()
    assert "a <machine> & its cores" in page.words


def test_the_page_shows_the_accuracies_that_were_measured(found, page):
    for network in (found.pfc, found.mlp):
        assert percent(network.test.share) in page.cells
        assert f"{network.parameters:,}" in page.cells
    assert f"{percent(found.pfc.test.share)}" in page.words
    for name, taught in name_lessons(found).items():
        assert f"{name}{percent(taught.final.share)}" in page.words


def test_the_page_shows_what_was_forgotten(found, page):
    forgetting = found.forgetting
    for count in (forgetting.before, forgetting.after, forgetting.never):
        assert percent(count.share) in page.words
    alts = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    columns = [int(alt.split()[3].rstrip(",")) for alt in alts if alt.startswith("before forgetting")]
    assert columns == list(range(len(forgetting.parts.images)))


def test_what_wrong_labels_wrote_is_found_and_removed():
    settings = dataclasses.replace(SMOKE, corrupted=dataclasses.replace(SMOKE.corrupted, max_epochs=8))
    forgetting = learn_and_forget(load_splits(0), settings, 0, lambda done: None)
    window = settings.corrupted_window
    first, last = (window.advance(k).columns for k in (forgetting.corrupted.start, forgetting.corrupted.stop - 1))
    assert forgetting.columns == range(first.start, last.stop)
    assert forgetting.before.share + 0.1 < forgetting.after.share
    assert forgetting.before.share + 0.1 < forgetting.never.share


def test_the_page_shows_each_matrix_up_to_what_was_taught(found, page):
    cells = [cell for cell in page.cells if re.fullmatch(r"\d+|·", cell)][
        2:
    ]  # after the best epochs of the two networks
    expected = [
        f"{100 * count.share:.0f}" if j <= k else "·"
        for taught in name_lessons(found).values()
        for k, row in enumerate(taught.tests)
        for j, count in enumerate(row)
    ]
    assert cells == expected


def test_each_matrix_is_tasks_by_tasks_and_covers_the_test_digits(found):
    for taught in name_lessons(found).values():
        assert [len(row) for row in taught.tests] == [len(TASKS)] * len(TASKS)
        assert taught.final.total == 360
        assert all(0 <= count.right <= count.total for row in taught.tests for count in row)
        assert len(taught.epochs) == len(TASKS)


def test_the_strip_shows_every_column_that_the_window_reached_once(found, page):
    columns = [alt for tag, attributes in page.tags if tag == "img" and (alt := attributes["alt"]).startswith("column")]
    last = found.task_window.unfinished[-1]
    assert [int(re.search(r"\d+", alt)[0]) for alt in columns] == list(range(last.stop))
    assert last.stop <= found.num_columns


def test_the_parts_are_all_shown_with_their_class(found, page):
    alts = [attributes["alt"] for tag, attributes in page.tags if tag == "img" and "speaks for" in attributes["alt"]]
    shown = {int(alt.split()[1].rstrip(",")): int(alt.split()[4]) for alt in alts if alt.startswith("part")}
    assert shown == dict(enumerate(found.parts.votes.argmax(1).tolist()))


def test_the_sums_on_the_page_add_up(text, found):
    equations = text.split('<div class="equation">')[1:]
    assert len(equations) == len(found.explanations) + 1  # one more at the top
    for equation in equations:
        total, *terms = [float(value) for value in re.findall(r"<b>([\d.]+)</b>", equation.partition("</figure>")[0])]
        assert math.isclose(total, sum(terms), abs_tol=1e-9)


def test_an_explanation_adds_up_to_the_digit_and_to_the_score(found):
    for explanation in found.explanations:
        terms, others = explanation.terms, explanation.others
        image = sum(term.amount * term.image for term in terms) + others.image + explanation.rest
        torch.testing.assert_close(image, explanation.x, atol=1e-5, rtol=0)
        score = sum(term.score for term in terms) + others.score
        assert score == pytest.approx(explanation.scores.max().item(), abs=1e-5)
        assert explanation.answer == explanation.scores.argmax()
        assert 1 <= len(terms) <= 3


def planted():
    """A block of ten parts that do not overlap: part c is a piece of the class c, all in dark pixels."""
    x = torch.eye(10).repeat_interleave(6, dim=1)  # (10, 60)
    return PFCBlock.from_examples(torch.nn.functional.pad(x, (0, 4)), torch.arange(10))


def test_an_explanation_finds_what_a_digit_was_made_of():
    block = planted()
    x = 0.75 * block.weight_x[:, 3] + 0.25 * block.weight_x[:, 8]
    explanation = explain(block, Digits(x.detach().unsqueeze(0), torch.tensor([3])), 0)
    assert explanation.answer == 3
    assert explanation.terms[0].part == 3
    assert explanation.terms[0].amount == pytest.approx(0.75, abs=1e-3)
    assert explanation.scores[8] == pytest.approx(0.25, abs=1e-3)
    assert explanation.others.number + len(explanation.terms) >= 2
    assert explanation.rest.abs().max() < 1e-3


def test_examples_are_the_first_right_ones_of_three_classes_and_the_first_wrong_one():
    parts = planted().weight_x.T.detach()
    test = Digits(parts[[4, 4, 7, 7, 0, 9, 1]], torch.tensor([4, 4, 2, 7, 0, 9, 3]))
    assert choose_examples(planted(), test) == [0, 3, 4, 2]


def test_what_is_made_of_parts_is_explained_and_noise_is_not():
    block = planted()
    digits = Digits(block.weight_x.T.detach(), torch.arange(10))
    splits = dataclasses.replace(load_splits(0), validation=digits, test=digits)
    recognition = recognise(block, splits, torch.Generator().manual_seed(0))
    assert recognition.digits.unexplained.max() < 0.01
    assert recognition.noise.above(0.2).right == recognition.shuffled.above(0.2).right == 10
    assert torch.equal(recognition.shuffled.x.sort(1).values, digits.x.sort(1).values)


def test_a_page_without_a_mistake_says_so(found):
    right = tuple(dataclasses.replace(explanation, label=explanation.answer) for explanation in found.explanations)
    text = draw(dataclasses.replace(found, explanations=right), MADE)
    assert "it got none wrong" in " ".join(text.split())
    assert "mistaken" not in text


def test_a_class_without_parts_has_an_empty_row(found):
    votes = torch.zeros_like(found.parts.votes)
    votes[:, 4] = 1
    text = draw(dataclasses.replace(found, parts=dataclasses.replace(found.parts, votes=votes)), MADE)
    assert text.count("<dd>none</dd>") == 10


def test_the_code_on_the_page_runs(text):
    learning, forgetting = map(unescape, re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL))
    names = {}
    exec(learning, names)
    before = names["block"].weight_x.detach().clone()
    names["learn"](torch.rand(5, 64), torch.eye(10)[:5])
    changed = (names["block"].weight_x != before).any(0).nonzero().flatten().tolist()
    assert changed == list(range(SMOKE.window.width))
    assert isinstance(names["optimizer"], RMSpropSLW)
    exec(forgetting, names)
    names["learn_batch"](7, torch.rand(5, 64), torch.eye(10)[:5])
    assert names["take_out"]([7]).num_columns == SMOKE.window.width
    assert not names["block"].weight_x[:, : SMOKE.window.width].any()


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


def test_the_machine_has_a_name_on_every_system(monkeypatch):
    assert re.search(r"\w+.* \(\d+ cores\)", torchpfc.demo._machine())
    monkeypatch.setattr(torchpfc.demo, "CPU_INFO", torchpfc.demo.CPU_INFO / "nowhere")
    assert re.search(r"\w+.* \(\d+ cores\)", torchpfc.demo._machine())


def test_fit_returns_to_its_best_epoch_and_stops_when_nothing_gets_better():
    splits = load_splits(0)
    generator = torch.Generator().manual_seed(0)
    model = mlp(8, generator)
    training = Training(lr=0.01, max_epochs=200, patience=2, batch_size=5)
    optimizer = RMSprop(model.parameters(), lr=training.lr)
    losses, epochs = [], []
    few = splits.train.select(torch.arange(10))  # so few that it soon learns them by heart
    for epoch in fit(model, optimizer, few, splits.validation, training, generator):
        epochs.append(epoch)
        losses.append(loss(model, splits.validation).item())
    assert epochs[-1].number - epochs[-1].best == training.patience
    assert losses.index(min(losses)) + 1 == epochs[-1].best
    assert loss(model, splits.validation).item() == min(losses)


def test_counting():
    splits = load_splits(0)
    block = PFCBlock.from_examples(splits.train.x, splits.train.label)
    count = count_right(block, splits.train.select(torch.arange(20)))
    assert count.total == 20
    assert count.right >= 18


@pytest.mark.parametrize(("right", "total"), [(350, 360), (0, 7), (7, 7), (1, 1000)])
def test_interval_is_wilsons(right, total):
    expected = binomtest(right, total).proportion_ci(0.95, method="wilson")
    assert Count(right, total).interval == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_rounded_terms_add_up_to_the_rounded_sum():
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 5) * 50:
        values = (2 * torch.rand(size, generator=generator, dtype=torch.float64)).tolist()
        rounded = [float(value) for value in round_to_sum(values)]
        assert sum(rounded) == pytest.approx(round(sum(values), 2), abs=1e-9)
        assert all(abs(before - after) < 0.01 for before, after in zip(values, rounded, strict=True))


def test_a_picture_is_a_png_file():
    image = torch.tensor([[0.0, 1.0, 0.2], [-0.4, 3.0, -2.0]])
    data = encode(image)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, rest = {}, data[8:]
    while rest:
        size = struct.unpack(">I", rest[:4])[0]
        kind, body, checksum = rest[4:8], rest[8 : 8 + size], rest[8 + size : 12 + size]
        assert struct.unpack(">I", checksum)[0] == zlib.crc32(kind + body)
        chunks[kind], rest = body, rest[12 + size :]
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (3, 2, 8, 6, 0, 0, 0)
    rows = zlib.decompress(chunks[b"IDAT"])
    pixels = torch.tensor(list(rows)).view(2, 13)[:, 1:].view(2, 3, 4)
    assert pixels[..., 3].tolist() == [[0, 255, 51], [102, 255, 255]]
    assert (pixels[0, :, :3] == 0).all()
    assert pixels[1, 0, :3].any()


@pytest.mark.slow
def test_the_demo_shows_what_it_promises(tmp_path):
    with torchpfc.demo._one_thread(), Progress(STAGES) as progress:
        found = find_out(torchpfc.demo.CHOSEN, seed=0, progress=progress)
    assert found.pfc.test.share > 0.95
    assert found.mlp.test.share > 0.95
    assert found.task_window.final.share > 0.9
    assert max(found.task_mlp.final.share, found.task_pfc.final.share) < 0.75
    assert found.recognition.noise.above(found.recognition.threshold).share > 0.95
    assert found.recognition.digits.above(found.recognition.threshold).share < 0.15
