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


def trained(recorder: mm.Recorder | None = None, tied: bool = False, **layers: object) -> torch.nn.Module:
    torch.manual_seed(0)
    decoder = Decoder(**({"dim": WIDTH, "depth": 2, "heads": 2, "attn_dim_head": 8} | layers))
    net = TransformerWrapper(
        num_tokens=N_STATES, max_seq_len=LENGTH, tie_embedding=tied, attn_layers=decoder
    )  # fmt: skip
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
