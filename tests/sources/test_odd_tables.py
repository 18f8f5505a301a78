"""Tables of probabilities in containers of other packages, and what is not a table."""

import pandas as pd
import pytest

import mechmarkov as mm


def test_a_table_of_pandas_is_its_numbers():
    """To go through one gives the names of its columns, which are numbers too."""
    P = [[0.9, 0.1], [0.4, 0.6]]
    table, law = pd.DataFrame(P), pd.DataFrame([[0.3, 0.7]])
    assert mm.Chain(table) == mm.Chain(P)
    assert mm.OrderK([table, table]) == mm.OrderK([P, P])
    assert mm.HiddenMarkov(transitions=table, emissions=table) == mm.HiddenMarkov(transitions=P, emissions=P)
    with pytest.raises(ValueError, match=r"weights\.0 is \[0\.3, 0\.7\], expected a number"):
        mm.sources.ChainMixture(chains=[P, P], weights=law)
    with pytest.raises(ValueError, match=r"outputs\[0\] is \[0\.3, 0\.7\], expected a probability"):
        mm.sources.TriggerBigram(P, triggers=[0], outputs=law)


def test_outputs_of_a_trigger_are_named_whatever_they_are():
    deep = 1.0
    for _ in range(3000):
        deep = [deep]
    for value in (deep, object(), "x" * 6000):
        with pytest.raises(ValueError, match=r"outputs.* is .*, expected ") as caught:
            mm.sources.TriggerBigram([[0.9, 0.1], [0.4, 0.6]], triggers=[0], outputs=value)
        assert len(str(caught.value)) < 400
