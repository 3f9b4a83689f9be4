"""Phases out of marks."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_client.signals.pairing import (
    MODEL_BY_CLASS,
    SAMPLES,
    Kinds,
    PhaseSpans,
    add_iterations,
    name_models,
    pair_marks,
    spread_counts,
    take_counts,
)
from powerd_core.marks import Mark

NAMES = {0: "training", 1: "forward", 2: "backward"}


def pair(marks, last_ns=None, cuts=None):
    phases = PhaseSpans()
    pair_marks(phases, marks, process=0, kinds={k: k for k in NAMES}, names=NAMES, last_ns=last_ns, cuts=cuts or {})
    phases.sort()
    return phases


def rows(phases):
    return list(zip(phases.kind, phases.begin_ns, phases.end_ns, phases.parent, phases.cut, strict=True))


def b(kind, t, thread=0):
    return Mark(kind, True, thread, t)


def e(kind, t, thread=0):
    return Mark(kind, False, thread, t)


def test_an_end_without_a_begin_is_reported_once():
    phases = pair([e(1, 1), b(0, 2), e(1, 3), e(0, 4)])
    assert rows(phases) == [(0, 2, 4, -1, 0)]
    assert phases.problems == [(1, "phase 'forward' was ended without being begun in its thread")]


def test_an_inner_phase_left_open_is_cut_where_the_outer_one_ends():
    phases = pair([b(0, 1), b(1, 2), e(0, 7)])
    assert rows(phases) == [(0, 1, 7, -1, 0), (1, 2, 7, 0, 1)]
    assert "not ended before it" in phases.problems[0][1]


def test_a_mark_that_cuts_ends_its_kind_and_what_is_inside_without_a_word():
    phases = pair([b(0, 1), b(1, 2), b(2, 3), b(9, 5), b(1, 6), e(1, 7), e(0, 8)], cuts={9: 1})
    assert rows(phases) == [(0, 1, 8, -1, 0), (1, 2, 5, 0, 1), (2, 3, 5, 1, 1), (1, 6, 7, 0, 0)]
    assert phases.problems == []


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 1)), max_size=40))
def test_whatever_is_marked_the_phases_nest(steps):
    marks = [Mark(kind, begins, thread, t + 1) for t, (kind, begins, thread) in enumerate(steps)]
    phases = pair(marks)
    assert len(phases.begin_ns) == sum(m.is_begin for m in marks)
    assert phases.begin_ns == sorted(phases.begin_ns)
    for i, parent in enumerate(phases.parent):
        assert phases.begin_ns[i] <= phases.end_ns[i]
        if parent >= 0:
            assert parent < i
            assert phases.begin_ns[parent] <= phases.begin_ns[i]
            assert phases.end_ns[i] <= phases.end_ns[parent]


# -- iterations and models that nobody marked

LETTERS = {"d": "data", "f": "forward", "b": "backward", "g": "gradient", "u": "update", "e": "evaluation"}
LETTERS |= {
    "F": "forward",
    "B": "backward",
    "U": "update",
    "V": "update",
}  # with attributes, of another model or optimizer
LETTERS |= {"E": "epoch", "S": "train_step", "I": "iteration", "x": "x"}


def tree(text, attributes=None, also=""):
    """The phases of a text such as ``E[f b u]`` as the run file has them, in the same form; ``!`` cuts one. ``also``:
    kinds that are named and never marked."""
    kinds, spans, marks, cuts, open_phases = Kinds(), PhaseSpans(), [], {}, []

    def end(letter, is_cut=False):
        number = numbers[letter]
        cuts[100 + number] = number
        marks.append(e(100 + number if is_cut else number, len(marks) + 1))

    numbers = {}
    for letter in dict.fromkeys([*(c for c in text if c in LETTERS), *also]):
        name = LETTERS[letter]
        own = (attributes or {}).get(letter, {})
        numbers[letter] = kinds.number({"name": name, "attributes": own, "timing": "host"})
    for token in text.replace("[", "[ ").replace("]", " ]").split():
        if token == "]":
            end(open_phases.pop())
        else:
            marks.append(b(numbers[token[0]], len(marks) + 1))
            if token.endswith("["):
                open_phases.append(token[0])
            else:
                end(token[0], token.endswith("!"))
    own = {number: number for number in numbers.values()}
    pair_marks(spans, marks, process=0, kinds=own, names={n: str(n) for n in own}, cuts=cuts)
    spans.sort()
    add_iterations(spans, kinds)
    name_models(spans, kinds)

    def children(parent):
        return " ".join(shown(i) for i, above in enumerate(spans.parent) if above == parent)

    def shown(i):
        entry, inner = kinds.entries[spans.kind[i]], children(i)
        letters = [k for k, name in LETTERS.items() if name == entry["name"]]
        letter = next(
            (k for k in letters if (attributes or {}).get(k) == entry["attributes"] and k.isupper()), letters[0]
        )
        own = "".join(f":{value}" for _, value in sorted(entry["attributes"].items()))
        return letter + own + "!" * spans.cut[i] + (f"[{inner}]" if inner else "")

    assert spans.begin_ns == sorted(spans.begin_ns)
    for i, parent in enumerate(spans.parent):
        assert parent < i
        if parent >= 0:
            assert spans.begin_ns[parent] <= spans.begin_ns[i] <= spans.end_ns[i] <= spans.end_ns[parent]
    return children(-1), spans


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("f b u f b u", "I[f b u] I[f b u]"),
        ("d f b u d f b u d!", "I[d f b u] I[d f b u d!]"),
        ("f b f b u f b f b u", "I[f b] I[f b u] I[f b] I[f b u]"),  # accumulated gradients
        ("f f b u u f f b u u", "I[f f b u u] I[f f b u u]"),  # two views of a batch, two optimizers
        ("f g b u f g b u", "I[f g b u] I[f g b u]"),
        ("f g f g", "I[f g] I[f g]"),
        ("f b u e e f b u e", "I[f b u] e e I[f b u] e"),
        ("d e d e d f b u", "d e d e I[d f b u]"),
        ("d f e b u d f e b u", "I[d f e b u] I[d f e b u]"),
        ("f x b u x f x b u", "I[f x b u] x I[f x b u]"),
        ("d x f b u d x f b u", "I[d x f b u] I[d x f b u]"),
        ("f b u f! f b u! f b", "I[f b u] I![f!] I![f b u!] I[f b]"),
        ("E[f b u f b u] E[f b u]", "E[I[f b u] I[f b u]] E[I[f b u]]"),
        ("S[f b f b u] S[f b u]", "S[f b f b u] S[f b u]"),
        ("x[f b u] x[f b u]", "x[f b u] x[f b u]"),
        ("d I[f b u] f b u", "d I[f b u] f b u"),
        ("f f e f", "f f e f"),
        ("x u d", "x u d"),
    ],
)
def test_iterations_are_what_lies_from_forward_to_forward(marked, expected):
    assert tree(marked)[0] == expected


def test_an_iteration_lasts_to_the_next_one_and_the_last_to_its_last_pass():
    _, spans = tree("f b u f b u e f b u")
    iterations = [i for i, parent in enumerate(spans.parent) if parent == -1 and spans.parent.count(i)]
    edges = [(spans.begin_ns[i], spans.end_ns[i]) for i in iterations]
    assert edges == [(1, 7), (7, 12), (15, 20)]


A, B = {MODEL_BY_CLASS: "A"}, {MODEL_BY_CLASS: "B"}


@pytest.mark.parametrize(
    ("marked", "attributes", "expected"),
    [
        ("f b u", dict.fromkeys("fbu", A), "I:A[f b u]"),
        ("f b u", {letter: {**A, "batch_size": 4} for letter in "fbu"}, "I:4:A[f:4 b:4 u:4]"),
        ("d I[f b u]", dict.fromkeys("fbu", A), "d I:A[f b u]"),
        ("I[f b u]", {"I": {"model": "mine"}, **dict.fromkeys("fbu", A)}, "I:mine[f b u]"),
        ("I[f e b]", {"f": A, "e": B}, "I[f:A e:B b]"),
        ("E[f b f b] e", {"f": A, "b": A, "e": B}, "E:A[I[f b] I[f b]] e:B"),
        ("I[f e]", {"f": A, "e": {"model": "named"}}, "I[f:A e:named]"),
    ],
)
def test_a_model_that_nobody_named_is_that_of_the_phase_around(marked, attributes, expected):
    assert tree(marked, attributes)[0] == expected


GAN = {"f": {"model": "D"}, "F": {"model": "G"}, "b": {"model": "D"}, "u": {"model": "D"}}
GAN |= {"B": {"model": "G"}, "U": {"model": "G"}}


def in_letters(marked, attributes, also=""):
    """The tree without the attributes."""
    return re.sub(r"(:[^\s\[\]!:]+)+", "", tree(marked, attributes, also)[0])


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("f b F f b u f B U " * 3, "I[f b F f b u f B U] " * 3),  # D on real and generated data, then G
        ("f b e f b u F f B U " * 3, "I[f b e f b u F f B U] " * 3),  # generated without gradients
        ("d f b F f b u f B U " * 3 + "d!", "I[d f b F f b u f B U] " * 2 + "I[d f b F f b u f B U d!]"),
        ("f b u f b u f b u F f B U " * 3, "I[f b u] I[f b u] I[f b u F f B U] " * 3),  # G every third batch
        ("f b u " * 4 + "F B U " * 4, "I[f b u] " * 4 + "I[F B U] " * 4),  # two trainings, one after the other
        ("f b F f b u f B U f b", "I[f b F f b u f B U] I![f b]"),  # ended in the middle of a step
        ("E[f b F f b u f B U f b F f b u f B U] " * 2, "E[I[f b F f b u f B U] I[f b F f b u f B U]] " * 2),
        ("f b F f b u f B U e f b F f b u f B U", "I[f b F f b u f B U] e I[f b F f b u f B U]"),
    ],
)
def test_optimizers_that_take_turns_share_an_iteration(marked, expected):
    assert in_letters(marked.strip(), GAN) == expected.strip()


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("f b F f b f b " * 3, "I[f b F f b f b] " * 3),
        ("f b F f b f b f b F f b", "I[f b] I[F f b] I[f b] I[f b] I[F f b]"),  # not once more
        ("f b f b f b", "I[f b] I[f b] I[f b]"),
        ("f F b f F b", "I[f F b] I[f F b]"),
    ],
)
def test_models_without_optimizers_share_what_they_repeat(marked, expected):
    assert in_letters(marked.strip(), GAN) == expected.strip()


TWO = {"u": {"optimizer": 0}, "U": {"optimizer": 1}}


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("f b u U f b u U", "I[f b u U] I[f b u U]"),
        ("f b f b u U f b f b u U", "I[f b] I[f b u U] I[f b] I[f b u U]"),  # accumulated gradients
        ("f b u f b U f b u f b U", "I[f b u f b U] I[f b u f b U]"),
    ],
)
def test_two_optimizers_of_one_model(marked, expected):
    assert in_letters(marked, TWO) == expected


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("u[f b f b] u[f b]", "I[u[f b f b]] I[u[f b]]"),
        ("d u[f b f b] d u[f b] d!", "I[d u[f b f b]] I[d u[f b] d!]"),
        ("f b u[f b] f b u[f b]", "I[f b u[f b]] I[f b u[f b]]"),  # sharpness-aware methods
        ("f u[f b] f u[f b]", "I[f u[f b]] I[f u[f b]]"),  # the loss before the step, to log it
        ("E[u[f b] u[f b]] e", "E[I[u[f b]] I[u[f b]]] e"),
        ("S[u[f b f b]] S[u[f b]]", "S[u[f b f b]] S[u[f b]]"),
    ],
)
def test_an_update_that_runs_its_closure_is_one_step(marked, expected):
    assert tree(marked)[0] == expected


def test_passes_of_an_optimizer_that_is_never_stepped_are_no_iterations():
    assert tree("f b f b f b f b")[0] == "I[f b] I[f b] I[f b] I[f b]"
    assert tree("f b f b f b f b", also="u")[0] == "f b f b f b f b"


# ---- passes of another size


def sized(phases):
    """The phases ``(name, batch size, samples, parent)``, with the samples that they have in the run file."""
    spans, kinds = PhaseSpans(), Kinds()
    for number, (name, batch, samples, parent) in enumerate(phases):
        attributes = {"batch_size": batch, SAMPLES: samples}
        own = {key: value for key, value in attributes.items() if value is not None}
        kind = kinds.number({"name": name, "attributes": own, "timing": "host"})
        spans.begin(Mark(kind, True, 1, 10 * number + 1), kind, parent, 0, 0)
        spans.end_ns[-1], spans.cut[-1] = 10 * number + 5, 0
    take_counts(spans, kinds)
    for kind in spans.kind:
        assert SAMPLES not in kinds.entries[kind]["attributes"]
    add_iterations(spans, kinds)
    spread_counts(spans, kinds)
    return [(kinds.entries[kind]["name"], n) for kind, n in zip(spans.kind, spans.samples, strict=True)]


def step(samples, parent=-1):
    return [("forward", 64, samples, parent), ("backward", 64, samples, parent), ("update", 64, None, parent)]


def test_passes_of_all_sizes_are_one_kind_and_a_step_has_the_samples_of_its_pass():
    own = [("iteration", 0), ("forward", 0), ("backward", 0), ("update", 0)]
    last = [("iteration", 16), ("forward", 16), ("backward", 16), ("update", 16)]
    evaluation = ("evaluation", 1000, 784, -1)
    assert sized([*step(None), *step(16), evaluation]) == [*own, *last, ("evaluation", 784)]
    assert sized([*step(16), *step(None)]) == [*last, *own]


def test_a_step_of_ones_own_has_the_samples_of_its_first_pass_unless_it_states_another_batch():
    assert sized([("train_step", 64, None, -1), *step(16, 0)])[0] == ("train_step", 16)
    assert sized([("train_step", None, None, -1), *step(16, 0)])[0] == ("train_step", 16)
    assert sized([("train_step", 128, None, -1), *step(16, 0)])[0] == ("train_step", 0)
    epoch = sized([("epoch", 64, None, -1), *step(16, 0), *step(None, 0)])
    assert dict(epoch)["epoch"] == 0
    assert [n for name, n in epoch if name == "update"] == [16, 0]


def counted(phases):
    """The tokens of each phase: name, tokens that it states, parent, in the order of time."""
    spans, kinds = PhaseSpans(), Kinds()
    for number, (name, tokens, parent) in enumerate(phases):
        own = {} if tokens is None else {"tokens": tokens}
        kind = kinds.number({"name": name, "attributes": own, "timing": "host"})
        spans.begin(Mark(kind, True, 1, 10 * number + 1), kind, parent, 0, 0)
        spans.end_ns[-1], spans.cut[-1] = 10 * number + 5, 0
    take_counts(spans, kinds)
    assert all("tokens" not in kinds.entries[kind]["attributes"] for kind in spans.kind)
    add_iterations(spans, kinds)
    spread_counts(spans, kinds)
    return [(kinds.entries[kind]["name"], n) for kind, n in zip(spans.kind, spans.tokens, strict=True)]


def test_phases_have_the_tokens_that_they_state():
    assert counted([("prefill", 600, -1), ("decode", 4, -1), ("decode", 3, -1), ("other", None, -1)]) == [
        ("prefill", 600), ("decode", 4), ("decode", 3), ("other", 0),
    ]  # fmt: skip


def test_a_step_has_the_tokens_of_its_passes_and_its_parts_those_of_the_one():
    whole = [("iteration", 512), ("forward", 512), ("backward", 512), ("update", 512)]
    assert counted([("forward", 512, -1), ("backward", 512, -1), ("update", None, -1), ("evaluation", None, -1)]) == [
        *whole, ("evaluation", 0),
    ]  # fmt: skip
    by_hand = [("iteration", 512, -1), ("forward", None, 0), ("backward", None, 0), ("update", None, 0)]
    assert counted(by_hand) == whole
    two = [("train_step", None, -1), ("forward", 300, 0), ("forward", 200, 0), ("backward", None, 0)]
    assert counted(two) == [("train_step", 500), ("forward", 300), ("forward", 200), ("backward", 0)]
    unknown = [("train_step", None, -1), ("forward", 300, 0), ("forward", None, 0), ("evaluation", 9, 0)]
    assert counted(unknown) == [("train_step", 0), ("forward", 300), ("forward", 0), ("evaluation", 9)]


def test_an_attribute_of_that_name_that_counts_nothing_is_an_attribute():
    spans, kinds = PhaseSpans(), Kinds()
    for value in ("many", True, 0, -3, 2.5):
        kinds.number({"name": "forward", "attributes": {SAMPLES: value}, "timing": "host"})
    take_counts(spans, kinds)
    assert spans.samples == []
