"""How the site shows docstrings: lists of arguments as lists; columns of records and options of sources as tables."""

import ast
import html
import importlib
import json
import re
from dataclasses import MISSING, fields

import griffe

from powerd_core.serde import describe_options
from powerd_daemon.config import ServerConfig

ARGUMENT = re.compile(r"^(``[^`]+``(?:, ``[^`]+``)*) {2,}", re.MULTILINE)


COLUMN = {"name": "", "kind": "text", "unit": "", "repeats": "first", "parts": "first", "meaning": ""}
"""What is shown of a column of the frame, with the defaults of its class."""


def column_cells(call):
    """The cells of a column's row, of the call that makes it."""
    given = dict(zip(COLUMN, map(ast.literal_eval, call.args), strict=False))
    given |= {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg in COLUMN}
    cells = COLUMN | given
    return [f"{cells.pop('name')}`", *cells.values()]


MOST_DEFAULT = 80
"""Characters of a default; longer ones are cut, and `powerd sources` prints them whole."""


def option_rows(path, names):
    """A table of the options that a source's class has of its own, as `powerd sources` tells them."""
    module, _, name = path.rpartition(".")
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for option in describe_options(getattr(importlib.import_module(module), name)):
        if option.name in names:
            default = option.default[:MOST_DEFAULT] + "…" * (len(option.default) > MOST_DEFAULT)
            as_is = re.sub(r"[^A-Za-z0-9 ]", lambda sign: f"&#{ord(sign[0])};", default)
            told = f"<code>{as_is}</code>" if default else "required"
            rows.append(f"| `{option.name}` | {told} | {in_table(option.help)} |")
    return rows


def in_table(text):
    """Text in a cell of a table, where it may have placeholders such as ``<line>``."""
    return html.escape(text, quote=False).replace("|", "&#124;")


class Readable(griffe.Extension):
    """Changes what griffe has read, before mkdocstrings draws it."""

    def on_instance(self, *, obj, **_):
        if obj.docstring:
            text = re.sub(r"(?<!\n)\n(?=- ``)", "\n\n", ARGUMENT.sub(r"- \1: ", obj.docstring.value), count=1)
            obj.docstring.value = text

    def on_attribute_instance(self, *, attr, **_):
        if attr.path == "powerd_analytics.frame.figures._COLUMNS":
            rows = [
                f"| `{' | '.join(column_cells(call))} |" for call in ast.parse(str(attr.value), mode="eval").body.elts
            ]
            attr.docstring = griffe.Docstring(
                "\n".join(["| column | type | unit | repeats | parts | what it is |", "| --- " * 6 + "|", *rows])
            )
            attr.value = None

    def on_class_members(self, *, cls, **_):
        if cls.name == "ServerConfig":
            self.table_of_fields(cls)
        if not cls.name.endswith("Options"):
            return
        cls.docstring = griffe.Docstring("\n".join(option_rows(cls.path, cls.attributes)))
        cls.members.clear()

    def table_of_fields(self, cls, of=ServerConfig):
        """The fields of a dataclass, whose docstrings say what they are, with their defaults."""
        defaults = {f.name: f.default for f in fields(of)}
        rows = ["| option | default | meaning |", "| --- | --- | --- |"]
        for name, attribute in cls.attributes.items():
            if name in defaults and attribute.docstring:
                default = defaults[name]
                told = "" if default in (None, "", MISSING) else f"`{json.dumps(default)}`"
                rows.append(f"| `{name}` | {told} | {' '.join(attribute.docstring.value.split())} |")
        cls.docstring = griffe.Docstring("\n".join(rows))
        cls.members.clear()
