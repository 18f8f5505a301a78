"""One run, told by the page, the notebook, files, the command line, the card and next to others: one set."""

import json
from dataclasses import replace
from functools import cache
from html import unescape

import pytest
from click.testing import CliRunner
from elements import texts
from model_zoo import model_zoo
from reading_aloud import sentences as split

import mechmarkov as mm
from mechmarkov.claims.claim import MODEL, Claim
from mechmarkov.cli import cli
from mechmarkov.probing import subject
from mechmarkov.report import compare
from mechmarkov.report.cards import ProbeCard
from mechmarkov.report.dashboard import read_dashboard
from mechmarkov.report.first_screen.headline import at_step, chosen_tiles, headline
from mechmarkov.report.html import parts, render
from mechmarkov.report.shares import counted_run
from mechmarkov.report.words.differences import differences
from mechmarkov.report.words.sentences import rest, sentence, verdict
from mechmarkov.utils.text import words

MODELS = model_zoo()
GATE = ("bundled trap", "mixed: wrong after 0 at odd positions")
NAMES = (
    *(name for name in MODELS if name.startswith("bundled")),
    "direct, one state wrong: 5 states, 0.3",
    "cancelling: sticky",
    "mixed: wrong after 0 at odd positions",
    "mixed: heads in turn, the second reversed",
    "mixed: a head turns the direct path round after 0 and 1",
    "mixed: heads that cancel",
    "mixed: the table between query and key",
    "mixed: a hundred thousand times as sure",
    "mixed: trigram at odd positions, bigram at even ones",
    "mixed: independent tokens, by the direct path",
    "mixed: counts since the last 0",
    "mixed: learned and turned round",
    "mixed: learned by one head, lost, learned by the other",
)
RUNS = [pytest.param(name, marks=() if name in GATE else pytest.mark.slow) for name in NAMES]


@cache
def probed(name: str) -> mm.Result:
    """A model with all its steps, if they are few."""
    run = MODELS[name]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "NULL_MODELS", 2)
        return mm.probe(run, sequences=16, steps="all" if run.n_steps < 6 else "last", progress=False)


def is_near(one: float, other: float) -> bool:
    """Returns whether two numbers differ only by the order in which float32 was added up."""
    return other == pytest.approx(one, rel=1e-5, abs=1e-6)


# Of one set


@pytest.mark.parametrize("name", RUNS)
def test_answers_are_claims_of_the_set(name):
    """A law that coincides with others here is told with their names."""
    result = probed(name)
    coincide = {one.object for one in result.claims.where("is_closest_to")}
    for tile in chosen_tiles(result):
        for claim in (*tile.answer, *tile.more, *filter(None, (tile.number, tile.together))):
            one_law = replace(claim, object=claim.object[:1]) if claim.object in coincide else claim
            assert claim in result.claims.claims or one_law in result.claims.claims


@pytest.mark.parametrize("name", RUNS)
def test_verdicts_are_sentences_of_the_set(name):
    result = probed(name)
    for probe, outcome in result.outcomes.items():
        claims = result.claims.where(probe=probe)
        assert list(outcome.claims) == list(claims)
        assert outcome.verdict == verdict(claims)


@pytest.mark.parametrize("name", RUNS)
def test_the_last_step_is_the_whole_result(name):
    result = probed(name)
    last, whole = headline(at_step(result, len(result.steps) - 1)), headline(result)
    for field in ("badge", "title", "tiles", "note", "named"):
        assert getattr(last, field) == getattr(whole, field)


# Of one number


def scored(result: mm.Result, probe: str, name: str) -> object:
    score = result[probe].scores.get(name)
    return None if score is None else score.value


