"""A report's page taken apart, without a browser."""

import base64
import zlib
from html.parser import HTMLParser

from powerd_analytics.report import ReportOptions, write_report


class Page(HTMLParser):
    """The tables of a page by id (captions, heads, cells with exact values), its scripts by id, all its tags."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tables, self.scripts, self.tags, self.texts = {}, {}, [], []
        self._table = self._script = self._cell = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        self.tags.append((tag, a))
        if tag == "table":
            self._table = self.tables.setdefault(a["id"], {"caption": "", "heads": [], "rows": []})
        elif tag == "tr" and self._table is not None:
            self._table["rows"].append([])
        elif tag in ("td", "th", "caption") and self._table is not None:
            self._cell = (tag, [], a.get("data-value"))
        elif tag == "script":
            self._script = self.scripts.setdefault(a.get("id", ""), [])

    def handle_endtag(self, tag):
        if self._cell is not None and tag == self._cell[0]:
            text = "".join(self._cell[1])
            if tag == "caption":
                self._table["caption"] = text
            elif tag == "th":
                self._table["heads"].append(text)
            else:
                self._table["rows"][-1].append((text, self._cell[2]))
            self._cell = None
        elif tag == "table":
            self._table["rows"] = [row for row in self._table["rows"] if row]
            self._table = None
        elif tag == "script":
            self._script = None

    def handle_data(self, data):
        for place in (self._cell and self._cell[1], self._script):
            if place is not None:
                place.append(data)
        if self._script is None:
            self.texts.append(data)

    def column(self, table, head):
        found = self.tables[f"table-{table}"]
        return [row[found["heads"].index(head)] for row in found["rows"]]

    def decoded(self, column):
        raw = zlib.decompress(base64.b64decode("".join(self.scripts[column["id"]])))
        assert len(raw) == column["n"] * column["planes"]
        return column["n"]


def unpacked(text, n, planes):
    """The whole numbers of a column, as `trace.js` takes it apart."""
    raw = zlib.decompress(base64.b64decode(text))
    values, total = [], 0
    for i in range(n):
        folded = sum(raw[k * n + i] << (8 * k) for k in range(planes))
        total += -(folded + 1) // 2 if folded % 2 else folded // 2
        values.append(total)
    return values


def report(paths, out, **options):
    write_report(paths, out, ReportOptions(**options))
    text = out.read_text(encoding="utf-8")
    return text, Page(text)
