"""pmlib's calls by their own names. What C gives back through pointers is returned; errors are raised."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from powerd_client.pmlib.data import ALL_SETS, Lines
from powerd_client.pmlib.paraver import write_paraver
from powerd_client.pmlib.server import Counter, Server

PathLike = str | os.PathLike[str]


def pm_set_server(
    ip: str | None = None,
    port: int = 7360,
    *,
    out: PathLike | None = None,
    overwrite: bool = False,
    source: Mapping[str, object] | None = None,
) -> Server:
    """The powerd at ``ip`` (a host's name or address, or a whole address such as ``ipc:///run/powerd/powerd.sock``).

    Nobody is asked yet. For None and for the other arguments see `Server`.
    """
    if ip and "://" not in ip:
        ip = f"tcp://[{ip}]:{port}" if ":" in ip else f"tcp://{ip}:{port}"
    return Server(ip, out, overwrite=overwrite, source=source)


pm_close_server = Server.close
"""Complete the run file now (pmlib has no such call: without it, the end of the script does it)."""
pm_get_device_info = Server.device
"""Name, highest frequency and lines of a device."""
pm_set_lines = Lines.parse
LINE_CLR_ALL = Lines.clear
pm_start_counter = Counter.start
pm_continue_counter = Counter.resume
pm_stop_counter = Counter.stop
pm_get_counter_data = Counter.get_data
pm_finalize_counter = Counter.finalize


def pm_get_devices(server: Server) -> list[str]:
    """The names of the devices."""
    return [device.name for device in server.devices()]


def LINE_SET(i: int, lines: Lines) -> None:
    lines.add(i)


def LINE_CLR(i: int, lines: Lines) -> None:
    lines.discard(i)


def LINE_ISSET(i: int, lines: Lines) -> bool:
    return i in lines


def LINE_SET_ALL(lines: Lines) -> None:
    lines |= Lines.all()


def pm_create_counter(
    device: str, lines: Lines, aggregate: int, frequency: float, server: Server, *, name: str | None = None
) -> Counter:
    """A counter: with ``aggregate`` of the lines' sum, without it of each line. See `Server.counter`."""
    return server.counter(device, lines, aggregate=bool(aggregate), frequency=frequency, name=name)


def pm_get_counter_num_sets(counter: Counter) -> int:
    """How many sets the counter has."""
    return counter.num_sets


def pm_calculate_energy(counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> float:
    """Joules of some lines in one set, or in all sets together for -1, of the data that were fetched."""
    return counter.energy_j(lines, set)


def pm_print_data_stdout(counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> None:
    """The data as rows, separated by tabs."""
    for row in counter.data.rows(lines, set, "\t"):
        print(row)


def pm_print_data_text(file_name: PathLike, counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> None:
    """The same into a file."""
    counter.data.write_text(Path(file_name), lines, set, "\t")


def pm_print_data_csv(file_name: PathLike, counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> None:
    """The same, separated by semicolons: ``Set_id;Time;Line N;...;Sum``."""
    counter.data.write_text(Path(file_name), lines, set, ";")


def pm_print_data_paraver(
    file_name: PathLike, counter: Counter, lines: Lines | None = None, set: int = ALL_SETS, unit: str = "ns"
) -> None:
    """A trace for Paraver; see `powerd_client.pmlib.paraver`."""
    write_paraver(Path(file_name), counter.data, lines, set, unit)
