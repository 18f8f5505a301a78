"""Loops with the surface of public code are recorded, and end with the bits that they have unrecorded."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from loops import mingpt_run, same_weights, train_base
from public_codes import CfgNode, MarkovGPT, MinGPT, markov_args
from public_codes import mingpt as any_mingpt

import mechmarkov as mm
from mechmarkov.runs import Run

CHAINS, BINARY = mm.DirichletChains(n_states=3), mm.Binary(p=0.2, q=0.3)
STEPS = [0, 1, 2, 4, 8, 10]


def mingpt(**changes) -> MinGPT:
    torch.manual_seed(0)
    return any_mingpt(**({"n_embd": 12, "vocab_size": 3, "block_size": 9} | changes))


@pytest.mark.parametrize("recorded", [True, False])
def test_mingpt_and_its_trainer(tmp_path, recorded):
    def train(callbacks):
        model = mingpt()
        rows = CHAINS.sample(64, 10, generator=torch.Generator().manual_seed(0))
        mingpt_run(CfgNode(learning_rate=1e-2, batch_size=8, max_iters=10), model, rows, callbacks)
        return model

    recorder = mm.Recorder(tmp_path / "run.pt", source=CHAINS)
    recorder(0, mingpt())
    model = train([lambda iteration, model: recorder(iteration + 1, model)] if recorded else [])
    assert same_weights(model, train([]))
    if recorded:
        run = recorder.finish(10, model)
        assert run.steps.tolist() == STEPS
        assert (run.config.act_fn, run.config.n_heads, run.config.tied) == ("gelu_new", 2, False)
        assert run.provenance["logit_difference"] <= 1e-5
        assert "chosen_by_logits" not in run.provenance  # its blocks say how many heads they have
        tokens = CHAINS.sample(4, 9, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(run.model()(tokens), model.eval()(tokens)[0], rtol=1e-5, atol=1e-5)


def test_mingpt_in_half_precision_though_its_blocks_hold_their_mlp_in_a_closure():
    """A deep copy would not do: the copied block's lambda still calls the first one's MLP."""
    model = mingpt().bfloat16()
    with pytest.raises(RuntimeError, match="dtype"):
        deepcopy(model).float()(torch.zeros(1, 9, dtype=torch.long))
    run = Run.from_model(model, source=CHAINS)
    assert run.provenance["weights_were"] == "bfloat16"
    assert run.provenance["logit_difference"] <= 1e-5


ARGS = [
    {},
    {"n_layer": 2, "n_head": 2, "bias": True, "acc_steps": 2},
    {"bce": True, "no_tying": True, "n_embd": 4},
    {"memory": 3, "n_layer": 2},
]


@pytest.mark.parametrize("changes", ARGS, ids=str)
def test_the_unigram_traps_model_and_its_loop(tmp_path, changes):
    args = markov_args(**changes)
    given = {"window": args.memory} if args.memory >= 0 else None

    def train(recorder=None):
        torch.manual_seed(0)
        model, generator = MarkovGPT(args), torch.Generator().manual_seed(0)

        def batch():
            drawn = BINARY.sample(4, 17, generator=generator)
            return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()

        train_base(model, batch, 10, args, recorder)
        return model

    recorder = mm.Recorder(tmp_path / "run.pt", source=BINARY, given=given)
    model, plain = train(recorder), train()
    assert same_weights(model, plain)
    assert model.iter == plain.iter == 10 * (args.acc_steps + 1)  # only the training's calls are counted
    assert model.transformer["h"][0].attn.iter == plain.transformer["h"][0].attn.iter
    run = recorder.finish(10, model)
    assert run.steps.tolist() == STEPS
    assert run.config.window == (given or {}).get("window")
    assert run.provenance["logit_difference"] <= 1e-5
    tokens = BINARY.sample(4, 16, generator=torch.Generator().manual_seed(3))
    logits = model.eval()(tokens, tokens, get_logits=True)["logits"]
    torch.testing.assert_close(run.model()(tokens), logits, rtol=1e-5, atol=1e-5)


def test_a_window_that_nobody_says_is_one_warning_that_names_given(tmp_path):
    recorder, model = mm.Recorder(tmp_path / "run.pt", source=BINARY), MarkovGPT(markov_args(memory=3))
    with torch.no_grad():
        for value in model.parameters():
            generator = torch.Generator().manual_seed(value.numel())
            value.copy_(0.5 * torch.randn(value.shape, generator=generator))
    with pytest.warns(UserWarning, match=r"with given=\{'window': 3\} they agree") as told:
        recorder(0, model)
    assert len(told) == 1


@pytest.mark.system
def test_the_readmes_example_as_it_stands_with_a_model_that_has_a_loss(tmp_path, monkeypatch, few_nulls):
    readme = Path(__file__).parents[2] / "README.md"
    (example,) = re.findall(r"```python\n([^`]*mm\.Recorder.*?)```", readme.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("input.txt").write_text("abacab cabbac " * 200, "utf-8")
    source = mm.Observed.read("input.txt")
    model = mingpt(vocab_size=source.n_states)
    optimiser = torch.optim.AdamW(model.parameters())

    def train_step(model, batch):
        _, loss = model(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    batches = [source.sample(4, 10, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    names = {"model": model, "batches": batches, "train_step": train_step}
    exec(compile(example, str(readme), "exec"), names)
    run = mm.load("mine.pt")
    assert run.steps.tolist() == [0, 1, 2, 3]
    tokens = source.sample(4, 9, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(run.model()(tokens), model.eval()(tokens)[0], rtol=1e-5, atol=1e-5)
    assert Path("mine.html").stat().st_size > 1_000_000
