"""The columns of a flat record: their order, types, units and meaning, which every output shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cell = str | int | float | bool | None
Record = dict[str, Cell]
"""One row of one run's table with the keys of `COLUMNS`, all of them, in that order."""

RECORD_VERSION = 1
"""Rises when a column changes its meaning or goes; new columns do not raise it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a record. ``units`` is empty for names, ``1`` for counts."""

    name: str
    kind: Literal["text", "integer", "number", "flag"]
    units: str
    meaning: str


_COLUMNS = (
    Column(
        "kind",
        "text",
        "",
        "phase: mean of one kind of phase; total: all phases of a group; run: the recording; rank: what one rank took; "
        "job: all ranks",
    ),
    Column("run", "text", "", "file name without suffix"),
    Column("path", "text", "", "the run file"),
    Column("run_id", "text", "", "the recording's own id"),
    Column("created_utc", "text", "", "when it began, wall clock"),
    Column("host", "text", "", "the machine that trained"),
    Column("model", "text", "", "attribute of the phases"),
    Column("batch_size", "number", "1", "attribute of the phases"),
    Column(
        "gpus", "integer", "1", "attribute of the phases, else GPUs that processes say they use, else ranks, else 1"
    ),
    Column("ranks", "integer", "1", "processes of a job in the run; each with a batch of its own where more than one"),
    Column("rank", "integer", "1", "of kind rank: which one"),
    Column("sharing", "integer", "1", "ranks that share the device"),
    Column("ranks_counted", "integer", "1", "of totals: ranks that share the device and whose iterations are counted"),
    Column("job", "text", "", "how the launcher names the training"),
    Column("world_size", "integer", "1", "ranks of the whole training, as the launcher says"),
    Column("rank_numbers", "text", "", "the ranks whose processes are in the run"),
    Column("machines", "integer", "1", "of a job's sums: machines whose runs are added up"),
    Column("machine", "integer", "1", "of one machine's part of a job: which, by its ranks"),
    Column("job_machines", "integer", "1", "machines of the whole training, as the launcher says"),
    Column("begin_unix_s", "number", "s", "when a part of a job began, by that machine's wall clock, since 1970"),
    Column("device", "text", "", "whose joules they are"),
    Column("sensors", "text", "", "of a part of a job: JSON list of the lines, by board and start of its powerd"),
    Column("gpu", "text", "", "of a part of a job: JSON list of the GPUs that the device is"),
    Column("device_name", "text", "", "product: attribute of the phases, else as the driver names it"),
    Column("provenance", "text", "", "measured, modelled or simulated"),
    Column("power_cap_w", "number", "W", "attribute of the phases, else median of the power limit while they ran"),
    Column("clock_hz", "number", "Hz", "attribute of the phases, else median of the SM clock while they ran"),
    Column("clock_set", "flag", "", "clock_hz is an attribute: chosen, not observed"),
    Column("attributes", "text", "", "JSON: the phases' other attributes"),
    Column("phase", "text", "", "name of the phase"),
    Column("phase_path", "text", "", "with the phases around it"),
    Column("timing", "text", "", "host, host-synchronised or device"),
    Column("method", "text", "", "how the joules were found, where that is said"),
    Column("iterations", "integer", "1", "phases that ended; of totals and runs, batches"),
    Column("s_per_batch", "number", "s", "mean duration of one phase; of totals, time_s / iterations"),
    Column("u_s_per_batch", "number", "s", "standard uncertainty of that mean by the spread of the phases"),
    Column("s_per_batch_min", "number", "s", "of a job's sums: the same of the fastest rank"),
    Column("s_per_batch_max", "number", "s", "of a job's sums: the same of the slowest rank"),
    Column("s_by_rank", "text", "", "of a part of a job: JSON, for each rank how many phases and their seconds"),
    Column("j_per_batch", "number", "J", "mean joules of one phase; of totals, energy_j / iterations"),
    Column("u95_j", "number", "J", "95 % interval of j_per_batch (phase) or energy_j (total, run)"),
    Column("u_statistical_j", "number", "J", "standard uncertainty of the same, what averages out"),
    Column("u_systematic_j", "number", "J", "standard uncertainty of the same, what repeats share"),
    Column("power_w", "number", "W", "joules over seconds"),
    Column("samples_per_s", "number", "1/s", "batch_size over seconds"),
    Column("time_s", "number", "s", "duration of the total or the run"),
    Column("energy_j", "number", "J", "joules of the total or the run"),
    Column("edp_js", "number", "J s", "energy_j x time_s; of phases, j_per_batch x s_per_batch"),
    Column(
        "operations_per_sample", "number", "1", "attribute of the phases: operations of one forward pass, one sample"
    ),
    Column(
        "gflops_per_w",
        "number",
        "1e9/J",
        "operations per joule / 1e9; where GPUs share a batch, of one GPU's share of them",
    ),
    Column("u_statistical_gflops_per_w", "number", "1e9/J", "standard uncertainty of that, what averages out"),
    Column("u_systematic_gflops_per_w", "number", "1e9/J", "standard uncertainty of that, what repeats share"),
    Column("gflops_convention", "text", "", "paper: forward and backward count the operations once each"),
    Column("gflops_basis", "text", "", "whose joules it divides by"),
    Column("phases_j", "number", "J", "of runs and ranks: joules in the outermost phases"),
    Column("rest_j", "number", "J", "joules in no phase"),
    Column("devices_j", "number", "J", "of kind job: joules of the devices, each once"),
    Column("residual_j", "number", "J", "what phases and rest leave of the whole"),
    Column("missing_s", "number", "s", "seconds without readings"),
    Column("is_lower_bound", "flag", "", "a line stood at full scale: joules are the least they can be"),
    Column("note", "text", "", "why a number is missing or weaker"),
)

COLUMNS = {column.name: column for column in _COLUMNS}


def empty_record() -> Record:
    """A record without a value in any column."""
    return dict.fromkeys(COLUMNS)


def number_of(record: Record, name: str) -> float | None:
    """A cell that is a number, else None."""
    value = record[name]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
