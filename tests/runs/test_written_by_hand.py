"""Small decoders written by hand in many styles: each comes in with its logits, or one line says why not."""

import re
import warnings
from dataclasses import replace

import pytest
import torch
from by_hand import HEADS, LENGTH, WIDTH, B, Hand, K, R, Style, given_of, names_of, sinusoids
from public_codes import drawn
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import mechmarkov as mm
from mechmarkov.importing.names.table import table_of
from mechmarkov.importing.names.weights import renamed
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError

SOURCE = mm.Circle(n_states=K, p=0.3)
PLAIN = Style()


def brought(model: nn.Module, style: Style, **given) -> mm.Run:
    return mm.Run.from_model(model, source=SOURCE, names=names_of(style), given={**given_of(style), **given})


def tokens() -> torch.Tensor:
    return torch.randint(K, (16, LENGTH), generator=torch.Generator().manual_seed(7))


def of_style(style: Style) -> tuple[mm.Run, torch.Tensor]:
    """The run, and the model's own logits of sequences that the import did not see."""
    plain = drawn(Hand(replace(style, gives="logits", position_first=False, reads="tokens")))
    return brought(drawn(Hand(style)), style), plain.eval()(tokens())


COME_IN = {
    "queries, keys and values in parts": PLAIN,
    "queries, keys and values head by head": Style(qkv="heads"),
    "queries, keys and values interleaved": Style(qkv="interleaved"),
    "tied, sinusoidal, scaled embedding": Style(
        tied=True, positions="sinusoidal", embed_scale=WIDTH**0.5, mlp="relu"
    ),
    "rotary, RMSNorm, gated, without biases": Style(positions="rotary", rms=True, mlp="gated", bias=False),
    "without norms, MLP or scale": Style(norm="none", mlp="none", scale=1.0),
    "without positions": Style(positions="none"),
    "scores over the width": Style(scale=1 / WIDTH),
    "probabilities": Style(gives="probabilities"),
    "the last position": Style(gives="last"),
    "a dict": Style(gives="dict"),
    "a tuple": Style(gives="tuple"),
    "position first": Style(position_first=True),
    "one-hot vectors": Style(reads="one-hot"),
    "one-hot vectors, position first": Style(reads="one-hot", position_first=True),
    **{
        f"biases of scores, {kind}": Style(positions="none", bias_of_scores=kind)
        for kind in ("alibi", "slopes", "pairs", "lags")
    },
    "one layer twice": Style(n_layers=1, repeats=2),
    "without the last norm": Style(last_norm=False),
    "without the last norm, RMSNorm, no MLP": Style(last_norm=False, rms=True, mlp="none"),
    "norms after the sum": Style(norm="post", last_norm=False),
    "norms after the sum and at the end": Style(norm="post"),
    "norms after the sum, rotary, RMSNorm, gated": Style(
        norm="post", last_norm=False, positions="rotary", rms=True, mlp="gated", bias=False
    ),
    "norms after the sum, one layer twice": Style(norm="post", last_norm=False, n_layers=1, repeats=2),
}


@pytest.mark.parametrize("case", COME_IN)
def test_a_decoder_by_hand_comes_in(case):
    run, logits = of_style(COME_IN[case])
    torch.testing.assert_close(run.model()(tokens()), logits, rtol=1e-5, atol=1e-5)
    style, reads = COME_IN[case], run.provenance.get("reads", "")
    assert ("position first" in reads, "one-hot" in reads) == (style.position_first, style.reads == "one-hot")


