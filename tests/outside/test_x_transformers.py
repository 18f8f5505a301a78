"""x-transformers: TransformerWrapper trained through its AutoregressiveWrapper."""

import pytest
import torch
from circle import LENGTH, N_STATES, SOURCE, assert_same_logits, sequences, steps_differ
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

import mechmarkov as mm

WIDTH = 16


def names_of(depth: int) -> dict:
    """Its table: attention and MLP of a block are two of its layers; gains are stored as gain - 1."""
    names: dict = {
        "token_emb.emb.weight": "embed.W_E",
        "pos_emb.emb.weight": {"to": "pos_embed.W_pos", "scale": WIDTH**-0.5},
        "attn_layers.final_norm.gamma": {"to": "ln_final.w", "add": 1.0},
        "to_logits.weight": "unembed.W_U",
        "missing": "zeros",
    }
    for block in range(depth):
        at, mlp, to = (
            f"attn_layers.layers.{2 * block}", f"attn_layers.layers.{2 * block + 1}", f"blocks.{block}"
        )  # fmt: skip
        names |= {f"{at}.1.to_{x}.weight": f"{to}.attn.W_{x.upper()}" for x in "qkv"}
        names |= {
            f"{at}.0.0.gamma": {"to": f"{to}.ln1.w", "add": 1.0},
            f"{at}.1.to_out.weight": f"{to}.attn.W_O",
            f"{mlp}.0.0.gamma": {"to": f"{to}.ln2.w", "add": 1.0},
            f"{mlp}.1.ff.0.0.weight": f"{to}.mlp.W_in",
            f"{mlp}.1.ff.0.0.bias": f"{to}.mlp.b_in",
            f"{mlp}.1.ff.2.weight": f"{to}.mlp.W_out",
            f"{mlp}.1.ff.2.bias": f"{to}.mlp.b_out",
        }
    return names


def trained(
    recorder: mm.Recorder | None = None, tied: bool = False, positions: bool = True, **layers: object
) -> torch.nn.Module:
    torch.manual_seed(0)
    decoder = Decoder(**({"dim": WIDTH, "depth": 2, "heads": 2, "attn_dim_head": 8} | layers))
    net = TransformerWrapper(
        num_tokens=N_STATES,
        max_seq_len=LENGTH,
        tie_embedding=tied,
        attn_layers=decoder,
        use_abs_pos_emb=positions,
    )
    wrapper = AutoregressiveWrapper(net)
    optimiser = torch.optim.AdamW(wrapper.parameters(), lr=1e-2)
    for step in range(4):
        if recorder is not None:
            recorder(step, net)
        optimiser.zero_grad()
        wrapper(sequences(16, seed=step)).backward()
        optimiser.step()
    return wrapper


GIVEN = {"n_heads": 2, "act_fn": "gelu", "normalization_type": "LN"}


def test_a_loop_records_the_net_inside_the_wrapper(tmp_path):
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=2, names=names_of(2), given=GIVEN)
    wrapper = trained(recorder)
    run = recorder.finish(4, wrapper.net)
    assert run.steps.tolist() == [0, 2, 4]
    assert steps_differ(run)
    assert_same_logits(run, wrapper.net)


def test_a_saved_wrapper_comes_in(tmp_path):
    wrapper = trained()
    torch.save(wrapper.state_dict(), tmp_path / "model.pt")
    names = {f"net.{name}" if name != "missing" else name: line for name, line in names_of(2).items()}
    run = mm.import_run([tmp_path / "model.pt"], source=SOURCE, names=names, given=GIVEN).run
    assert_same_logits(run, wrapper.net)


def by_lag(net: torch.nn.Module, line: dict, kind: str = "relative_bias", n_heads: int = 2) -> mm.Run:
    """One bias of all layers, without positions of tokens."""
    names = names_of(2) | line
    del names["pos_emb.emb.weight"]
    given = GIVEN | {"n_heads": n_heads, "positional_embedding_type": kind, "n_ctx": LENGTH}
    return mm.Run.from_model(net, source=SOURCE, names=names, given=given)


B_REL = ["blocks.0.attn.b_rel", "blocks.1.attn.b_rel"]


def test_alibi_of_two_heads_and_of_three():
    """Three heads have other slopes than HookedTransformer's: those of the net's buffer."""
    net = trained(alibi_pos_bias=True, positions=False).net
    run = by_lag(net, {}, "alibi")
    assert_same_logits(run, net)
    assert "blocks.0.attn.b_rel" not in run.states
    net = trained(alibi_pos_bias=True, positions=False, heads=3).net
    assert_same_logits(
        by_lag(net, {"attn_layers.rel_pos.slopes": {"to": B_REL, "slopes": True}}, n_heads=3), net
    )
    with pytest.raises(ValueError, match="disagree"):
        by_lag(net, {}, "alibi", n_heads=3)


def test_t5s_buckets_become_a_bias_of_each_layer():
    net = trained(rel_pos_bias=True, rel_pos_num_buckets=8, rel_pos_max_distance=12, positions=False).net
    line = {"to": B_REL, "buckets": 12, "scale": 8**0.5}  # they multiply it by sqrt(d_head)
    run = by_lag(net, {"attn_layers.rel_pos.relative_attention_bias.weight": line})
    assert_same_logits(run, net)
    with pytest.raises(ValueError, match="disagree"):
        by_lag(net, {"attn_layers.rel_pos.relative_attention_bias.weight": line | {"buckets": 16}})


def test_a_tied_embedding_that_is_scaled_at_the_end():
    wrapper = trained(tied=True)
    names = names_of(2) | {"token_emb.emb.weight": ["embed.W_E", {"to": "unembed.W_U", "scale": WIDTH**-0.5}]}
    assert_same_logits(mm.Run.from_model(wrapper.net, source=SOURCE, names=names, given=GIVEN), wrapper.net)


def test_rotary_positions_shared_keys_and_rms_norms():
    wrapper = trained(rotary_pos_emb=True, rotary_emb_dim=8, use_rmsnorm=True, attn_kv_heads=1)
    names = {name.replace(".gamma", ".g"): line for name, line in names_of(2).items()}
    del names["pos_emb.emb.weight"]
    rotary = {"positional_embedding_type": "rotary", "rotary_base": 10000, "rotary_adjacent_pairs": True}
    norm = {"normalization_type": "RMS", "eps": 0.0}
    given = GIVEN | rotary | norm | {"n_ctx": LENGTH, "n_key_value_heads": 1}
    run = mm.Run.from_model(wrapper.net, source=SOURCE, names=names, given=given)
    assert_same_logits(run, wrapper.net)


def test_norms_behind_the_sums():
    wrapper = trained(pre_norm=False)
    names = {name.replace(".0.0.gamma", ".0.2.gamma"): line for name, line in names_of(2).items()}
    run = mm.Run.from_model(wrapper.net, source=SOURCE, names=names, given=GIVEN)
    assert (run.config.norm_first, run.config.final_norm) == (False, False)
    assert_same_logits(run, wrapper.net)


def test_what_no_decoder_computes_has_no_line():
    """A gate of each head on its values."""
    wrapper = trained(attn_gate_values=True)
    with pytest.raises(ValueError, match=r"no line for attn_layers\.layers\.N\.N\.to_v_gate\.weight"):
        mm.Run.from_model(wrapper.net, source=SOURCE, names=names_of(2), given=GIVEN)
