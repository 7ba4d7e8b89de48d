"""Networks that run in a page: what is drawn and dropped there, what they answer, and what is refused before."""

import base64
import io as streams
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quern import data, io, models, runtime
from quern.errors import PackedError, RecordError
from quern.export import Pixels, to_packed
from quern.report import write_network_page, write_run_report
from quern.report._live import FRAMES, read_live
from quern.report._run import read_run
from quern.train import Settings, fit
from tests.browser import IN_BROWSER, window
from tests.report.pages import SENTENCE, assert_self_contained
from tests.report.test_browser import COLOURS, contrast
from tests.sample_records import write_compress

pytestmark = pytest.mark.skipif(not runtime.is_built(), reason="the C runtime was not built: no compiler")
RESULTS = Path(__file__).parents[2] / "results"
Stroke = list[tuple[float, float]]


# --------------------------------------------------------------------------------------------------------- refusals


def packed(path: Path, shape: tuple[int, ...] = (1, 8, 8), raw: bool = True) -> Path:
    """A network that was never trained."""
    path.parent.mkdir(parents=True, exist_ok=True)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(math.prod(shape), 3)).eval()
    channels = shape[0]
    pixels = Pixels((0.5,) * channels, (0.5,) * channels) if raw else None
    images = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    to_packed(net, path, images if raw else images.float(), pixels=pixels)
    return path


def test_what_a_page_cannot_give_is_refused_in_a_sentence(tmp_path: Path) -> None:
    gray = packed(tmp_path / "gray.qrn")
    for path, images, said in (
        (gray, None, "not known what images"),
        (gray, {"name": "sounds"}, "not known what images"),
        (gray, {"shape": [1, 28, 28]}, "not packed for images in bytes"),
        (packed(tmp_path / "floats.qrn", raw=False), {"shape": [1, 8, 8]}, "not packed for images in bytes"),
        (packed(tmp_path / "two.qrn", (2, 8, 8)), {"shape": [2, 8, 8]}, "images is 2 x 8 x 8, and"),
        (gray, {"shape": [8, 8]}, "images is 8 x 8, and"),
        (gray, {"shape": []}, "images is empty, and"),
        (tmp_path / "none.qrn", {"shape": [1, 8, 8]}, "cannot be read"),
    ):
        with pytest.raises(PackedError, match=said) as refused:
            read_live({"small": path}, images)  # pyright: ignore[reportArgumentType]
        assert SENTENCE.fullmatch(str(refused.value))
    assert read_live({"small": gray}, {"shape": [1, 8, 8], "mean": [], "classes": []}).data["ink"] == "white"
    with pytest.raises(PackedError, match="a report carries 1,000 at most"):
        read_live({"small": gray}, {"shape": [1, 8, 8]}, most=1000)
    page = tmp_path / "page.html"
    with pytest.raises(PackedError):
        write_network_page(gray, page, {"shape": [3, 8, 8]})
    with pytest.raises(RecordError, match="for such images: top is 999") as refused:
        write_network_page(gray, page, {"shape": [1, 8, 8], "top": 999})
    assert SENTENCE.fullmatch(str(refused.value))
    assert not page.exists()


@pytest.mark.slow
def test_a_report_without_a_panel_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def why(folder: Path) -> str:
        page = read_run(folder)
        assert page.live is None
        assert SENTENCE.fullmatch(page.no_live)
        assert page.no_live in assert_self_contained(write_run_report(folder)).text
        return page.no_live

    images = {"name": "digits", "shape": [1, 8, 8]}
    assert "not known what images" in why(write_compress(tmp_path / "older"))
    assert "not known what images" in why(write_compress(tmp_path / "loaders", images=None))
    run = write_compress(tmp_path / "run", images=images)
    assert "dense/model.qrn cannot be read" in why(run)
    for part in ("dense", "small"):
        packed(run / part / "model.qrn")
    with monkeypatch.context() as patch:
        patch.setattr("quern.report._run.LIVE_BYTES", 999)
        assert "at most" in why(run)
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "is_built", lambda: False)
        assert "was not built" in why(run)
    assert read_run(run).live is not None


def test_a_hostile_name_stays_a_name(tmp_path: Path) -> None:
    images = {
        "name": "</script><b>",
        "shape": [1, 8, 8],
        "classes": ["</script><img src=x onerror=alert(1)>", "\x1b[31m", "'"],
    }
    page = write_network_page(packed(tmp_path / "net.qrn"), tmp_path / "page.html", images, "<i>")
    seen = assert_self_contained(page)
    assert not seen.tags & {"img", "b", "i"}


