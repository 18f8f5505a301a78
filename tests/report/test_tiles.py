"""Tiles and titles of cases whose words must not say more than was measured."""

from dataclasses import replace

import pytest
from claim_cases import behaviour, result_of
from mechmarkov.probes.landscape.claims import REMEDIES

from mechmarkov.claims.claim import MODEL, Claim, Claims, Condition, Where
from mechmarkov.claims.tile import STUCK, Tile
from mechmarkov.probes import dynamics
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.came import what_came
from mechmarkov.report.words.differences import settings
from mechmarkov.report.words.sentences import sentence
from mechmarkov.report.words.tiles import worded
from mechmarkov.report.words.whole_model import of_one_step

STEPS = Where(steps=(0, 100))


def came(name, step):
    return Claim((MODEL,), "came_by", (name,), step, (step - 1, step), unit="step", where=STEPS)


def closest(name, start, stop, *, status="shown", first=False):
    """A law that was the closest from one step to another."""
    because = (Condition("from the first probed step", value=0.0),) if first else ()
    return Claim(
        (MODEL,), "passed", (name,), start, (start, start), unit="step", status=status,
        where=Where(steps=(start, stop)), because=because,
    )  # fmt: skip


def how(*claims):
    (tile,) = dynamics.headline([replace(claim, probe="dynamics") for claim in claims])
    return worded(tile)


def tiles(**said):
    return {tile.question: tile for tile in headline(result_of((50,), **said)).tiles}


def exact_circuit(right):
    """A head that reads the parent with the target's table; the loss is on scores."""
    return {
        "behaviour": behaviour(0.5, on_scores=True, right=right, possible=0.5),
        "alignment": [Claim(("L0H0",), "matches", ("P",), 0.999, unit="cosine", evidence="weights")],
        "attention": [
            Claim(("L0H0",), "attends_to", ("parent", "previous token"), 0.999, unit="probability")
        ],
    }


def test_laws_are_told_in_their_order_each_with_one_date():
    phases = [
        closest("uniform", 0, 8, first=True),
        closest("bigram", 21, 21),
        closest("forward_filter", 29, 600),
    ]
    halves = [came("bigram", 11), came("best", 11), came("induction_head", 25)]
    tile = how(*phases, *halves)
    assert tile.answer == "Bigram by step 21, forward filter 29"
    assert [(bar.label, bar.text) for bar in tile.bars] == [
        ("bigram", "21"), ("induction head", "25"), ("forward filter", "29")
    ]  # fmt: skip


def test_a_law_that_is_not_clearly_the_closest_is_not_told():
    phases = [
        closest("unigram", 0, 8, first=True),
        closest("bigram", 20, 20, status="open"),
        closest("unigram", 30, 100),
    ]
    assert how(*phases).answer == "From the start closest to the unigram"


def test_a_law_that_was_the_closest_is_not_said_to_be_so_at_the_end():
    phases = [closest("unigram", 0, 8, first=True), closest("bigram", 20, 100, status="open")]
    assert how(*phases).answer == "From the start closest to the unigram, undecided from step 20"
    phases.insert(1, closest("2_step", 10, 10))
    assert how(*phases).answer == "2 step by step 10, undecided from step 20"
    assert how(phases[-1]).answer == "Open which law it is closest to"


@pytest.mark.parametrize(
    ("laws", "told"),
    [
        (("uniform",), "The uniform law is closest"),
        (("uniform", "unigram"), "The unigram, here uniform, is closest"),
        (("bigram", "forward_filter"), "The bigram is closest"),
    ],
)
def test_a_phase_has_one_name_on_a_page(laws, told):
    """In the curve, in a tile's answer and in its sentence."""
    phase = replace(closest("", 0, 8), object=laws)
    assert sentence(phase).startswith(told)
    assert what_came(phase).lower() in told.lower()


def test_a_law_that_comes_back_is_told_twice():
    phases = [closest("unigram", 0, 8, first=True), closest("bigram", 20, 50), closest("unigram", 90, 100)]
    assert how(*phases).answer == "Bigram by step 20, unigram 90"


def test_of_many_changes_the_last_is_told():
    phases = [closest("ab"[i % 2], 10 * i, 10 * i, first=i == 0) for i in range(7)]
    assert how(*phases).answer == "A from the start, b by step 10, 4 more, a 60"


def test_heads_are_told_where_no_law_came():
    start = closest("unigram", 0, 100, first=True)
    assert how(start, came("graph_head", 26)).answer == "Head along the graph by step 26"
    nothing = Claim((MODEL,), "came_by", ("selection",), status="excluded", where=STEPS)
    assert how(start, nothing).answer == "From the start closest to the unigram"


@pytest.mark.parametrize(("right", "word"), [(0.5, "No: right"), (0.497, "No: nearly right")])
def test_how_right_a_circuit_is_told_as_measured(right, word):
    screen = headline(result_of((50,), **exact_circuit(right)))
    assert screen.badge == "solved"
    nearly = "" if right == 0.5 else ", right nearly as often as possible"
    assert screen.title.startswith(f"Learned the bigram's circuit{nearly}")
    assert {tile.question: tile for tile in screen.tiles}["Is it stuck?"].answer.startswith(word)


