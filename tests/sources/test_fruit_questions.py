"""Questions about fruit: word by word, and every predictor against the list of all sentences."""

from collections import Counter

import numpy as np
import pytest
import torch
from enumeration import EXACT, generator

from mechmarkov.sources import FruitQuestions

WORDS = [  # in the order that the paper's vocabulary has
    *("apple", "orange", "Based", "on", "the", "which", "type", "of", "fruit", "list", "appears", "most"),
    *("frequently", "sentence", "I", "prefer", "an", "to", "do"),
]
LENGTH = {1: 17, 2: 19}


def texts(source, n=400):
    tokens = source.sample(n, source.length, generator=generator()).numpy()
    return tokens, [[source.labels[word] for word in row] for row in tokens]


def test_task_1_word_by_word():
    for words in texts(FruitQuestions(task=1))[1]:
        *question, answer = words
        assert question[:4] == ["Based", "on", "the", "list"]
        assert question[9:] == ["which", "type", "of", "fruit", "appears", "most", "frequently"]
        fruit = question[4:9]
        assert set(fruit) <= {"apple", "orange"}
        assert Counter(fruit).most_common(1)[0][0] == answer


def test_task_2_word_by_word():
    seen = Counter(" ".join(words) for words in texts(FruitQuestions(task=2))[1])
    assert set(seen) == {
        "Based on the sentence I prefer an apple to an orange which type of fruit do I prefer apple",
        "Based on the sentence I prefer an orange to an apple which type of fruit do I prefer orange",
    }
    assert abs(seen.most_common(1)[0][1] - 200) < 5 * 10  # five standard deviations of a fair coin


def test_fruits_are_fair_and_independent():
    source, n = FruitQuestions(task=1), 32_000
    tokens = source.sample(n, 17, generator=generator()).numpy()
    count = np.bincount(tokens[:, 4:9] @ [16, 8, 4, 2, 1], minlength=32)
    assert np.abs(count - n / 32).max() < 5 * np.sqrt(n / 32)


@pytest.mark.parametrize("task", [1, 2])
def test_predictors_against_the_list_of_sentences(task):
    source = FruitQuestions(task=task)
    assert source.labels == tuple(WORDS)
    assert (source.n_states, source.length, source.redraws) == (19, LENGTH[task], False)
    tokens, _ = texts(source, 200)
    every = [tuple(row) for row in np.unique(texts(source, 5000)[0], axis=0)]
    assert len(every) == (32 if task == 1 else 2)
    laws = {name: rule.probabilities(tokens[:, :-1]) for name, rule in source.predictors().items()}
    assert list(laws) == ["uniform", "unigram", "bigram", "position", "bag_of_words", "all_words"]
    assert source.best().name == "all_words"
    assert all(rule.exact for rule in source.predictors().values())
    places = [(s, t) for s in every for t in range(len(s) - 1)]
    for row, x in enumerate(tokens[:20]):
        for t in range(source.length - 1):
            known = {
                "uniform": [(word,) for word in range(19)],
                "unigram": [(word,) for s in every for word in s],
                "bigram": [(s[u + 1],) for s, u in places if s[u] == x[t]],
                "position": [(s[t + 1],) for s in every],
                "bag_of_words": [(s[t + 1],) for s in every if sorted(s[: t + 1]) == sorted(x[: t + 1])],
                "all_words": [(s[t + 1],) for s in every if s[: t + 1] == tuple(x[: t + 1])],
            }
            for name, following in known.items():
                law = np.bincount(np.ravel(following), minlength=19) / len(following)
                np.testing.assert_allclose(laws[name][row, t], law, **EXACT)


def test_the_order_of_words_is_what_task_2_needs():
    for task, sure in ((1, True), (2, False)):
        source = FruitQuestions(task=task)
        tokens, _ = texts(source)
        rules = source.predictors()
        answer = tokens[:, -1]
        chosen = {
            name: rules[name].probabilities(tokens[:, :-1])[np.arange(400), -1, answer] for name in rules
        }
        np.testing.assert_allclose(chosen["bag_of_words"], 1 if sure else 0.5, **EXACT)
        np.testing.assert_allclose(chosen["position"], 0.5, **EXACT)
        np.testing.assert_allclose(chosen["all_words"], 1, **EXACT)


def test_words_that_begin_no_sentence_have_the_law_of_their_place():
    source = FruitQuestions(task=1)
    law = source.best().probabilities(np.array([[2, 3, 4, 9, 18]]))[0, -1]  # Based on the list do
    np.testing.assert_allclose(law[:2], 0.5, **EXACT)
    np.testing.assert_allclose(source.bigram[18], source.unigram, **EXACT)  # "do" is of the other task


@pytest.mark.parametrize("task", [1, 2])
def test_other_lengths_are_refused(task):
    source, length = FruitQuestions(task=task), LENGTH[task]
    words = rf"^length is 10, expected {length}: a sentence of {length - 1} words and its answer$"
    with pytest.raises(ValueError, match=words):
        source.sample(2, 10, generator=generator())
    tokens = source.sample(2, length, generator=generator()).numpy()
    for rule in list(source.predictors().values())[1:]:
        words = rf"^tokens have {length} positions, expected at most {length - 1}: "
        with pytest.raises(ValueError, match=words):
            rule.probabilities(tokens)


def test_titles_and_forms():
    for task in (1, 2):
        title = f"Questions about fruit, task {task}: {LENGTH[task] - 1} words and the answer"
        assert FruitQuestions(task=task).title() == title
    assert FruitQuestions(task=np.int64(2)) == FruitQuestions(task=2)
    tokens = FruitQuestions(task=1).sample(3, 17, generator=generator())
    assert tokens.dtype == torch.int64
