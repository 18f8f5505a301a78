"""A number for each head and lag, of what other codes keep: against transformers' own biases of scores."""

import re

import pytest
import torch
from golden_files import golden
from public_codes import SOURCE
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from mechmarkov.importing.bloom import slopes
from mechmarkov.importing.names.folding import by_lag
from mechmarkov.importing.names.table import Line
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError

LAST = -1


@pytest.mark.parametrize(("n_buckets", "farthest", "length"), [(32, 128, 200), (8, 20, 40), (4, 5, 9)])
def test_buckets_are_those_of_t5(n_buckets, farthest, length):
    config = T5Config(
        num_heads=3,
        relative_attention_num_buckets=n_buckets,
        relative_attention_max_distance=farthest,
        is_decoder=True,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True)
    line = Line("bias", ("blocks.0.attn.b_rel",), buckets=farthest)
    given = {"n_heads": 3, "n_ctx": length}
    found = by_lag("bias", theirs.relative_attention_bias.weight, line, given)
    torch.testing.assert_close(found, theirs.compute_bias(length, length)[0, :, LAST].flip(-1))


@pytest.mark.parametrize("n_heads", [1, 2, 3, 6, 8, 12])
def test_slopes_are_those_of_bloom(n_heads):
    theirs = build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(slopes(n_heads), theirs)


TABLE = torch.arange(10.0).view(2, 5)  # of two heads


@pytest.mark.parametrize("stored", [TABLE, TABLE.T, TABLE[None], TABLE.T[None, :, :, None]])
def test_axes_of_heads_and_lags_tell_themselves(stored):
    torch.testing.assert_close(by_lag("b", stored, Line("b", ()), {"n_heads": 2}), TABLE)


def test_one_table_for_all_heads():
    torch.testing.assert_close(by_lag("b", TABLE[1], Line("b", ()), {"n_heads": 2}), TABLE[[1, 1]])


REFUSED = [
    (TABLE, {}, {"n_heads": None}, '"b" is of heads: say how many, n_heads=2'),
    (TABLE[0], {"slopes": True}, {"n_ctx": 4}, '"b" has shape [5], expected a slope a head for 2 heads'),
    (TABLE[:, 0], {"slopes": True}, {}, 'n_ctx is None, expected how many lags "b" stands for'),
    (TABLE, {"buckets": 8}, {"n_ctx": 4}, '"b" has shape [5, 2], expected [bucket, head] for 2 heads'),
    (TABLE.T, {"buckets": 2}, {"n_ctx": 4}, "buckets is 2 for 5 of them, expected more than half as many"),
    (torch.ones(2, 3, 4), {}, {}, '"b" has shape [2, 3, 4], expected a number a head and lag'),
]


@pytest.mark.parametrize(("stored", "says", "given", "words"), REFUSED)
def test_a_table_of_another_shape_is_named(stored, says, given, words):
    with pytest.raises(RunFileError, match=re.escape(words)):
        by_lag("b", stored, Line("b", (), **says), {"n_heads": 2, **given})


def test_a_layout_without_lags_has_no_bias(tmp_path):
    """Its names are GPT-2's; ALiBi needs no weight."""
    content = golden("nanogpt_relu.pt")
    content["model"] = {name: value for name, value in content["model"].items() if "wpe" not in name}
    torch.save(content, tmp_path / "model.pt")
    given = {"act_fn": "relu", "n_ctx": 7}
    run = import_run(
        [tmp_path / "model.pt"], source=SOURCE, given={**given, "positional_embedding_type": "alibi"}
    ).run
    assert run.config.positional_embedding_type == "alibi"
    with pytest.raises(RunFileError, match=r"'relative_bias', but no name here is .* blocks\.N\.attn\.b_rel"):
        import_run(
            [tmp_path / "model.pt"],
            source=SOURCE,
            given={**given, "positional_embedding_type": "relative_bias"},
        )
