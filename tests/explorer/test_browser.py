"""The page in a real browser. Needs Playwright and Chromium (`make browser-test`); skipped where they are missing."""

import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
import uvicorn

from torchpfc.explorer import listen
from torchpfc.explorer.loading import Loaded, load
from torchpfc.explorer.server import create_app
from torchpfc.explorer.session import Session

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
CHROMIUM = os.environ.get("TORCHPFC_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

PICTURES = os.environ.get("TORCHPFC_SCREENSHOTS")
MOST_MILLISECONDS = float(os.environ.get("TORCHPFC_MOST_MILLISECONDS", "500"))
"""What an interaction may take, in the quickest of five tries. The aim is 200; other machines may be slower."""


class Served:
    """A server in a thread."""

    def __init__(self, loaded: Loaded) -> None:
        self.session = Session(loaded)
        self._listener = listen("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._server = uvicorn.Server(uvicorn.Config(create_app(self.session), log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join(timeout=30)
        self._listener.close()


@pytest.fixture
def served(loaded):
    with Served(loaded) as server:
        yield server


@pytest.fixture
def served_together(together):
    with Served(together) as server:
        yield server


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser, served, request):
    """Opens pages, and fails a test at whose end one of them has reported an error or asked somebody else."""
    problems, contexts = [], []

    def make(served, view="", *, width=1200, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(served.address) else problems.append(asked.url))
        page.goto(f"{served.address}#{view}")
        page.wait_for_selector("body[data-ready]")
        return page

    yield make
    if PICTURES:
        for number, context in enumerate(contexts):
            name = re.sub(r"\W+", "-", request.node.name)
            context.pages[0].screenshot(path=Path(PICTURES) / f"{name}-{number}.png", full_page=True)
    for context in contexts:
        context.close()
    assert problems == []


def percents(text):
    return [float(found) for found in re.findall(r"([\d.]+) %", text)]


def settle(page):
    """Waits until the page waits for nothing: twice, since one answer may lead to the next question."""
    for _ in range(2):
        page.wait_for_timeout(100)
        page.wait_for_selector("html[data-pending='0']", state="attached")


DARKNESS = """image => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    const amounts = [...data].filter((_, k) => k % 4 === 3);
    return { ink: data[4 * amounts.indexOf(Math.max(...amounts))], amounts };
}"""
"""The red of the ink of a picture, and how much ink each pixel has, from 0 to 255."""


@pytest.mark.parametrize("view", ["parts", "time"])
def test_tiles_show_their_parts_in_the_ink_of_the_page(open_page, served, view):
    page = open_page(served, view)
    settle(page)
    image = page.locator(".tile[aria-label='Part 7'] img, .tile[data-part='7'] img").locator("visible=true")
    page.wait_for_function("image => image.complete && image.naturalWidth", arg=image.element_handle())
    light = image.evaluate(DARKNESS)
    values = served.session.part(7).values
    expected = [255 * max(value, 0.0) / max(values) for value in values]
    assert light["amounts"] == pytest.approx(expected, abs=3)
    before = image.get_attribute("src")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "([image, before]) => image.src !== before && image.complete", arg=[image.element_handle(), before]
    )
    assert image.evaluate(DARKNESS)["ink"] > 150 > light["ink"]


def test_parts_can_be_sorted_and_looked_at(open_page, served):
    page = open_page(served, "parts")
    tiles = page.locator(".atlas button.tile")
    assert tiles.count() == 180
    page.get_by_role("radio", name="Age").check()
    assert [tiles.nth(k).get_attribute("data-part") for k in (0, 1, 179)] == ["0", "1", "179"]
    page.get_by_role("radio", name="Use").check()
    usage = [float(tiles.nth(k).inner_text().removesuffix(" %")) for k in range(0, 180, 20)]
    assert usage == sorted(usage, reverse=True)
    page.get_by_role("radio", name="Class").check()
    outputs = {part.column: part.output for part in served.session.parts()}
    listed = [outputs[int(part)] for part in tiles.evaluate_all("all => all.map((tile) => tile.dataset.part)")]
    assert listed == sorted(listed)
    page.get_by_role("combobox", name="Class").select_option("3")
    assert tiles.count() == listed.count(3) > 0
    page.get_by_role("combobox", name="Class").select_option("all")
    tiles.nth(0).click()
    page.wait_for_selector("aside:not([hidden])")
    number = int(page.locator("aside h3").inner_text().removeprefix("Part "))
    detail = served.session.part(number)
    assert f"{100 * detail.column.usage:.1f} % of the examples" in page.locator("aside").inner_text()
    assert page.locator("aside .tile").count() == len(detail.top_examples)
    page.locator("aside .tile").first.click()
    page.wait_for_selector("#view-input[data-ready]")
    assert page.url.endswith(f"#input/{detail.top_examples[0].index}")


