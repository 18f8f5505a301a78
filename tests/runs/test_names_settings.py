"""Settings next to weights with names of their own: read, refused or told, as with known names."""

import pytest
import torch
from own_names import Own, Shape, given_of, names_of
from public_codes import SOURCE
from run_files import saved

import mechmarkov as mm

SHAPE = Shape(norm=True, hidden=16)


def imported(tmp_path, config, shape=SHAPE, **given):
    path = saved(tmp_path / "model.pt", {"model": Own(shape).state_dict(), "config": config})
    names = names_of(shape) | {r".*\.mask": ""}
    return mm.import_run([path], source=SOURCE, names=names, given=given_of(shape) | given)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"softcap": 15.0}, "config: softcap is 15.0: a HookedDecoder cannot express it"),
        ({"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx is True: a HookedDecoder cannot"),
        ({"window_pattern": "SSSL"}, "window_pattern is 'SSSL': a HookedDecoder cannot"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling is .* cannot express it"),
        (
            {"sliding_window": 3},
            r"--set window=3 if a query sees itself and 3 tokens before it, 2 if 3 in all",
        ),
        ({"n_heads": 4}, "n_heads is 4 in the file, but 2 was given"),
        ({"use_qk_norm": True}, "use_qk_norm is True, which no weight shows"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(tmp_path, config, words):
    with pytest.raises(ValueError, match=words):
        imported(tmp_path, config)


def test_settings_whose_meaning_is_plain_are_read(tmp_path):
    """A larger epsilon changes the logits as it does in the model itself."""
    config = {"norm_eps": 1e-2, "window_pattern": "L", "rope_scaling": None, "out_dir": "out", "beta": 3}
    result = imported(tmp_path, config)
    assert result.run.config.eps == 1e-2
    assert "eps" not in result.run.provenance["assumed"]
    assert "settings in the file that are not read: config.beta" in result.notes
    model, tokens = Own(SHAPE), SOURCE.sample(4, 7, generator=torch.Generator().manual_seed(1))
    for norm in (x for x in model.modules() if isinstance(x, torch.nn.LayerNorm)):
        norm.eps = 1e-2
    torch.testing.assert_close(result.run.model()(tokens), model(tokens), rtol=1e-5, atol=1e-5)


def test_what_no_weight_shows_is_told_with_a_table_too(tmp_path):
    assumed = imported(tmp_path, {}).run.provenance["assumed"]
    assert assumed["output_logits_soft_cap"] is None
    assert assumed["norm_first"] is True


def test_a_layer_without_an_mlp_has_one_of_zeros():
    model = Own(SHAPE)
    model.stack[0].up = model.stack[0].down = None
    names = names_of(SHAPE) | {"missing": {r".*\.b(_.*)?": "zeros"}}
    options = {"source": SOURCE, "given": given_of(SHAPE)}
    with pytest.raises(
        ValueError, match=r'or "missing": \{r"blocks\\\.0\\\.mlp\\\.\.\*": "zeros"\} where the'
    ):
        mm.Run.from_model(model, names=names, **options)
    names["missing"] |= {r"blocks\.0\.mlp\..*": "zeros"}
    run = mm.Run.from_model(model, names=names, **options)
    assert run.provenance["logit_difference"] <= 1e-5