def same_numbers(result: mm.Result) -> dict[str, tuple[object, object]]:
    """Each quantity that a claim and a score both tell: by name the claim's and the score's."""
    pairs: dict[str, tuple[object, object]] = {}

    def both(probe: str, name: str, claim: Claim | None, value: object = ...) -> None:
        if claim is not None and probe in result and (score := scored(result, probe, name)) is not None:
            pairs[f"{probe}: {name}"] = (claim.value if value is ... else value, score)

    claims = result.claims
    reaches, closest, matches = (claims.first(one) for one in ("reaches", "is_closest_to", "matches"))
    both("behaviour", "kl_best", reaches)
    both("behaviour", "accuracy", claims.first("is_right"))
    both("behaviour", "nearest_predictor", closest, closest and closest.object[0])
    everywhere = claims.everywhere()
    for law in ("uniform", "unigram", "bigram"):
        both("behaviour", f"kl_{law}", everywhere.first("imitates", object=law))
    unit = "" if matches is None else matches.unit
    of_unit = {"cosine": "kernel_cosine", "1 is exact": "kernel_slope", "probability": "recall"}
    both("alignment", of_unit.get(unit, ""), matches)
    both("alignment", "target", matches, matches and matches.object[0])
    both("alignment", "kernel_kl", matches if matches and matches.condition("predicts by itself") else None,
         matches and matches.number("predicts by itself"))  # fmt: skip
    for claim in everywhere.where("holds_share", object="bigram"):
        both("storage", f"share_{claim.subject[0]}", claim)
    stores = everywhere.first("stores", object="bigram", status="shown")
    both("storage", "rank_90", stores if stores and stores.condition("rank that keeps 90 %") else None,
         stores and stores.number("rank that keeps 90 %"))  # fmt: skip
    if "ablation" in result and (largest := scored(result, "ablation", "largest_effect_component")):
        of_part = claims.first("is_needed", subject=largest, probe="ablation")
        both("ablation", "largest_effect", of_part)
    both("ablation", "history_effect", claims.first("uses_order"))
    asked = [one for one in claims.where("is_induction_head") if not one.object and one.value is not None]
    both("induction", "predecessor_effect", next(iter(asked), None))
    fitted = claims.first("explains", subject="best program found")
    both("program", "explained", fitted)
    both("program", "explained_by_weights", claims.first("explains", subject="tables read from the weights"))
    point = claims.first("is_at", status="shown", probe="landscape", subject=MODEL)
    both("landscape", "kind", point, point and point.object[0])
    both("landscape", "hessian_min", point)
    return pairs


@pytest.mark.parametrize("name", RUNS)
def test_a_claim_and_a_score_have_one_number(name):
    pairs = same_numbers(probed(name))
    assert len(pairs) > 5
    for what, (claimed, score) in pairs.items():
        is_one = claimed == score if isinstance(score, str) else is_near(claimed, score)
        assert is_one, what


@pytest.mark.parametrize("name", RUNS)
def test_a_claim_and_a_score_name_the_same_parts(name):
    result = probed(name)
    if "alignment" in result:
        assert scored(result, "alignment", "path") in result.claims.first("matches").subject
    if "storage" in result:
        home = scored(result, "storage", "bigram_home")
        stores = result.claims.first("stores", object="bigram", status="shown")
        assert (home == "none") == (stores is None)
        assert stores is None or all(part in home for part in stores.subject)
    if "induction" in result and (head := scored(result, "induction", "induction_head")):
        assert result.claims.first("is_induction_head", subject=head).is_shown


# In all places


@pytest.mark.parametrize("name", RUNS)
def test_the_page_tells_the_claims_and_nothing_else(name):
    result = probed(name)
    page, screen = render(result), headline(result)
    title = texts(page, "h1")[-1] if len(result.steps) == 1 else texts(page, "span")[-1]
    if len(result.steps) == 1:
        assert title == " ".join([*filter(None, [screen.badge]), screen.title])
        assert texts(page, "p", "answer") == [tile.answer for tile in screen.tiles]
    else:
        assert {tile.answer for tile in screen.tiles} <= {*texts(page, "p", "answer")}
    told = texts(page, "summary", "verdict")
    cards = {probe: ProbeCard(probe, result[probe], [], "") for probe in result}
    prefix = "Its first scores are within their nulls: "
    assert told == [prefix * (card.stands == "within") + card.outcome.verdict for card in cards.values()]
    rests = [text for outcome in result.outcomes.values() for text in rest(outcome.claims)]
    lists = texts(page, "ul", "more-said")
    assert "".join(lists).replace(" ", "") == "".join(rests).replace(" ", "")  # items of lists have no space
    assert {None, *result} == {*parts(result)}