def test_the_atlas_is_usable_by_keyboard(open_page, served):
    page = open_page(served, "parts")
    page.locator(".atlas button.tile").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("aside:not([hidden])")
    shown = page.locator("aside h3").inner_text()
    assert shown == f"Part {page.locator('.atlas button.tile').nth(1).get_attribute('data-part')}"
    page.keyboard.press("Escape")
    assert page.locator("aside").is_hidden()
    assert page.evaluate("document.activeElement.dataset.part") == shown.removeprefix("Part ")
    assert page.locator(".atlas button.tile[tabindex='0']").count() == 1


def test_a_digit_that_is_drawn_is_explained_by_sums_that_add_up(open_page, served):
    page = open_page(served, "input/draw")
    box = page.locator(".board").bounding_box()
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in ((0.5, 0.08), (0.5, 0.92))]
    page.mouse.move(*at[0])
    page.mouse.down()
    page.mouse.move(*at[1], steps=12)
    page.mouse.up()
    page.wait_for_selector("table.sum tbody tr")
    settle(page)
    assert page.locator(".answer").inner_text() == "Answer: 1"
    assert "the rows give the sums shown" in page.locator(".adds").inner_text()
    number = "row => [...row.cells].slice(2).map(cell => Number(cell.innerText.replace('−', '-')))"
    rows = page.locator("table.sum tbody tr").evaluate_all(f"rows => rows.map({number})")
    sums = page.locator("table.sum tfoot tr").evaluate(number)
    for k, total in enumerate(sums):
        assert sum(row[k] for row in rows) == pytest.approx(total, abs=0.0005 * (len(rows) + 1))  # as rounded
    scores = [float(text) for text in page.locator(".said .value").all_inner_texts()]
    assert scores == pytest.approx(sums, abs=1e-9)


def test_the_board_is_usable_by_keyboard(open_page, served):
    page = open_page(served, "input/draw")
    page.locator(".board").focus()
    for key in (" ", "ArrowUp", " ", "ArrowUp", " ", "ArrowDown"):
        page.keyboard.press(key)
    page.wait_for_selector("table.sum tbody tr")
    settle(page)
    assert page.locator(".answer").inner_text().startswith("Answer: ")


def test_a_slider_changes_the_scores_as_the_library_says(open_page, served_together):
    served = served_together
    page = open_page(served, "input/4")
    page.wait_for_selector("#view-input[data-ready]")
    settle(page)
    part = served.session.explain(example=4).terms[0].part
    slider = page.locator(".term input").first
    slider.focus()
    page.keyboard.press("Home")
    settle(page)
    playwright.expect(page.locator(".term b").first).to_have_text("× 0")
    view = served.session.explain(example=4, factors={part: 0.0})
    shown = [float(text) for text in page.locator(".said .value").all_inner_texts()]
    assert shown == pytest.approx(view.y, abs=0.0006)
    page.get_by_role("radio", name="make the best of it").check()
    adapted = served.session.explain(example=4, factors={part: 0.0}, adapt=True)
    playwright.expect(page.locator(".summand span").last).to_contain_text(f"{100 * adapted.unexplained:.1f} %")
    page.get_by_text("Reset the amounts").click()
    playwright.expect(page.locator(".term input").first).to_have_value("100")


def test_time_can_be_moved_through(open_page, served):
    page = open_page(served, "time")
    page.wait_for_selector(".strip")
    slider = page.get_by_label("Time, in stages")
    slider.focus()
    page.keyboard.press("Home")
    stages = served.session.time().stages
    assert f"{100 * stages[0].accuracy.overall:.1f} %" in page.locator(".told").inner_text()
    assert page.locator(".strip .row.later").count() == 9
    last = page.locator(".matrix tbody tr").last.locator("td").all_inner_texts()
    assert last == [f"{100 * share:.0f}" for share in stages[-1].accuracy.per_class] + [
        f"{100 * stages[-1].accuracy.overall:.1f}"
    ]
    page.get_by_role("button", name="Play").click()
    page.wait_for_selector(".strip .row.now[data-stage='2']")
    page.get_by_role("button", name="Stop").click()


