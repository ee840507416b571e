"""What a browser makes of the charts and tables of a page."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from headway_cli.page.charts import Figure, Series
from headway_cli.page.series import time_unit
from headway_cli.page.template import bars, card, charts, figures, named, page

PHONE_PX = 390
LONG = "n" * 3000


def figure(*series: Series, names: tuple[str, ...] = ()) -> Figure:
    x = {"scale": "names", "names": names} if names else {}
    return {"panels": [{"title": "Panel", "x": x, "y": {}, "series": list(series)}]}  # type: ignore[typeddict-item]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """A page of a phone's width; what its script complains of fails the test."""
    context = browser.new_context(viewport={"width": PHONE_PX, "height": 800})
    found, complaints = context.new_page(), []
    found.on("console", lambda message: complaints.append(message.text))
    found.on("pageerror", lambda error: complaints.append(str(error)))
    yield found
    context.close()
    assert complaints == []


def show(opened: Page, tmp_path: Path, body: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(body, title=LONG, subtitle=LONG), encoding="utf-8")
    opened.goto(path.as_uri())


def test_a_run_of_one_point_is_a_dot(opened: Page, tmp_path: Path) -> None:
    line: Series = {"name": "a", "colour": "red", "x": [1, 2, 3, 4], "y": [1.0, None, 2.0, 2.5]}
    show(opened, tmp_path, charts(figure(line)))
    assert opened.locator(".panel > svg circle").count() == 1


def test_one_large_value_has_an_axis(opened: Page, tmp_path: Path) -> None:
    point: Series = {"name": "a", "colour": "red", "symbol": "circle", "x": [1e30], "y": [1e30]}
    show(opened, tmp_path, charts(figure(point)))
    assert "NaN" not in opened.locator(".panel > svg").inner_html()


def test_bars_stand_above_their_names(opened: Page, tmp_path: Path) -> None:
    places: dict[str, tuple[list[float | None], list[float | None]]] = {
        "a": ([0, 2], [1.0, 1.0]),
        "b": ([1, 2], [1.0, 1.0]),
        "c": ([2], [None]),
    }
    rows: list[Series] = [
        {"name": name, "colour": "red", "bars": True, "x": x, "y": y} for name, (x, y) in places.items()
    ]
    show(opened, tmp_path, charts(figure(*rows, names=("x", "y", "z"))))
    middles = opened.locator(".panel > svg .drawn rect").evaluate_all(
        "found => found.map(one => Number(one.getAttribute('x')) + Number(one.getAttribute('width')) / 2)"
    )
    x, y, z = (
        float(opened.locator(".panel > svg text", has_text=name).get_attribute("x") or "nan")
        for name in ("x", "y", "z")
    )
    first, left, second, right = middles
    assert (first, second, (left + right) / 2) == pytest.approx((x, y, z), abs=1.0)


def test_names_and_figures_of_any_length_fit_a_phone(opened: Page, tmp_path: Path) -> None:
    line: Series = {"name": LONG, "group": LONG, "colour": "red", "x": [1, 2], "y": [1, 2]}
    body = (
        f'<section class="cards">{card(LONG, "4.144e-05 GPU-h", LONG)}{card("b", LONG, "c")}</section>',
        f"<h2>{LONG}</h2>",
        named({LONG: LONG}),
        bars({LONG: "red"}, [(LONG, [("red", 0.5, LONG)])]),
        figures((LONG, LONG), [(LONG, LONG)]),
        f"<details><summary>{LONG}</summary></details>",
        charts(figure(line, {**line, "name": "b", "group": "b"})),
    )
    show(opened, tmp_path, "".join(body))
    for width in (PHONE_PX, 1280):
        opened.set_viewport_size({"width": width, "height": 800})
        assert opened.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(
    ("span_s", "name"),
    [(0.0, "seconds"), (10.0, "seconds"), (120.0, "minutes"), (3e4, "hours"), (1e6, "days")],
)
def test_the_unit_of_a_time_axis(span_s: float, name: str) -> None:
    assert time_unit(span_s).name == name