def test_no_position_beyond_a_context_is_read():
    """Four sequences are not read as four of three positions: some devices stop at such an index."""
    shapes = set()

    class Short(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.q, self.head = nn.Embedding(K, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, K)

        def forward(self, read: torch.Tensor) -> torch.Tensor:
            shapes.add(tuple(read.shape[:2]))
            return self.head(self.q(self.tok(read)))

    names = {
        "tok.weight": "embed.W_E",
        "head.weight": "unembed.W_U",
        "head.bias": "unembed.b_U",
        "missing": {r"blocks\..*": "zeros"},
    }
    names |= {"q.weight": [f"blocks.0.attn.W_{x}" for x in "QKVO"], "q.bias": ""}
    given = {"n_heads": 2, "normalization_type": None, "positional_embedding_type": "none", "n_ctx": 3}
    with pytest.raises(RunFileError, match="disagree"):
        mm.Run.from_model(drawn(Short()), source=SOURCE, names=names, given=given)
    assert shapes == {(4, 3)}


HEADS_DIFFER = (
    "the first to differ is what layers.0.proj reads, the heads' output: .*alibi, .*b_rel; .* without softmax"
)
REFUSED = {
    "ALiBi and positions of tokens": (Style(bias_of_scores="alibi"), HEADS_DIFFER),
    "attention without softmax": (Style(soft=False), HEADS_DIFFER),
    "a normed residual stream": (
        Style(norm="residual"),
        "what layers.0.up reads, an MLP's input: .*norms sums",
    ),
    "a normed stream, position first": (
        Style(norm="residual", position_first=True),
        "^Hand, read as tokens, position first, and .*what layers.0.up reads",
    ),
    "a dropout that is left on": (Style(always_drops=True), "is a dropout left on"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_is_named(case):
    style, message = REFUSED[case]
    with pytest.raises(RunFileError, match=message):
        brought(drawn(Hand(style)), style)


def test_a_layer_that_is_repeated_is_named():
    style = Style(n_layers=1, repeats=2)
    once = names_of(replace(style, repeats=1))
    with pytest.raises(RunFileError, match=r"layers.0.proj is called 2 times: .*\[\"blocks.0.attn.W_O\", "):
        mm.Run.from_model(drawn(Hand(style)), source=SOURCE, names=once, given=given_of(style))


def test_a_wrong_activation_is_told_before_parts():
    with pytest.raises(RunFileError, match=r"with given=\{'act_fn': 'gelu'\} they agree$"):
        brought(drawn(Hand(PLAIN)), PLAIN, act_fn="relu")


def test_a_block_in_parallel_is_told():
    with pytest.raises(RunFileError, match=r"with given=\{'parallel_attn_mlp': False\} they agree$"):
        brought(drawn(Hand(PLAIN)), PLAIN, parallel_attn_mlp=True)


@pytest.mark.parametrize("last_norm", [True, False])
def test_norms_after_the_sum_are_told(last_norm):
    style = Style(norm="post", last_norm=last_norm)
    with pytest.raises(RunFileError, match=r"with given=\{'norm_first': False\} they agree$"):
        brought(drawn(Hand(style)), style, norm_first=True)


def test_a_last_norm_that_is_not_there_is_asked_for():
    style = Style(last_norm=False)
    with pytest.raises(RunFileError, match=r"no line gives ln_final\.w.*give final_norm=False"):
        brought(drawn(Hand(style)), style, final_norm=True)


def test_a_scale_by_the_width_is_told():
    style = Style(scale=1 / WIDTH)
    with pytest.raises(RunFileError, match=r"with given=\{'attn_scale': 8\.0\} they agree$"):
        brought(drawn(Hand(style)), style, attn_scale=2.0)


def test_a_bias_by_lag_that_nobody_says():
    style = Style(positions="none", bias_of_scores="alibi")
    with pytest.raises(
        RunFileError, match=r"with given=\{'positional_embedding_type': 'alibi'\} they agree$"
    ):
        brought(drawn(Hand(style)), style, positional_embedding_type="none")
    style = replace(style, bias_of_scores="computed")  # as ALiBi with other slopes
    with pytest.raises(RunFileError, match=HEADS_DIFFER):
        brought(drawn(Hand(style)), style, positional_embedding_type="alibi")


def test_a_bias_of_pairs_that_differs_in_a_lag():
    model = drawn(Hand(style := Style(positions="none", bias_of_scores="pairs")))
    model.slopes[0, 4, 3] += 0.1
    with pytest.raises(RunFileError, match=r'"slopes" differs by 0\.1\d* among pairs of one lag'):
        brought(model, style)


def test_positions_that_code_computes_need_a_buffer():
    style = Style(positions="computed")
    model = drawn(Hand(style))
    given = {
        name: x for name, x in given_of(style).items() if name not in ("positional_embedding_type", "n_ctx")
    }
    with pytest.raises(RunFileError, match=r"without a line for pos_embed\.W_pos .*can be a buffer"):
        mm.Run.from_model(model, source=SOURCE, names=names_of(style), given=given)
    model.register_buffer("pe", sinusoids())
    run = mm.Run.from_model(model, source=SOURCE, names=names_of(style), given=given)
    assert run.provenance["logit_difference"] <= 1e-5


def hooked(model: nn.Module, kind: str) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the older ways are deprecated
        for layer in model.layers:
            if kind == "weight norm":
                weight_norm(layer.proj)
                weight_norm(layer.up, dim=None)
            elif kind == "spectral norm":
                spectral_norm(layer.proj)
            elif kind == "pruned":
                prune.l1_unstructured(layer.proj, "weight", amount=0.5)
                prune.random_structured(layer.proj, "weight", amount=0.25, dim=0)
            else:
                parametrizations.weight_norm(layer.proj)
    return model


@pytest.mark.parametrize("kind", ["weight norm", "spectral norm", "pruned", "parametrized"])
def test_a_weight_that_a_hook_makes(kind):
    model = drawn(hooked(Hand(PLAIN), kind))  # other numbers than those that the last pass made
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = brought(model, PLAIN)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(run.model()(tokens()), model.eval()(tokens()), rtol=1e-5, atol=1e-5)


def test_a_file_of_two_parts_of_a_weight(tmp_path):
    torch.save(hooked(Hand(PLAIN), "weight norm").state_dict(), tmp_path / "model.pt")
    with pytest.raises(
        RunFileError, match=r"proj.weight_g\" and .*proj.weight_v\" make one weight: load them"
    ):
        import_run([tmp_path / "model.pt"], source=SOURCE, names=names_of(PLAIN), given=given_of(PLAIN))


def test_grouped_queries_that_are_interleaved():
    """Two heads of queries and one of keys and values: columns q, q, k, v in turn."""
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(2))
    weight = torch.randn(4 * 4, WIDTH, generator=torch.Generator().manual_seed(3))
    to = [f"blocks.0.attn.W_{side}" for side in "QKV"]
    table = table_of({"qkv.weight": {"to": to, "split": "interleaved"}, "tok": "embed.W_E"})
    given = {"n_heads": HEADS, "n_key_value_heads": 1}
    made = renamed({"qkv.weight": weight, "tok": x}, table, given).states
    rows = F.linear(x, weight).unflatten(-1, (4, 4))
    torch.testing.assert_close((x @ made["blocks.0.attn._W_K"])[0], rows[..., 2])
    torch.testing.assert_close((x @ made["blocks.0.attn._W_V"])[0], rows[..., 3])
    queries = (x @ made["blocks.0.attn.W_Q"]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(queries, rows[..., :2].flatten(1))


def test_an_embedding_that_lies_the_other_way_is_named():
    """A linear layer of one-hot vectors is `[d_model, d_vocab]`."""
    model = drawn(Hand(PLAIN))
    model.tok.weight = nn.Parameter(model.tok.weight.detach().T.contiguous())
    with pytest.raises(
        RunFileError, match=r"has shape \[7, 8\].*\(or turn embed.W_E \(from \"tok.weight\"\)"
    ):
        brought(model, PLAIN)


def test_lags_that_heads_share_are_refused():
    names = {**names_of(PLAIN), rf"{R}lags\.weight": f"{B}attn.W_rel"}
    model = Hand(Style(positions="none"))
    for layer in model.layers:
        layer.lags = nn.Embedding(LENGTH, WIDTH // 2)
    given = {**given_of(PLAIN), "positional_embedding_type": "relative", "n_ctx": LENGTH}
    with pytest.raises(RunFileError, match=re.escape("(each head and lag has a vector of its own)")):
        mm.Run.from_model(drawn(model), source=SOURCE, names=names, given=given)
