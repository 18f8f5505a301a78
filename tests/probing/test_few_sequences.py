"""One to eight sequences: each probe answers, or says in one line how many it needs; and it is warned of."""

import pytest

import mechmarkov as mm

pytestmark = pytest.mark.usefixtures("few_nulls")


@pytest.mark.parametrize("sequences", [1, 2, 3])
@pytest.mark.parametrize("example", ["walk", "induction"])
def test_a_probe_answers_or_says_how_many_sequences_it_needs(example, sequences):
    result = mm.probe(mm.example(example), sequences=sequences)
    for name, why in result.failed.items():
        assert f"sequences is {sequences}, expected at least " in why, name
    assert {"ablation", "program"} <= {*result.failed}
    assert "storage" not in result.outcomes
    assert any(f"evaluated on only {sequences} sequence" in warning for warning in result.warnings)
    for outcome in result.outcomes.values():
        for score in outcome.scores.values():
            assert score.interval is None or score.interval[0] <= score.interval[1]


def test_enough_sequences_are_not_warned_of():
    assert mm.probe(mm.example("walk"), ["attention"], sequences=16).warnings == ()