# Arrays take seconds to write: in `make test` those of one run.
@pytest.mark.parametrize("name", [RUNS[0], *RUNS[2:], pytest.param(NAMES[1], marks=pytest.mark.system)])
def test_files_and_the_notebook_tell_the_same(name, tmp_path):
    result, screen = probed(name), headline(probed(name))
    folder = result.save(tmp_path / "report")
    data = json.loads((folder / "summary.json").read_text("utf-8"))
    assert (data["badge"], data["headline"]) == (screen.badge, screen.title)
    assert data["claims"] == json.loads(json.dumps([claim.to_data() for claim in result.claims]))
    assert {probe: one["verdict"] for probe, one in data["probes"].items()} == {
        probe: outcome.verdict for probe, outcome in result.outcomes.items()
    }
    shown = texts(result._repr_html_(), "div")
    for probe, outcome in result.outcomes.items():
        assert f"{words(probe)}: {outcome.verdict}" in shown
        assert f"{probe}: {outcome.verdict}" in repr(result)
        for key, score in outcome.scores.items():
            assert data["probes"][probe]["scores"][key] == json.loads(json.dumps(score.to_data()))
    (row,) = read_dashboard(tmp_path).runs
    assert (row.badge, row.headline) == (screen.badge or "", screen.title)
    assert row.has == counted_run(result, screen.badge).has


@pytest.mark.parametrize("name", RUNS)
def test_the_card_tells_the_same(name, tmp_path):
    result = probed(name)
    card = (MODELS[name]().save_folder(tmp_path / "run", result) / "README.md").read_text("utf-8")
    sections = card.split("\n## ")[1:]
    assert len(sections) == len(result)
    for section, outcome in zip(sections, result.outcomes.values(), strict=True):
        lines = unescape(section).replace("\\", "").splitlines()
        assert lines[2] == outcome.verdict
        rows = [line.strip("| ").split(" | ") for line in lines[6:] if line]
        assert [row[0] for row in rows] == list(outcome.scores)
        for row, score in zip(rows, outcome.scores.values(), strict=True):
            if isinstance(score.value, float):
                assert float(row[1]) == pytest.approx(score.value, rel=1e-3)
            null = score.null[1] if isinstance(score.null, tuple) else score.null
            assert (
                row[3] == "–"
                if null is None
                else float(row[3].split(" ")[0]) == pytest.approx(null, rel=1e-3)
            )


@pytest.mark.parametrize("name", RUNS)
def test_side_by_side_tells_the_same(name):
    result, other = probed(name), probed("bundled trap")
    both, names = {"one": result, "other": other}, ["one", "other"]
    page, screens = compare.render(both), [headline(result), headline(other)]
    assert texts(page, "span", "said") == [screen.title for screen in screens if screen.is_judged]
    assert texts(page, "span", "badge") == [screen.badge for screen in screens if screen.badge]
    told = texts(page, "dd")
    for screen in screens:
        for tile in screen.tiles:
            assert f"{tile.answer}. {tile.sentence}".strip() in told
    for outcome in (*result.outcomes.values(), *other.outcomes.values()):
        assert outcome.verdict in told
    conclusion = differences(
        dict(zip(names, (screen.badge for screen in screens), strict=True)),
        {key: one.claims for key, one in both.items()},
        dict(zip(names, (screen.named for screen in screens), strict=True)),
    )
    assert texts(page, "p", "conclusion")[0].startswith(conclusion)


def test_the_command_tells_the_same(tmp_path):
    probes = ["behaviour", "attention", "alignment"]
    answer = CliRunner().invoke(
        cli, ["probe", "--example", "walk", "--probes", ",".join(probes), "--out", str(tmp_path), "--json"]
    )
    data, result = json.loads(answer.stdout), mm.probe(mm.example("walk"), probes)
    expected = json.loads(json.dumps(result.summary()))
    assert data | {"run": None} == expected | {"run": None}
    assert data == json.loads((tmp_path / "summary.json").read_text("utf-8"))


@pytest.mark.parametrize("name", RUNS)
def test_sentences_are_of_one_claim_or_premise(name):
    """A tile quotes sentences of claims, unless it speaks of the whole model."""
    result = probed(name)
    of_claims = {text for claim in result.claims for text in split(sentence(claim))}
    for tile, shown in zip(chosen_tiles(result), headline(result).tiles, strict=False):
        if shown.question == tile.question and "checkpoint" not in shown.answer:
            first = split(shown.sentence)[:1]
            assert not first or first[0] in of_claims or shown.answer.endswith("not known")
