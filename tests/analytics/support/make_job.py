"""Run files of one training's machines for tests: each machine has its own clock, its own powerd and its own GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import h5py
from make_campaign import IDS
from make_run import LineSpec, S, make_run, training

TRAINED = training(batches=(64,), iterations=6, update_ms=22.9)
LAUNCH = "torchrun none at 10.0.0.1:29500"


def phases_of(ranks: int, phases=TRAINED.phases):
    """The same phases in every rank of a machine."""
    found = []
    for rank in range(ranks):
        base = len(found)
        found += [replace(p, parent=p.parent + base if p.parent >= 0 else -1, process=rank) for p in phases]
    return found


def machine(
    path: Path,
    number: int,
    ranks: int = 2,
    machines: int = 2,
    *,
    scale: float = 1.0,
    begin_s: float = 0.0,
    job: str | None = LAUNCH,
    shared: bool = False,
    shared_scale: float = 3.0,
    with_gpus: bool = True,
    host: str = "",
    tr=TRAINED,
    longer_ns: int = 0,
    **attributes,
) -> Path:
    """The run of one machine of ``machines``, each with ``ranks`` ranks and as many GPUs; rank r's GPU takes
    ``scale`` * (1 + r) of the training's power. With ``shared`` it reads a wall meter too, the same on all machines.
    """
    first = number * ranks
    uuids = [f"{number:04d}{k:04d}-1111-2222-3333-444444444444" for k in range(ranks)]
    lines = [
        LineSpec(f"gpu{k}.nvml", tr.power(scale * (1 + first + k)), f"gpu{k}", "measured",
                 detail={"uuid": f"GPU-{uuids[k]}"})
        for k in range(ranks if with_gpus else 0)
    ]  # fmt: skip
    lines += [LineSpec("wall", tr.power(shared_scale), "node", "measured")] if shared else []
    about = {"host": host or f"host{number}"} | ({"job": job, "machines": str(machines)} if job else {})
    made = make_run(
        path, lines, phases_of(ranks, tr.phases), end_ns=tr.end_ns + longer_ns, environment=json.dumps(about),
        run_id=f"id{next(IDS)}", **attributes,
    )  # fmt: skip
    with h5py.File(made, "r+") as file:
        for name, line in file["lines"].items():
            line.attrs["clock"] = "pdu-00000000000000aa" if name == "wall" else f"local-{next(IDS):016x}"
        processes = [
            {"pid": 100 + k, "rank": first + k, "local_rank": k, "world_size": machines * ranks}
            | ({"devices": [{"index": 0, "uuid": f"GPU-{uuids[k]}", "pci": ""}]} if with_gpus else {})
            for k in range(ranks)
        ]
        at = 1_700_000_000 * S + round(begin_s * S)
        text = json.dumps({"t_ns": 0, "level": "info", "text": f"wall clock: {at} ns since 1970 ± 1000 ns"})
        for name, texts in (("processes", [json.dumps(p) for p in processes]), ("messages", [text])):
            del file[name]
            file.create_dataset(name, data=texts, dtype=h5py.string_dtype())
    return made
