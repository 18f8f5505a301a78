"""Limits of probing: accepted, told and refused exactly at the edge."""

import math

import numpy as np
import pytest
import torch
import xarray as xr

import mechmarkov as mm
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probing.batch import batch_of, draw
from mechmarkov.probing.chunking import MIN_CHUNK_ELEMENTS, chunked, in_chunks_that_fit
from mechmarkov.probing.effects import mean_by_position, positions_in_turn, sequences_for, widest
from mechmarkov.probing.estimated_law import _widened
from mechmarkov.probing.figure import AttentionView
from mechmarkov.probing.nulls import fresh_models, null_band, null_sequences
from mechmarkov.probing.outcome import _check_attention, check_data
from mechmarkov.probing.own_tokens import states_of, tokens_of
from mechmarkov.probing.score import Score, format_null, format_value, standing
from mechmarkov.probing.source_check import unlikely_transition

COIN = mm.Chain(P=[[0.5, 0.5], [0.5, 0.5]])


def config(n_ctx=16, **changes):
    shape = {"n_layers": 1, "d_model": 4, "d_head": 2, "n_heads": 2, "d_vocab": 2, "attn_only": True}
    return DecoderConfig(n_ctx=n_ctx, **shape | changes)


# -- scores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "null", "interval", "word"),
    [
        (0.5, 0.4, (0.4, 0.6), "within"),
        (0.5, 0.4, (0.41, 0.6), "above"),
        (0.5, 0.6, (0.4, 0.6), "within"),
        (0.5, 0.6, (0.4, 0.59), "below"),
        (0.5, (0.1, 0.2, 0.5), None, "within"),
        (0.5, (0.1, 0.2, 0.49), None, "above"),
        (0.5, (0.5, 0.6, 0.7), None, "within"),
        (0.5, (0.51, 0.6, 0.7), None, "below"),
        (0.5, (0.1, 0.2, 0.45), (0.4, 0.6), "within"),
        (0.5, 0.4, None, ""),
        (0.5, None, (0.4, 0.6), ""),
        (True, (0.1, 0.2, 0.3), None, ""),
        ("L0H0", (0.1, 0.2, 0.3), None, ""),
        (None, (0.1, 0.2, 0.3), None, ""),
    ],
)
def test_a_score_stands_outside_of_its_null(value, null, interval, word):
    reason = "none" if value is None else None
    assert standing(Score(value, "nats", null=null, interval=interval, reason=reason)) == word


def test_numbers_are_told_in_four_digits():
    score = Score(0.1234567, "nats", null=(0.1111111, 0.2222222, 0.3333333))
    assert (format_value(score), format_value(score, 2)) == ("0.1235", "0.12")
    assert format_null(score) == "0.2222 (0.1111 to 0.3333)"
    assert format_null(Score(0.5, "nats", null=0.1234567)) == "0.1235"
    assert [format_value(Score(value, "")) for value in (True, False, 3, "a")] == ["yes", "no", "3", "a"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 2**1024])
def test_a_number_that_is_not_finite_is_none(value):
    score = Score(value, "nats")
    assert score.value is None
    assert score.reason.startswith("the value is ")
    largest = 1.7976931348623157e308
    assert [Score(x, "").value for x in (largest, -largest)] == [largest, -largest]
    assert Score(1.0, "", null=math.inf, interval=(0.0, math.nan)).interval is None
    assert Score(1.0, "", null=(0.0, 1.0, math.inf)).null is None


@pytest.mark.parametrize(
    ("score", "drawn", "interval"),
    [
        (Score(0.5, "nats", interval=(0.0, 1.0)), (0.4, 0.6), (0.0, 1.0 + 0.85)),
        (Score(0.5, "nats", interval=(-0.1, 1.0)), (0.4, 0.6), None),
        (Score(0.9, "probability", interval=(0.8, 0.95)), (0.8, 1.0), (0.0, 1.0)),
    ],
)
def test_a_wider_interval_stays_where_values_are(score, drawn, interval):
    low, high = _widened(score, [Score(value, score.unit) for value in drawn]).interval
    error = 12.706204736174698 * np.std(drawn, ddof=1)  # Student's t of one degree of freedom
    ends = (
        score.value - math.hypot(score.value - score.interval[0], error),
        score.value + math.hypot(score.interval[1] - score.value, error),
    )
    assert low == pytest.approx(0.0 if score.interval[0] >= 0 else ends[0])
    assert high == pytest.approx(min(1.0, ends[1]) if score.unit == "probability" else ends[1])
    assert interval is None or low == interval[0]


