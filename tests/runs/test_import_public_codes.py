"""Checkpoints as public codes of this field save them, and GPT-2's layout without some parts.

Their own logits decide.
"""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from public_codes import LENGTH, SOURCE, WIDTH, K, drawn, linears, logits_of, markov, mingpt, tokens
from torch import nn

from mechmarkov.runs import Run
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError

GELU = {"act_fn": "gelu", "n_heads": 1}


def same_logits(run, logits):
    # float32 arithmetic in another order: 1e-5 of the largest logit is the house's bound.
    torch.testing.assert_close(run.model()(tokens()), logits, rtol=1e-5, atol=1e-5)


def test_mingpt_beside_its_own_config_json(tmp_path):
    model = drawn(mingpt()).eval()
    given = {"n_heads": 2, "act_fn": "gelu_new"}
    for path in (model.save(tmp_path), tmp_path):
        result = import_run([path], source=SOURCE, given=given)
        same_logits(result.run, model(tokens())[0].detach())
        assert result.run.config.n_ctx == LENGTH


@pytest.mark.parametrize("bias", [False, True])
def test_the_code_of_the_unigram_trap(tmp_path, bias):
    model = markov(bias=bias)
    path = model.save(tmp_path / "ckpt.pt", itr=400)
    result = import_run([path], source=SOURCE, given={**GELU, "normalization_type": "LN"})
    assert result.run.steps.tolist() == [400]
    same_logits(result.run, logits_of(model))


def test_a_window_that_no_weight_shows_is_told_and_can_be_given(tmp_path):
    model = markov(memory=2)
    path = model.save(tmp_path / "ckpt.pt", itr=1)
    given = {**GELU, "normalization_type": "LN"}
    silent = import_run([path], source=SOURCE, given=given)
    assert silent.run.provenance["assumed"]["window"] is None
    assert any("assumed:" in note and "window = None" in note for note in silent.notes)
    apart = silent.run.model()(tokens()) - logits_of(model)
    assert float(apart.abs().max().detach()) > 0.01
    told = import_run([path], source=SOURCE, given={**given, "window": 2}).run
    same_logits(told, logits_of(model))
    assert "window" not in told.provenance["assumed"]


def test_without_norms_and_with_buffers_that_the_model_does_not_use(tmp_path):
    model = markov(bare=True)
    path = model.save(tmp_path / "ckpt.pt", itr=7)
    given = {**GELU, "normalization_type": None}
    with pytest.raises(RunFileError, match=r'it has a weight "alpha" .* --without alpha'):
        import_run([path], source=SOURCE, given=given)
    result = import_run([path], source=SOURCE, given=given, without=["alpha", "w"])
    same_logits(result.run, logits_of(model))
    assert any("left out, not weights of the model: alpha, w" in note for note in result.notes)
    assert "eps" not in result.run.provenance["assumed"]
    rest = {name: given[name] for name in ("act_fn", "n_heads")}
    with pytest.raises(RunFileError, match="does not determine normalization_type"):
        import_run([path], source=SOURCE, given=rest, without=["alpha", "w"])


@pytest.mark.parametrize("bare", [False, True])
def test_attention_only(tmp_path, bare):
    model = markov(bare=bare, mlp=False, bias=True, n_head=2)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    given = {"n_heads": 2, **({"normalization_type": None} if bare else {})}
    result = import_run([tmp_path / "model.pt"], source=SOURCE, given=given, without=["alpha", "w"] * bare)
    assert result.run.config.attn_only
    assert "parallel_attn_mlp" not in result.run.provenance["assumed"]
    same_logits(result.run, logits_of(model))
    told = import_run(
        [tmp_path / "model.pt"],
        source=SOURCE,
        given={**given, "act_fn": "gelu", "attn_only": True},
        without=["alpha", "w"] * bare,
    )
    assert "act_fn is given and not used: the model has no MLP" in told.notes


