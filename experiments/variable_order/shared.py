"""The small models of both measurements: layers of one shape, with an MLP or without."""

import mechmarkov as mm

KINDS = {"attention only": False, "with an MLP": True}


def recipe_of(n_layers: int, mlp: bool, steps: int, n_ctx: int) -> mm.Recipe:
    """The recipe `context-trees` with smaller layers; a context tree per sequence."""
    model = {
        "kind": "decoder",
        "n_layers": n_layers,
        "d_model": 16,
        "d_head": 8,
        "n_heads": 2,
        "n_ctx": n_ctx,
        "attn_only": not mlp,
        "normalization_type": "LN",
        "positional_embedding_type": "standard",
    }
    if mlp:
        model |= {"d_mlp": 32, "act_fn": "relu"}
    changes = {"optimiser.lr": 1e-2, "init.std": 0.1, "data.batch": 32, "checkpoints": [steps]}
    return mm.load_recipe("context-trees").replace(model=model, steps=steps, **changes)
