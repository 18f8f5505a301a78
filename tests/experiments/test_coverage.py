"""Every part of a paper that was read has a row or a reason, and every row is of some part."""

from dataclasses import replace

import pytest

from experiments import coverage, verdicts
from experiments.statements import papers

ALL = coverage.coverage()
CLAIMS = verdicts.committed()
SEEDS = {
    "shi2025", "makkuva2024", "makkuva2025", "bondaschi2026", "rajaraman2024", "edelman2024", "nichani2024",
    "ildiz2024", "jiao2024",
}  # fmt: skip


def test_every_seed_has_its_file():
    assert set(ALL) == SEEDS
    assert set(papers()) >= SEEDS


@pytest.mark.parametrize("one", ALL.values(), ids=ALL)
def test_every_part_has_rows_or_a_reason(one):
    assert coverage.missing(one, CLAIMS) == []


@pytest.mark.parametrize(
    "one", [one for one in ALL.values() if one.text], ids=[n for n, o in ALL.items() if o.text]
)
def test_of_a_text_that_was_read_every_theorem_and_figure_is_listed(one):
    assert {"theorem", "figure"} <= set(one.inventory)
    assert not [c for c in CLAIMS if c.statement.about == one.paper and c.statement.read == "abstract"]


def test_what_is_not_covered_is_told():
    one = ALL["shi2025"]
    (first, *others) = one.items
    assert coverage.missing(replace(one, items=tuple(others)), CLAIMS)
    empty = replace(first, rows=(), reason="")
    assert f"{first.name} has rows and a reason, or neither" in coverage.missing(
        replace(one, items=(empty, *others)), CLAIMS
    )
    lost = replace(first, rows=("random_walks.nothing",), reason="")
    assert f"{first.name}: there is no row random_walks.nothing" in coverage.missing(
        replace(one, items=(lost, *others)), CLAIMS
    )
    shorter = [item for item in one.items if "random_walks.uninformative_mean" not in item.rows]
    assert "row random_walks.uninformative_mean is of no part" in coverage.missing(
        replace(one, items=tuple(shorter)), CLAIMS
    )
    more = one.inventory | {"lemma": [*one.inventory["lemma"], "Z.9"]}
    assert "lemma Z.9 is not there" in coverage.missing(replace(one, inventory=more), CLAIMS)
