"""Prefill and decode of generations: a loop that asks for its inputs as Hugging Face's does, and theirs where it is
installed."""

import copy
import inspect
import threading
import types

import pytest
import torch
from torch import nn

from powerd_client.callbacks.generation import _Unended, watch_generate
from powerd_client.signals.pairing import MODEL_BY_CLASS
from powerd_core.errors import ConfigError
from support.tape import TapedMeter

END, PAD = 2, 0


class Generator(nn.Module):
    """Asks for the input of each pass as Hugging Face's loop does. What is said comes from a list, one a pass."""

    def __init__(self, said=((5, 6), (7, 8), (9, 4))):
        super().__init__()
        self.layer, self.said = nn.Linear(1, 1), said
        self.generation_config = types.SimpleNamespace(eos_token_id=[END], pad_token_id=PAD)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, cache=None):
        ids = input_ids if cache is None else input_ids[:, -1:]
        return {"input_ids": ids, "attention_mask": attention_mask, "past_key_values": cache}

    def generate(self, input_ids, attention_mask=None, **options):
        accepted = inspect.signature(self.prepare_inputs_for_generation).parameters
        assert set(accepted) == {"input_ids", "attention_mask", "cache"}, "as Hugging Face looks at it"
        cache = None
        for column in self.said:
            self.prepare_inputs_for_generation(input_ids, attention_mask, cache=cache)
            if column is None:
                raise ZeroDivisionError
            input_ids, cache = torch.cat([input_ids, torch.tensor(column)[:, None]], 1), "kept"
        return input_ids


@pytest.fixture
def meter():
    with TapedMeter() as meter:
        yield meter


def steps(meter):
    """Each phase as text: its name, batch size and tokens; those that were cut with ``!``."""
    spans, _ = meter.tape.phases()
    keys = {number: key for key, number in meter.tape.kinds.items()}
    texts = []
    for kind, cut in zip(spans.kind, spans.cut, strict=True):
        name, own = keys[kind][0], dict(keys[kind][1])
        texts.append(f"{name}:{own.get('batch_size')}={own.get('tokens')}" + "!" * cut)
    return " ".join(texts)


IDS = torch.tensor([[3, 3, 4], [5, 5, 6]])


def test_the_first_pass_is_the_prefill_and_each_further_one_a_decode(meter):
    model = Generator()
    watch = watch_generate(model, meter)
    assert model.generate(IDS).shape == (2, 6)
    assert steps(meter) == "prefill:2=6 decode:2=2 decode:2=2"
    model.generate(IDS[:, :2], torch.tensor([[0, 1], [1, 1]]))
    assert steps(meter).split()[3:] == ["prefill:2=3", "decode:2=2", "decode:2=2"]
    watch.remove()
    model.generate(IDS)
    assert len(meter.tape.marks) == 12
    assert "prepare_inputs_for_generation" not in vars(model)


def test_a_sequence_that_has_ended_counts_no_more(meter):
    model = Generator(said=((5, END), (6, PAD), (END, PAD), (PAD, PAD)))
    watch_generate(model, meter)
    model.generate(IDS)
    assert steps(meter) == "prefill:2=6 decode:2=1 decode:2=1 decode:2=None"


def test_without_an_end_token_padding_is_a_token(meter):
    model = Generator(said=((5, PAD), (6, 7)))
    watch_generate(model, meter)
    model.generate(IDS, eos_token_id=None)
    assert steps(meter) == "prefill:2=6 decode:2=2"


def test_a_generation_that_raises_cuts_its_phase_and_leaves_the_model_as_it_was(meter):
    model = Generator(said=((5, 6), None))
    watch_generate(model, meter)
    with pytest.raises(ZeroDivisionError):
        model.generate(IDS)
    assert steps(meter) == "prefill:2=6 decode:2=2!"
    assert "prepare_inputs_for_generation" not in vars(model)
    model.said = ((5, 6),)
    model.generate(IDS)
    assert steps(meter).endswith(" prefill:2=6")


class Segments(Generator):
    """Generates piece by piece, as Whisper does: by ``generate`` of the class below."""

    def generate(self, input_ids, **options):
        for piece in input_ids.split(1):
            super().generate(piece, **options)


def test_generations_within_each_other_have_a_prefill_each(meter):
    model = Segments(said=((5,), (6,)))
    watch_generate(model, meter)
    model.generate(IDS)
    assert steps(meter) == " ".join(["prefill:1=3 decode:1=1"] * 2)


def test_another_model_inside_a_step_lies_inside_its_phase(meter):
    outer, helper = Generator(said=((5, 6), (7, 8))), Generator(said=((1, 1),))
    own = outer.prepare_inputs_for_generation

    def prepare(input_ids, attention_mask=None, cache=None):
        if cache is not None:
            helper.generate(IDS)
        return own(input_ids, attention_mask, cache)

    outer.prepare_inputs_for_generation = prepare
    for model, name in ((outer, "a"), (helper, "b")):
        watch_generate(model, meter, model=name)
    outer.generate(IDS)
    assert meter.tree() == "prefill:2:a:6[prefill:2:b:6] decode:2:a:2"
    assert outer.prepare_inputs_for_generation is prepare


