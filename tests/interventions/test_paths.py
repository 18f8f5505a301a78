"""Cut paths against arithmetic, against ablated parts and against TransformerLens' head results."""

from contextlib import ExitStack

import pytest
import torch
from intervention_cases import ALL, close, decoder_of, tokens_of

from mechmarkov.interventions.ablate import ablate, ablate_path
from mechmarkov.interventions.paths import paths, replace_path
from mechmarkov.interventions.replace import replace_component
from mechmarkov.interventions.tokens import donors
from mechmarkov.models import HookedDecoder
from mechmarkov.models.components import Output, component_names, head_index, output_of, split_input
from mechmarkov.models.decoder import activations

# Δ is read from the input of keys, the gate from that of queries; heads share queries and keys.
MAMBA = {
    "mixer": "mamba", "d_state": 2, "n_groups": 1, "d_conv": 3, "conv_act_fn": "silu", "use_gate": True,
    "use_gate_norm": True, "positional_embedding_type": "none",
}  # fmt: skip


@pytest.mark.parametrize("n_models", [None, 2])
@pytest.mark.parametrize(
    ("shape", "changes"), [*((shape, {}) for shape in ALL), ("plain", MAMBA), ("LN and MLP", MAMBA)]
)
def test_all_paths_of_a_component_cut_at_once_are_the_component_ablated(shape, changes, n_models):
    model = decoder_of(shape, n_models=n_models, **changes).double()  # norms enlarge rounding
    tokens = tokens_of(model)
    before, points = model(tokens), set(model.hook_dict)
    for part in component_names(model.config):
        if part in ("direct", "bias"):
            continue
        mine = [receiver for sender, receiver in paths(model) if sender == part]
        with ExitStack() as stack:
            for receiver in mine:
                stack.enter_context(ablate_path(model, part, receiver))
            found = model(tokens)
        with ablate(model, part):
            assert close(found, model(tokens)), part
    assert torch.equal(model(tokens), before)
    assert set(model.hook_dict) == points


@pytest.mark.parametrize("n_models", [None, 2])
@pytest.mark.parametrize("shape", ALL)
def test_a_receiver_of_foreign_values_reads_foreign_values(shape, n_models):
    """All that it reads is what it is in other sequences, norms of the sum included."""
    model = decoder_of(shape, n_models=n_models).double()
    tokens = tokens_of(model)
    foreign = tokens.flip(-1)
    hooks = {sender: output_of(model.config, sender) for sender, _ in paths(model)}
    written = activations(model, foreign, [output.hook for output in hooks.values()])
    values = {sender: output.read(written[output.hook]) for sender, output in hooks.items()}
    for receiver in {receiver for _, receiver in paths(model)}:
        name, side = split_input(receiver)
        if (head := head_index(name)) is None:
            continue
        place = Output(f"blocks.{head[0]}.attn.hook_{side.lower()}", head)
        shared = model.config.n_key_value_heads if side in ("K", "V") else None  # else each has its own
        own = head[1] * (shared or model.config.n_heads) // model.config.n_heads
        expected = activations(model, foreign, [place.hook])[place.hook][..., own, :]
        with ExitStack() as stack:
            for sender in [sender for sender, one in paths(model) if one == receiver]:
                stack.enter_context(replace_path(model, sender, receiver, lambda _, to=values[sender]: to))
            found = place.read(activations(model, tokens, [place.hook])[place.hook])
        assert close(found, expected), receiver
    assert "streams_at_receivers" not in model.__dict__ or not model.streams_at_receivers


