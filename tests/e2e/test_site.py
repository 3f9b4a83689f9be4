"""The documentation's site: no request leaves it, every link leads somewhere, and it fits a telephone. The pages are
looked at where `make docs` has built them."""

import importlib.util
import sys
import time
import types
from dataclasses import fields
from pathlib import Path

import pytest
from bench_report import browser_page, find_browser

from powerd_core.serde import describe_options
from powerd_daemon.sources.base import find_source, kinds

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("site_of_docs", ROOT / "docs/site.py")
site = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(site)

BUILT = ROOT / "build/site"


@pytest.fixture
def small(tmp_path):
    (tmp_path / "how").mkdir()
    (tmp_path / "style.css").write_text("")
    (tmp_path / "index.html").write_text('<link rel="stylesheet" href="style.css"><a href="how/to.html#here">to</a>')
    (tmp_path / "how" / "to.html").write_text(
        '<h2 id="here">Here</h2><a href="..">home</a> <a href="https://a.org">b</a>'
    )
    return tmp_path


def test_a_whole_site_has_no_fault(small):
    assert list(site.faults(small)) == []


@pytest.mark.parametrize(
    ("added", "fault"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<img src="//fonts.example/a">', "loads //fonts.example/a"),
        ('<img src="none.png">', "loads none.png, which is not there"),
        ('<a href="none.html">n</a>', "leads to none.html, which is not there"),
        ('<a href="how/to.html#gone">n</a>', "no such place"),
    ],
)
def test_what_is_wrong_is_found(small, added, fault):
    page = small / "index.html"
    page.write_text(page.read_text() + added)
    (found,) = site.faults(small)
    assert fault in found


@pytest.fixture
def docstrings(monkeypatch):
    """How the site shows docstrings, without what draws it."""
    griffe = types.ModuleType("griffe")
    griffe.Extension, griffe.Docstring = object, types.SimpleNamespace
    monkeypatch.setitem(sys.modules, "griffe", griffe)
    spec = importlib.util.spec_from_file_location("docstrings_of_docs", ROOT / "docs/docstrings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", kinds())
def test_tables_of_options_have_all_with_their_defaults(docstrings, kind):
    cls = find_source(kind).Options
    rows = docstrings.option_rows(f"{cls.__module__}.{cls.__qualname__}", {f.name for f in fields(cls)})
    options = describe_options(cls)
    assert len(rows) == 2 + len(options)
    for row, option in zip(rows[2:], options, strict=True):
        assert row.startswith(f"| `{option.name}` | {'<code>' if option.default else 'required'}")
        assert row.count("|") == 4


def test_equations_become_mathml():
    pytest.importorskip("latex2mathml")
    page = r'<p><span class="arithmatex">\(t_k &lt; 1\)</span> and <div class="arithmatex">\[\frac{a}{b}\]</div></p>'
    drawn = site.with_mathml(page)
    assert drawn.count("<math") == 2
    assert "mfrac" in drawn
    assert "\\" not in drawn


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no Chromium on the path (or in $CHROMIUM)")
@pytest.mark.skipif(not BUILT.is_dir(), reason="`make docs` has not built the site")
@pytest.mark.parametrize("width", [390, 1400])
def test_no_request_leaves_the_built_site(width):
    pages = ["index.html", "explanation/energy.html", "reference/tables.html", "results/benchmarks.html"]
    with browser_page(find_browser()) as page:
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        for name in pages:
            page.call("Page.navigate", url=(BUILT / name).as_uri())
            deadline = time.monotonic() + 30
            while (
                page.run("document.readyState") != "complete"
                or page.run("location.pathname").rpartition("/")[2] not in name
            ):
                assert time.monotonic() < deadline
            assert page.run("document.documentElement.scrollWidth") <= width, name
        assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert page.requests
