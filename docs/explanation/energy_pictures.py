"""Draw the pictures of energy.md: a training of known power, seen by a GPU's driver through its low-pass.

python docs/explanation/energy_pictures.py
"""

from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
STEP_MS, TAU_MS, EVERY_MS = 0.1, 13.0, 20.0
NAMES, LENGTHS_MS = ("data", "forward", "backward", "update"), (14.0, 25.0, 38.0, 10.0)
POWER_W = np.array([70.0, 210.0, 290.0, 150.0])
COLOURS = ("#bbbbbb", "#0072b2", "#e69f00", "#009e73")


def states(lengths_ms, iterations):
    """The number of the phase that is open at each step."""
    counts = [round(length / STEP_MS) for length in lengths_ms]
    return np.tile(np.repeat(np.arange(len(counts)), counts), iterations)


def low_passed(power):
    """What a low-pass of first order makes of a signal."""
    seen, level, share = np.empty(len(power)), power[0], 1.0 - np.exp(-STEP_MS / TAU_MS)
    for k, value in enumerate(power):
        level += share * (value - level)
        seen[k] = level
    return seen


def fit(state, readings, at):
    """Watts of each phase by least squares: each reading is a sum of the phases' watts, by what it sees of each."""
    sees = np.stack([low_passed((state == s).astype(float))[at] for s in range(len(NAMES))], axis=1)
    return np.linalg.lstsq(sees, readings, rcond=None)[0]


def shade(axes, state, first, last):
    """Each phase as a band of its colour, with its name."""
    edges = [first, *(np.flatnonzero(np.diff(state[first:last])) + first + 1), last]
    for begin, end in pairwise(edges):
        axes.axvspan(begin * STEP_MS, end * STEP_MS, color=COLOURS[state[begin]], alpha=0.25, lw=0)
        axes.text((begin + end) / 2 * STEP_MS, 1.02, NAMES[state[begin]], ha="center", fontsize=8,
                  transform=axes.get_xaxis_transform())  # fmt: skip


def picture(name, height=2.6):
    figure, axes = plt.subplots(figsize=(7.2, height), layout="constrained")
    axes.set(xlabel="ms", ylabel="W")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes, HERE / f"energy-{name}.png"


def save(figure, axes, path, columns=4):
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main():
    mpl.use("agg")
    noise = np.random.default_rng(1)
    state = states(LENGTHS_MS, 60)
    length = len(state) // 60
    power = POWER_W[state]
    power = np.where(np.arange(len(state)) // length == 41, power * np.where(state == 2, 1.15, 1.0), power)
    times, seen = np.arange(len(state)) * STEP_MS, low_passed(power)
    at = np.arange(round(7 / STEP_MS), len(state), round(EVERY_MS / STEP_MS))
    readings = seen[at] + noise.normal(0.0, 2.0, len(at))
    watts = fit(state, readings, at)
    expected = low_passed(watts[state])

    figure, axes, path = picture("readings")
    first, last = 40 * length, 42 * length
    shade(axes, state, first, last)
    inside = (at >= first) & (at < last)
    axes.plot(times[first:last], power[first:last], "k", lw=1.2, label="true power")
    axes.plot(times[first:last], seen[first:last], "C3", lw=1, ls="--", label="behind the sensor's low-pass")
    axes.plot(times[at[inside]], readings[inside], "C3o", ms=5, label="readings")
    axes.set_xlim(first * STEP_MS, last * STEP_MS)
    save(figure, axes, path)

    figure, axes, path = picture("folded")
    shade(axes, state, 0, length)
    age = (at % length) * STEP_MS
    axes.plot(age, readings, "C3o", ms=3, alpha=0.7, label=f"all {len(at)} readings")
    axes.plot(times[:length], power[:length], "k", lw=1.2, label="true power")
    axes.plot(times[:length], watts[state[:length]], "C0", lw=2.5, alpha=0.6, label="model")
    axes.plot(times[:length], expected[10 * length : 11 * length], "C0", lw=1, ls=":",
              label="what the sensor would see")  # fmt: skip
    axes.set_xlim(0, length * STEP_MS)
    save(figure, axes, path)

    figure, axes, path = picture("residual")
    shade(axes, state, first, last)
    near = (at >= first - 300) & (at < last + 300)
    left = readings[near] - expected[at[near]]
    axes.axhline(0.0, color="C0", lw=1.5, label="model")
    axes.fill_between(times[at[near]], left, color="C3", alpha=0.25, label="joules that the model lacks")
    axes.plot(times[at[near]], left, "C3o-", ms=5, lw=1, label="residual of the readings")
    axes.set(xlim=(first * STEP_MS, last * STEP_MS), ylabel="W above the model")
    save(figure, axes, path)

    state = states((14.0, 22.0, 36.0, 8.0), 60)  # 80 ms, four readings
    length = len(state) // 60
    at = np.arange(10 * length + round(7 / STEP_MS), len(state), round(EVERY_MS / STEP_MS))
    seen = low_passed(POWER_W[state])
    later = np.roll(state, round(4 / STEP_MS))
    other_w = fit(later, seen[at], at)
    figure, axes, path = picture("in-step")
    shade(axes, state, 0, length)
    axes.plot((at % length) * STEP_MS, seen[at], "C3o", ms=6, label=f"all {len(at)} readings")
    axes.plot(times[:length], POWER_W[state[:length]], "k", lw=1.2, label="true power")
    axes.plot(times[:length], other_w[later[:length]], "C4", lw=2, label="another power, 4 ms later")
    axes.plot(times[:length], low_passed(other_w[later])[20 * length : 21 * length], "C4", lw=1, ls=":",
              label="what the sensor would see")  # fmt: skip
    axes.set_xlim(0, length * STEP_MS)
    save(figure, axes, path)


if __name__ == "__main__":
    main()
