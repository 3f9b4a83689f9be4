"""What `powerd control` prints and does; its options are in `powerd_client.commands`."""

from __future__ import annotations

import argparse
import getpass
import json
import time
from collections.abc import Iterable

from powerd_client.knobs import control
from powerd_core.errors import ConfigError, ControlDenied, ControlError
from powerd_core.lease import UNLOCKED, KnobInfo, LeaseInfo, Range, Request, State, Value, option_of, text_of
from powerd_core.serde import to_document
from powerd_core.text import printable


def run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "set":
        return _set(arguments)
    peer = control.connect(arguments.socket)
    try:
        if arguments.verb == "release":
            return _release(peer, arguments.lease)
        if arguments.verb == "status":
            return _status(peer, arguments.format)
        return {"check": _check, "policy": _policy}[arguments.verb](peer)
    finally:
        peer.close()


def _status(peer: control.Peer, format: str) -> int:
    knobs, told = peer.ask(Request("describe")).knobs, peer.ask(Request("status"))
    leases = told.leases
    is_late = any(hold.state is State.REVERTING for lease in leases for hold in lease.holds)
    status = 1 if told.problems or is_late or not knobs else 0
    if format == "json":
        parts = {"knobs": knobs, "leases": leases, "problems": told.problems}
        print(json.dumps({name: to_document(list(part)) for name, part in parts.items()}, indent=2))
        return status
    for problem in told.problems:
        print(f"{printable(problem)}\n")
    if not knobs:
        print("nothing can be set here: the helper sees no GPU, no RAPL and no CPU frequencies")
        return status
    print(f"{'device':<8}{'knob':<17}{'set to':>10}{'in force':>10}  can be set to")
    for knob in knobs:
        requested, enforced = (
            text_of(knob.setting.requested, knob.knob),
            text_of(knob.setting.enforced, knob.knob),
        )
        print(f"{knob.device:<8}{option_of(knob.knob):<17}{requested:>10}{enforced:>10}  {_range_text(knob)}")
    if not leases:
        print("\nnobody holds anything")
    for lease in leases:
        print(
            f"\nlease {lease.lease} of {printable(lease.holder)}, {lease.ends_in_s:.0f} s left without a sign of life"
        )
        for line in _hold_lines(lease):
            print(f"  {line}")
    return status


def _hold_lines(lease: LeaseInfo) -> Iterable[str]:
    for hold in lease.holds:
        asked, found = text_of(hold.setting.asked, hold.knob), text_of(hold.found, hold.knob)
        why = f" ({printable(hold.why)})" if hold.why and hold.state is not State.HELD else ""
        yield f"{hold.device} {option_of(hold.knob)} {asked}, found {found}: {hold.state.value}{why}"


def _range_text(knob: KnobInfo) -> str:
    if knob.problem:
        return printable(knob.problem, limit=60)
    of = knob.range
    if of.words:
        return ", ".join(of.words)
    steps = f", {len(of.listed)} steps" if of.listed else ""
    default = f", default {text_of(_float(of.default), knob.knob)}" if of.default is not None else ""
    return f"{_limits_text(of, knob.knob)}{steps}{default}"


def _float(value: Value) -> Value:
    return value if isinstance(value, str) else float(value)


def _limits_text(of: Range, knob: str) -> str:
    return f"{of.least:g} to {text_of(of.greatest, knob)}"


def _set(arguments: argparse.Namespace) -> int:
    levels: dict[str, Value] = {}
    for word in arguments.levels:
        option, sign, level = word.partition("=")
        if not sign:
            raise ConfigError(f"{word!r}: write KNOB=LEVEL, such as power_cap_w=200")
        levels[option] = level
    devices = None if arguments.device == "all" else arguments.device.split(",")
    hold = control.Hold(levels, devices, name="powerd control", where=arguments.socket, wait_s=arguments.wait)
    hold.acquire()
    try:
        until = f"for {arguments.for_s:g} s" if arguments.for_s is not None else "until Ctrl-C"
        print(f"held {until}: {hold.text()}", flush=True)
        _wait(hold, arguments.for_s)
        for name, (verdict, why) in hold.verdicts.items():
            print(f"{name}: {verdict.value}{': ' + why if why else ''}")
    finally:
        hold.release()
    print("all is as it was found" if not hold.problem else f"ended: {hold.problem}")
    return 2 if hold.problem else 0


def _wait(hold: control.Hold, for_s: float | None) -> None:
    end_s = None if for_s is None else time.monotonic() + for_s
    try:
        while not hold.problem and (end_s is None or time.monotonic() < end_s):
            time.sleep(0.2 if end_s is None else min(0.2, max(0.0, end_s - time.monotonic())))
    except KeyboardInterrupt:
        print()


def _release(peer: control.Peer, lease: str) -> int:
    try:
        answer = peer.ask(Request("release", lease=lease))
    except ControlError:
        try:
            answer = peer.ask(Request("steal", lease=lease))
        except ControlDenied:
            raise ControlError(f"you hold no lease {lease!r}, and the policy does not let you end others'") from None
    if answer.lease is not None:
        for line in _hold_lines(answer.lease):
            print(line)
    return 0


def _check(peer: control.Peer) -> int:
    allowed = peer.ask(Request("check")).allowed
    if not allowed:
        print(
            f"the helper answers, and its policy allows {getpass.getuser()} nothing: "
            "`powerd control policy` prints one to begin with"
        )
        return 1
    print(f"the policy allows {getpass.getuser()}:")
    for text in allowed:
        print(f"  {printable(text)}")
    return 0


def _policy(peer: control.Peer) -> int:
    knobs = [knob for knob in peer.ask(Request("describe")).knobs if not knob.problem]
    names = list(dict.fromkeys(knob.knob for knob in knobs))
    devices = list(dict.fromkeys(knob.device for knob in knobs))
    print("# /etc/powerd/control.toml: who may turn which knob. Nobody may turn any without a rule.")
    print("# Of root, mode 644. It is read at each request.\n")
    for name in dict.fromkeys(knob.knob for knob in knobs if knob.range.default == UNLOCKED):
        print(f'{name}_found = "{UNLOCKED}"   # or the MHz that it is locked to otherwise: no driver tells it')
    print("[[allow]]")
    print(f'user = "{getpass.getuser()}"                # or group = "...", or remote = "the name of a key"')
    print(f"devices = {_toml_list(devices)}")
    print(f"knobs = {_toml_list(list(map(option_of, names)))}")
    seen = set()
    for knob in knobs:
        if knob.range.greatest and knob.knob not in seen:
            seen.add(knob.knob)
            print(f"{option_of(knob.knob)} = [{knob.range.least:g}, {knob.range.greatest:g}]")
    print('# require = "owns-all-processes"   # only while nobody else computes on the device')
    print("# steal = true                     # may end leases of others")
    return 0


def _toml_list(names: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
