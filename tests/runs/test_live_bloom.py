"""Transformers' Bloom becomes a run: live and from a folder."""

import pytest
import torch
from public_codes import SOURCE, of_transformers

from mechmarkov.runs import Run, RunFileError
from mechmarkov.runs.import_run import import_run

pytestmark = pytest.mark.filterwarnings("default")  # transformers warns of its own future
K, LENGTH = 5, 9


def tokens() -> torch.Tensor:
    return torch.randint(K, (4, LENGTH), generator=torch.Generator().manual_seed(6))


def live(n_heads: int, **changes: object) -> torch.nn.Module:
    shape = {"vocab_size": K, "n_layer": 2, "n_head": n_heads, "hidden_size": 4 * n_heads}
    return of_transformers("Bloom", shape | {"layer_norm_epsilon": 1e-3} | changes, seed=n_heads)


def assert_close(run: Run, model: torch.nn.Module) -> None:
    with torch.no_grad():
        logits = model(tokens()).logits
    torch.testing.assert_close(run.model()(tokens()), logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n_heads", "tied"), [(4, True), (3, False)])
def test_a_bloom_comes_in_with_its_logits(tmp_path, n_heads, tied):
    """Three heads have slopes of their own: a bias of each lag."""
    model = live(n_heads, tie_word_embeddings=tied)
    run = Run.from_model(model, source=SOURCE, n_ctx=LENGTH)
    assert_close(run, model)
    kind = "alibi" if n_heads == 4 else "relative_bias"
    assert (run.config.positional_embedding_type, run.config.n_ctx) == (kind, LENGTH)
    model.save_pretrained(tmp_path / "model")
    assert_close(import_run([tmp_path / "model"], source=SOURCE).run, model)


def test_a_bloom_whose_stream_is_normed_is_refused():
    model = live(2, apply_residual_connection_post_layernorm=True)
    with pytest.raises(
        RunFileError, match="apply_residual_connection_post_layernorm is True: a HookedDecoder"
    ):
        Run.from_model(model, source=SOURCE, n_ctx=LENGTH)