# ------------------------------------------------------------------------------------------------------ in a browser


@dataclass(frozen=True)
class Page:
    """A page with a panel, and the networks in it."""

    path: Path
    networks: list[runtime.PackedNetwork]
    whole: list[bool]  # int8: its scores are the same bits everywhere


@pytest.fixture(scope="module")
def digits() -> data.ImageSet:
    return data.digits()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, digits: data.ImageSet) -> Page:
    """A run whose networks are a trained one in float32, and the same in int8."""
    folder = write_compress(tmp_path_factory.mktemp("live") / "run", images=digits.about())
    torch.manual_seed(0)
    net = models.digits_qcnn()
    fit(net, digits, Settings(epochs=6, lr=5e-3, batch=64))
    pixels = Pixels(digits.mean, digits.std, top=digits.top)
    files = [folder / part / "model.qrn" for part in ("dense", "small")]
    for path, dtype in zip(files, ("float32", "int8"), strict=True):
        path.parent.mkdir()
        to_packed(net.eval(), path, digits.train.pixels[:256], dtype=dtype, pixels=pixels)
    return Page(write_run_report(folder), [runtime.load(path) for path in files], [False, True])


def page_of(folder: Path, model: str) -> Page:
    """The page of a network that is in the repository."""
    header = io.describe(RESULTS / model)["images"]
    pixels = Pixels(tuple(header["mean"]), tuple(header["std"]))
    images = torch.randint(0, 256, (4, *header["shape"]), dtype=torch.uint8)
    to_packed(io.load(RESULTS / model), folder / "net.qrn", images, pixels=pixels)
    page = write_network_page(folder / "net.qrn", folder / "page.html", header)
    return Page(page, [runtime.load(folder / "net.qrn")], [False])


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(tmp_path_factory.mktemp("mnist"), "mnist-1500/small.safetensors")


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(tmp_path_factory.mktemp("cifar"), "cifar10-9k/small.safetensors")


@pytest.fixture(params=[(1280, "light", False), (360, "dark", True)], ids=["desk", "phone"])
def view(request: pytest.FixtureRequest, chromium: Any) -> Iterator[Any]:
    with window(chromium, *request.param) as page:
        yield page
        assert page.wrong == []


@pytest.fixture
def desk(chromium: Any) -> Iterator[Any]:
    with window(chromium) as page:
        yield page
        assert page.wrong == []


def opened(view: Any, path: Path) -> None:
    view.goto(path.as_uri())
    view.wait_for_selector(".live[data-ready]")
    listen = "document.querySelector('.live').addEventListener('answer', (event) => { window.last = event.detail; })"
    view.evaluate(listen)


def arc(x: float, y: float, width: float, height: float, begin: float, end: float) -> Stroke:
    angles = [math.radians(begin + (end - begin) * n / 16) for n in range(17)]
    return [(x + width * math.cos(angle), y + height * math.sin(angle)) for angle in angles]


DRAWINGS: dict[str, list[Stroke]] = {
    "0": [arc(0.5, 0.5, 0.2, 0.32, -90, 270)],
    "1": [[(0.4, 0.3), (0.52, 0.18), (0.52, 0.82)]],
    "3": [arc(0.47, 0.33, 0.18, 0.15, -150, 80) + arc(0.47, 0.64, 0.22, 0.17, -80, 150)],
    "4": [[(0.58, 0.2), (0.28, 0.6), (0.75, 0.6)], [(0.6, 0.2), (0.6, 0.85)]],
    "7": [[(0.3, 0.2), (0.7, 0.2), (0.45, 0.82)]],
}