def test_forgetting_changes_the_accuracy_and_undo_brings_it_back(open_page, served):
    page = open_page(served, "forget")
    before = page.locator("#summary").inner_text()
    page.get_by_label("By number").fill("9:12")
    page.get_by_label("By number").press("Enter")
    page.wait_for_selector(".preview .facts")
    foreseen = percents(page.locator(".preview .facts").inner_text())[-1]
    assert percents(page.locator("#summary").inner_text()) == percents(before)
    page.get_by_role("button", name="Forget them in the copy").click()
    page.wait_for_selector("#undo")
    assert percents(page.locator("#summary").inner_text()) == [foreseen] != percents(before)
    with page.expect_download() as download:
        page.get_by_text("Download the report").click()
    assert download.value.suggested_filename == "torchpfc-forget-report.json"
    assert json.loads(download.value.path().read_text("utf-8"))["changes"][0]["batches"] == [9, 10, 11]
    page.locator("#undo").click()
    page.wait_for_selector("#changed", state="hidden")
    assert page.locator("#summary").inner_text() == before


def test_a_class_can_be_forgotten_from_the_address_of_its_batches(open_page, served):
    page = open_page(served, "forget/9,10,11")
    settle(page)
    assert page.get_by_role("button", name="Class 3: ").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Forget them in the copy").click()
    page.wait_for_selector("#undo")
    settle(page)
    assert page.locator(".chips [data-batch='9']").count() == 0  # as if never seen
    assert "Nothing is changed until you say so" in page.locator(".preview").inner_text()
    page.get_by_role("button", name="Class 5: ").click()
    page.get_by_role("button", name="Forget them in the copy").click()
    page.wait_for_selector(".chips [data-batch='15']", state="detached")
    assert read(page.locator("#changed span").inner_text()) == [9, 11, 15, 17]


def read(text):
    """The numbers in some text; percentages as shares."""
    found = re.findall(r"(−?)(\d[\d,]*\.?\d*(?:e-\d+)?)( %)?", text)
    return [float(f"{sign and '-'}{digits}".replace(",", "")) / (100 if unit else 1) for sign, digits, unit in found]


def look_around(page, served):
    """Numbers of every view, each with what the library says."""
    session = served.session
    model, part, view, forget = (
        session.model(),
        session.part(25).column,
        session.explain(example=0),
        session.preview([0]),
    )

    def see(name, place):
        page.goto(f"{served.address}#{name}")
        settle(page)
        return " ".join(page.locator(place).all_inner_texts())

    about = [model.num_features, len(model.outputs), model.num_batches]
    yield read(see("parts/25", "#summary")), [model.num_parts, model.accuracy.overall, model.num_examples]
    yield read(see("parts/25", "#facts"))[:3], about
    yield [see("parts/25", "#facts").split("sha256 ")[1][:16]], [model.sha256[:16]]
    yield read(see("parts/25", "aside dl.short")), [part.usage, part.mean_amount, part.first_step]
    yield read(see("input/0", ".summand:last-child span")), [view.unexplained]
    yield read(re.search(r"p [=<] [\d.]+", see("input/0", ".said .note"))[0]), [view.recognition]
    yield [read(see("input/0", ".said .value"))], [view.y]
    accuracies = [stage.accuracy.overall for stage in session.time().stages]
    yield [[x / 100 for x in read(see("time", ".matrix td.wins"))]], [accuracies]
    gone = [forget.report.share, forget.report.num_columns, model.num_parts]
    seen = [*gone, forget.before.overall, forget.after.overall]
    yield read(see("forget/0", ".preview .facts"))[:5], seen


def test_a_second_model_changes_every_number(open_page, served, tmp_path):
    from sklearn.datasets import load_wine

    from torchpfc.sklearn import PFCClassifier

    x, y = load_wine(return_X_y=True)
    model = PFCClassifier(parts_per_batch=20, random_state=1)
    for label in range(3):
        model.partial_fit((x / x.max(0))[y == label], y[y == label], classes=range(3))
    model.save_pretrained(tmp_path / "second")
    with Served(load(tmp_path / "second")) as second:
        found = [list(look_around(open_page(server), server)) for server in (served, second)]
    for (first, expected_first), (other, expected_other) in zip(*found, strict=True):
        for shown, expected in ((first, expected_first), (other, expected_other)):
            assert shown == [each if isinstance(each, str) else pytest.approx(each, abs=6e-4) for each in expected]
        assert all(one != another for one, another in zip(first, other, strict=True)), (first, other)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["parts/63", "input/4", "time", "forget/9,10,11"])