class RelativeTransformer(nn.Module):
    """EzraEdelman/Evolution-of-Statistical-Induction-Heads 3ab0b29, mingpt/model_rpe.py, 20-140, 190-210."""

    class Attention(nn.Module):
        def __init__(self, block_size, heads, attention_only):
            super().__init__()
            self.Q, self.K, self.V = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
            self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
            self.wpe = nn.Embedding(block_size + 1, WIDTH, padding_idx=block_size)
            self.attention_only, self.n_head = attention_only, heads
            self.ln = nn.LayerNorm(WIDTH)
            mask = torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size)
            self.register_buffer("bias", mask)
            pos = torch.arange(block_size)[:, None] - torch.arange(block_size)
            self.register_buffer("pos", torch.where(pos < 0, block_size, pos))
            if not attention_only:
                self.ln_2 = nn.LayerNorm(WIDTH)
                self.mlp = nn.ModuleDict({**linears(WIDTH), "act": nn.ReLU(), "dropout": nn.Dropout(0.1)})

        def forward(self, x):
            T = x.shape[1]
            normed = self.ln(x)
            read = (layer(normed) for layer in (self.Q, self.K, self.V))
            q, k, v = (x.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for x in read)
            rel_pos = self.wpe(self.pos[:T, :T]).view(T, T, self.n_head, -1)
            scores = q @ k.transpose(-2, -1) + torch.einsum("Tthe,BhTe->BhTt", rel_pos, q)
            scores = scores * (1.0 / math.sqrt(k.size(-1)))
            pattern = scores.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf")).softmax(-1)
            x = self.c_proj((pattern @ v).transpose(1, 2).flatten(2)) + x
            if not self.attention_only:
                m = self.mlp
                x = m["dropout"](m["c_proj"](m["act"](m["c_fc"](self.ln_2(x))))) + x
            return x

    def __init__(self, layers=2, heads=1, attention_only=True):
        super().__init__()
        self.wte = nn.Embedding(K, WIDTH)
        first = RelativeTransformer.Attention(LENGTH, heads, attention_only)
        rest = [RelativeTransformer.Attention(LENGTH, 1, attention_only) for _ in range(layers - 1)]
        self.layers = nn.ModuleList([first, *rest])
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, K, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, K), targets.view(-1))
        return logits, loss

    def save(self, path: Path, step: int) -> Path:
        """training_pipeline.py, line 96, where it is commented out."""
        torch.save(self.state_dict(), path / f"model_{step}")
        return path / f"model_{step}"


@pytest.mark.parametrize("attention_only", [True, False])
def test_the_relative_transformer_of_statistical_induction_heads(tmp_path, attention_only):
    model = drawn(RelativeTransformer(attention_only=attention_only)).eval()
    for step in (0, 20):
        model.save(tmp_path, step)
    given = {"n_heads": 1} | ({} if attention_only else {"act_fn": "relu"})
    run = import_run([tmp_path], source=SOURCE, given=given).run
    assert (run.steps.tolist(), run.config.positional_embedding_type) == ([0, 20], "relative")
    same_logits(run, model(tokens())[0].detach())


@pytest.mark.parametrize("attention_only", [True, False])
def test_a_live_relative_transformer_comes_in(attention_only):
    """With what its blocks say: `n_head`, and the activation by its values."""
    model = drawn(RelativeTransformer(attention_only=attention_only)).train()
    run = Run.from_model(model, source=SOURCE)
    assert (run.config.positional_embedding_type, run.config.n_heads) == ("relative", 1)
    assert model.training
    same_logits(run, model.eval()(tokens())[0].detach())
    with pytest.raises(RunFileError, match=r"^its layers have 1 and 2 heads, expected one number$"):
        Run.from_model(RelativeTransformer(heads=2), source=SOURCE)


def test_its_first_layer_alone_may_have_several_heads(tmp_path):
    model = drawn(RelativeTransformer(layers=1, heads=2)).eval()
    run = import_run([model.save(tmp_path, 3)], source=SOURCE, given={"n_heads": 2}).run
    same_logits(run, model(tokens())[0].detach())
    path = drawn(RelativeTransformer(layers=2, heads=2)).eval().save(tmp_path, 4)
    with pytest.raises(RunFileError, match="n_heads is 2, but layers beyond the first have one head"):
        import_run([path], source=SOURCE, given={"n_heads": 2})