def draw(view: Any, strokes: list[Stroke]) -> None:
    """With a finger where the window has touch, else with the mouse."""
    view.get_by_role("button", name="Clear").click()
    stage = view.locator(".stage canvas")
    stage.scroll_into_view_if_needed()
    box, scrolled = stage.bounding_box(), view.evaluate("scrollY")
    places = [[(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke] for stroke in strokes]
    if view.evaluate("navigator.maxTouchPoints"):
        session = view.context.new_cdp_session(view)
        for stroke in places:
            for n, (x, y) in enumerate(stroke):
                kind = "touchMove" if n else "touchStart"
                session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
            session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    else:
        for (x, y), *rest in places:
            view.mouse.move(x, y)
            view.mouse.down()
            for place in rest:
                view.mouse.move(*place)
            view.mouse.up()
    assert view.evaluate("scrollY") == scrolled


def png(pixels: np.ndarray) -> bytes:
    """Pixels ``(height, width)`` or ``(height, width, 3)``."""
    with streams.BytesIO() as file:
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue()


def give(view: Any, content: bytes, dropped: bool = False) -> None:
    """An image, chosen or dropped; its answer is awaited."""
    # A promise, not a poll: the page's policy lets nobody evaluate text later on.
    wait = "(done) => document.querySelector('.live').addEventListener('answer', () => done(true), { once: true })"
    view.evaluate(f"() => {{ window.next = new Promise({wait}); }}")
    if dropped:
        code = """(text) => {
          const moved = new DataTransfer();
          moved.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], "dropped.png"));
          for (const kind of ["dragover", "drop"]) {
            const event = new DragEvent(kind, { dataTransfer: moved, bubbles: true, cancelable: true });
            document.querySelector(".stage").dispatchEvent(event);
            if (!event.defaultPrevented) throw new Error("the browser would leave the page");
          }
        }"""
        view.evaluate(code, base64.b64encode(content).decode())
    else:
        file = {"name": "image.png", "mimeType": "image/png", "buffer": content}
        view.get_by_label("Choose an image").set_input_files(file)
    assert view.evaluate("() => window.next")


def answered(view: Any, page: Page) -> tuple[np.ndarray, list[str]]:
    """The pixels that the networks saw, and the classes they say; the scores must be those of the libraries."""
    last = view.evaluate("window.last")
    pixels = np.array(last["pixels"], np.uint8).reshape(page.networks[0].inputs[0].shape)
    said = [text.split(",")[0] for text in view.locator(".answer output").all_inner_texts()]
    for network, whole, scores, name in zip(page.networks, page.whole, last["scores"], said, strict=True):
        wanted, made = network(pixels[None])[0], np.array(scores, np.float32)
        assert np.abs(wanted - made).max() <= (0 if whole else 1e-5 * np.abs(wanted).max())
        assert name == view.locator(".bars .name").all_inner_texts()[int(made.argmax())]
    return pixels, said


class TestInABrowser:
    pytestmark = IN_BROWSER

    def test_both_networks_of_a_report_say_what_was_drawn(self, view: Any, report: Page) -> None:
        assert_self_contained(report.path)
        opened(view, report.path)
        for name in ("0", "4", "7"):
            draw(view, DRAWINGS[name])
            pixels, said = answered(view, report)
            assert said == [name, name]
            assert pixels.max() <= 16
            assert pixels[0].any(axis=1).all()  # as all digits of the set they fill the height

    def test_the_page_of_a_network_says_what_was_drawn(self, view: Any, mnist: Page) -> None:
        assert_self_contained(mnist.path)
        opened(view, mnist.path)
        for name, strokes in DRAWINGS.items():
            draw(view, strokes)
            pixels, said = answered(view, mnist)
            assert said == [name]
            _assert_framed(pixels[0].astype(float))

    def test_place_and_size_of_a_drawing_do_not_matter(self, desk: Any, mnist: Page) -> None:
        opened(desk, mnist.path)
        seen = []
        for x, y, size in ((0, 0, 1.0), (-0.2, 0.1, 0.5), (0.15, -0.2, 0.6)):
            draw(
                desk, [[(0.5 + x + size * (a - 0.5), 0.5 + y + size * (b - 0.5)) for a, b in s] for s in DRAWINGS["3"]]
            )
            seen.append(answered(desk, mnist)[0].astype(float))
        assert all(np.abs(one - seen[0]).mean() < 6 for one in seen[1:])
        desk.get_by_role("button", name="Clear").click()
        assert desk.locator(".answer output").inner_text() == "–"

    def test_a_dot_is_a_dot(self, desk: Any, mnist: Page) -> None:
        opened(desk, mnist.path)
        draw(desk, [[(0.3, 0.3)]])
        pixels, _ = answered(desk, mnist)
        assert 0 < (pixels > 0).sum() <= 16

    def test_test_images_arrive_as_they_are(self, view: Any, report: Page, digits: data.ImageSet) -> None:
        opened(view, report.path)
        right = 0
        for n in range(8):
            image = digits.test.pixels[n].numpy()
            give(view, png(np.round(image[0] * (255 / 16)).astype(np.uint8)), dropped=n % 2 == 1)
            pixels, said = answered(view, report)
            assert (pixels == image).all()
            right += said.count(digits.classes[int(digits.test.labels[n])])
        assert right >= 13
        image = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
        give(view, png(image))
        plain, _ = answered(view, report)
        view.get_by_label("My image is dark on light").check()
        inverse, _ = answered(view, report)
        assert np.abs(plain + inverse.astype(int) - 16).max() <= 1  # halves are rounded up in both

    def test_colour_images_are_scaled_and_centred(self, view: Any, cifar: Page) -> None:
        opened(view, cifar.path)
        assert view.locator(".invert").count() == 0
        image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        for dropped in (False, True):
            give(view, png(image), dropped)
            assert (answered(view, cifar)[0] == image.transpose(2, 0, 1)).all()
        wide = np.repeat(np.repeat(image, 4, 0), 4, 1)
        wide = np.concatenate([np.zeros((128, 40, 3), np.uint8), wide, np.zeros((128, 40, 3), np.uint8)], 1)
        give(view, png(wide))
        assert (answered(view, cifar)[0] == image.transpose(2, 0, 1)).all()
        assert view.locator(".bars .name").first.inner_text() == "airplane"

    def test_what_is_no_image_gets_a_sentence(self, desk: Any, mnist: Page) -> None:
        opened(desk, mnist.path)
        file = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no image"}
        desk.get_by_label("Choose an image").set_input_files(file)
        desk.locator(".said:not(:empty)").wait_for()
        assert desk.locator(".said").inner_text() == "notes.txt is no image that this browser can read."
        draw(desk, DRAWINGS["1"])
        assert desk.locator(".said").inner_text() == ""
        assert answered(desk, mnist)[1] == ["1"]

    def test_a_damaged_network_is_not_run(self, desk: Any, mnist: Page, tmp_path: Path) -> None:
        text = mnist.path.read_text("utf-8")
        place = text.index('"networks": [') + 400
        damaged = text[:place] + ("B" if text[place] == "A" else "A") + text[place + 1 :]
        (tmp_path / "page.html").write_text(damaged, "utf-8")
        desk.goto((tmp_path / "page.html").as_uri())
        desk.locator(".said:not(:empty)").wait_for()
        assert "its checksum is wrong: it is damaged." in desk.locator(".said").inner_text()
        assert desk.locator(".live[data-ready]").count() == 0

    def test_everything_has_a_name_and_a_place(self, view: Any, report: Page, mnist: Page, cifar: Page) -> None:
        width = view.viewport_size["width"]
        for page, labels in ((report, ["Dense", "Compacted"]), (mnist, ["Answer"]), (cifar, ["Answer"])):
            opened(view, page.path)
            tree = view.locator(".live").aria_snapshot()
            assert '- button "Clear"' in tree
            assert '- button "Choose an image"' in tree
            assert re.findall(r'- region "(.*)"', tree) == labels
            assert re.findall(r'- status "(.*)"', tree) == labels
            assert '- img "The image as the network sees it"' in tree
            assert tree.count("- listitem") == 10 * len(labels)
            assert view.evaluate("document.scrollingElement.scrollWidth") <= width
            for box in view.evaluate(
                "[...document.querySelectorAll('.live :is(button, .file, .stage, .answer)')]"
                ".map((e) => e.getBoundingClientRect().toJSON())"
            ):
                assert 0 <= box["left"] < box["right"] <= width
                assert box["height"] >= 40  # a finger's width
            for text, behind, said in view.evaluate(COLOURS):
                assert contrast(text, behind) >= 4.5, (text, behind, said)
            facts = view.locator(".answer .note").all_inner_texts()
            for network, fact in zip(page.networks, facts, strict=True):
                assert re.fullmatch(rf"{network.bytes:,} bytes, [\d,.]+\sµs an image, measured here", fact)


def _assert_framed(ink: np.ndarray) -> None:
    """As MNIST's: at most 20 pixels high and wide, with the centre of mass in the middle of 28."""
    frame = FRAMES["mnist"]
    for axis, most in ((1, frame["height"]), (0, frame["width"])):
        places = np.flatnonzero((ink > 64).any(axis))
        assert places[-1] - places[0] + 1 <= most + 1  # it need not begin where a pixel does
        mass = ink.sum(axis)
        assert abs((mass * (np.arange(28) + 0.5)).sum() / mass.sum() - 14) < 0.5
    assert max(np.flatnonzero((ink > 64).any(axis)).size for axis in (0, 1)) >= 19
