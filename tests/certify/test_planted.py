"""Faults that are planted in the search and in proofs: each is refused, or nothing false was shown by it."""

import numpy as np
import pytest
from certify_cases import one_layer, proof, small_run, worst_of_all
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.certify import EXACT, FLOAT32, certificate, certify, proof_of, verify
from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.reading import Reading
from mechmarkov.certify.contexts import Contexts
from mechmarkov.theory import worst_case

SEEDS = st.integers(0, 2**32 - 1)
REFUSED = r"too small|is claimed to be at most|leaves out sequences"


# Faults in the search, each as somebody might make it: what it then proves is refused, or seen to be false.
def too_low(self, value, bound):
    """Gains with the lower end of the weights where the upper one counts: rounded the wrong way."""
    over = value.mid - value.rad - bound[..., None, None]
    return worst_case.largest_sum(over * self.weight.mid, self.allowed, self.transitions).value - 1e-3


def downwards(self, value, bound):
    """Both ends of every ball taken for each other."""
    over = value.mid - value.rad - bound[..., None, None]
    lowest, highest = self.weight.mid - self.weight.rad, self.weight.mid + self.weight.rad
    gain = over * np.where(over > 0, lowest, highest)
    return worst_case.largest_sum(gain, self.allowed, self.transitions).value


def to_the_nearest(self, value, bound):
    """Midpoints only, and what is hardly above 0 taken for 0."""
    gain = (value.mid - bound[..., None, None]) * self.weight.mid
    return worst_case.largest_sum(gain, self.allowed, self.transitions).value - 1e-14


def without_base(layer, contexts, read, parent, scored=True):
    """A reading that drops what is there without the heads."""
    found = ORIGINAL(layer, contexts, read, parent, scored)
    none = Affine.exact(np.zeros_like(found.base.mid), found.base.unit)
    return Reading(found.weight, found.value, none, found.allowed, found.transitions)


def without_remainder(self, mid, remainder):
    """Forms that drop what is not linear."""
    symbols = np.zeros((*remainder.shape, remainder.shape[-1]))
    return Affine(self.mid + mid, np.concatenate([self.slope, symbols], -1), self.rad, self.unit)


ORIGINAL = Reading.of


def is_caught(run, unit=FLOAT32):
    """Whether a certificate cannot be made, or its proof is refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "_by_norm", lambda model: None)  # vacuous bounds are to be proved too
        try:
            stored = proof(run, "parent", unit)
        except RuntimeError:  # a prediction was seen that is further off
            return True
    with pytest.raises(ValueError, match=REFUSED):
        verify(stored, run)
    return True


@pytest.mark.parametrize("fault", [too_low, downwards, to_the_nearest])
@settings(max_examples=10, deadline=None)
@given(
    SEEDS, st.sampled_from(["plain", "relative", "window", "LN and MLP"]), st.sampled_from([EXACT, FLOAT32])
)
def test_a_wrong_rounding_direction_is_caught(fault, seed, shape, unit):
    run = one_layer(shape, seed=seed, scale=0.3, n_ctx=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reading, "_excess", fault)
        assert is_caught(run, unit)


@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_a_lower_end_that_is_taken_for_an_upper_one_is_caught(seed):
    run = one_layer("LN and MLP", seed=seed, n_ctx=2, n_heads=1)
    run.states["blocks.0.attn.W_O"] *= 0.2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Affine, "upper", property(lambda self: self.mid - self.spread))
        assert is_caught(run)


def test_a_dropped_term_is_caught(monkeypatch):
    monkeypatch.setattr(Reading, "of", staticmethod(without_base))
    assert is_caught(one_layer("plain", scale=0.3))


def test_a_dropped_remainder_is_caught(monkeypatch):
    monkeypatch.setattr(Affine, "with_remainder", without_remainder)
    run = one_layer("LN and MLP")
    run.states["blocks.0.attn.W_O"] *= 0.2
    assert is_caught(run)


def test_a_dropped_path_is_caught(monkeypatch):
    original = Contexts.of

    def fewer(source, objective, config):
        found = original(source, objective, config)
        found.transitions[0, 1:] = False
        return found

    monkeypatch.setattr(Contexts, "of", staticmethod(fewer))
    assert is_caught(one_layer("plain", scale=0.3))
    assert is_caught(one_layer("plain", scale=1e-3))  # where no prediction tells


def altered(numbers, rng):
    """Some of the numbers moved, up or down, by a little or by much."""
    numbers = np.array(numbers, dtype=float)
    moved = 10.0 ** rng.uniform(-12, 0) * rng.choice([-1, 1, 1]) * rng.random(numbers.shape)
    return (numbers + moved * (rng.random(numbers.shape) < rng.random())).tolist()


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_no_altered_proof_that_is_confirmed_claims_what_a_sequence_refutes(seed):
    """Whatever is changed in a proof, its claims hold for every sequence or it is refused."""
    rng = np.random.default_rng(seed)
    run = small_run(rng)
    found = certify(run, "parent", tokens=1 << 10)
    if found.bounds is None:
        return
    stored = proof_of(found, 0)
    if rng.random() < 0.3:  # another program
        table = np.array(stored["table"]) * np.exp(
            10.0 ** rng.uniform(-6, 0) * rng.normal(size=run.source.P.shape)
        )
        stored["table"] = (table / table.sum(1, keepdims=True)).tolist()
    for name in stored["stored"]:
        if rng.random() < 0.5:
            stored["stored"][name] = altered(stored["stored"][name], rng)
    for name, value in stored["claims"].items():
        if value is not None:
            stored["claims"][name] = value * float(rng.choice([1, 2, rng.random()]))
    try:
        verify(stored, run)
    except ValueError:
        return
    seen, _ = worst_of_all(run, np.array(stored["table"]))
    for name, value in seen.items():
        assert stored["claims"][name] is None or value <= stored["claims"][name]