@pytest.mark.parametrize("bias", [-3.0, 0.0, 3.0])
def test_an_interval_reaches_against_its_bias(bias):
    """Draws that lie higher push the lower end down, and lower ones the upper end up; no end moves in."""
    score = Score(50.0, "nats", interval=(46.0, 54.0))
    low, high = _widened(score, [Score(50.0 + bias + off, "nats") for off in (-0.1, 0.1)]).interval
    reach = math.hypot(4.0, 12.706204736174698 * 0.1 * math.sqrt(2))
    assert low == pytest.approx(50 - reach - max(bias, 0))
    assert high == pytest.approx(50 + reach + max(-bias, 0))


def test_a_bias_is_told_beyond_half_the_error():
    def law(shift):
        score = Score(0.5, "nats", interval=(0.4, 0.6))
        return _widened(score, [Score(0.5 + shift - 0.1, "nats"), Score(0.5 + shift + 0.1, "nats")]).law

    error = 12.706204736174698 * 0.1 * math.sqrt(2)
    assert law(0.49 * error) == "estimated: ± 1.797 over 2 draws"
    assert law(0.51 * error).endswith("draws, which show a bias of 0.9164")
    assert law(-0.51 * error).endswith("draws, which show a bias of −0.9164")
    assert _widened(Score(True, ""), [Score(True, ""), Score(False, "")]).law.endswith("same in 1 of 2 draws")
    assert _widened(Score(0.5, ""), [Score(0.5, "")]).law == "estimated"
    assert _widened(Score(0.5, ""), [Score(0.5, "")] * 2) == Score(0.5, "")


# -- what is drawn -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_ctx", "models", "sequences"),
    [
        (16, 1, 512),  # 4096 would give 65 536 predictions
        (128, 1, 512),
        (129, 1, 508),
        (256, 1, 256),
        (2048, 1, 64),  # 32 would
        (16, 2**26 // (16 * 2) // 100, 100),  # of 2^26 probabilities
        (16, 2**26, 1),
    ],
)
def test_as_many_sequences_are_drawn_as_fit(n_ctx, models, sequences):
    batch = draw(COIN, Objective(), config(n_ctx), seed=0, models=models)
    assert tuple(batch.tokens.shape) == (sequences, n_ctx)


@pytest.mark.parametrize(("n_ctx", "sequences"), [(16, 2048), (64, 1024), (256, 256), (2048, 64)])
def test_more_sequences_are_drawn_where_each_has_a_chain(n_ctx, sequences):
    batch = draw(mm.DirichletChains(n_states=2), Objective(), config(n_ctx), seed=0)
    assert tuple(batch.tokens.shape) == (sequences, n_ctx)


def test_a_model_read_at_its_end_sees_512():
    assert len(draw(COIN, Objective(read="last"), config(2048), seed=0).tokens) == 512


@pytest.mark.parametrize(
    ("states", "objective", "words"),
    [
        (np.zeros((1, 17), int), Objective(), ""),
        (np.zeros((1, 18), int), Objective(), "expected (sequences, 17) or fewer states, at least 2"),
        (np.zeros((1, 2), int), Objective(), ""),
        (np.zeros((1, 1), int), Objective(), "expected (sequences, 17) or fewer states, at least 2"),
        (np.zeros((0, 17), int), Objective(), "expected (sequences, 17)"),
        (np.zeros(17, int), Objective(), "expected (sequences, 17)"),
        (np.zeros((1, 17), int), Objective(read="last"), ""),
        (np.zeros((1, 16), int), Objective(read="last"), "expected (sequences, 17)"),
        (np.ones((1, 17), int), Objective(), ""),
        (np.full((1, 17), 2), Objective(), "tokens run from 2 to 2, expected states 0 to 1"),
        (np.full((1, 17), -1), Objective(), "tokens run from -1 to -1, expected states 0 to 1"),
        (np.zeros((1, 17)), Objective(), "tokens are torch.float64, expected integers"),
        (np.zeros((1, 17), bool), Objective(), "tokens are torch.bool, expected integers"),
        (np.zeros((1, 17), complex), Objective(), "tokens are torch.complex128, expected integers"),
    ],
)
def test_sequences_are_as_long_as_the_context(states, objective, words):
    if words:
        with pytest.raises(ValueError, match=r"^tokens ") as error:
            batch_of(states, 2, objective, config())
        assert words in str(error.value)
    else:
        assert batch_of(states, 2, objective, config()).states.shape == states.shape


