import pytest
from command import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_analytics.published.tablefile import parsed, read_table
from powerd_core.errors import AnalysisError, PowerdError, RunFileError


def table(tmp_path, data, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_table(path)


def fault(tmp_path, data, read=lambda t: t):
    with pytest.raises(AnalysisError) as caught:
        read(table(tmp_path, data))
    return str(caught.value).removeprefix(f"{tmp_path}/")


PLAIN = "device,energy_j\na,1.5\nb,2\n"


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        "\ufeff" + PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.encode("utf-16"),
        '"device","energy_j"\n"a","1.5"\n"b","2"\n',
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        " device , energy_j \n a, 1.5 \n\n,\nb,2",
    ],
    ids=["plain", "mark", "crlf", "utf-16", "quotes", "semicolons", "tabs", "blanks"],
)
def test_every_dialect_reads_the_same(tmp_path, data):
    t = table(tmp_path, data)
    assert t.columns == ("device", "energy_j")
    assert list(t.texts("device")) == ["a", "b"]
    assert t.numbers("energy_j") == [1.5, 2.0]


def test_parquet_reads_the_same_and_counts_rows(tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"device": ["a", "b"], "gpus": [1, 2], "energy_j": [1.5, None]}).to_parquet(tmp_path / "t.pq")
    t = read_table(tmp_path / "t.pq")
    assert t.numbers("energy_j") == [1.5, None]
    assert t.numbers("gpus", whole=True) == [1.0, 2.0]
    assert t.at(1) == f"{tmp_path}/t.pq, row 2"
    (tmp_path / "cut.pq").write_bytes((tmp_path / "t.pq").read_bytes()[:200])
    with pytest.raises(AnalysisError, match=r"cut\.pq: is no Parquet file"):
        read_table(tmp_path / "cut.pq")


def test_nan_in_parquet_is_refused_and_null_is_empty(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(arrow.table({"energy_j": [None, float("nan")]}), tmp_path / "t.parquet")
    with pytest.raises(AnalysisError, match=r"row 2, column energy_j: 'nan' is no finite number"):
        read_table(tmp_path / "t.parquet").numbers("energy_j")


def test_lines_count_those_inside_of_quotes(tmp_path):
    t = table(tmp_path, 'device,energy_j\n"a\nb",1\nc,x\n')
    assert list(t.lines) == [2, 4]
    assert fault(tmp_path, 'device,energy_j\n"a\nb",1\nc,x\n', lambda t: t.numbers("energy_j")) == (
        "t.csv, line 4, column energy_j: 'x' is no number"
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "t.csv: the file is empty: it needs a header and rows"),
        ("\ufeff\r\n\r\n", "t.csv: the file is empty: it needs a header and rows"),
        ("device,energy_j\n", "t.csv: has a header and no rows"),
        ("a,a\n1,2\n", "t.csv, line 1: two columns are called 'a'"),
        ("a,b\n1,2\n1\n", "t.csv, line 3: 1 cells, but the header has 2"),
        ("a,b\n1,2,3\n", "t.csv, line 2: 3 cells, but the header has 2"),
        ('a,b\n1,2\n"1,2\n', "t.csv, line 3: is no CSV: unexpected end of data"),
        (b"a,b\n1,\xff\n", "t.csv, line 2: is not UTF-8 text: save it as CSV in UTF-8"),
    ],
)
def test_what_is_no_table(tmp_path, data, said):
    assert fault(tmp_path, data) == said


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("fast", "'fast' is no number"),
        ("nan", "'nan' is no finite number; leave the cell empty where nothing was measured"),
        ("-inf", "'-inf' is no finite number; leave the cell empty where nothing was measured"),
        ("1e999", "'1e999' is no finite number; leave the cell empty where nothing was measured"),
        ("-3", "-3 is negative"),
        ('"1,5"', "'1,5' is no number: write a decimal point, and no separator of thousands"),
        ("1_0", "'1_0' is no number"),
        ("\x1b[2J", r"'\x1b[2J' is no number"),
    ],
)
def test_cells_that_are_no_numbers(tmp_path, cell, said):
    found = fault(tmp_path, f"a,energy_j\nx,1\ny,{cell}\n", lambda t: t.numbers("energy_j"))
    assert found.replace("\\\\", "\\") == f"t.csv, line 3, column energy_j: {said}"


def test_further_rules_of_numbers(tmp_path):
    t = table(tmp_path, "zero,part,none,minus\n0,1.5,,-1\n")
    for column, rule, said in (
        ("zero", {"positive": True}, "must be above 0"),
        ("part", {"whole": True}, "is no whole number"),
        ("none", {"full": True}, "is empty"),
    ):
        with pytest.raises(AnalysisError, match=rf"line 2, column {column}: .*{said}"):
            t.numbers(column, **rule)
    assert t.numbers("minus", signed=True) == [-1.0]
    with pytest.raises(AnalysisError, match="line 2, column none: is empty"):
        t.texts("none")


def test_a_missing_column_is_named_with_what_is_near(tmp_path):
    assert fault(tmp_path, "Energy_J,b\n1,2\n", lambda t: t.require("energy_j")) == (
        "t.csv, line 1: no column 'energy_j': did you mean 'Energy_J'?"
    )
    assert fault(tmp_path, "b,c\n1,2\n", lambda t: t.require("energy_j")).endswith("it has b, c")


def test_files_that_are_not_there(tmp_path):
    for path in (tmp_path / "no.csv", tmp_path):
        with pytest.raises(RunFileError, match="cannot be read"):
            read_table(path)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_as_they_were(value):
    assert parsed(repr(value)) == value


@settings(max_examples=40)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_table_or_one_line(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    for mark in (b"", b"a,b\n", b"\xff\xfe", b"PAR1"):
        path.write_bytes(mark + data)
        assert "\n" not in said_of(path)


def said_of(path):
    try:
        t = read_table(path)
        for column in t.columns:
            t.numbers(column)
    except PowerdError as error:
        return str(error)
    return ""


def test_commands_end_with_2_and_write_nothing(tmp_path, capsys):
    bad = tmp_path / "bad.csv"
    bad.write_text("device,gpus,model,phase,batch,s_per_training,j_per_training\ng,1,m,forward,8,x,2\n")
    out = tmp_path / "out.csv"
    assert "line 2, column s_per_training: 'x' is no number" in refused(capsys, "totals", bad, "-o", out)
    bad.write_text("cap,energy_j,time_s\n1,nan,2\n")
    said = refused(capsys, "pick", bad, "--reference", "cap=1", "--metric", "e", "-o", out)
    assert "line 2, column energy_j" in said
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_name_in_quotes_may_hold_what_parts_cells_elsewhere(tmp_path, delimiter):
    path = tmp_path / "t.csv"
    path.write_text(delimiter.join(('"notes, free"', "energy_j")) + "\n" + delimiter.join(("a, b", "5")) + "\n")
    assert read_table(path).cells == {"notes, free": ("a, b",), "energy_j": ("5",)}


def test_a_count_that_no_double_holds_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("batch\n9007199254740991\n9007199254740993\n")
    with pytest.raises(AnalysisError, match="line 3, column batch: 9007199254740993 is too large to be counted"):
        read_table(path).numbers("batch", whole=True)