def test_each_path_is_what_arithmetic_says_it_is():
    model = decoder_of("plain", n_layers=1, attn_only=False, act_fn="gelu", d_mlp=9)
    tokens = tokens_of(model)
    state = model.state_dict()
    embed = state["embed.W_E"][tokens]
    resid = embed + state["pos_embed.W_pos"]
    block = {name.removeprefix("blocks.0."): value for name, value in state.items() if "blocks.0" in name}

    def logits(q_in=resid, k_in=resid, v_in=resid, mlp_less=0.0, direct=resid, head=0):
        out = direct + block["attn.b_O"]
        for h in range(2):
            x = {"q": q_in, "k": k_in, "v": v_in} if h == head else dict.fromkeys("qkv", resid)
            q, k, v = (
                x[s] @ block[f"attn.W_{s.upper()}"][h] + block[f"attn.b_{s.upper()}"][h] for s in "qkv"
            )
            scores = (q @ k.mT / 3**0.5).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
            out = out + scores.softmax(-1) @ v @ block["attn.W_O"][h]
        read = out - (direct - resid) - mlp_less
        hidden = torch.nn.functional.gelu(read @ block["mlp.W_in"] + block["mlp.b_in"])
        out = out + hidden @ block["mlp.W_out"] + block["mlp.b_out"]
        return out @ state["unembed.W_U"] + state["unembed.b_U"]

    less = resid - embed
    expected = {
        "L0H0.Q": logits(q_in=less),
        "L0H1.K": logits(k_in=less, head=1),
        "L0H0.V": logits(v_in=less),
        "L0.mlp": logits(mlp_less=embed),
        "logits": logits(direct=less),
    }
    assert close(model(tokens), logits())
    for receiver, values in expected.items():
        with ablate_path(model, "embed", receiver):
            assert close(model(tokens), values), receiver
    with ablate(model, "direct"):
        assert close(model(tokens), expected["logits"])


@pytest.mark.parametrize("kind", ["mean", "resample"])
def test_a_path_can_be_ablated_in_every_way(kind):
    model = decoder_of("plain")
    tokens = tokens_of(model)
    _, cache = model.run_with_cache(tokens)
    z = cache["blocks.0.attn.hook_z"][:, :, 1]
    stands_in = z.mean(0) if kind == "mean" else z[donors(torch.zeros_like(tokens)), torch.arange(7)]
    change = (stands_in - z) @ model.blocks[0].attn.W_O[1]
    expected = model.run_with_hooks(
        tokens, fwd_hooks=[("blocks.1.attn.hook_q", lambda x, hook: q_of(model, x, change))]
    )
    with ablate_path(model, "L0H1", "L1H0.Q", kind=kind):
        assert close(model(tokens), expected)


def q_of(model: HookedDecoder, q: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    q = q.clone()
    q[:, :, 0] += change @ model.blocks[1].attn.W_Q[0]
    return q


@pytest.mark.tl
def test_a_path_cut_is_transformer_lens_path_patching():
    """What the receiver reads differs by what the sender writes, by TransformerLens' head results."""
    model = decoder_of("LN and MLP")
    clean, corrupted = tokens_of(model), tokens_of(model, seed=9)
    _, theirs = model.run_with_cache(corrupted)
    _, ours = model.run_with_cache(clean)
    model.set_use_split_qkv_input(True)

    def patch(x, hook):
        x = x.clone()
        for_theirs = theirs.stack_head_results(layer=1)[0]
        x[:, :, 1] += for_theirs - ours.stack_head_results(layer=1)[0]
        return x

    expected = model.run_with_hooks(clean, fwd_hooks=[("blocks.1.hook_k_input", patch)])
    model.set_use_split_qkv_input(False)
    with replace_path(model, "L0H0", "L1H1.K", lambda _: theirs["blocks.0.attn.hook_z"][:, :, 0]):
        assert close(model(clean), expected)


def test_replacing_by_itself_changes_nothing():
    model = decoder_of("LN and MLP")
    tokens = tokens_of(model)
    before = model(tokens)
    with replace_component(model, "L0H1", lambda x: x):
        assert torch.equal(model(tokens), before)
    with replace_path(model, "L0H1", "L1H0.V", lambda x: x):
        assert close(model(tokens), before)
