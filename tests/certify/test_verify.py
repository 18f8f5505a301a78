"""Proofs: the checker confirms what is certified, shares no code with the search, and refuses the rest."""

import ast
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from certify_cases import contexts_of, every_score, layer_of, one_layer, proof
from probing_cases import RAW_LOG, SHAPES

import mechmarkov as mm
from mechmarkov.certify import (
    EXACT,
    FLOAT32,
    certify,
    checked_layer,
    checker,
    load_proof,
    proof_of,
    save_proof,
    verify,
)
from mechmarkov.certify.bounds import every
from mechmarkov.certify.bounds.reading import Reading
from mechmarkov.certify.witness import seen_again
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


TAKES_LONG = {"post-norm"}
ONE_LAYER = [
    pytest.param(shape, marks=pytest.mark.system if shape in TAKES_LONG else ())
    for shape in SHAPES
    if shape != "three layers"
]


@pytest.mark.parametrize("shape", ONE_LAYER)
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


def test_norms_behind_the_sums_are_checked_where_they_stand():
    """The same weights with norms in front are another model, and the proof is none of it."""
    small = {"n_ctx": 2, "normalization_type": "RMSPre", "norm_first": False, "final_norm": True}
    run = one_layer("LN and MLP", seed=2, scale=0.2, **small)
    run.states["unembed.W_U"] *= 5
    stored = proof(run, "parent", EXACT)  # the first position has one context: a box as wide as rounding
    follows = verify(stored, run)
    assert follows["worst_kl"] >= stored["seen"]["nats"] > 0
    elsewhere = replace(run, config=run.config.model_copy(update={"norm_first": True}))
    with pytest.raises(ValueError, match=r"worst_kl|basis|closed|multiplier|claimed"):
        verify(stored, elsewhere)


@pytest.mark.parametrize("unit", [EXACT, FLOAT32])
def test_the_checker_counts_no_more_rounding_than_the_search(unit):
    """Else whether a proof is confirmed would hang on the processor that it was made on."""
    for shape in (
        "plain",
        "LN and MLP",
        "RMS and MLP",
        "rotary",
        "relative",
        "relative bias",
        "ALiBi",
        "GPT-NeoX",
    ):
        run = one_layer(shape, scale=0.2)
        layer, contexts = layer_of(run, unit), contexts_of(run)
        weights = {name: value.double().numpy() for name, value in run.model().state_dict().items()}
        model = checker.Model(run.config, weights, unit)
        stated = {
            name: getattr(contexts, name) for name in ("n_states", "query", "start", "transitions", "lags")
        }
        for read in contexts.reads:
            ours = Reading.of(layer, contexts, read, 0, scored=False)
            theirs = checker.Case(model, stated, read, 0)
            assert (theirs.value.rad <= ours.value.rad).all(), shape
            assert (theirs.weight[1] <= ours.weight.rad + 1e-299).all(), shape


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
    """This happens if the budget ends before the pieces that decide."""
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


@pytest.fixture(scope="module")
def of_kinds(walk, behind):
    """A run and a proof of it, of each kind."""
    base = np.array([[0.7, 0.3], [0.4, 0.6]])
    copies = mm.Run.from_model(
        context_conditioned_model(base, n_ctx=9), source=ContextConditionedChain(base), objective=RAW
    )
    plain, induction = one_layer("plain", scale=0.3), example("induction")
    return {
        "raw scores": walk,
        "relaxed": behind,
        "logits": (plain, proof(plain, "parent")),
        "exact": (plain, proof(plain, "parent", EXACT)),
        "counts": (copies, proof(copies, "row")),
        "norm": (induction, proof_of(certify(induction, tokens=1 << 10), int(induction.steps[-1]))),
    }


KINDS = ["raw scores", "relaxed", "logits", "exact", "counts", "norm"]


@pytest.mark.parametrize("kind", KINDS)
def test_another_sequence_or_number_seen_is_refused(kind, of_kinds):
    run, stored = of_kinds[kind]
    assert verify(stored, run)
    seen, n = stored["seen"], run.source.n_states
    for edited, why in [
        ({"nats": 1.01 * seen["nats"] + 1e-9}, r"^seen.nats is .* but the model gives"),
        ({"nats": -1e-15}, "^seen.nats is"),
        ({"position": stored["contexts"]["reads"][-1] + 1}, "^seen.position is"),
        ({"position": -1}, "^seen.position is -1, expected one of contexts.reads"),
        ({"sequence": seen["sequence"][:-1]}, rf"expected {len(seen['sequence'])} states from 0 to {n - 1}"),
        ({"sequence": [n, *seen["sequence"][1:]]}, "^seen.sequence is .* states from 0 to"),
        ({"sequence": [-1, *seen["sequence"][1:]]}, "^seen.sequence is .* states from 0 to"),
    ]:
        with pytest.raises(ValueError, match=why):
            verify(changed(stored, seen=seen | edited), run)