def test_a_window_reaches_so_many_back():
    """Position 3 sees itself and as many before it as the window says; of a beginning token one further."""
    states = np.zeros((1, 6), int)
    plain = batch_of(states, 2, Objective(), config(5))
    begun = batch_of(states, 2, Objective(bos=True), config(6, d_vocab=3))
    assert plain.visible(None)[3].tolist() == [True] * 4 + [False]
    for batch in (plain, begun):
        assert batch.visible(2)[3].tolist() == [False, True, True, True, False]
        assert batch.visible(0)[3].tolist() == [False, False, False, True, False]
        assert (batch.seen(None), batch.seen(2), batch.seen(9)) == (slice(0, 5), slice(2, 5), slice(0, 5))
        assert batch.parent_lag == 0
    assert plain.extra_visible(None).tolist() == [False] * 5
    assert begun.extra_visible(None).tolist() == [True] * 5
    assert begun.extra_visible(3).tolist() == [True, True, True, False, False]
    assert (plain.first, begun.first, begun.keys) == (0, 1, slice(1, 6))
    np.testing.assert_allclose(plain.reach, [1, 1, 0.8, 0.6, 0.4, 0.2])
    np.testing.assert_allclose(begun.reach, [1, 1, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize(
    ("length", "sequences"), [(1, 64), (64, 64), (65, 63), (512, 8), (513, 8), (455, 9), (10_000, 8)]
)
def test_nulls_see_4096_tokens(length, sequences):
    assert null_sequences(length) == sequences


def test_a_null_has_the_inner_95_percent():
    low, middle, high = null_band(np.append(np.arange(1001.0), [np.nan, np.inf]))
    assert (low, middle, high) == pytest.approx((25.0, 500.0, 975.0))
    assert null_band(np.array([np.nan])) is None


def test_fresh_models_of_a_zero_start_are_small():
    run = mm.Run.from_model(HookedDecoder(config(d_model=64, d_head=32)), source=COIN)
    drawn = fresh_models(run, range(4)).state_dict()["blocks.0.attn.W_Q"]
    assert float(drawn.std()) == pytest.approx(0.02, rel=0.05)


def test_widths_of_an_activation_are_the_largest():
    assert widest(config(), 12) == widest(config(), 1) == 2 * 3 * 4
    assert widest(config(), 13) == 2 * 13


def test_interventions_see_eight_thousand_tokens():
    run = mm.Run.from_model(HookedDecoder(config(64)), source=COIN)
    assert len(sequences_for(mm.Subject.of(run, sequences=300)).tokens) == 8192 // 64
    assert len(sequences_for(mm.Subject.of(run, sequences=20)).tokens) == 20


def test_positions_are_taken_in_turn():
    order = positions_in_turn(40, 16)
    assert sorted(order[:16].tolist()) == list(range(16))
    assert torch.equal(order[:16], order[16:32])
    assert positions_in_turn(6, 8).tolist() == [0, 5, 2, 7, 4, 1]  # by the fraction of i · 0.618…
    values = np.array([[1.0, 3.0, 5.0]])
    np.testing.assert_allclose(mean_by_position(values, np.array([1, 1, 0]), 2), [[5.0, 2.0]])


@pytest.mark.parametrize(
    ("elements", "shapes"),
    [
        (10**9, [(3, 4)]),
        (3 * 64 * 4, [(3, 4)]),
        (3 * 64 * 4 - 1, [(2, 4), (1, 4)]),
        (64 * 4, [(1, 4)] * 3),
        (64 * 4 - 1, [(1, 3), (1, 1)] * 3),
        (1, [(1, 1)] * 12),
    ],
)
def test_chunks_hold_so_many_elements(elements, shapes):
    """A config of 8 tokens with 8 elements each: 64 for a sequence of a model."""
    stack = HookedDecoder(config(8), n_models=3)
    tokens = torch.zeros(4, 8, dtype=torch.long)
    chunks = list(chunked(stack, tokens, elements, per_token=8))
    assert [(len(chunk.model), len(chunk.tokens)) for chunk in chunks] == shapes


def test_a_smallest_chunk_is_not_cut_again(capsys):
    tried = []

    def work(elements):
        tried.append(elements)
        raise MemoryError

    with pytest.raises(MemoryError):
        in_chunks_that_fit(work, "counting", 16 * MIN_CHUNK_ELEMENTS)
    assert tried == [16 * 2048, 4 * 2048, 2048]
    assert "again in chunks of 1/16 of the size" in capsys.readouterr().err


# -- what is refused -----------------------------------------------------------------------------------------


def test_states_are_numbers_or_labels():
    source = mm.Observed(["2", "b", "c", "2", "c", "b"] * 40, order=1)
    assert source.labels == ("2", "b", "c")
    assert states_of(source, ["2", "b", 2, "1"]) == [0, 1, 2, 1]
    for wrong, words in {
        3: "has state 3, expected 0 to 2",
        -1: "has state -1, expected 0 to 2",
        "3": "has state 3, expected 0 to 2",
        "d": "has 'd', expected states: ",
        True: "expected a list of states by number",
        0.5: "expected a list of states by number",
    }.items():
        with pytest.raises(ValueError, match=words):
            states_of(source, [wrong])


def test_twelve_states_are_named():
    with pytest.raises(ValueError, match=r"'x', expected states: 0, 1, .*, 10, 11, …$"):
        states_of(mm.Circle(n_states=13, p=0.5), ["x"])
    with pytest.raises(ValueError, match=r"'x', expected states: 0, 1, .*, 10, 11$"):
        states_of(mm.Circle(n_states=12, p=0.5), ["x"])


def test_a_sequence_is_as_long_as_is_read():
    run = mm.Run.from_model(HookedDecoder(config(4)), source=COIN)
    assert tokens_of(run, [0] * 4).shape == (1, 4)
    with pytest.raises(ValueError, match="sequence has 5 states, expected at most 4 states"):
        tokens_of(run, [0] * 5)
    with pytest.raises(ValueError, match=r"sequence is \[\], expected a list of states by number"):
        tokens_of(run, [])
    walk = mm.example("walk")
    for length in (95, 97):
        with pytest.raises(ValueError, match=f"has {length} states, expected 96 states before the query"):
            tokens_of(walk, [0] * length)


@pytest.mark.parametrize(("events", "is_told"), [(15, False), (30, True)])
def test_a_rare_event_is_not_judged(events, is_told):
    """A state that is expected half of the time and comes always: seen and expected make 30 from 20 on."""
    states = np.zeros((1, events + 1), int)
    assert (unlikely_transition(COIN, states) is not None) == is_told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"patterns": np.zeros((1, 2, 3))}, "patterns have the shape"),
        ({"patterns": np.zeros((1, 2, 2), int)}, "expected finite floats"),
        ({"patterns": np.full((1, 2, 2), np.nan)}, "expected finite floats"),
        ({"head_labels": ["a", "b"]}, "patterns have the shape"),
        ({"head_labels": [], "patterns": np.zeros((0, 2, 2))}, "none of them 0"),
        ({"tokens": [], "patterns": np.zeros((1, 0, 0))}, "none of them 0"),
        ({"ideal": np.zeros((1, 2, 2), bool)}, ""),
        ({"ideal": np.zeros((1, 2, 2))}, "expected booleans"),
        ({"ideal": np.zeros((1, 2, 1), bool)}, "expected booleans"),
    ],
)
def test_attention_is_drawn_for_each_pair(changes, words):
    view = AttentionView(
        **{"tokens": ["0", "1"], "head_labels": ["a"], "patterns": np.zeros((1, 2, 2))} | changes
    )
    if words:
        with pytest.raises(ValueError, match=words):
            _check_attention("title", view)
    else:
        _check_attention("title", view)


@pytest.mark.parametrize(
    ("values", "attributes", "words"),
    [
        ([1.0, 2.0], {"unit": "nats", "n": 3, "all": [1, 2], "none": None, "words": ["a", "b"]}, ""),
        ([1.0], {}, "expected one named 'step' of 2"),
        ([1j, 2j], {}, "is of type complex128, expected numbers or texts"),
        (["a", "b"], {}, ""),
        (["a", "b\0c"], {}, "holds objects, expected numbers or texts"),
        ([1.0, 2.0], {"a/b": 1}, "expected a text without '/'"),
        ([1.0, 2.0], {"": 1}, "expected a text without '/'"),
        ([1.0, 2.0], {"a": [[1]]}, "expected a text, a number or a list of them"),
        ([1.0, 2.0], {"a": {}}, "expected a text, a number or a list of them"),
    ],
)
def test_data_can_be_saved_as_netcdf(values, attributes, words):
    data = xr.Dataset({"x": ("step", np.array(values), attributes)})
    if words:
        with pytest.raises(ValueError, match=words):
            check_data(data, "step", 2)
    else:
        check_data(data, "step", 2)
