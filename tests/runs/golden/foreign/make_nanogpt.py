"""Writes nanogpt_*.pt with karpathy/nanoGPT's model.py (commit 3adf61e), saved as its train.py does.

python tests/runs/golden/foreign/make_nanogpt.py FOLDER_OF_NANOGPT
"""

import sys
from dataclasses import asdict

import torch
from foreign_numbers import HERE, LENGTH, K, draw, keep_logits, tokens
from torch import nn


def logits_everywhere(model: nn.Module) -> torch.Tensor:
    """nanoGPT answers at every position only where it is given targets."""
    logits: torch.Tensor = model(tokens(), tokens())[0]
    return logits


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    from model import GPT, GPTConfig  # nanoGPT's

    for name in ("bias", "no_bias", "compiled", "relu", "tanh_gelu", "untied_biased_head", "parallel"):
        args = GPTConfig(LENGTH, K, n_layer=2, n_head=2, n_embd=8, bias=name != "no_bias")
        model = GPT(args)
        if name == "relu":
            for block in model.transformer.h:
                block.mlp.gelu = nn.ReLU()
        if name == "tanh_gelu":
            for block in model.transformer.h:
                block.mlp.gelu = nn.GELU("tanh")
        if name == "untied_biased_head":
            model.lm_head = nn.Linear(8, K)
        if name == "parallel":  # wrapped for several devices
            model = nn.ModuleDict({"module": model})
        draw(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95))
        inner = model["module"] if name == "parallel" else model
        inner(tokens(), tokens())[1].backward()
        optimizer.step()
        prefix = "_orig_mod." if name == "compiled" else ""
        checkpoint = {
            "model": {prefix + key: value for key, value in model.state_dict().items()},
            "optimizer": optimizer.state_dict(),
            "model_args": {
                "n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": LENGTH, "bias": args.bias,
                "vocab_size": K, "dropout": 0.0,
            },
            "iter_num": 2000,
            "best_val_loss": torch.tensor(1.25),
            "config": {"dataset": "chain", "learning_rate": 6e-4, **asdict(args)},
        }  # fmt: skip
        torch.save(checkpoint, HERE / f"nanogpt_{name}.pt")
        keep_logits(f"nanogpt_{name}", logits_everywhere(inner))


if __name__ == "__main__":
    main()