def test_what_was_seen_is_what_the_model_gives(of_kinds):
    """Ten sequences, with KL(program ‖ model) written out: each is taken with its own number only."""
    run, stored = of_kinds["logits"]
    histories, scores = every_score(run)
    table, position = np.array(stored["table"]), 3
    for row in range(0, len(histories), len(histories) // 10):
        q = np.exp(scores[row, position]) / np.exp(scores[row, position]).sum()
        p = table[histories[row, position]]
        nats = float((p * np.log(p / q)).sum())
        seen = {"nats": nats, "position": position, "sequence": histories[row].tolist()}
        verify(changed(stored, seen=seen), run)
        with pytest.raises(ValueError, match=r"^seen.nats is"):
            verify(changed(stored, seen=seen | {"nats": nats + 1e-4}), run)


def test_a_sequence_that_the_source_cannot_give_is_not_seen(walk):
    run, stored = walk
    stays = [0] * len(stored["seen"]["sequence"])
    with pytest.raises(ValueError, match=r"^seen.sequence is .* expected a sequence of the contexts"):
        verify(changed(stored, seen=stored["seen"] | {"sequence": stays}), run)


@pytest.mark.parametrize("kind", KINDS)
def test_another_name_of_the_program_is_refused(kind, of_kinds):
    run, stored = of_kinds[kind]
    names = {"constant", "uniform", "unigram", "bigram", "row", "in_context_bigram", "nothing", ""}
    for name in names - {stored["program"]}:
        with pytest.raises(ValueError, match=r"^program is|^table is not that of the program|^seen.nats is"):
            verify(changed(stored, program=name), run)


def test_a_table_with_the_name_of_a_predictor_is_it(walk):
    run, _ = walk
    named = proof(run, "bigram")
    assert verify(named, run)
    np.testing.assert_allclose(named["table"], run.source.P)
    table = np.array(named["table"])
    table[0, [1, 5]] = 0.5001, 0.4999
    with pytest.raises(ValueError, match=r"^table is not that of the program 'bigram'"):
        seen_again(changed(named, table=table.tolist()), run)
    rows = np.tile([0.5, 0.1, 0.1, 0.1, 0.1, 0.1], (6, 1))
    rows[3] = rows[3][::-1]
    with pytest.raises(ValueError, match=r"^table is not that of the program 'constant'"):
        seen_again(changed(named, table=rows.tolist(), program="constant"), run)


def test_a_table_under_a_norm_bound_is_a_law(of_kinds):
    run = of_kinds["norm"][0]
    stored = proof_of(certify(run, "parent", tokens=1 << 10), int(run.steps[-1]))
    assert verify(stored, run)
    for table in (np.full((3, 3), 0.5), np.array([[1.5, -0.5, 0.0]] * 3)):
        with pytest.raises(ValueError, match=r"^table is not that of the program 'parent'"):
            verify(changed(stored, table=table.tolist()), run)
    with pytest.raises(ValueError, match=r"^table is not that of the program 'parent'"):
        verify(changed(stored, table=None), run)


@pytest.mark.parametrize("kind", KINDS)
def test_other_contexts_steps_and_kinds_are_refused(kind, of_kinds):
    run, stored = of_kinds[kind]
    contexts = stored["contexts"]
    for edited in (
        {"reads": [read + 1 for read in contexts["reads"]]},
        {"reads": contexts["reads"][1:]},
        {"query": not contexts["query"]},
        {"n_states": contexts["n_states"] + 1},
        {"start": [False, *contexts["start"][1:]]},
    ):
        with pytest.raises(ValueError, match=r"expected|about other positions|leaves out"):
            verify(changed(stored, contexts=contexts | edited), run)
    for edited in ({"step": stored["step"] + 1}, {"kind": "nothing"}, {"version": 1}, {"arithmetic": "half"}):
        with pytest.raises(ValueError, match="expected"):
            verify(changed(stored, **edited), run)


def lines_of_code(source):
    """The numbers of the lines that are no docstring, no comment and not empty."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = [node.body[0] for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    words = {line for node in docstrings for line in range(node.lineno, node.end_lineno + 1)
             if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}  # fmt: skip
    lines = enumerate(source.splitlines(), 1)
    return {i for i, line in lines if line.strip() and not line.lstrip().startswith("#")} - words


def test_the_checker_is_short_and_shares_no_code_with_the_search():
    layer, whole = (Path(file.__file__).read_text("utf-8") for file in (checked_layer, checker))
    assert len(lines_of_code(layer)) < 300
    assert len(lines_of_code(layer)) + len(lines_of_code(whole)) < 400  # with several layers
    names = {
        alias if isinstance(node, ast.Import) else node.module
        for source in (layer, whole)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in [node.names[0].name]
    }
    assert names <= {"math", "itertools", "typing", "numpy", "mechmarkov.certify.checked_layer"}


def test_a_file_that_is_no_proof_is_refused_in_one_line(tmp_path):
    path = tmp_path / "proof.json"
    for text in ("", "[]", "{}", json.dumps({"format": "mechmarkov.certificate", "version": 1}), "[" * 5000):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"proof.json is not a proof: ") as error:
            load_proof(path)
        assert "\n" not in str(error.value)
