"""The one rule of verdicts, and every committed result under it."""

import re
from dataclasses import replace
from typing import get_args

import pytest

from experiments import verdicts
from experiments.claims import (
    ENOUGH_SEEDS,
    EXACT,
    NEED_DEFENCE,
    Claim,
    Evidence,
    Finding,
    Verdict,
    holds,
    verdict,
    wilson,
)
from experiments.harness import Study
from experiments.statements import Statement, statements

STUDIES = verdicts.studies()
COMMITTED = [claim for study in STUDIES for claim in study.committed()]
ids = [study.folder.name for study in STUDIES]


def found(direction="against", evidence="trained at another", count=None):
    proof = "reading.md#so" if evidence == "proved" else ""
    return Finding("key", "1.0", direction, "our setting", evidence, count, proof=proof)


def said(**fields):
    given = {
        "claim": "it is so",
        "about": "shi2025",
        "where": "theorem 1",
        "words": "paraphrase: it is so",
        "read": "summary",
        "paper_setting": "theirs",
        "differs": "the seed",
        "stated": "it is",
    }
    return Statement(**given | fields)


PAPER = '[paper.a]\nabout = "shi2025"\nread = "text"\npaper_setting = "theirs"\ndiffers = "ours"\n'
OWN = '[it]\npaper = "a"\nclaim = "it is so"\nwhere = "theorem 1"\nwords = "own: it is so"\n'


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('paper = "a"', 'paper = "b"', "it.paper is 'b', expected one of a"),
        ("claim", "clam", "it: .* unexpected keyword argument 'clam'"),
        ('where = "theorem 1"', "", "it: .* missing 1 required positional argument: 'where'"),
        ('words = "own: it is so"', "words = 3", "it is .*'words': 3.*, expected a table of texts"),
        ("[paper.a]", "it_is = true\n[paper.a]", "it_is is True, expected a table of texts"),
        ('about = "shi2025"', 'about = "shi"', "it: about is 'shi', expected one of .*shi2025"),
        ('read = "text"', 'read = "title"', "it: read is 'title', expected one of 'text', 'code', "),
    ],
)
def test_a_mistake_in_the_statements_is_told_before_anything_is_measured(
    tmp_path, capsys, before, after, message
):
    measured = []
    study = Study(tmp_path, "about", [measured.append])
    (tmp_path / "claims.toml").write_text(PAPER + OWN)
    assert list(statements(tmp_path)) == ["it"]
    (tmp_path / "claims.toml").write_text((PAPER + OWN).replace(before, after))
    with pytest.raises(SystemExit):
        study.main([])
    assert re.search(rf"error: claims\.toml: {message}", capsys.readouterr().err)
    assert measured == []


def test_a_finding_without_a_statement_is_named(tmp_path):
    (tmp_path / "claims.toml").write_text(PAPER + OWN)
    with pytest.raises(ValueError, match=r"^claims\.toml has no \[key\], of which walk is a finding$"):
        Study(tmp_path, "about", []).claims("walk", [found(count=(1, 2))])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"evidence": "hearsay"}, "evidence is 'hearsay', expected one of 'proved', 'computed exactly', "),
        ({"direction": "yes"}, "direction is 'yes', expected one of 'for', 'corrected', "),
        ({"count": (5, 2)}, "count is 5 of 2 runs"),
        ({"count": (0, 0)}, "count is 0 of 0 runs"),
        (
            {"evidence": "computed exactly"},
            "evidence is 'computed exactly', which has no interval, but a count",
        ),
        ({"evidence": "proved"}, "evidence is 'proved', which has no interval, but a count"),
    ],
)
def test_a_finding_of_another_name_or_an_impossible_count_is_refused(fields, message):
    with pytest.raises(ValueError, match=f"^key: {message}"):
        found(**{"count": (1, 2)} | fields)


def test_which_way_a_measurement_points():
    assert holds(True) == "for"
    assert holds(False, corrected=True) == "corrected"
    assert holds([]) == "against"


@pytest.mark.parametrize("evidence", EXACT)
def test_exact_evidence_decides_without_a_count(evidence):
    assert verdict("paper", found("for", evidence)) == "holds"
    assert verdict("paper", found("corrected", evidence)) == "holds with a correction"
    assert verdict("paper", found("against", evidence)) == "does not hold"
    assert verdict("question", found("against", evidence)) == "our question: no"
    assert verdict("question", found("for", evidence)) == "our question: yes"


def test_each_kind_of_evidence_needs_what_bears_it():
    assert len(get_args(Evidence)) == 5
    for evidence in set(get_args(Evidence)) - set(EXACT):
        with pytest.raises(ValueError, match="no count"):
            found("for", evidence)
    seen = {"key": "key", "measured": "", "direction": "for", "our_setting": ""}
    with pytest.raises(ValueError, match="evidence is 'proved' and the proof at ''"):
        Finding(**seen, evidence="proved")
    with pytest.raises(ValueError, match=r"evidence is 'computed exactly' and the proof at 'a\.md'"):
        Finding(**seen, evidence="computed exactly", proof="a.md")
    assert Finding(**seen, evidence="sampled", sample=(100, 0.1, 0.2)).gist == ""
    assert verdict("paper", found("untested")) == "not testable here"