@pytest.mark.parametrize(
    ("names", "words"),
    [
        # Bond1995/Markov, Markov-RPE/src/models/base.py, lines 41-42: relative keys and values.
        (
            ["transformer.h.0.attn.embk", "transformer.h.0.attn.embv"],
            'it has a weight "transformer.h.0.attn.embk" that a HookedDecoder lacks',
        ),
        (["transformer.h.0.attn.rel.weight"], 'it has a weight "transformer.h.0.attn.rel.weight"'),
    ],
)
def test_relative_positions_that_cannot_be_expressed_are_named(tmp_path, names, words):
    state = {name: x for name, x in markov().state_dict().items() if ".wpe." not in name}
    torch.save({**state, **{name: torch.zeros(LENGTH, 8) for name in names}}, tmp_path / "model.pt")
    given = {**GELU, "normalization_type": "LN", "positional_embedding_type": "none", "n_ctx": LENGTH}
    with pytest.raises(RunFileError, match=words.replace(".", r"\.")):
        import_run([tmp_path / "model.pt"], source=SOURCE, given=given)


def test_the_code_of_transformer_birth_has_names_of_its_own(tmp_path):
    """albietz/transformer-birth@165e11a, ihead_full_model.py, lines 195-240; it saves no weights itself."""
    names = ("tok_embeddings", "pos_embeddings", "layers.0.attention.wq", "output")
    torch.save({f"{name}.weight": torch.ones(5, 8) for name in names}, tmp_path / "model.pt")
    with pytest.raises(
        RunFileError, match=r"weights are called tok_embeddings\.weight, pos_embeddings\.weig"
    ):
        import_run([tmp_path / "model.pt"], source=SOURCE)


class Rotary(nn.Module):
    """nanoGPT's layout without `wpe`: queries and keys turn, by halves or by pairs (Su et al. 2021)."""

    def __init__(self, adjacent: bool, base: float) -> None:
        super().__init__()
        self.model = markov(bias=True, n_head=2)
        del self.model.transformer["wpe"]
        self.adjacent = adjacent
        half = torch.arange(0, 4, 2).float() / 4
        self.inv_freq = 1.0 / base**half

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[-2])[:, None] * self.inv_freq
        if self.adjacent:
            one, two = x[..., ::2], x[..., 1::2]
        else:
            one, two = x.chunk(2, -1)
        parts = one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()
        return torch.stack(parts, -1).flatten(-2) if self.adjacent else torch.cat(parts, -1)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        t = self.model.transformer
        x = t["wte"](idx)
        mask = torch.ones(idx.shape[1], idx.shape[1]).tril()
        for block in t["h"]:
            qkv = block.attn.c_attn(block.ln_1(x)).chunk(3, -1)
            q, k, v = (part.view(*part.shape[:2], 2, -1).transpose(1, 2) for part in qkv)
            scores = self.turned(q) @ self.turned(k).mT / 2
            mixed = scores.masked_fill(mask == 0, -torch.inf).softmax(-1) @ v
            x = x + block.attn.c_proj(mixed.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.ln_2(x))
        return self.model.lm_head(t["ln_f"](x))


