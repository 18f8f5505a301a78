"""The quick run of every measurement points the way of the committed one; it need not decide as much."""

import pytest

from experiments.claims import verdict
from experiments.harness import load
from experiments.statements import statements
from experiments.verdicts import studies

pytestmark = pytest.mark.experiments

# Under two seconds each: one or more of every folder, as a smoke test. All: `make test-experiments`.
SMOKE = {
    "causal_structure": {"confused"},
    "context_conditioned": {"mapping", "winners"},
    "emergence": set(),
    "graphs_in_context": set(),
    "hidden_parts": set(),
    "induction_heads": {"add_one", "constructions", "equal_tokens", "lemmas", "proofs"},
    "initialisation": {"gaussian"},
    "mixers": set(),
    "order_and_lag": {"construction", "constant_depth", "n_grams"},
    "random_walks": {"trapped", "any_loss", "which_token", "rounding", "mean_stays", "hidden_first_step"},
    "state_space": {"construction", "proofs"},
    "task_mixtures": set(),
    "tokenised": {"theorems", "blocks", "encoders", "ties", "one_text", "windows"},
    "unigram_trap": {"points"},
    "variable_order": set(),
    "where_is_the_bigram": {"first_step"},
    "which_parents": {"criterion"},
}
NO_QUICK_RUN = {"public_settings", "authors_sizes", "section_f"}  # 1000 steps or more, or nothing
CASES = [
    pytest.param(
        study,
        name,
        id=f"{study.folder.name}-{name}",
        marks=[] if name in SMOKE[study.folder.name] else [pytest.mark.experiments],
    )
    for study in studies()
    for name in study.names
    if name not in NO_QUICK_RUN
]


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize(("study", "name"), CASES)
def test_the_quick_run_points_the_committed_way(study, name):
    measured = study.measure(name, quick=True)
    committed: dict[str, set[int]] = {}
    for finding in load(study.folder, name)[0]:
        undecided = verdict("paper", finding) == "undecided"  # which no smaller run can turn round
        committed.setdefault(finding.key, set()).add(0 if undecided else finding.leaning)
    assert measured.findings
    for finding in measured.findings:
        assert finding.key in statements(study.folder)
        if finding.leaning and committed[finding.key] <= {-1, 1}:
            assert finding.leaning in committed[finding.key], finding
    for title, figure in measured.figures.items():
        assert (study.folder / "figures" / f"{title}.json").is_file()
        assert figure.data
        assert figure.layout.title.text
