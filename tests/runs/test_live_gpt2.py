"""Live models with GPT-2's names become runs: transformers' GPT2LMHeadModel, and nanoGPT's GPT."""

import warnings

import pytest
import torch
from public_codes import LENGTH, SOURCE, Config, K, NanoGPT, drawn, live_gpt2, tokens
from torch import nn

import mechmarkov as mm
from mechmarkov.objectives import Objective
from mechmarkov.runs import Run, RunFileError, load
from mechmarkov.runs.import_run import import_run


@pytest.mark.parametrize("activation", [nn.GELU(), nn.GELU("tanh"), nn.ReLU()], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_live_nanogpt(tmp_path, activation, bias):
    model = drawn(NanoGPT(Config(bias=bias), activation)).train()
    Run.from_model(model, source=SOURCE).save(tmp_path / "run.pt")
    run = load(tmp_path / "run.pt")
    assert model.training
    assert run.provenance["logit_difference"] <= 1e-5
    assert run.config.tied
    logits = model.eval()(tokens(), tokens())[0]
    torch.testing.assert_close(run.model()(tokens()), logits, rtol=1e-5, atol=1e-5)


def test_norms_with_biases_and_without_gains(tmp_path):
    """The calls are `F.layer_norm(x, [d], None, self.bias)`; a file that lacks one gain only is refused."""
    model = drawn(NanoGPT(Config()))
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    torch.save(model.state_dict(), tmp_path / "whole.pt")
    for norm in norms:
        norm.weight = None
    run = Run.from_model(model, source=SOURCE)
    logits = model.eval()(tokens(), tokens())[0]
    torch.testing.assert_close(run.model()(tokens()), logits, rtol=1e-5, atol=1e-5)
    torch.save(model.state_dict(), tmp_path / "without.pt")
    given = {"act_fn": "gelu", "n_heads": 2}
    read = import_run([tmp_path / "without.pt"], source=SOURCE, given=given).run
    torch.testing.assert_close(read.model()(tokens()), logits, rtol=1e-5, atol=1e-5)
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    del whole["transformer.ln_f.weight"]
    torch.save(whole, tmp_path / "partly.pt")
    with pytest.raises(RunFileError, match=r"it has no transformer\.ln_f\.weight"):
        import_run([tmp_path / "partly.pt"], source=SOURCE, given=given)


def test_a_weight_norm_of_some_of_its_layers():
    model = NanoGPT(Config())
    for block in model.transformer.h:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            nn.utils.weight_norm(block.attn["c_proj"])
    drawn(model)
    run = Run.from_model(model, source=SOURCE)
    logits = model.eval()(tokens(), tokens())[0]
    torch.testing.assert_close(run.model()(tokens()), logits, rtol=1e-5, atol=1e-5)


TRANSFORMERS = [
    {},
    {"activation_function": "relu", "n_inner": 12},
    {"activation_function": "gelu", "tie_word_embeddings": False},
    {"scale_attn_weights": False},
]


@pytest.mark.filterwarnings("default")  # transformers warns of its own future
@pytest.mark.parametrize("changes", TRANSFORMERS, ids=str)
def test_a_live_gpt2_of_transformers(changes):
    model = live_gpt2(**changes)
    run = Run.from_model(model, source=SOURCE)
    assert run.provenance["logit_difference"] <= 1e-5
    assert run.provenance["imported_from"].endswith("GPT2LMHeadModel")
    with torch.no_grad():
        logits = model.eval()(tokens()).logits
    torch.testing.assert_close(run.model()(tokens()), logits, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("default")
def test_what_a_decoder_cannot_express_is_refused_before_anything_runs():
    model = live_gpt2(scale_attn_by_inverse_layer_idx=True)
    model.forward = None  # whoever calls it fails
    with pytest.raises(RunFileError, match="scale_attn_by_inverse_layer_idx is True: a HookedDecoder cannot"):
        Run.from_model(model, source=SOURCE)


WORDS = 9


def test_a_map_of_tokens(tmp_path):
    model = drawn(NanoGPT(Config(vocab_size=WORDS)))
    ours = {0: 8, 1: 1, 2: 0, 3: 4, "4": 7}
    Run.from_model(model, source=SOURCE, tokens=ours).save(tmp_path / "run.pt")
    run = load(tmp_path / "run.pt")
    ids = torch.tensor([8, 1, 0, 4, 7])
    logits = model.eval()(ids[tokens()], tokens())[0]
    torch.testing.assert_close(run.model()(tokens()), logits[..., ids], rtol=1e-5, atol=1e-5)
    assert run.provenance["tokens"] == ids.tolist()
    states = SOURCE.sample(8, LENGTH + 1, generator=torch.Generator().manual_seed(0))[:, :LENGTH].contiguous()
    others = [token for token in range(WORDS) if token not in ids]
    lost = model(ids[states], states)[0].detach().softmax(-1)[..., others].sum(-1).max()
    assert run.provenance["probability_left_out"] == pytest.approx(float(lost), abs=1e-5)


def test_a_query_token_is_mapped():
    model = drawn(NanoGPT(Config(vocab_size=WORDS)))
    ours = {state: state + 1 for state in range(K)} | {"query": 0}
    run = Run.from_model(model, source=SOURCE, tokens=ours, objective=Objective(read="last", query=True))
    assert (run.config.d_vocab, run.config.d_vocab_out) == (K + 1, K)
    assert run.provenance["tokens"] == [1, 2, 3, 4, 5, 0]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (None, r"model.d_vocab is 9, but the source has 5 states: say which token is which state, tokens="),
        ({0: 0, 1: 1}, "tokens leaves out the state 2"),
        (dict.fromkeys(range(K), 3), "tokens gives one token to two states"),
        ({state: state for state in range(K)} | {"x": 7}, "the source has no such state: it has 0, 1"),
        ({state: state + 5 for state in range(K)}, "tokens names the token 9, but the model has 9"),
        ({state: -state for state in range(K)}, r"tokens\[1\] is -1, expected a token of the model"),
        ({state: state for state in range(K)} | {"0": 7}, "tokens names the state 0 twice"),
    ],
    ids=str,
)
def test_a_map_that_does_not_fit_is_named(tokens, words):
    with pytest.raises(RunFileError, match=words):
        Run.from_model(drawn(NanoGPT(Config(vocab_size=WORDS))), source=SOURCE, tokens=tokens)


def test_a_character_checkpoint_of_nanogpt_and_its_text(tmp_path):
    """Its characters are numbered as nanoGPT's prepare.py numbers them, and its last tenth is held out."""
    text = "the cat sat on the mat.\n" * 40
    (tmp_path / "input.txt").write_text(text, "utf-8")
    source = mm.Observed.read(tmp_path / "input.txt", order=1, held_out="last_tenth")
    assert source.names == tuple(sorted(set(text)))
    config = Config(vocab_size=source.n_states, dropout=0.0)
    checkpoint = {"model": drawn(NanoGPT(config)).state_dict(), "model_args": vars(config), "iter_num": 30}
    torch.save(checkpoint, tmp_path / "ckpt.pt")
    run = mm.import_run([tmp_path / "ckpt.pt"], source=source, given={"act_fn": "gelu"}).run
    result = mm.probe(run, ["behaviour", "storage"], law_draws=2)
    assert result.failed == {}
    assert result["storage"].scores["bigram_home"].law == "estimated: the same in 2 of 2 draws"
    read = mm.Subject.of(run).batch.states
    assert {"".join(source.names[state] for state in row) for row in read.tolist()} <= {
        text[at : at + LENGTH + 1] for at in range(int(0.9 * len(text)), len(text))
    }