@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_rotary_positions(tmp_path, adjacent, base):
    model = drawn(Rotary(adjacent, base))
    state = model.model.state_dict()
    torch.save(state, tmp_path / "model.pt")
    given = {"n_heads": 2, "act_fn": "gelu", "n_ctx": LENGTH, "positional_embedding_type": "rotary"}
    told = given | {"rotary_adjacent_pairs": adjacent} | ({} if base == 10000 else {"rotary_base": base})
    run = import_run([tmp_path / "model.pt"], source=SOURCE, given=told).run
    same_logits(run, model(tokens()).detach())
    assert run.provenance["assumed"].get("rotary_base") == (10000.0 if base == 10000 else None)
    with pytest.raises(RunFileError, match="does not determine rotary_adjacent_pairs"):
        import_run([tmp_path / "model.pt"], source=SOURCE, given=given)
    asked = r"without transformer\.wpe\.weight, does not determine positional_embedding_type and n_ctx"
    with pytest.raises(RunFileError, match=asked):
        import_run([tmp_path / "model.pt"], source=SOURCE, given={"n_heads": 2, "act_fn": "gelu"})
    # Frequencies beside the weights tell the positions themselves, and are held against the base.
    state["transformer.h.0.attn.rotary.inv_freq"] = model.inv_freq
    torch.save(state, tmp_path / "model.pt")
    del told["positional_embedding_type"]
    same_logits(import_run([tmp_path / "model.pt"], source=SOURCE, given=told).run, model(tokens()).detach())
    with pytest.raises(RunFileError, match=r"h\.0\.attn\.rotary\.inv_freq is not what rotary_base 7 and"):
        import_run([tmp_path / "model.pt"], source=SOURCE, given={**told, "rotary_base": 7.0})


def test_no_positions_at_all(tmp_path):
    model = markov(bias=True)
    with torch.no_grad():
        model.transformer["wpe"].weight.zero_()
    state = {name: x for name, x in model.state_dict().items() if ".wpe." not in name}
    torch.save(state, tmp_path / "model.pt")
    given = {**GELU, "positional_embedding_type": "none", "n_ctx": LENGTH}
    same_logits(import_run([tmp_path / "model.pt"], source=SOURCE, given=given).run, logits_of(model))


BIASED = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "ln_1", "lm_head", "ln_f")


@pytest.mark.parametrize("without", [f"{name}.bias" for name in BIASED])
def test_a_bias_that_is_not_there_is_zero(tmp_path, without):
    model = markov(bias=True, n_head=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(without):
                parameter.zero_()
    state = {name: x for name, x in model.state_dict().items() if not name.endswith(without)}
    torch.save(state, tmp_path / "model.pt")
    given = {"n_heads": 2, "act_fn": "gelu", "normalization_type": "LN"}
    same_logits(import_run([tmp_path / "model.pt"], source=SOURCE, given=given).run, logits_of(model))


MASKS = {
    "ones": lambda band: band.float()[None, None],
    "bool": lambda band: band,
    "uint8": lambda band: band.to(torch.uint8)[None, None],
    "added": lambda band: torch.zeros(band.shape).masked_fill(~band, -torch.inf),
    "hidden": lambda band: ~band,
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("window", [None, 0, 2])
def test_a_mask_in_the_file_must_be_that_of_the_config(tmp_path, kind, window):
    band = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    band = band if window is None else band.triu(-window)
    model = markov(bias=True, memory=-1 if window is None else window)
    masks = {f"transformer.h.{layer}.attn.bias": MASKS[kind](band) for layer in (0, 1)}
    torch.save({**model.state_dict(), **masks}, tmp_path / "model.pt")
    right = {**GELU, **({} if window is None else {"window": window})}
    same_logits(import_run([tmp_path / "model.pt"], source=SOURCE, given=right).run, logits_of(model))
    wrong = {**GELU, **({"window": 1} if window is None else {})}
    words = "without a window: leave out" if window is None else f"in which .* --set window={window}$"
    with pytest.raises(RunFileError, match=rf"transformer\.h\.0\.attn\.bias is a mask {words}"):
        import_run([tmp_path / "model.pt"], source=SOURCE, given=wrong)


def test_a_mask_that_is_not_causal_is_refused(tmp_path):
    state = markov(bias=True).state_dict()
    torch.save({**state, "transformer.h.0.attn.bias": torch.ones(LENGTH, LENGTH)}, tmp_path / "model.pt")
    with pytest.raises(RunFileError, match=r"transformer\.h\.0\.attn\.bias is not a causal mask"):
        import_run([tmp_path / "model.pt"], source=SOURCE, given=GELU)
