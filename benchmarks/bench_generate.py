"""Joules of a prompt's token and of a new token, and what watching ``generate`` costs, on a GPU.

A GPT-2 of 24 layers with random weights in bf16 generates 192 tokens behind prompts of 1,024, sixteen at a time. Plain
and watched generations alternate; then 20 watched ones are one phase, whose joules are compared with the driver's
counter. Needs transformers and a CUDA GPU.

    python benchmarks/bench_generate.py

Target: the phase within 1 % of the counter. Exit status 1 when missed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from common import machine, options

from powerd_client import Meter

BATCH, PROMPT, NEW = 16, 1024, 192
MOST_OFF = 0.01


def main() -> int:
    o = options(__doc__, pairs=6, generations=20)
    import pynvml
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from powerd_client.callbacks.generation import watch_generate

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    print(machine(), torch.cuda.get_device_name(0), sep="; ")
    torch.manual_seed(0)
    config = GPT2Config(n_layer=24, n_embd=1024, n_head=16, vocab_size=50304, n_positions=2048)
    model = GPT2LMHeadModel(config).bfloat16().cuda().eval()
    prompts = torch.randint(0, 50000, (BATCH, PROMPT), device="cuda")

    def generate() -> float:
        begun = time.perf_counter()
        with torch.no_grad():
            model.generate(
                prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=NEW, min_new_tokens=NEW,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    generate()
    with tempfile.TemporaryDirectory() as folder, Meter(out=Path(folder) / "generate.h5") as meter:
        watch = watch_generate(model, meter, model="gpt2-medium")
        took: dict[bool, list[float]] = {True: [], False: []}
        for k in range(2 * o.pairs):
            watch.is_removed = bool((k + k // 2) % 2)  # plain, watched, watched, plain
            took[watch.is_removed].append(generate())
        watch.is_removed = False
        cost = statistics.median(took[False]) / statistics.median(took[True]) - 1
        print(f"a generation: plain {statistics.median(took[True]):.2f} s, watched {cost:+.1%}")
        time.sleep(1)
        before_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        with meter.phase("all"):
            for _ in range(o.generations):
                generate()
        time.sleep(0.15)  # the counter's value is 0.1 s old at most
        counted_j = (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before_mj) / 1e3
        whole = meter.energy("all", last_s=None, wait_s=5)
        parts = {name: meter.energy(name, last_s=None) for name in ("prefill", "decode")}
    off = whole.energy_j / counted_j - 1 if whole.energy_j else 1.0
    print(f"{o.generations} generations: {whole}; counter {counted_j:.0f} J (ours {off:+.2%})")
    for name, tokens in (("prefill", BATCH * PROMPT), ("decode", BATCH)):
        if (joules := parts[name].energy_j) is not None:
            print(f"{name}: {joules:.4g} J, {1e3 * joules / tokens:.4g} mJ a token")
    return 0 if abs(off) < MOST_OFF else 1


if __name__ == "__main__":
    sys.exit(main())
