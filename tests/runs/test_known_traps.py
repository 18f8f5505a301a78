"""What goes silently wrong with models of elsewhere, and does not here."""

from importlib.metadata import version

import pytest
import torch
from golden_files import ASCII, FOREIGN, assert_its_own_logits
from public_codes import SOURCE
from torch.func import functional_call

from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.runs import Run, RunFileError
from mechmarkov.runs.import_run import import_run

four = [
    pytest.mark.tl,
    pytest.mark.skipif(version("transformer-lens") < "4", reason="TransformerLens 3 has no native bridge"),
    pytest.mark.filterwarnings("default"),  # TransformerLens warns while it makes a bridge
]


def bridge(**changes: object) -> torch.nn.Module:
    """A native bridge of TransformerLens 4 with every weight drawn."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    base = {"d_model": 8, "n_ctx": 7, "d_head": 4, "n_heads": 2, "d_vocab": 5, "n_layers": 2, "device": "cpu"}
    alone = {"attn_only": True, "normalization_type": None, "seed": 0}
    made = TransformerBridge.boot_native(TransformerBridgeConfig(**(base | alone | changes)))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return made.eval()


def tokens() -> torch.Tensor:
    return SOURCE.sample(4, 7, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["tl2_no_attn_scale.pt", "tl3_no_attn_scale.pt", "gpt2_no_scale"])
def test_attention_that_is_not_scaled_stays_so(name):
    """TransformerLens' converter scales it."""
    run = import_run([FOREIGN / name], source=SOURCE).run
    assert not run.config.use_attn_scale
    assert_its_own_logits(run, name)


@pytest.mark.parametrize("name", ["tl2_rotary.pt", "tl3_rotary.pt"])
def test_rotary_in_halves_stays_in_halves(name):
    """TransformerLens' converter reads it as adjacent pairs."""
    run = import_run([FOREIGN / name], source=SOURCE).run
    assert not run.config.rotary_adjacent_pairs
    original = assert_its_own_logits(run, name)
    changed = run.config.model_copy(update={"rotary_adjacent_pairs": True})
    wrong = HookedDecoder(changed)
    wrong.load_state_dict({key: value[-1] for key, value in run.states.items()})
    assert (
        wrong(original["tokens"]) - original["logits"]
    ).abs().max() > 1e-3  # the two layouts are told apart


class TestBridge:
    """Native bridges, live."""

    pytestmark = four

    @pytest.mark.parametrize(
        "changes",
        [
            {"use_attn_scale": False},
            {"attn_scale": 0.9},
            {"positional_embedding_type": "rotary"},
            {"positional_embedding_type": "rotary", "rotary_adjacent_pairs": True, "rotary_dim": 2},
            {"use_local_attn": True, "window_size": 2, "attn_types": ["local", "local"]},
            {"attn_only": False, "act_fn": "relu", "d_mlp": 12, "parallel_attn_mlp": True},
            {"attn_only": False, "act_fn": "silu", "d_mlp": 12, "gated_mlp": True, "n_key_value_heads": 1},
            {"normalization_type": "LN", "eps": 0.3},
        ],
        ids=str,
    )
    def test_what_it_computes_is_taken_whatever_its_config_says(self, changes):
        """A native bridge scales attention, rotates adjacent pairs and looks everywhere, config or not."""
        model = bridge(**changes)
        run = Run.from_model(model, source=SOURCE)
        torch.testing.assert_close(run.model()(tokens()), model(tokens()), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"use_attn_scale": False}, "cfg.use_attn_scale is False, but a native bridge computes as if it"),
            ({"positional_embedding_type": "rotary"}, "cfg.rotary_adjacent_pairs is False, but a native"),
            (
                {"attn_only": False, "act_fn": "relu", "d_mlp": 12, "parallel_attn_mlp": True},
                "cfg.parallel_attn_mlp is True, but a native bridge",
            ),
            (
                {"use_local_attn": True, "window_size": 2, "attn_types": ["local", "local"]},
                "cfg.use_local_attn is True, but a native bridge",
            ),
        ],
        ids=str,
    )
    def test_a_saved_config_that_is_not_what_was_computed_is_refused(self, tmp_path, changes, words):
        """There are no logits beside a file to tell."""
        model = bridge(**changes)
        torch.save({"cfg": model.cfg.to_dict(), "model": model.state_dict()}, tmp_path / "bridge.pt")
        with pytest.raises(RunFileError, match=words):
            import_run([tmp_path / "bridge.pt"], source=SOURCE)

    def test_what_cannot_be_expressed_is_refused(self):
        name = "scale_attn_by_inverse_layer_idx"
        with pytest.raises(ValueError, match=f"cfg.{name} is True: a HookedDecoder cannot express it"):
            Run.from_model(bridge(**{name: True}), source=SOURCE)

    def test_hooks_on_scores_count(self):
        """On the bridge itself they are ignored: attention is fused."""
        decoder = Run.from_model(bridge(), source=SOURCE).model()

        def blind(scores: torch.Tensor, hook: object) -> torch.Tensor:
            return torch.zeros_like(scores).masked_fill(scores.isinf(), -torch.inf)

        hooked = decoder.run_with_hooks(tokens(), fwd_hooks=[("blocks.0.attn.hook_attn_scores", blind)])
        assert (hooked - decoder(tokens())).abs().max() > 1e-3

    def test_functional_call_is_the_same_model(self):
        decoder = Run.from_model(bridge(), source=SOURCE).model()
        state = {name: value.clone() for name, value in decoder.state_dict().items()}
        called = functional_call(decoder, state, (tokens(),))
        torch.testing.assert_close(called, decoder(tokens()), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own imports
@pytest.mark.skipif(ASCII, reason="torch.compile reads its own files in the locale's encoding")
def test_hooks_added_to_what_was_compiled_count():
    """A compiled model ignores hooks that are added later: the run holds the model that was compiled."""
    config = DecoderConfig(
        n_layers=1, d_model=8, n_ctx=7, d_head=4, d_vocab=5, attn_only=True, normalization_type=None
    )
    model = HookedDecoder(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    decoder = Run.from_model(torch.compile(model), source=SOURCE).model()
    hook = ("blocks.0.attn.hook_z", lambda z, hook: torch.ones_like(z))
    hooked = decoder.run_with_hooks(tokens(), fwd_hooks=[hook])
    assert (hooked - decoder(tokens())).abs().max() > 1e-6
