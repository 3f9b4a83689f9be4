"""What docs/metrics.md says that its example prints, it prints."""

import re
from pathlib import Path

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_example_prints_what_it_says(capsys):
    code = re.search(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL).group(1)
    exec(compile(code, str(DOC), "exec"), {})
    said = [line.split("  # ")[1] for line in code.splitlines() if line.startswith("print")]
    assert capsys.readouterr().out.splitlines() == said


def test_every_function_is_in_the_table():
    from powerd_analytics import metrics

    text = DOC.read_text(encoding="utf-8")
    functions = [
        n for n, f in vars(metrics).items() if getattr(f, "__module__", "") == metrics.__name__ and callable(f)
    ]
    assert len(functions) > 15
    assert [name for name in functions if not name.startswith("_") and f"`{name}" not in text] == []
