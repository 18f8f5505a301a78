"""Paths cut where norms stand behind the sums: against the stream computed anew, all other outputs kept."""

from contextlib import ExitStack

import pytest
import torch
from intervention_cases import close, decoder_of, tokens_of

from mechmarkov.interventions.paths import paths, replace_path
from mechmarkov.models.components import head_index, mlp_index
from mechmarkov.models.replay import replayed

PLAIN = ("post-norm", {})
SHAPES = [
    PLAIN,
    ("plain", {"normalization_type": "RMS", "norm_first": False, "final_norm": True}),
    ("grouped queries", {"normalization_type": "LN", "norm_first": False, "n_layers": 2}),
]


def other(x: torch.Tensor) -> torch.Tensor:
    """Returns twice the output of another sequence, in place of an output."""
    return 2 * x.flip(-3)


def stream_before(model, cache, stages: int, senders: list[str]) -> torch.Tensor:
    """The stream behind so many sums, two a layer, with what senders write replaced."""

    def written(hook: str, sender: str) -> torch.Tensor:
        return other(cache[hook]) if sender in senders else cache[hook]

    x = written("hook_embed", "embed") + written("hook_pos_embed", "pos_embed")
    for stage in range(stages):
        layer, is_mlp = divmod(stage, 2)
        block, at = model.blocks[layer], f"blocks.{layer}"
        if is_mlp:
            if block.mlp is not None:
                x = block.ln2(x + written(f"{at}.hook_mlp_out", f"L{layer}.mlp"))
            continue
        z = cache[f"{at}.attn.hook_z"]
        heads = [other(z[:, :, h]) if f"L{layer}H{h}" in senders else z[:, :, h] for h in range(z.shape[2])]
        out = sum(one @ W for one, W in zip(heads, block.attn.W_O, strict=True)) + block.attn.b_O
        x = block.ln1(x + out)
    return x


def receives(model, x: torch.Tensor, receiver: str) -> tuple[str, torch.Tensor]:
    """Returns the hook that shows what a receiver makes of its stream, and that number."""
    if receiver == "logits":
        return "unembed.hook_in", model.ln_final(x)
    if (layer := mlp_index(receiver)) is not None:
        return f"blocks.{layer}.hook_mlp_out", model.blocks[layer].mlp(x)
    (layer, head), side = head_index(receiver[:-2]), receiver[-1]
    mixer = model.blocks[layer].attn
    return f"blocks.{layer}.attn.hook_{side.lower()}", (
        x @ model.weight(f"blocks.{layer}.attn.W_{side}")[head]
        + (mixer.b_Q if side == "Q" else model.weight(f"blocks.{layer}.attn.b_{side}"))[head]
    )


@torch.no_grad()
@pytest.mark.parametrize(("shape", "changes"), SHAPES)
def test_a_receiver_reads_the_norms_anew(shape, changes):
    model = decoder_of(shape, **changes)
    tokens = tokens_of(model)
    before, cache = model.run_with_cache(tokens)
    by_receiver: dict[str, list[str]] = {}
    for sender, receiver in paths(model):
        by_receiver.setdefault(receiver, []).append(sender)
    for receiver, senders in by_receiver.items():
        head, mlp = head_index(receiver[:-2]), mlp_index(receiver)
        stages = 2 * head[0] if head else 2 * mlp + 1 if mlp is not None else 2 * model.config.n_layers
        for some in ([senders[0]], [senders[-1]], senders[::-1]):
            with ExitStack() as cuts:
                for sender in some:
                    cuts.enter_context(replace_path(model, sender, receiver, other))
                _, seen = model.run_with_cache(tokens, return_cache_object=False)
            point, expected = receives(model, stream_before(model, cache, stages, some), receiver)
            found = seen[point] if head is None else seen[point][:, :, head[1]]
            assert close(found, expected), (receiver, some)
    assert torch.equal(model(tokens), before)


@torch.no_grad()
def test_a_pass_that_is_remembered_or_read_in_part_is_the_same():
    model = decoder_of("post-norm")
    tokens, last = tokens_of(model), torch.tensor([model.config.n_ctx - 1])
    with replace_path(model, "embed", "logits", other):
        plain, part = model(tokens), model(tokens, read=last)
    assert close(part, plain[:, last])
    with replayed(model):
        model(tokens)
        with replace_path(model, "embed", "logits", other):
            assert close(model(tokens), plain)
