"""The quick run of every measurement comes to the verdicts of the committed, full one."""

import pytest

from experiments.harness import load
from experiments.verdicts import studies

# Under two seconds each: one or more of every folder, as a smoke test. All: `make test-experiments`.
SMOKE = {
    "induction_heads": {"posterior"},
    "initialisation": {"gaussian"},
    "order_and_lag": {"gradients"},
    "random_walks": {"trapped", "direction", "rounding", "token_mean", "graphs"},
    "unigram_trap": {"points"},
    "where_is_the_bigram": {"first_step"},
}
CASES = [
    pytest.param(
        study,
        name,
        id=f"{study.folder.name}-{name}",
        marks=[] if name in SMOKE[study.folder.name] else [pytest.mark.experiments],
    )
    for study in studies()
    for name in study.names
]


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize(("study", "name"), CASES)
def test_the_quick_run_has_the_committed_verdicts(study, name):
    measured = study.measure(name, quick=True)
    committed = {(claim.claim, claim.source): claim.verdict for claim in load(study.folder, name)[0]}
    found = {(claim.claim, claim.source): claim.verdict for claim in measured.claims}
    assert found
    assert found == {key: committed[key] for key in found}
    assert {claim.name for claim in measured.claims} == {name}
    for title, figure in measured.figures.items():
        assert (study.folder / "figures" / f"{title}.json").is_file()
        assert figure.data
        assert figure.layout.title.text