def test_a_circuit_of_another_loss_is_judged_by_how_often_it_is_right():
    said = exact_circuit(0.5) | {"behaviour": behaviour(-0.5, on_scores=True, right=0.5)}
    screen = headline(result_of((50,), **said))
    assert screen.badge == "solved"
    shown = {tile.question: tile for tile in screen.tiles}
    assert shown["What has it learned?"].answer == "The bigram's circuit, not its probabilities"
    assert shown["Is it stuck?"].answer == "No: right as often as possible"
    assert "which it was not trained on" in shown["Is it stuck?"].sentence


@pytest.mark.parametrize(
    ("positions", "value", "share", "told"),
    [((0,), 2.0, 0.125, True), ((0,), 1.0, 0.125, False), ((0, 1), 2.0, 0.125, False)],
)
def test_what_is_left_is_placed_only_where_it_is(positions, value, share, told):
    said = behaviour(0.5)
    reaches = next(claim for claim in said if claim.relation == "reaches")  # 0.25 nats are left
    places = (Condition("share of places", True, share, "share"),)
    fails = Claim((MODEL,), "fails_at", ("bigram",), value, where=Where(positions=positions), because=places)
    tile = Tile(STUCK, (reaches,))
    shown = of_one_step(tile, worded(tile), Claims((fails,)))
    assert shown.answer == "One checkpoint cannot tell"
    assert ("nearly all of it at position 0" in shown.sentence) == told


def at_a_minimum(**premises):
    """At a local minimum, with 0.25 nats left."""
    because = [Condition("near the best", False, 0.25, "nats")]
    because += [Condition(name.replace("_", " "), value) for name, value in premises.items()]
    return Claim(
        (MODEL,), "is_at", ("minimum",), 0.5, unit="nats / weight²", evidence="law", because=tuple(because)
    )


def test_a_model_that_a_minimum_holds_is_titled_as_stuck():
    said = {"behaviour": behaviour(0.0, closest=("unigram",))}
    held = headline(result_of((50,), **said, landscape=[at_a_minimum()]))
    assert held.title == "Stuck at the unigram, at a local minimum"
    second = headline(result_of((50,), **said, landscape=[at_a_minimum(to_second_order_only=True)]))
    assert second.title == "At the unigram: 0% of the way to the bigram"


def test_eigenvalues_say_which_directions_they_are_of():
    apart = at_a_minimum(outside_the_symmetric_subspace=True)
    largest, count = Condition("largest eigenvalue", value=0.6), Condition("directions", value=9)
    point = replace(apart, because=(*apart.because, largest, count))
    stuck = tiles(behaviour=behaviour(0.0), landscape=[point])["Is it stuck?"]
    assert stuck.picture == "Hessian eigenvalues (nats / weight²) in 9 directions that tell states apart"
    everywhere = replace(point, because=(at_a_minimum().because[0], largest))
    stuck = tiles(behaviour=behaviour(0.0), landscape=[everywhere])["Is it stuck?"]
    assert stuck.picture.endswith("below zero the loss falls that way")


def test_the_home_of_the_bigram_is_not_that_of_a_better_law():
    stores = Claim(("L0H0",), "stores", ("bigram",), 0.95, unit="share")
    better = behaviour(0.95, closest=("forward filter",), best="forward filter")
    lives = tiles(behaviour=better, storage=[stores])["Where does it live?"]
    assert lives.answer == "Of the bigram: L0H0"
    assert lives.sentence.endswith("Where the rest of the forward filter lives is not measured.")
    same = tiles(behaviour=behaviour(0.95), storage=[stores])["Where does it live?"]
    assert same.answer == "L0H0"


def test_what_helped_is_told_with_its_count():
    point = Claim((MODEL,), "is_at", ("minimum",), 0.5, evidence="law")
    helped = Claim(
        (MODEL,), "is_left_with", ("untied embeddings",), 1.0, unit="share",
        because=(Condition("cases", value=REMEDIES["untied embeddings"]),),
    )  # fmt: skip
    stuck = tiles(behaviour=behaviour(0.0), landscape=[point, helped])["Is it stuck?"]
    assert stuck.sentence.endswith("To try: untied embeddings (24 of 24 measured runs learned).")
    unhelped = tiles(behaviour=behaviour(0.0), landscape=[point])["Is it stuck?"]
    assert "To try" not in unhelped.sentence


@pytest.mark.parametrize(("most", "share"), [(-0.01, "0%"), (0.002, "at most 1%"), (0.064, "at most 7%")])
def test_a_share_of_the_way_is_never_told_too_small(most, share):
    screen = headline(result_of((50,), behaviour=behaviour(most, closest=("unigram",))))
    assert screen.title == f"At the unigram: {share} of the way to the bigram"


def test_settings_that_differ_are_named_once():
    runs = {"a": {"source": "p = 0.5", "seed": 0}, "b": {"source": "p = 1", "seed": 0}}
    assert settings(runs) == " They differ in source (p = 0.5; p = 1)."
    assert settings({"a": runs["a"], "b": runs["a"]}) == ""


