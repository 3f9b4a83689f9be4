"""pmlib's way of working, with counters and lines, on powerd. docs/pmlib.md shows the old calls beside the new."""

from powerd_client.pmlib.calls import (
    LINE_CLR,
    LINE_CLR_ALL,
    LINE_ISSET,
    LINE_SET,
    LINE_SET_ALL,
    pm_calculate_energy,
    pm_close_server,
    pm_continue_counter,
    pm_create_counter,
    pm_finalize_counter,
    pm_get_counter_data,
    pm_get_counter_num_sets,
    pm_get_device_info,
    pm_get_devices,
    pm_print_data_csv,
    pm_print_data_paraver,
    pm_print_data_stdout,
    pm_print_data_text,
    pm_set_lines,
    pm_set_server,
    pm_start_counter,
    pm_stop_counter,
)
from powerd_client.pmlib.counter import Counter
from powerd_client.pmlib.data import CounterData, CounterSet
from powerd_client.pmlib.devices import DeviceInfo
from powerd_client.pmlib.lines import Lines
from powerd_client.pmlib.server import Server

__all__ = [
    "LINE_CLR",
    "LINE_CLR_ALL",
    "LINE_ISSET",
    "LINE_SET",
    "LINE_SET_ALL",
    "Counter",
    "CounterData",
    "CounterSet",
    "DeviceInfo",
    "Lines",
    "Server",
    "pm_calculate_energy",
    "pm_close_server",
    "pm_continue_counter",
    "pm_create_counter",
    "pm_finalize_counter",
    "pm_get_counter_data",
    "pm_get_counter_num_sets",
    "pm_get_device_info",
    "pm_get_devices",
    "pm_print_data_csv",
    "pm_print_data_paraver",
    "pm_print_data_stdout",
    "pm_print_data_text",
    "pm_set_lines",
    "pm_set_server",
    "pm_start_counter",
    "pm_stop_counter",
]
