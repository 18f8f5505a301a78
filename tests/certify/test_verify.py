"""Proofs: the checker confirms what is certified, shares no code with the search, and refuses the rest."""

import ast
import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from certify_cases import one_layer, proof
from probing_cases import RAW_LOG, SHAPES

import mechmarkov as mm
from mechmarkov.certify import EXACT, FLOAT32, checker, load_proof, save_proof, verify
from mechmarkov.certify.bounds import every
from mechmarkov.models.constructions.context_conditioned import context_conditioned_model
from mechmarkov.objectives import Objective
from mechmarkov.runs import example
from mechmarkov.sources import Circle, ContextConditionedChain

RAW = Objective(kind="raw_log", read="last")


@pytest.fixture(scope="module")
def walk():
    run = example("walk")
    return run, proof(run, "parent")


@pytest.fixture(scope="module")
def behind():
    """A model with a norm and an MLP behind attention."""
    run = one_layer("LN and MLP")
    run.states["blocks.0.attn.W_O"] *= 0.05  # a thin set behind attention
    return run, proof(run, "parent")


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "three layers"])
def test_every_certificate_is_confirmed(shape, tmp_path):
    run = one_layer(shape, scale=0.2)
    for unit in (EXACT, FLOAT32):
        save_proof(proof(run, "parent", unit), tmp_path / "proof.json")
        stored = load_proof(tmp_path / "proof.json")
        follows = verify(stored, run)
        claims = {name: claimed for name, claimed in stored["claims"].items() if claimed is not None}
        assert all(follows[name] <= claimed for name, claimed in claims.items())
        assert len(claims) == 4 or run.config.normalization_type is not None  # a wide box may say nothing
        assert follows["worst_kl"] >= stored["seen"]["nats"]


def test_certificates_of_raw_scores_paths_and_counts_are_confirmed():
    forbidden = one_layer("plain", RAW_LOG, source=Circle(n_states=4, p=0.3), scale=0.3)
    forbidden.states["unembed.b_U"] += 6.0
    follows = verify(proof(forbidden, "parent"), forbidden)
    assert follows["worst_kl"] > 0
    base = np.array([[0.7, 0.3], [0.4, 0.6]])
    copies = mm.Run.from_model(
        context_conditioned_model(base, n_ctx=9), source=ContextConditionedChain(base), objective=RAW
    )
    stored = proof(copies, "row")
    assert stored["kind"] == "counts"
    assert verify(stored, copies)["worst_kl"] < 1e-9
    np.testing.assert_allclose(stored["table"], base, atol=1e-6)


def test_what_the_checker_finds_is_what_was_certified(walk, behind):
    for run, stored in (walk, behind):
        follows = verify(stored, run)
        for name, claimed in stored["claims"].items():
            assert 0.95 * claimed <= follows[name] <= claimed


def changed(stored, **parts):
    stored = deepcopy(stored)
    for name, value in parts.items():
        stored[name] = value
    return stored


def test_a_claim_below_what_follows_is_refused(walk):
    run, stored = walk
    for name, value in stored["claims"].items():
        lower = changed(stored, claims={**stored["claims"], name: 0.99 * value})
        with pytest.raises(ValueError, match=rf"^{name} is claimed to be at most"):
            verify(lower, run)


TOO_SMALL = r"^a multiplier at position %s after state %s is too small"
AT_THE_LAST = TOO_SMALL % (96, 0)


@pytest.mark.parametrize(
    ("which", "name", "change", "why"),
    [
        ("walk", "multipliers", lambda x: x - 1e-3, AT_THE_LAST),
        ("walk", "floor", lambda x: x - 1e-3, AT_THE_LAST),
        ("walk", "ceiling", lambda x: x - 1e-3, AT_THE_LAST),
        # The inequality of a smaller ratio does not hold, so its odds have no bound.
        ("walk", "ratio", lambda x: 0.999 * x, r"too small|is claimed to be at most"),
        ("behind", "multipliers", lambda x: x - 1e-2, TOO_SMALL % (r"\d", r"\d")),
    ],
)
def test_a_smaller_number_is_refused(request, which, name, change, why):
    run, stored = request.getfixturevalue(which)
    lower = deepcopy(stored)
    lower["stored"][name] = change(np.array(stored["stored"][name])).tolist()
    with pytest.raises(ValueError, match=why):
        verify(lower, run)


