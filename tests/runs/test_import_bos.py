"""Models trained on sequences that begin with a token of their own: it is kept, and scores skip it."""

import json

import numpy as np
import pytest
import torch
import transformers
from run_files import saved

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.objectives import Objective
from mechmarkov.population import population_law
from mechmarkov.probing import Subject
from mechmarkov.probing.batch import batch_of
from mechmarkov.runs import load
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources import Circle
from mechmarkov.theory.kernel import kl
from mechmarkov.training.recipe import Recipe

K, LENGTH, BOS, PAD = 3, 6, 0, 4  # tokens 1, 2, 3 are the states
SOURCE = Circle(n_states=K, p=0.2)
TOKENS = torch.tensor([1, 2, 3, BOS])  # of the run's tokens


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A GPT-2 of transformers, trained by their loss on sequences that begin with `bos_token_id`."""
    config = transformers.GPT2Config(
        vocab_size=5, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, bos_token_id=BOS, eos_token_id=BOS,
        pad_token_id=PAD, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        states = SOURCE.sample(32, LENGTH - 1, generator=generator)
        rows = torch.cat([torch.full((32, 1), BOS), states + 1], dim=1)
        model(rows, labels=rows).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    folder = tmp_path_factory.mktemp("bos") / "model"
    model.save_pretrained(folder)
    return folder, model.eval()


def imported(folder, **options):
    return import_run([folder], source=SOURCE, bos=BOS, **{"pad": PAD, **options})


def test_the_run_reads_what_the_model_reads(tmp_path, trained):
    folder, model = trained
    result = imported(folder)
    result.run.save(tmp_path / "run.pt")
    run = load(tmp_path / "run.pt")
    assert run.objective == Objective(bos=True)
    assert run.provenance["tokens"] == TOKENS.tolist()
    assert (run.config.d_vocab, run.config.d_vocab_out, run.config.n_ctx) == (K + 1, K, LENGTH)
    states = SOURCE.sample(4, LENGTH - 1, generator=torch.Generator().manual_seed(1))
    tokens = torch.cat([torch.full((4, 1), K), states], dim=1)
    with torch.no_grad():
        whole = model(TOKENS[tokens]).logits[..., TOKENS[:K]]
        torch.testing.assert_close(run.model()(tokens), whole, rtol=1e-5, atol=1e-5)
        without = run.model()(states)
    assert float((without - whole[:, 1:]).abs().max()) > 0.05  # it attends to the token
    by_map = imported(folder, token_map="0=1,1=2,2=3", pad=None).run
    assert by_map.config == run.config
    assert torch.equal(by_map.states["embed.W_E"], run.states["embed.W_E"])


def test_scores_skip_the_beginning(trained):
    folder, model = trained
    run = imported(folder).run
    subject = Subject.of(run, sequences=50)
    batch = subject.batch
    assert batch.tokens.shape == (50, LENGTH)
    assert (batch.tokens[:, 0] == K).all()
    assert torch.equal(batch.tokens[:, 1:], batch.history)
    assert batch.read.tolist() == [1, 2, 3, 4, 5]
    assert batch.known.tolist() == [0, 1, 2, 3, 4]
    assert (batch.first, batch.parent_lag) == (1, 0)
    assert torch.equal(batch.parents, batch.tokens[:, batch.read])
    assert torch.equal(batch.targets, batch.states[:, 1:])
    result = mm.probe(run, ["behaviour"], sequences=50)
    with torch.no_grad():
        logits = model(TOKENS[batch.tokens]).logits[:, 1:, TOKENS[:K]].double()
    law = np.asarray(SOURCE.P)[batch.history.numpy()]
    expected = kl(law, logits.softmax(-1).numpy()).mean()
    assert result["behaviour"].scores["kl_bigram"].value == pytest.approx(expected, rel=1e-4)
    assert expected < 0.05  # it has learned the chain
    assert result["behaviour"].scores["nearest_predictor"].value == "bigram"


def test_windows_and_lags_count_states_only():
    config = mm.models.DecoderConfig(n_layers=1, d_model=4, n_ctx=5, d_head=4, d_vocab=K + 1, attn_only=True)
    states = torch.zeros(2, 5, dtype=torch.long)
    with_it = batch_of(states, K, Objective(bos=True), config)
    plain = batch_of(states, K, Objective(), config.model_copy(update={"n_ctx": 4, "d_vocab": K}))
    for window in (None, 0, 2):
        assert torch.equal(with_it.visible(window), plain.visible(window))
        assert with_it.seen(window) == plain.seen(window)
    assert torch.equal(with_it.reach[: len(plain.reach)], plain.reach)
    last = batch_of(states, K, Objective(bos=True, read="last"), config)
    assert (last.read.tolist(), last.known.tolist(), last.parent_lag) == ([4], [3], 0)
    assert with_it.to(torch.device("cpu")).first == with_it.head(1).first == 1


def test_what_is_measured_and_what_says_why_not(tmp_path, capsys, trained):
    folder, _ = trained
    out, report = tmp_path / "run.pt", tmp_path / "report"
    source = SOURCE.model_dump_json()
    main(["import", str(folder), "--source", source, "--bos", str(BOS), "--pad", str(PAD), "--out", str(out)])
    assert "1, 2, 3, 0" in capsys.readouterr().out
    main(["show", str(out)])
    assert "a beginning-of-sequence token" in capsys.readouterr().out
    main(["probe", str(out), "--sequences", "32", "--jobs", "1", "--out", str(report)])
    summary = json.loads((report / "summary.json").read_text())
    expected = {"ablation", "alignment", "attention", "behaviour", "induction", "program", "storage"}
    assert set(summary["probes"]) >= expected
    assert not summary["failed"]
    assert "this probe computes with sequences of states only" in summary["skipped"]["landscape"]
    assert (report / "report.html").stat().st_size > 10_000


def test_what_is_drawn_for_people_has_the_token(trained):
    run = imported(trained[0]).run
    figure = mm.show.attention(run, [0, 1, 2])
    assert [text.split(": ")[1] for text in figure.data[0].x] == ["beginning", "0", "1", "2"]
    with pytest.raises(ValueError, match="expected at most 5 states"):
        mm.show.attention(run, [0] * LENGTH)


def test_files_without_it_are_as_they_were():
    assert "bos" not in Objective().model_dump()
    assert "bos" not in Objective().model_dump_json()
    assert Objective(bos=True).model_dump(mode="json")["bos"] is True
    assert Objective.model_validate(Objective(bos=True).model_dump()) == Objective(bos=True)


def test_what_does_not_go_with_it_is_refused(tmp_path, trained):
    folder, _ = trained
    with pytest.raises(ValueError, match="bos is true, expected false where sequences end in a query"):
        imported(folder, objective=Objective(query=True, read="last"))
    with pytest.raises(
        RunFileError, match=r"objective\.bos is true, but no token is named: give --bos TOKEN"
    ):
        import_run([folder], source=SOURCE, objective=Objective(bos=True))
    with pytest.raises(RunFileError, match="without --bos 4 tokens remain for 3 of the source"):
        imported(folder, pad=None)
    with pytest.raises(ValueError, match=r"objective\.bos is true: the sum over all sequences is of states"):
        population_law(SOURCE, Objective(bos=True), imported(folder).run.config)
    recipe = mm.training.load_recipe("walk-k6-half").model_dump(mode="json")
    recipe["objective"] = {**recipe["objective"], "bos": True}
    with pytest.raises(ValueError, match="bos is true, expected false"):
        Recipe.model_validate(recipe)
    run = imported(folder).run
    data = {**run.config.model_dump(), "d_vocab": K}
    saved(tmp_path / "x.pt", data)
    with pytest.raises(RunFileError, match="has 3 states and a beginning-of-sequence token"):
        mm.runs.schema.check_consistent(type(run.config).model_validate(data), SOURCE, run.objective)


def test_a_live_model_is_the_same_run(tmp_path, trained):
    folder, model = trained
    states = imported(folder).run.states
    run = mm.Run.from_model(model, source=SOURCE, tokens={0: 1, 1: 2, 2: 3}, bos=BOS)
    assert run.objective == Objective(bos=True)
    assert run.provenance["tokens"] == TOKENS.tolist()
    assert all(torch.equal(run.states[name], value) for name, value in states.items())
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, tokens={0: 1, 1: 2, 2: 3}, bos=BOS)
    recorder(0, model)
    kept = recorder.finish(1, model)
    assert (kept.objective.bos, kept.steps.tolist()) == (True, [0, 1])
    mm.Recorder(tmp_path / "run.pt", source=SOURCE, tokens={0: 1, 1: 2, 2: 3}, bos=BOS, resume=True)
    with pytest.raises(
        ValueError, match="without bos 4 tokens remain for 3 of the source: map them with tok"
    ):
        mm.Run.from_model(model, source=SOURCE, bos=BOS)
    with pytest.raises(ValueError, match="bos is 9, expected a token below d_vocab 5"):
        mm.Run.from_model(model, source=SOURCE, bos=9)
    with pytest.raises(ValueError, match="bos is 1, but tokens gives that token to a state"):
        mm.Run.from_model(model, source=SOURCE, tokens={0: 1, 1: 2, 2: 3}, bos=1)


def test_a_live_model_of_states_and_the_token(trained):
    """Where the token is the last one, a live model is read as it is."""
    run = imported(trained[0]).run
    again = mm.Run.from_model(run.model(), source=SOURCE, objective=Objective(bos=True))
    assert again.config == run.config
    with pytest.raises(
        RunFileError, match="d_vocab is 4, but the source has 4 states and a beginning-of-sequence"
    ):
        mm.Run.from_model(run.model(), source=Circle(n_states=4, p=0.2), objective=Objective(bos=True))
