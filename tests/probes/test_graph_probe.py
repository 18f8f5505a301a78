"""The graph probe on models set by hand: one along the graph, some along another, some along none."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from mechmarkov.probes.graph import _hits, adjacency
from probing_cases import probe_quickly, randomise, run_of

import mechmarkov as mm
from mechmarkov.claims.claim import ALIKE
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.disentangled import (
    DisentangledShape,
    disentangled_decoder,
    graph_heads,
)
from mechmarkov.models.constructions.induction_heads import duplicate_token_head
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.first_screen.readings import notes

# 14 positions that have parents, few of them the position before.
PARENTS = [[], [0], [0], [1], [], [2], [3], [0], [5], [4], [6], [2], [8], [1], [10], [9], [], [16]]
SOURCE = mm.sources.CausalGraph(n_states=3, parents=PARENTS, concentration=0.5)
EDGES = 14
LAST = mm.Objective(kind="raw_log", read="last")


def path(n):
    return [[], *([i] for i in range(n - 1))]


def asked(model, source=SOURCE, objective=LAST):
    result = probe_quickly(run_of(model, source=source, objective=objective), ["graph"], nulls=2)
    return result["graph"]


def test_a_head_along_the_graph_is_named_with_all_its_edges():
    found = asked(graph_heads(3, PARENTS[:-1]))
    assert found.scores["graph_head"].value == "L0H0"
    assert found.scores["precision"].value == 1.0
    assert found.scores["recall"].value == found.scores["recall_together"].value == 1.0
    assert found.scores["precision"].null[2] < 0.7
    assert found.scores["chance"].value < 1e-6
    assert found.scores["parent_attention"].value == pytest.approx(1, abs=1e-9)
    recovers = found.claims.first("recovers", subject="L0H0", status="shown")
    assert (recovers.value, recovers.condition("edges of the graph").value) == (EDGES, EDGES)
    assert [figure.key for figure in found.figures()] == ["graph"]


def test_a_previous_token_head_is_not_named_off_the_path_and_is_on_it():
    previous = graph_heads(3, path(17))
    found = asked(previous)
    assert found.scores["graph_head"].value is None
    assert found.claims.first("recovers").status == "excluded"
    assert found.scores["recall"].value == 1 / EDGES  # position 1, whose only earlier position is its parent
    assert found.scores["chance"].value == 1.0
    along = mm.sources.CausalGraph(n_states=3, parents=path(18))
    on_path = asked(previous, along)
    assert on_path.scores["graph_head"].value == "L0H0"
    assert on_path.scores["recall"].value == 1.0


def test_a_head_along_a_graph_of_few_edges_is_not_said_to_be_off_it():
    """Both edges are the head's; at random one of two heads has both with probability 2 / (2 · 3) at most."""
    parents = [[], [], [0], [1], []]
    found = asked(graph_heads(3, parents[:-1]), mm.sources.CausalGraph(n_states=3, parents=parents))
    assert found.scores["recall"].value == found.scores["precision"].value == 1.0
    assert found.scores["chance"].value == pytest.approx(1 / 3)
    recovers = found.claims.first("recovers")
    assert (recovers.subject, recovers.status, recovers.value) == (("L0H0",), "open", 2)


@pytest.mark.parametrize("model", ["duplicate tokens", "random", "children"])
def test_heads_that_do_something_else_are_not_named(model):
    made = {
        "duplicate tokens": lambda: duplicate_token_head(3, 17),
        "random": lambda: randomise(HookedDecoder(graph_heads(3, PARENTS[:-1]).config)),
        # Sharp on one earlier position each, another one than the parent.
        "children": lambda: graph_heads(
            3, [[(p[0] + 1) % i] if p and i > 1 else p for i, p in enumerate(PARENTS[:-1])]
        ),
    }[model]()
    found = asked(made)
    assert found.scores["graph_head"].value is None
    assert found.scores["recall_together"].value == 0.0


def test_half_of_the_edges_are_half_the_recall():
    half = [parents if i % 2 else [] for i, parents in enumerate(PARENTS[:-1])]
    found = asked(graph_heads(3, half))
    kept = sum(map(len, half))
    assert found.scores["graph_head"].value == "L0H0"
    assert found.scores["precision"].value == 1.0
    assert found.scores["recall"].value == kept / EDGES


def test_the_law_of_moved_edges_is_that_of_all_ways_to_move_them():
    parents, edges = [0, 1, 1, 2, 2], [0, 1, 1, 2, 3]  # the first parents of each are true
    ways = [list(combinations(range(query), n)) for query, n in enumerate(edges)]
    law = np.zeros(sum(edges) + 1)
    for moved in product(*ways):
        law[sum(key < n for keys, n in zip(moved, parents, strict=True) for key in keys)] += 1
    expected = law / law.sum()
    np.testing.assert_allclose(_hits(np.array(parents), np.array(edges)), expected, atol=1e-14)


