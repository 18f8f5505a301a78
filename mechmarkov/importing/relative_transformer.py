"""Edelman et al.'s `Relative_Transformer` (Evolution of statistical induction heads, arXiv 2402.11004).

Its names are minGPT's in part: `layers.N.Q`, `K`, `V` without biases, and `layers.N.wpe`, a vector for each
lag, added to the key. Its last row is for positions that the mask hides. Only the first layer may have more
heads than one.
"""

from collections.abc import Mapping
from typing import Any

from mechmarkov.importing import config_fields, gpt2, layout, linear_layers
from mechmarkov.importing.files import buffers
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.safe.plain_data import RunFileError

STEMS = {
    "wte": "embed",
    "layers.N.ln": "blocks.N.ln1",
    "layers.N.ln_2": "blocks.N.ln2",
    **{f"layers.N.{letter}": f"blocks.N.attn.{letter.lower()}" for letter in "QKV"},
    "layers.N.c_proj": "blocks.N.attn.o",
    "layers.N.wpe": "blocks.N.attn.rel",
    "layers.N.mlp.c_fc": "blocks.N.mlp.in",
    "layers.N.mlp.c_proj": "blocks.N.mlp.out",
    "ln_f": "ln_final",
    "lm_head": "unembed",
}
MARKS = (("layers.0.wpe.weight", "layers.0.Q.weight"),)


def plan_import(
    shapes: Shapes, from_config: Mapping[str, Any], given: Mapping[str, Any], *, called: Called = str
) -> ImportPlan:
    """Work out which decoder a `Relative_Transformer` is, and how its weights become the decoder's.

    Raises:
        RunFileError: Naming a field that cannot be expressed, is not given, or contradicts the shapes.
    """
    masks = [name for name in shapes if name.endswith(".bias") and len(shapes[name]) == 4]
    lags = [name for name in shapes if name.endswith(".pos")]  # which lag each pair of positions has
    rows, _ = layout.shape_of(shapes, "layers.0.wpe.weight", 2, called)
    by_shapes = {"n_ctx": rows - 1, "positional_embedding_type": "relative"}
    fields = config_fields.agree(by_shapes, from_config, layout.BY_SHAPES)
    own = {name: shape for name, shape in shapes.items() if name not in {*masks, *lags}}
    plan = gpt2.plan_of(linear_layers.Table(STEMS, called), own, fields, given, of="Relative_Transformer")
    if plan.config.n_heads > 1 and plan.config.n_layers > 1:
        raise RunFileError(
            f"n_heads is {plan.config.n_heads}, but layers beyond the first have one head: "
            "a HookedDecoder cannot express it"
        )
    return buffers.checked(plan, masks, [], called)