def needed(name, value, *, most=False):
    relation = "is_needed_most" if most else "is_needed"
    return Claim((name,), relation, (), value, unit="nats", evidence="intervention")


def test_where_a_better_law_lives_is_told_by_what_is_needed():
    filter_ = behaviour(0.95, closest=("forward_filter",), best="forward_filter")
    worth = {"direct": 0.5, "L0H0": 0.17, "L0H1": 0.02}
    parts = [needed("direct", 0.5, most=True), *(needed(name, value) for name, value in worth.items())]
    stores = Claim(("direct",), "stores", ("bigram",), 0.99, unit="share")
    lives = tiles(behaviour=filter_, storage=[stores], ablation=parts)["Where does it live?"]
    assert lives.answer == "The direct path and L0H0"
    assert lives.sentence.endswith("Without L0H0 the loss rises by 0.17 nats.")
    bigram = tiles(behaviour=behaviour(0.95), storage=[stores], ablation=parts)["Where does it live?"]
    assert bigram.answer == "The direct path"


def test_where_another_law_lives_is_not_known_without_a_reason_to_name_a_part():
    third = behaviour(0.0, closest=("step_3",))
    nowhere = Claim((), "stores", ("bigram",), status="excluded", because=(Condition("nothing to share"),))
    like = Claim((MODEL,), "imitates", ("step_3",), 0.001, unit="nats")
    lives = tiles(behaviour=[*third, like], storage=[nowhere])["Where does it live?"]
    assert lives.answer == "Where the 3-step law lives is not known"
    only_nearest = tiles(behaviour=third, storage=[nowhere])["Where does it live?"]
    assert only_nearest.answer == "No part holds the bigram"
    table = Claim(("L0H1",), "matches", ("log P",), 0.99, unit="cosine", because=(Condition("law", value=3),))
    by_weights = tiles(behaviour=[*third, like], storage=[nowhere], alignment=[table])["Where does it live?"]
    assert by_weights.answer == "L0H1, by weights"
    unigram = tiles(behaviour=behaviour(0.0, closest=("unigram",)), storage=[nowhere])["Where does it live?"]
    assert unigram.answer == "No part holds the bigram"


def test_each_part_of_an_answer_is_named_once():
    head = Claim(("L1H0",), "is_induction_head", (), 0.9)
    both = Claim(("L0H0", "L1H0"), "is_needed_most", (), 0.2, unit="nats")
    lives = tiles(behaviour=behaviour(0.5), induction=[head], ablation=[both, needed("L1H0", 0.2)])
    assert lives["Where does it live?"].answer == "L1H0 and L0H0"


def test_a_graph_is_told_with_what_reads_it():
    counts = [Condition(name, value=9.0) for name in ("edges of the head", "edges of the graph")]
    recovers = Claim(("L0H0",), "recovers", (), 9.0, because=tuple(counts))
    relied = [Claim((name,), "is_relied_on", (), 2.4, unit="nats") for name in ("L1H0", "L0H0")]
    lives = tiles(graph=[recovers], ablation=relied)["Where does it live?"]
    assert lives.answer == "L0H0 and L1H0"
    assert lives.sentence.endswith("L1H0 from another sequence the loss rises by 2.4 nats.")


def test_ties_are_not_titled_as_one_law():
    told = behaviour(-0.5, closest=("step_2", "step_3"))
    told[0] = replace(told[0], status="open")
    screen = headline(result_of((50,), behaviour=told))
    assert screen.title == "Not the bigram, with a loss above the unigram's"


def test_an_answer_of_long_names_is_their_number():
    names = ("L0.mlp", "direct", "L0H1")
    stores = Claim(names, "stores", ("bigram",), 0.95, unit="share")
    better = behaviour(0.95, closest=("forward filter",), best="forward filter")
    lives = tiles(behaviour=better, storage=[stores])["Where does it live?"]
    assert lives.answer == "Of the bigram: 3 parts"
    assert tiles(behaviour=behaviour(0.95), storage=[stores])["Where does it live?"].answer == (
        "The MLP of layer 0, the direct path and L0H1"
    )
    mlps = Claim(("L0.mlp", "L1.mlp", "L2.mlp"), "stores", ("bigram",), 0.95, unit="share")
    lives = tiles(behaviour=behaviour(0.95), storage=[mlps])["Where does it live?"]
    assert lives.answer == "The MLPs of layers 0, 1 and 2"
    many = Claim(("L0.mlp", "direct", "L0H1", "L1.mlp"), "stores", ("bigram",), 0.95, unit="share")
    lives = tiles(behaviour=behaviour(0.95), storage=[many])["Where does it live?"]
    assert lives.answer == "Spread over 4 parts"


def test_a_title_of_a_long_law_has_twelve_words_at_most():
    far = behaviour(0.05, closest=("unigram",), best="forward filter")
    screen = headline(result_of((50,), behaviour=far))
    assert screen.title == "At the unigram: at most 5% of the way"