def test_a_head_on_both_parents_at_once_is_named_and_uniform_attention_is_not():
    parents = [[], [], *([i - 2, i - 1] for i in range(2, 14))]
    one, other = (graph_heads(2, [each[which:][:1] for each in parents[:-1]]) for which in (0, 1))
    state = one.state_dict()
    state["blocks.0.attn.W_Q"] = torch.maximum(state["blocks.0.attn.W_Q"], other.blocks[0].attn.W_Q.detach())
    one.load_state_dict(state)
    found = asked(one, mm.sources.CausalGraph(n_states=2, parents=parents))
    assert found.scores["graph_head"].value == "L0H0"
    assert found.scores["precision"].value == found.scores["recall"].value == 1.0
    state["blocks.0.attn.W_Q"].zero_()
    one.load_state_dict(state)
    assert asked(one, mm.sources.CausalGraph(n_states=2, parents=parents)).data["found"].values[0, 0, 0] == 0


def test_a_head_with_wrong_edges_is_not_said_to_have_none():
    wrong = [[(p[0] + 1) % i] if p and i > 2 else [] for i, p in enumerate(PARENTS[:-1])]
    found = asked(two_heads(3, wrong, [[] for _ in PARENTS[:-1]]))
    recovers = found.claims.first("recovers")
    assert (recovers.status, recovers.value) == ("excluded", 0)
    assert int(found.data["edge"].isel(step=-1).sum()) == 12


def test_it_says_why_it_does_not_apply():
    chain = mm.Chain([[0.5, 0.5], [0.2, 0.8]])
    model = duplicate_token_head(2, 5)
    skipped = probe_quickly(run_of(model, source=chain), ["graph"], nulls=2).skipped
    assert skipped["graph"] == "the source has no graph of positions, so there is none to recover"
    only = mm.sources.CausalGraph(n_states=2, parents=[[], [], [], [], [], [4]])
    skipped = probe_quickly(run_of(model, source=only), ["graph"], nulls=2).skipped
    assert skipped["graph"].startswith("the only edge is the answer's")


def test_adjacency_has_several_parents():
    source = mm.sources.CausalGraph(n_states=2, parents=[[], [], [1, 0]])
    assert adjacency(source).tolist() == [[False] * 3, [False] * 3, [True, True, False]]


def two_heads(n_states, first, second):
    """A first layer of two heads, one along each list of parents."""
    one, other = (graph_heads(n_states, parents) for parents in (first, second))
    both = HookedDecoder(one.config.model_copy(update={"n_heads": 2}))
    state, others = both.state_dict(), other.state_dict()
    for name, value in one.state_dict().items():
        state[name] = torch.cat([value, others[name]]) if value.shape != state[name].shape else value
    both.load_state_dict(state)
    return both


