"""pmlib's calls by their own names. What C gives back through pointers is returned; errors are raised."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from powerd_client.pmlib.counter import Counter
from powerd_client.pmlib.data import ALL_SETS, CounterData
from powerd_client.pmlib.devices import DeviceInfo
from powerd_client.pmlib.lines import Lines
from powerd_client.pmlib.paraver import write_paraver
from powerd_client.pmlib.printing import print_data, write_text
from powerd_client.pmlib.server import Server

POWERD_PORT = 7360

PathLike = str | os.PathLike[str]


def pm_set_server(
    ip: str | None = None,
    port: int = POWERD_PORT,
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


def pm_close_server(server: Server) -> None:
    """Complete the run file now (pmlib has no such call: without it, the end of the script does it)."""
    server.close()


def pm_get_devices(server: Server) -> list[str]:
    """The names of the devices."""
    return [device.name for device in server.devices()]


def pm_get_device_info(server: Server, name: str) -> DeviceInfo:
    """Name, highest frequency and lines of a device."""
    return server.device(name)


def pm_set_lines(lines: str) -> Lines:
    """A set of lines from text such as ``"1-4,6,9-10"``."""
    return Lines.parse(lines)


def LINE_SET(i: int, lines: Lines) -> None:
    lines.set(i)


def LINE_CLR(i: int, lines: Lines) -> None:
    lines.clear(i)


def LINE_ISSET(i: int, lines: Lines) -> bool:
    return lines.is_set(i)


def LINE_SET_ALL(lines: Lines) -> None:
    lines.set_all()


def LINE_CLR_ALL(lines: Lines) -> None:
    lines.clear_all()


def pm_create_counter(
    device: str, lines: Lines, aggregate: int, frequency: float, server: Server, *, name: str | None = None
) -> Counter:
    """A counter: with ``aggregate`` of the lines' sum, without it of each line. See `Server.counter`."""
    return server.counter(device, lines, aggregate=bool(aggregate), frequency=frequency, name=name)


def pm_start_counter(counter: Counter) -> None:
    """Forget all sets and begin one."""
    counter.start()


def pm_continue_counter(counter: Counter) -> None:
    """Begin a further set."""
    counter.resume()


def pm_stop_counter(counter: Counter) -> None:
    """End the set."""
    counter.stop()


def pm_get_counter_data(counter: Counter) -> CounterData:
    """Fetch what a stopped counter has measured; see `Counter.get_data`."""
    return counter.get_data()


def pm_get_counter_num_sets(counter: Counter) -> int:
    """How many sets the counter has."""
    return counter.num_sets


def pm_calculate_energy(counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> float:
    """Joules of some lines in one set, or in all sets together for -1."""
    return counter.energy_j(lines, set)


def pm_print_data_stdout(counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> None:
    """The data as rows, separated by tabs."""
    print_data(counter.data, lines, set)


def pm_print_data_text(file_name: PathLike, counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> None:
    """The same into a file."""
    write_text(Path(file_name), counter.data, lines, set, "\t")


def pm_print_data_csv(file_name: PathLike, counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> None:
    """The same, separated by semicolons: ``Set_id;Time;Line N;...;Sum``."""
    write_text(Path(file_name), counter.data, lines, set, ";")


def pm_print_data_paraver(
    file_name: PathLike,
    counter: Counter,
    lines: Lines | None = None,
    set: int = ALL_SETS,
    unit: str = "ns",
) -> None:
    """A Paraver trace; see `powerd_client.pmlib.paraver`."""
    write_paraver(Path(file_name), counter.data, lines, set, unit)


def pm_finalize_counter(counter: Counter) -> None:
    """Let go of a counter and of its data. What it measured stays in the run file."""
    counter.finalize()
