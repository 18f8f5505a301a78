"""Edelman et al.'s `Relative_Transformer` (Evolution of statistical induction heads, arXiv 2402.11004).

Its names are minGPT's in part: `layers.N.Q`, `K`, `V` without biases, and `layers.N.wpe`, a vector for each
lag, added to the key. Its last row is for positions that the mask hides. Only the first layer may have more
heads than one.
"""

from collections.abc import Mapping
from typing import Any

from mechmarkov.importing import config_fields, gpt2, layout, linear_layers
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.safe.plain_data import RunFileError

TABLE = {
    "wte": "embed",
    "ln_f": "ln_final",
    "lm_head": "unembed",
    "layers.": "blocks.",
    "ln": "ln1",
    "ln_2": "ln2",
    **{letter: f"attn.{letter.lower()}" for letter in "QKV"},
    "c_proj": "attn.o",
    "wpe": "attn.rel",
    "mlp.c_fc": "mlp.in",
    "mlp.c_proj": "mlp.out",
}
MARKS = (("layers.0.wpe.weight", "layers.0.Q.weight"),)


def plan_import(
    shapes: Shapes, from_config: Mapping[str, Any], given: Mapping[str, Any], *, called: Called = str
) -> ImportPlan:
    """Work out which decoder a `Relative_Transformer` is, and how its weights become the decoder's.

    Raises:
        RunFileError: Naming a field that cannot be expressed, is not given, or contradicts the shapes.
    """
    table = linear_layers.Names(TABLE, called)
    masks = [name for name in shapes if name.endswith(".bias") and len(shapes[name]) == 4]
    lags = [name for name in shapes if name.endswith(".pos")]  # which lag each pair of positions has
    names = table.ours(name for name in shapes if name not in {*masks, *lags})
    rows, _ = layout.shape_of(shapes, "layers.0.wpe.weight", 2, called)
    n_ctx = rows - 1
    cut = {
        name: (n_ctx, *shape[1:])
        if names.get(name, "").endswith("rel.weight") and shape[0] == rows
        else shape
        for name, shape in shapes.items()
    }
    by_shapes = {"n_ctx": n_ctx, "positional_embedding_type": "relative"}
    fields = config_fields.agree(by_shapes, from_config, layout.BY_SHAPES)
    plan = gpt2.plan_of(names, table, cut, fields, given, masks=masks, of="Relative_Transformer")
    if plan.config.n_heads > 1 and plan.config.n_layers > 1:
        raise RunFileError(
            f"n_heads is {plan.config.n_heads}, but layers beyond the first have one head: "
            "a HookedDecoder cannot express it"
        )
    return linear_layers.with_first_rows(plan, {name: n_ctx for name in names if cut[name] != shapes[name]})