@pytest.mark.parametrize("evidence", get_args(Evidence))
@pytest.mark.parametrize("direction", ["for", "corrected", "against"])
def test_a_threshold_of_ours_neither_corrects_nor_refutes(evidence, direction):
    count = None if evidence in EXACT else (0 if direction == "against" else 30, 30)
    came_out = verdict("paper", found(direction, evidence, count), has_a_measure=False)
    if evidence not in EXACT:
        assert came_out in ("holds", "undecided", "not found in training")
        assert direction != "corrected" or came_out == "undecided"


def test_samples_against_a_statement_refute_nothing():
    assert verdict("paper", found("against", "sampled", (0, 1000))) == "undecided"
    assert verdict("paper", found("for", "sampled", (1000, 1000))) == "holds"


def test_the_interval_of_a_count_decides_and_never_its_mean():
    assert verdict("paper", found("for", count=(3, 3))) == "undecided"  # [0.44, 1]
    assert verdict("paper", found("for", count=(4, 4))) == "holds"  # [0.51, 1]
    assert verdict("paper", found("for", count=(12, 20))) == "undecided"
    assert verdict("question", found("against", count=(1, 3))) == "undecided"
    assert verdict("paper", found("against", count=(30, 30))) == "holds"


def test_does_not_hold_takes_the_papers_setting_and_enough_seeds():
    theirs, n = "trained at the paper's setting", ENOUGH_SEEDS
    assert verdict("paper", found(evidence=theirs, count=(0, n))) == "does not hold"
    assert verdict("paper", found(evidence=theirs, count=(0, n - 1))) == "not found in training"
    assert verdict("paper", found(evidence="trained at another", count=(0, 100))) == "not found in training"
    assert verdict("paper", found(evidence=theirs, count=(n // 2, n))) == "undecided"


def test_a_verdict_against_a_paper_needs_a_defence():
    against = found(count=(0, 30))
    with pytest.raises(ValueError, match="defence"):
        Claim(said(), against, "study", "walk")
    weak = Claim(said(defence="it was another setting"), against, "study", "walk")
    assert weak.verdict in NEED_DEFENCE
    refuted = found("against", "computed exactly")
    with pytest.raises(ValueError, match="equation"):
        Claim(said(defence="it was another setting"), refuted, "study", "walk")
    assert Claim(said(), found("for", count=(30, 30)), "study", "walk").verdict == "holds"


@pytest.mark.parametrize(
    ("field", "value"),
    [("words", "it is so"), ("read", "skimmed"), ("where", ""), ("paper_setting", ""), ("differs", "")],
)
def test_a_statement_says_whose_words_it_tests(field, value):
    with pytest.raises(ValueError, match=field):
        said(**{field: value})


def test_leaning_is_what_a_smaller_run_must_not_turn_round():
    assert found("for", count=(3, 4)).leaning == 1
    assert found("for", count=(1, 4)).leaning == -1
    assert found("for", count=(2, 4)).leaning == 0
    assert found("corrected", "computed exactly").leaning == 1
    assert found("untested").leaning == 0


@pytest.mark.parametrize("study", STUDIES, ids=ids)
def test_every_statement_is_measured(study):
    keys = {claim.finding.key for claim in study.committed()}
    assert keys == set(statements(study.folder))


@pytest.mark.parametrize("study", STUDIES, ids=ids)
def test_every_committed_claim_keeps_to_the_rule(study):
    for claim in study.committed():
        print(claim.identifier)  # the last one that is printed is the one that does not
        keeps_to_the_rule(claim)


def keeps_to_the_rule(claim):
    finding, statement = claim.finding, claim.statement
    assert claim.verdict in get_args(Verdict)
    assert finding.our_setting  # also for what is not testable here: the reason
    if finding.count is not None:
        low, _, high = wilson(*finding.count)
        if low <= 0.5 <= high:
            assert claim.verdict == "undecided"
    if claim.verdict == "does not hold":
        own = finding.evidence == "trained at the paper's setting" and finding.count[1] >= ENOUGH_SEEDS
        assert finding.evidence in EXACT or own
        assert statement.kind == "paper"
    if statement.kind == "question":
        assert claim.verdict.startswith("our question") or claim.verdict in ("undecided", "not testable here")
    if statement.words.startswith('"'):
        assert statement.read in ("text", "abstract", "code", "summary")
        assert re.match(r'"[^"]', statement.words)


def test_a_corrected_word_needs_no_new_measurement():
    claim = COMMITTED[0]
    other = replace(claim, statement=replace(claim.statement, words="paraphrase: in other words"))
    assert other.verdict == claim.verdict