def test_every_view_fits_a_phone_in_light_and_dark(open_page, served, view, scheme):
    page = open_page(served, view, width=390, height=844, color_scheme=scheme, has_touch=True, is_mobile=True)
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expected = {"light": "rgb(250, 249, 246)", "dark": "rgb(21, 22, 24)"}[scheme]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == expected


def test_everything_that_can_be_used_has_a_name(open_page, served):
    page = open_page(served, "parts/63")
    for view in ("parts", "input", "time", "forget/9"):
        page.goto(f"{served.address}#{view}")
        settle(page)
        nameless = page.locator("button:visible, a:visible, input:visible, select:visible").evaluate_all(
            "all => all.filter(e => !(e.innerText || e.ariaLabel || e.labels?.length || '').toString().trim())"
            ".map(e => e.outerHTML)"
        )
        assert nameless == []


MEASURE = """async ({ selector, value, key, place }) => {
    const frame = () => new Promise(requestAnimationFrame);
    const shown = () => [...document.querySelectorAll(place)].map((element) => element.textContent).join();
    const element = document.querySelector(selector);
    const before = shown();
    const start = performance.now();
    if (key) element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    else if (value !== undefined) {
        element.value = value;
        element.dispatchEvent(new Event("input", { bubbles: true }));
    } else element.click();
    const waits = () => shown() === before || document.documentElement.dataset.pending !== "0";
    while (waits() && performance.now() - start < 10000) await frame();
    await frame();
    await frame(); // the first begins before anything is drawn, the second after
    return performance.now() - start;
}"""
"""Does something on the page, and says how many milliseconds pass until a place has changed, all answers are there, and
what came of it is drawn."""


def click(selector, place):
    return {"selector": selector, "place": place}


def press(selector, key, place):
    return {"selector": selector, "key": key, "place": place}


def slide(selector, value, place):
    return {"selector": selector, "value": str(value), "place": place}


SHOWN = "main > :not([hidden])"

INTERACTIONS = {
    "opening a part": ("parts", [[click(f"[data-part='{k}']", "aside")] for k in (3, 50, 120, 7, 90)]),
    "sorting parts": ("parts", [[click(f"[name=order][value={by}]", ".atlas") for by in ("use", "age", "class")]] * 5),
    "picking an example": ("input", [[click(f"[data-example='{k}']", "table.sum")] for k in (1, 2, 3, 4, 5)]),
    "changing an amount": ("input/4", [[slide(".term input", x, ".said")] for x in (0, 150, 50, 200, 20)]),
    "letting the others adapt": (
        "input/4",
        [
            [slide(".term input", x, ".said"), click("[value=adapt]", ".said"), click("[value=stay]", ".said")]
            for x in (0, 150, 50, 200, 20)
        ],
    ),
    "drawing and erasing": ("input/draw", [[press(".board", key, "table.sum") for key in (" ", "Delete")]] * 5),
    "moving through time": ("time", [[slide(".scrub input", stage, ".told")] for stage in (1, 5, 3, 8, 2)]),
    "choosing batches": ("forget", [[click(f"[data-batch='{k}']", ".preview")] for k in (4, 5, 12, 20, 29)]),
    "forgetting, seeing what has changed, and taking it back": (
        "forget",
        [
            [
                click(f"[data-batch='{k}']", ".preview"),
                click(".preview button.strong", "#summary"),
                *(click(f"nav [href='#{view}']", SHOWN) for view in ("time", "input", "parts", "forget")),
                click("#undo", "#summary"),
            ]
            for k in (4, 5, 12, 20, 29)
        ],
    ),
}
"""What somebody does on the page: where, and five times over the steps that it takes."""


@pytest.mark.parametrize("name", INTERACTIONS)
def test_an_interaction_is_quick(open_page, served, served_together, name):
    view, rounds = INTERACTIONS[name]
    page = open_page(served_together if name == "letting the others adapt" else served, view)
    settle(page)
    times = [[page.evaluate(MEASURE, step) for step in steps] for steps in rounds]
    slowest = max(map(min, zip(*times, strict=True)))
    assert slowest < MOST_MILLISECONDS, times