def test_two_heads_of_two_parents_recover_the_graph_together():
    parents = [[], [], *([i - 2, i // 2] for i in range(2, 14))]
    parents = [sorted(set(each)) if each and each[0] != each[1] else each[:1] for each in parents]
    source = mm.sources.CausalGraph(n_states=2, parents=parents)
    both = two_heads(2, [each[:1] for each in parents[:-1]], [each[1:] or each for each in parents[:-1]])
    found = asked(both, source)
    assert found.scores["recall_together"].value == 1.0
    assert 0.4 < found.scores["recall"].value < 0.7
    together = found.claims.first("recovers").condition("edges of all such heads")
    assert together.value == found.claims.first("recovers").condition("edges of the graph").value


def test_a_head_that_is_named_comes_before_one_with_more_edges_and_half_of_them_false():
    parents = [[], *([i // 2] for i in range(1, 32))]
    half = [[i // 2 if i < 24 else i // 3] if i in range(19, 29) else [] for i in range(31)]  # 5 of 10 true
    few = [each if i > 26 else [] for i, each in enumerate(parents[:-1])]  # 4 of 4
    found = asked(two_heads(2, half, few), mm.sources.CausalGraph(n_states=2, parents=parents))
    assert found.scores["graph_head"].value == "L0H1"
    recovers = found.claims.first("recovers", subject="L0H1", status="shown")
    assert [recovers.value, recovers.condition("edges of the graph").value] == [4, 30]


def test_the_head_that_looks_for_the_same_parent_is_named():
    run = mm.example("graph")
    result = probe_quickly(run, ["graph"], nulls=2)
    subject = mm.Subject.of(run, steps=[int(run.steps[-1])], sequences=64)
    tokens, parents = subject.batch.tokens, run.source.parents
    with torch.no_grad():
        _, cache = run.model().run_with_cache(tokens)
    rows = cache["blocks.1.attn.hook_pattern"][:, 0, -1]
    asked_for, n = parents[-1], tokens.shape[1]
    masses = []
    for states, row in zip(tokens.tolist(), rows.tolist(), strict=True):
        like = [
            j for j in range(n)
            if len(parents[j]) == len(asked_for)
            and [states[i] for i in parents[j]] == [states[i] for i in asked_for]
        ]  # fmt: skip
        if like:
            masses.append(sum(row[j] for j in like))
    claim = result.claims.first("attends_to", object=ALIKE, probe="graph")
    assert claim.subject == ("L1H0",)
    assert claim.value == pytest.approx(np.mean(masses), abs=1e-5)
    assert notes(result.claims, "L1H0") == [f"same parent: {claim.value:.0%}"]


def test_heads_that_do_not_look_for_parents_are_not_said_to():
    random = HookedDecoder(graph_heads(3, PARENTS[:-1]).config)
    randomise(random)
    for model in (random, duplicate_token_head(3, len(PARENTS) - 1, n_layers=2)):
        assert asked(model).claims.first("attends_to", object=ALIKE) is None


TREE = [[], [0], [1], [0], [2], [1], [3], [5], [4], [2], [6], [7], [3]]
OF_FOUR = mm.sources.CausalGraph(n_states=4, parents=TREE)
SHARP_SCORE = 60.0


@torch.no_grad()
def attending(*heads, used=True):
    """Heads of the first layer, each with the score of one key a position; a second layer that may count."""
    shape = DisentangledShape(4, len(TREE) - 1, heads=(len(heads), 1))
    if len(heads) == 1:
        shape = DisentangledShape(4, len(TREE) - 1, form="reduced", key_start=SHARP_SCORE)
    model = disentangled_decoder(shape)
    for head, scores in enumerate(heads):
        for at, (key, score) in enumerate(scores):
            model.blocks[0].attn.W_Q[head, 4 + at, 4 + key] = score
    if not used:
        for weight in (model.blocks[1].attn.W_Q, model.blocks[0].attn.W_O):
            weight.zero_()
    return model


def on_parents(share):
    """The score that gives each parent a share of the attention; roots look at themselves."""
    of = [(each[0] if each else at, max(1, at)) for at, each in enumerate(TREE[:-1])]
    return [(key, float(np.log(share / (1 - share) * others))) for key, others in of]


ALONG = [(each[0] if each else at, SHARP_SCORE) for at, each in enumerate(TREE[:-1])]


def test_a_head_along_the_graph_that_nothing_reads_is_no_home():
    """Title and tile named it, next to an ablation in which it is worth nothing."""
    run = run_of(attending(ALONG, used=False), source=OF_FOUR, objective=LAST)
    result = probe_quickly(run, ["behaviour", "ablation", "graph"], nulls=2)
    assert result["graph"].claims.first("recovers", subject="L0H0", status="shown") is not None
    assert result.claims.first("is_needed", subject="L0H0").status == "excluded"
    screen = headline(result)
    assert "L0H0" not in screen.named
    assert "L0H0" not in screen.title
    read = run_of(attending(ALONG), source=OF_FOUR, objective=LAST)
    assert "L0H0" in headline(probe_quickly(read, ["behaviour", "ablation", "graph"], nulls=2)).named


@pytest.mark.parametrize(
    ("share", "status"), [(0.48, "open"), (0.4, "open"), (0.2, "excluded"), (0.9, "shown")]
)
def test_parents_that_get_much_attention_are_not_excluded(share, status):
    """A head with 45 % of its attention on parents was told as "no head attends along the graph"."""
    claim = asked(attending(on_parents(share)), OF_FOUR).claims.first("recovers")
    assert claim.status == status
    assert claim.condition("attention on parents").value == pytest.approx(share, abs=0.01)


def test_of_soft_edges_the_share_is_told():
    soft, sharp = (asked(attending(on_parents(share)), OF_FOUR).verdict for share in (0.6, 0.99))
    assert "60% of its attention" in soft
    assert "of its attention: all 11 edges" in soft
    assert "of its attention: all" not in sharp
    assert "no other" in soft
    assert "no other" in sharp


def test_edges_of_two_heads_are_told_together():
    """The claim had how many they have together, and no sentence told it."""
    halves = [
        [edge if at % 2 == odd else (at, SHARP_SCORE) for at, edge in enumerate(ALONG)] for odd in (0, 1)
    ]
    found = asked(attending(*halves), OF_FOUR)
    claim = found.claims.first("recovers", status="shown")
    assert claim.condition("edges of all such heads").value == 11
    assert found.scores["recall_together"].value == 1.0
    assert "no other; such heads together along all" in found.verdict
    assert "0 others" not in found.verdict