def test_threads_generate_with_one_model_at_once(meter):
    model, both = Generator(), threading.Barrier(2)
    own = model.prepare_inputs_for_generation

    def prepare(input_ids, attention_mask=None, cache=None):
        both.wait(10)
        return own(input_ids, attention_mask, cache)

    model.prepare_inputs_for_generation = prepare
    watch_generate(model, meter)
    threads = [threading.Thread(target=model.generate, args=(IDS,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(steps(meter).split()) == ["decode:2=2"] * 4 + ["prefill:2=6"] * 2
    assert model.prepare_inputs_for_generation is prepare


def test_a_copy_is_not_watched_and_a_model_is_called_by_its_class(meter):
    model = Generator()
    watch_generate(model, meter)
    copy.deepcopy(model).generate(IDS)
    assert steps(meter) == ""
    model.generate(IDS)
    assert {dict(own)[MODEL_BY_CLASS] for name, own in meter.tape.kinds if name} == {"Generator-2"}


def test_a_compiled_model_is_the_one_inside_it(meter):
    model = Generator()
    watch_generate(torch.compile(model, backend="eager"), meter)
    model.generate(IDS)
    assert steps(meter) == "prefill:2=6 decode:2=2 decode:2=2"


def test_inputs_that_nobody_understands_stop_no_generation(meter, capsys):
    model = Generator()
    model.prepare_inputs_for_generation = lambda input_ids, attention_mask=None, cache=None: {"what": input_ids}
    watch_generate(model, meter)
    assert model.generate(IDS).shape == (2, 6)
    assert steps(meter) == ""
    assert "is not marked" in capsys.readouterr().err


def test_what_cannot_generate_is_refused(meter):
    with pytest.raises(ConfigError, match="not Linear"):
        watch_generate(nn.Linear(1, 1), meter)


def test_counts_of_a_gpu_are_taken_when_they_have_come():
    class OnGpu:
        """A count that a GPU works out."""

        def __init__(self):
            self.has_come = False

    first, second = OnGpu(), OnGpu()
    unended = _Unended(END, PAD)
    unended._on_way = [(torch.tensor(7), lambda: first.has_come), (torch.tensor(6), lambda: second.has_come)]
    assert unended.latest(8) == 8
    first.has_come = True
    assert unended.latest(8) == 7
    second.has_come = True
    assert unended.latest(8) == unended.latest(8) == 6


# ---- Hugging Face's own


@pytest.fixture
def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    of = transformers.GPT2Config(vocab_size=50, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=1,
                                 eos_token_id=END, pad_token_id=PAD)  # fmt: skip
    return transformers.GPT2LMHeadModel(of).eval()


PROMPT = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "prefill:2=10 decode:2=2 decode:2=2"),
        ({"attention_mask": MASK}, "prefill:2=8 decode:2=2 decode:2=2"),
        ({"do_sample": True, "num_return_sequences": 3}, "prefill:6=30 decode:6=6 decode:6=6"),
        ({"num_beams": 2}, "prefill:4=20 decode:4=4 decode:4=4"),
        ({"use_cache": False}, "prefill:2=10 decode:2=2 decode:2=2"),
        ({"cache_implementation": "static"}, "prefill:2=10 decode:2=2 decode:2=2"),
    ],
)
def test_generate_of_hugging_face(gpt2, meter, options, expected):
    from powerd_client.callbacks.transformers import watch_generate

    watch_generate(gpt2, meter)
    gpt2.generate(input_ids=PROMPT, **({"max_new_tokens": 3, "do_sample": False, "eos_token_id": None} | options))
    assert steps(meter) == expected


def test_sequences_of_hugging_face_that_end_early(gpt2, meter):
    """The decodes count exactly the tokens that are no padding, but for the first of each sequence."""
    watch_generate(gpt2, meter)
    torch.manual_seed(3)
    ends = torch.arange(40, 50)
    out = gpt2.generate(
        input_ids=PROMPT.repeat(3, 1), max_new_tokens=40, do_sample=True, top_k=0, eos_token_id=ends.tolist()
    )
    decoded = [int(step.partition("=")[2]) for step in steps(meter).split() if step.startswith("decode")]
    new = out[:, PROMPT.shape[1] :]
    ended = torch.isin(new, ends).int().cumsum(1)
    alive = torch.cat([torch.ones(6, 1), 1 - ended[:, :-1].clamp(max=1)], 1)
    assert decoded == [int(n) for n in alive.sum(0)[1:]]
    assert len(set(decoded)) > 1, "sequences end at different steps"


def test_an_encoder_is_in_the_prefill(meter):
    transformers = pytest.importorskip("transformers")
    of = transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
                               decoder_start_token_id=0, eos_token_id=1, pad_token_id=0)  # fmt: skip
    model = transformers.T5ForConditionalGeneration(of).eval()
    watch_generate(model, meter)
    model.generate(input_ids=PROMPT, attention_mask=MASK, max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert steps(meter) == "prefill:2=8 decode:2=2 decode:2=2"


@pytest.mark.parametrize(("mode", "expected"), [(False, [None] * 2), (True, [8, 20]), ("non_padding", [6, 18])])
def test_a_trainers_tokens_are_those_that_it_counts(gpt2, meter, tmp_path, mode, expected):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from powerd_client.callbacks.transformers import PowerdCallback

    def item(length):
        ids = torch.arange(3, 3 + length)
        return {"input_ids": ids, "labels": ids, "attention_mask": (torch.arange(length) > 0).long()}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, max_steps=2, report_to=[], use_cpu=True, seed=0,
        save_strategy="no", disable_tqdm=True, include_num_input_tokens_seen=mode, dataloader_pin_memory=False,
        train_sampling_strategy="sequential",
    )  # fmt: skip
    data = [item(4), item(4), item(10), item(10)]
    trainer = transformers.Trainer(gpt2, arguments, train_dataset=data, callbacks=[PowerdCallback(meter)])
    trainer.train()
    keys = {number: key for key, number in meter.tape.kinds.items()}
    begun = [keys[mark.kind] for mark in meter.tape.marks if mark.is_begin]
    assert [dict(own).get("tokens") for name, own in begun if name == "forward"] == expected
    assert [dict(own).get("tokens") for name, own in begun if name == "backward"] == expected
    assert trainer.state.num_input_tokens_seen == (sum(expected) if mode else 0)
