"""A second program on the GPU of a run: said under every table, in the frame, and by the guard of a campaign."""

from dataclasses import replace

import pytest
from make_campaign import result, simulated_campaign
from make_run import LineSpec, PhaseSpec, S, constant, make_run

from powerd_analytics import phase_table, read_run
from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaign_views.campaign_figures import Campaign
from powerd_analytics.campaigns.design import DISCARDS, Guard
from powerd_analytics.campaigns.guard import discard_of
from powerd_analytics.cli import main
from powerd_analytics.cli.info import describe_run, run_document
from powerd_analytics.frame.figures import concat_frames, frame_of, rows_of
from powerd_analytics.output.export import to_markdown
from powerd_analytics.run_tables.closing_lines import result_lines
from powerd_analytics.runs.ranks import other_programs
from powerd_analytics.views.layouts import TableChoice, chosen_tables
from powerd_analytics.views.pivots import PivotRequest
from powerd_core.marks import OTHERS

PHASES = [PhaseSpec("forward", k * S, k * S + S // 2, {"model": "m", "batch_size": 8}) for k in range(1, 9)]
SENTENCE = "another program was on gpu0 for 3 s: pid 42, alice: its joules are in these"


def event(t_s, *others, device="gpu0"):
    listed = [{"pid": pid, "user": user, "memory_mib": 5} for pid, user in others]
    return round(t_s * S), OTHERS, {"device": device, "others": listed}, 0


def run_of(path, *events, **more):
    lines = [LineSpec("gpu0.a", constant), LineSpec("gpu1.a", constant, "gpu1")]
    return read_run(make_run(path, lines, PHASES, end_ns=10 * S, events=events, **more))


ALICE = (event(0), event(4, (42, "alice")), event(7))


@pytest.mark.parametrize(
    ("events", "span_s", "words"),
    [
        (ALICE, (0, 10), "3 s: pid 42, alice"),
        (ALICE, (6, 10), "1 s: pid 42, alice"),
        (ALICE, (8, 10), ""),
        ((), (0, 10), ""),  # nobody has looked
        ((event(0, (42, "alice")),), (0, 10), "10 s: pid 42, alice"),
        ((event(0, (42, ""), (43, "bob")), event(2, (43, "bob"))), (0, 10), "2 s: pid 42; 10 s: pid 43, bob"),
        ((event(0, (42, "alice"), device="gpu1"),), (0, 10), ""),
        ((event(0, (1, "me")),), (0, 10), ""),  # a rank of the run
    ],
)
def test_who_was_there_and_for_how_long(tmp_path, events, span_s, words):
    run = run_of(tmp_path / "r.h5", *events)
    assert other_programs(run, "gpu0", *(t * S for t in span_s)) == words


def test_an_event_of_a_user_with_that_name_is_no_program(tmp_path):
    run = run_of(tmp_path / "r.h5", (0, OTHERS, {"device": "gpu0", "others": [3, {"pid": "x"}]}, 0), (S, OTHERS, {}, 0))
    assert other_programs(run, "gpu0", 0, 10 * S) == ""


def test_it_is_said_of_the_run_and_in_the_frame(tmp_path):
    run = run_of(tmp_path / "r.h5", *ALICE)
    table = phase_table(run)
    assert [SENTENCE in row.note for row in table.runs] == [True, False]
    lines = result_lines(run.path)
    assert len(lines) == 3
    assert lines[2].startswith(f"  {SENTENCE}; next: joules info")
    assert f"  {SENTENCE}" in describe_run(run_document(run))
    rows = {(r["kind"], r["device"]): r["shared"] for r in rows_of(frame_of(run, table))}
    assert rows["run", "gpu0"] == "3 s: pid 42, alice"
    assert rows["run", "gpu1"] is None


@pytest.mark.parametrize(
    "choice", [pytest.param({}, marks=pytest.mark.slow), {"pivot": "batch_size:phase:j_per_batch"}]
)
def test_a_line_stands_under_every_table_of_several_runs(tmp_path, choice):
    runs = [run_of(tmp_path / f"{name}.h5", *events) for name, events in (("alone", (event(0),)), ("beside", ALICE))]
    frame = concat_frames([frame_of(run, phase_table(run)) for run in runs])
    if "pivot" in choice:
        choice = {"pivot": PivotRequest.parse(choice["pivot"])}
    tables = chosen_tables(frame, TableChoice(**choice))
    assert tables
    for table in tables:
        assert [note for note in table.notes if "another program" in note] == [f"beside: {SENTENCE}"]
        assert f"beside: {SENTENCE}" in to_markdown([table])


def test_a_comparison_says_it_too(tmp_path, capsys):
    for name, events in (("alone", (event(0),)), ("beside", ALICE)):
        run_of(tmp_path / f"{name}.h5", *events)
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "alone.h5"), str(tmp_path / "beside.h5")])
    assert "beside: another program was on gpu0 for" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_joules_uncertainty_and_layers_say_it(tmp_path, capsys):
    layers = [PhaseSpec("layer", p.begin_ns, p.end_ns, {**p.attributes, "layer": "conv"}, k)
              for k, p in enumerate(PHASES)]  # fmt: skip
    lines = [LineSpec("gpu0.a", constant)]
    path = make_run(tmp_path / "r.h5", lines, [*PHASES, *layers], end_ns=10 * S, events=ALICE)
    for command in ("uncertainty", "layers"):
        for form in ("text", "csv", "json"):
            with pytest.raises(SystemExit):
                main(["tables", "--table", command, str(path), "--format", form])
            out, err = (" ".join(text.split()) for text in capsys.readouterr())
            assert SENTENCE in (out if form == "text" else err), (command, form)


@pytest.mark.slow
def test_tables_of_a_campaign_say_it(tmp_path):
    design, history = simulated_campaign(tmp_path / "c")
    key, one = next(iter(history.results().items()))
    history.records[key].result = replace(one, shared=SENTENCE)
    for table in campaign_tables(Campaign(design, history)):
        assert table.notes[-1] == f"{key}: {SENTENCE}"


def test_the_guard_of_a_campaign_knows_the_reason():
    assert "shared" in DISCARDS
    of_two = result(energy_j=1.0, time_s=1.0, shared=SENTENCE)
    discard = discard_of(of_two, Guard())
    assert (discard.reason, discard.text) == ("shared", SENTENCE)
    assert discard_of(of_two, Guard(discard=("thermal",))) is None
    assert discard_of(result(energy_j=1.0, time_s=1.0), Guard()) is None