def test_a_closing_that_claims_too_much_is_refused(behind):
    run, stored = behind
    lower = deepcopy(stored)
    for row in lower["stored"]["closed"]:
        row[-run.config.n_heads :] = [mu - 1e-2 for mu in row[-run.config.n_heads :]]
    with pytest.raises(ValueError, match=TOO_SMALL % (r"\d", r"\d")):
        verify(lower, run)


def test_pieces_that_none_closes_are_confirmed(monkeypatch):
    """As where the budget ends before the pieces that decide."""
    monkeypatch.setattr(every, "_deciding", lambda found: set())
    run = one_layer("LN and MLP", n_ctx=3)
    stored = proof(run, "parent")
    assert "closed" not in stored["stored"]
    assert verify(stored, run)["worst_kl"] >= stored["seen"]["nats"]


def test_another_program_is_refused(walk, behind):
    """The multipliers hold of the model, whatever the program; the claims do not."""
    for run, stored in (walk, behind):
        table = np.array(stored["table"]) ** 1.01
        other = changed(stored, table=(table / table.sum(1, keepdims=True)).tolist())
        with pytest.raises(ValueError, match=r"is claimed to be at most"):
            verify(other, run)


def refused(stored, run, match):
    """The checker refuses it for this reason; so does `verify`, which looks at shapes first."""
    with pytest.raises(ValueError, match=match):
        checker.verify(stored, run)
    with pytest.raises(ValueError, match=r"expected|the proof"):
        verify(stored, run)


def test_a_proof_that_leaves_sequences_out_is_refused(walk):
    run, stored = walk
    fewer = deepcopy(stored)
    fewer["contexts"]["transitions"][0][1] = False  # the walk goes there
    refused(fewer, run, "^the proof leaves out sequences that the source can give")
    fewer = deepcopy(stored)
    fewer["contexts"]["start"][2] = False
    refused(fewer, run, "^the proof leaves out sequences")
    fewer = deepcopy(stored)
    fewer["contexts"]["reads"] = []
    refused(fewer, run, "^the proof is about other positions or states")


def test_a_proof_of_another_model_is_refused(walk, behind):
    run, stored = walk
    refused(stored, behind[0], "^the proof is about other positions or states")
    other = example("walk")
    other.states["blocks.0.attn.W_O"][-1] *= 1.01
    other.states["blocks.0.attn.W_O"][-1, 0, 0] *= 1.05
    with pytest.raises(ValueError, match=r"too small|is claimed to be at most"):
        verify(stored, other)
    for kind in ("logits", "relaxed"):
        refused(changed(stored, kind=kind), run, f"^the proof is of {kind}, which this model does not give")


@pytest.mark.parametrize("table", [[[0.5, 0.5]], [[1.5, -0.5, 0.0]] * 3, [[0.5, 0.4, 0.0]] * 3])
def test_a_table_that_is_no_law_is_refused(behind, table):
    run, stored = behind
    refused(changed(stored, table=table), run, "^the table of the proof has no law for each state")


def lines_of_code(source):
    """The numbers of the lines that are no docstring, no comment and not empty."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = [node.body[0] for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    words = {line for node in docstrings for line in range(node.lineno, node.end_lineno + 1)
             if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}  # fmt: skip
    lines = enumerate(source.splitlines(), 1)
    return {i for i, line in lines if line.strip() and not line.lstrip().startswith("#")} - words


def test_the_checker_is_short_and_shares_no_code_with_the_search():
    source = Path(checker.__file__).read_text("utf-8")
    assert len(lines_of_code(source)) < 300
    names = {
        alias if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in [node.names[0].name]
    }
    assert names <= {"math", "itertools", "typing", "numpy"}


def test_a_file_that_is_no_proof_is_refused_in_one_line(tmp_path):
    path = tmp_path / "proof.json"
    for text in ("", "[]", "{}", json.dumps({"format": "mechmarkov.certificate", "version": 2}), "[" * 5000):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"proof.json is not a proof: ") as error:
            load_proof(path)
        assert "\n" not in str(error.value)
