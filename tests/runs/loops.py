"""Training loops of public code: minGPT's, the unigram trap's, nanoGPT's, and transformers' Trainer.

minGPT's is `mingpt/trainer.py` 13-109 of karpathy/minGPT 37baab7, the unigram trap's
`Markov-LLM-m/src/optim/base.py` 12-45 of Bond1995/Markov 446eaa1.
"""

from collections import defaultdict

import torch
import transformers
from public_codes import SOURCE, Config, NanoGPT


def mingpt_run(config, model, rows, callbacks):
    """minGPT's `Trainer.run`: an endless loader, clipping, callbacks at the end of a batch."""
    registered = defaultdict(list, {"on_batch_end": list(callbacks)})
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95))
    sampler = torch.utils.data.RandomSampler(rows, replacement=True, num_samples=1000)
    model.train()
    loader = torch.utils.data.DataLoader(rows, sampler=sampler, batch_size=config.batch_size)
    for iteration, batch in enumerate(loader):
        _, loss = model(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        for callback in registered["on_batch_end"]:
            callback(iteration, model)
        if iteration + 1 >= config.max_iters:
            return


def train_base(model, batch_of, iterations, args, recorder=None):
    """The unigram trap's loop: micro steps, no zero_grad before the first, an evaluation after each step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=1e-3)
    model.train()
    for step in range(iterations):
        if recorder is not None:
            recorder(step, model)
        for _ in range(args.acc_steps):
            x, y = batch_of()
            (model(x, targets=y)["loss"] / args.acc_steps).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        model.eval()
        with torch.no_grad():
            model(*batch_of(), get_logits=True)
        model.train()


def nanogpt_loop(recorder=None, steps=9, *, kind=NanoGPT, finish=True, crowd=None):
    """nanoGPT's train.py without its options: iterations, micro steps, dropout, gradient clipping."""
    torch.manual_seed(1337)
    model = kind(Config(dropout=0.2))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        if crowd is not None:
            crowd(step)
        if recorder is not None:
            recorder(step, model)
        for _ in range(2):
            drawn = SOURCE.sample(4, 8, generator=generator)
            _, loss = model(drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous())
            (loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    if recorder is not None and finish:
        recorder.finish(steps, model)
    return model


def same_weights(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def hugging_face(folder, callbacks=(), kind=transformers.GPT2LMHeadModel, **options):
    """The real Trainer on a tiny GPT-2, with dropout and gradient accumulation."""
    shape = {"vocab_size": 5, "n_positions": 7, "n_embd": 8, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
    transformers.set_seed(7)
    model = kind(config)
    tokens = SOURCE.sample(64, 7, generator=torch.Generator().manual_seed(0))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        learning_rate=1e-2, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        dataloader_pin_memory=False, logging_strategy="no", **options,
    )  # fmt: skip
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[*callbacks])
    trainer.train()
    return model
