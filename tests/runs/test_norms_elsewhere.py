"""A GPT with nanoGPT's names whose norms stand elsewhere, live and from its file: recognised by itself."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mechmarkov as mm
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError

K, LENGTH, WIDTH = 5, 7, 8
SOURCE = mm.Circle(n_states=K, p=0.3)


class Block(nn.Module):
    def __init__(self, norm_first: bool, told: bool) -> None:
        super().__init__()
        self.is_pre = norm_first
        if told:
            self.norm_first = norm_first
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(WIDTH, 3 * WIDTH), "c_proj": nn.Linear(WIDTH, WIDTH)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(WIDTH, 16), "c_proj": nn.Linear(16, WIDTH)})

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.attn["c_attn"](x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attn["c_proj"](y.transpose(1, 2).flatten(2))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_pre:
            x = x + self.attend(self.ln_1(x))
            return x + self.feed(self.ln_2(x))
        x = self.ln_1(x + self.attend(x))
        return self.ln_2(x + self.feed(x))


class Gpt(nn.Module):
    """Without `ln_f`."""

    def __init__(self, norm_first: bool, told: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = nn.ModuleList(Block(norm_first, told) for _ in range(2))
        parts = {"wte": nn.Embedding(K, WIDTH), "wpe": nn.Embedding(LENGTH, WIDTH), "h": blocks}
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(WIDTH, K, bias=False)
        for norm in (part for part in self.modules() if isinstance(part, nn.LayerNorm)):
            nn.init.normal_(norm.weight, 1.0, 0.3)
            nn.init.normal_(norm.bias, 0.0, 0.3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.transformer["wte"](tokens) + self.transformer["wpe"].weight[: tokens.shape[1]]
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(x)


@pytest.mark.parametrize("norm_first", [True, False])
def test_it_says_where_its_norms_stand(norm_first):
    run = mm.Run.from_model(Gpt(norm_first), source=SOURCE, given={"n_heads": 2})
    assert run.provenance["logit_difference"] <= 1e-5
    assert (run.config.norm_first, run.config.final_norm) == (norm_first, False)


def test_what_it_does_not_say_is_told():
    model = Gpt(norm_first=False, told=False)
    with pytest.raises(RunFileError, match=r"with given=\{'norm_first': False\} they agree$"):
        mm.Run.from_model(model, source=SOURCE, given={"n_heads": 2})
    run = mm.Run.from_model(model, source=SOURCE, given={"n_heads": 2, "norm_first": False})
    assert run.provenance["logit_difference"] <= 1e-5


def test_its_file_needs_both(tmp_path):
    model, given = Gpt(norm_first=False), {"n_heads": 2, "act_fn": "gelu", "norm_first": False}
    content = {"model": model.state_dict(), "config": {"norm_first": False, "final_norm": False}}
    torch.save(content["model"], tmp_path / "bare.pt")
    torch.save(content, tmp_path / "told.pt")
    with pytest.raises(RunFileError, match=r"it has no transformer.ln_f.*needs --set final_norm=false"):
        import_run([tmp_path / "bare.pt"], source=SOURCE, given={**given, "final_norm": True})
    tokens = SOURCE.sample(4, LENGTH, generator=torch.Generator().manual_seed(1))
    told = {"n_heads": 2, "act_fn": "gelu"}
    for name, fields in (("bare.pt", given), ("told.pt", told)):
        run = import_run([tmp_path / name], source=SOURCE, given=fields).run
        torch.testing.assert_close(run.model()(tokens), model(tokens), rtol=1e-4, atol=1e-5)
