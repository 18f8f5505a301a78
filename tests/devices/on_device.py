"""What runs on a device, in a process of its own: `python on_device.py [--cuda]`, a line of JSON a case.

The device is emulated, or with `--cuda` a real one. Each case does one thing on the processor and on the
device. It prints the largest difference, or the error. The mistakes are what a GPU refuses, so that they must
end in an error. On a real device launches are not counted, and its own generator draws other numbers.
"""

import json
import sys
from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import fitting
import numpy as np
import torch
from mechmarkov.probes.induction.recorded import INDUCTION
from mechmarkov.probes.program.match_mass import MATCH_MASS

import mechmarkov as mm
from mechmarkov import probe_run
from mechmarkov.interventions.ablate import ablate, ablate_path
from mechmarkov.interventions.attention import limit_window, override_attention
from mechmarkov.interventions.tokens import donors, shuffle_context, swap_parent
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.kernels import use_fast_kernels
from mechmarkov.probing.recording.record import STANDARD, record
from mechmarkov.probing.subject import Subject
from mechmarkov.sources.base.registry import source_from_data
from mechmarkov.sources.sampling.stacks import Counted, Generators, draws_of
from mechmarkov.training import data
from mechmarkov.training.recipe import load_recipe
from mechmarkov.training.workload import members_of

IS_REAL = "--cuda" in sys.argv
if IS_REAL:  # with a second device torch's backward pass would ask that one for streams
    GPU, COUNTS, emulated = torch.device("cuda"), Counter(), nullcontext
else:
    from emulated_device import COUNTS, GPU, emulated
STEPS = 6  # on a real one the last are replays of a graph
CPU = torch.device("cpu")
ROWS = ((0.7, 0.2, 0.1), (0.1, 0.6, 0.3), (0.25, 0.25, 0.5))
SOURCES = [
    {"kind": "binary", "p": 0.2, "q": 0.3},
    {"kind": "causal_graph", "n_states": 3, "parents": [[], [0], [0], [1], *[[2, 3]] * 8]},
    {"kind": "chain", "P": ROWS},
    {"kind": "chain_mixture", "chains": [ROWS, ROWS[::-1]]},
    {"kind": "circle", "n_states": 6, "p": 0.5},
    {"kind": "context_conditioned_chain", "P": ROWS},
    {"kind": "context_tree", "leaves": [{"context": [i], "law": row} for i, row in enumerate(ROWS)]},
    {"kind": "context_trees", "n_states": 2, "depth": 2},
    {"kind": "dirichlet_chains", "n_states": 3},
    {"kind": "dirichlet_chains", "n_states": 3, "start": "uniform", "order": 2},
    {"kind": "doubly_stochastic", "n_states": 3},
    {"kind": "doubly_stochastic", "n_states": 3, "law": "uniform"},
    {"kind": "factored_hidden_markov", "factors": [{"transitions": ROWS, "emissions": ROWS}] * 2},
    {"kind": "fruit_questions", "task": 1},
    mm.sources.GeneralisedHiddenMarkov.qubit(turn=0.7, strength=0.6).model_dump(),
    {"kind": "graph", "n_states": 3, "edges": [[0, 1, 1.0], [1, 2, 2.0]]},
    {"kind": "hidden_markov", "transitions": ROWS, "emissions": ROWS},
    {"kind": "hidden_mixture", "tasks": [{"transitions": r, "emissions": ROWS} for r in (ROWS, ROWS[::-1])]},
    {"kind": "lagged_chain", "lag": 2, "P": ROWS},
    {"kind": "order_k", "kernel": [[[0.9, 0.1], [0.3, 0.7]], [[0.6, 0.4], [0.2, 0.8]]]},
    {"kind": "relabelled_graph", "graph": {"n_states": 3, "edges": [[0, 1], [1, 2]]}, "endpoint": 0, "at": 4},
    {"kind": "selective_lag", "P": ROWS, "lags": [1, 3]},
    {"kind": "switch", "lag": 2, "p": 0.2, "q": 0.3},
    {
        "kind": "tokenised",
        "source": {"kind": "binary", "p": 0.2, "q": 0.3},
        "tokeniser": {"kind": "merges", "merges": [["a", "a"]]},
    },
    {"kind": "trigger_bigram", "P": ROWS, "triggers": [0]},
    mm.Observed("the cat sat on the mat. " * 40, order=1).model_dump(),
]
BASE = "binary-p05-q08-tied"
IN_STACKS = [name for name in mm.recipes() if load_recipe(name).model.shares_stacks]
CHANGES = {
    "gradient descent": ["optimiser={kind='gd'}"],
    "a constant rate": ["optimiser.schedule='constant'"],
    "two layers with LayerNorm": ["model.n_layers=2", "model.normalization_type='LN'"],
    "rotary positions": ["model.positional_embedding_type='rotary'"],
    "bfloat16": ["precision='bfloat16'"],
    "float16, scaled": ["precision='float16'", "grad_scaler=true"],
    "a fixed training set": ["data={n_train=32}"],
}


def draws_on_both(sources, seeds, length, device):
    """The processor draws as the device does, so that the same sequences are trained on."""
    if device != CPU:
        return draws_of(sources, seeds, length, device)
    counted = all(source.takes_streams for source in sources)
    return (Counted if counted else Generators)(sources, seeds, length, device)


def trained(recipe, device, seeds=2, **options):
    return fitting.fit_anew(recipe, range(seeds), device=device, **options)


def short(name, changes=()):
    return load_recipe(name).with_set([f"steps={STEPS}", "checkpoints=[]", *changes])


def training(recipe):
    """Losses of every step, on both; and weights, which a rule that divides by small gradients moves more."""
    ours, theirs = trained(recipe, "cpu"), trained(recipe, "cuda")
    last = max(ours.checkpoints)
    weights = [
        (ours.checkpoints[last][name] - value).abs().max() for name, value in theirs.checkpoints[last].items()
    ]
    losses = (ours.metrics["loss"] - theirs.metrics["loss"]).abs().max()
    return {"difference": float(losses), "weights": float(max(weights))}


def resumed():
    """An interrupted training on the device goes on to the same bits."""
    recipe, kept = short(BASE), {}

    def keep(step, snapshot):
        if step == 1:
            kept.update(snapshot())

    whole = trained(recipe, "cuda", on_step=keep)
    again = trained(recipe, "cuda", resume_from=kept)
    last = max(whole.checkpoints)
    return {
        "difference": max(
            float((value - again.checkpoints[last][name]).abs().max())
            for name, value in whole.checkpoints[last].items()
        )
    }


def launches(recipe, models=(2, 8)):
    """Of one step whose data are drawn, for two and for eight models."""
    found = {}
    for seeds in models:
        training = fitting.start_of(members_of(recipe, range(seeds)), GPU)
        fitting.take_step(training)
        COUNTS.clear()
        fitting.take_step(training)
        found[str(seeds)] = dict(COUNTS)
    return {"difference": 0.0, "counts": found}


def drawing(seeds, n_ctx):
    """Launches a step for data alone: of a chunk behind the first, which copies the source's tables."""
    members = members_of(short(BASE, [f"model.n_ctx={n_ctx}"]), range(seeds))
    batches = data.Batches(members, n_ctx + 1, GPU)
    batches.at(0)
    COUNTS.clear()
    batches.at(batches.chunk_steps)
    counts = {name: count / batches.chunk_steps for name, count in COUNTS.items()}
    return {"difference": 0.0, "counts": counts, "steps": batches.chunk_steps}


def drawn(kind):
    """Counted numbers of a source, for three members."""
    source = source_from_data(kind)
    length = 17 if kind["kind"] == "fruit_questions" else 12
    ours, theirs = (Counted([source] * 3, [1, 2, 3], length, device).draw(5, 4) for device in (CPU, GPU))
    return compared(ours, theirs)


def sampled(kind):
    source = source_from_data(kind)
    length = 17 if kind["kind"] == "fruit_questions" else 12
    ours, theirs = (
        source.sample(5, length, generator=torch.Generator(device).manual_seed(3), device=device)
        for device in (CPU, GPU)
    )
    return compared(ours, theirs)


def compared(ours, theirs):
    if ours.device != CPU or theirs.device.type != GPU.type:
        raise RuntimeError(f"devices are {ours.device} and {theirs.device}")
    return {"difference": float((ours - theirs.cpu()).abs().max())}


def edited(edit):
    tokens = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2], [2, 0, 1, 1]])
    return compared(edit(tokens), edit(tokens.to(GPU)))


def recorded(example):
    """All that a pass records of two steps, in two chunks of sequences and in four."""
    run = mm.example(example)
    subject = Subject.of(run, [int(step) for step in run.steps[-2:]], sequences=8)
    one = len(subject.decoder) * run.config.n_heads * run.config.n_ctx**2
    waits, differences = {}, []
    for chunks in (2, 4):

        def record_on(device, elements=8 // chunks * one):
            quantities = (*STANDARD, INDUCTION, MATCH_MASS)
            return record(
                subject.decoder, subject.batch, run.source.n_states, quantities, elements, device
            ).values()

        ours = list(record_on(None))
        COUNTS.clear()
        theirs = list(record_on(GPU))
        waits[str(chunks)] = COUNTS["waits"]
        pairs = zip(chain(*map(arrays, ours)), chain(*map(arrays, theirs)), strict=True)
        differences += [np.abs(np.nan_to_num(a - b)).max(initial=0) for a, b in pairs if same_nan(a, b)]
    return {"difference": float(max(differences)), "waits": waits, "layers": run.config.n_layers}


def probed():
    """Scores of probes that read what was recorded."""
    run = mm.example("induction")
    ours, theirs = (
        mm.probe(run, ["attention", "induction", "program"], sequences=8, device=device)
        for device in ("cpu", "cuda")
    )
    if theirs.failed:
        raise RuntimeError(str(theirs.failed))
    values = [
        (score.value, theirs[name].scores[key].value)
        for name, outcome in ours.outcomes.items()
        for key, score in outcome.scores.items()
    ]
    return {
        "difference": max(abs(a - b) for a, b in values if isinstance(a, float) and a == a),
        "scores": len(values),
    }


def same_nan(a, b):
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        raise RuntimeError("NaN is not where it is on the processor")
    return True


def arrays(found):
    """The arrays of what was recorded, in their order."""
    if isinstance(found, np.ndarray):
        return [found]
    values = found.values() if isinstance(found, dict) else vars(found).values()
    return [array for value in values if isinstance(value, np.ndarray) for array in arrays(value)]


def intervened(enter):
    config = DecoderConfig(n_layers=2, n_heads=2, d_model=8, d_head=4, n_ctx=6, d_vocab=3, d_mlp=16)
    model = HookedDecoder(config)
    for i, parameter in enumerate(model.parameters()):
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(i))
    tokens = torch.randint(3, (4, 6), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), enter(model):
        ours = model(tokens)
    model = model.to(GPU)
    with torch.no_grad(), enter(model):
        return compared(ours, model(tokens.to(GPU)))


def mixed():
    return torch.ones(2) + torch.ones(2, device=GPU)


def to_numpy():
    return torch.ones(2, device=GPU).numpy()


def wrong_generator():
    return torch.rand(2, device=GPU, generator=torch.Generator())


def training_set_left_on_the_host():
    """The fault that a first GPU would find."""
    members = members_of(short(BASE, CHANGES["a fixed training set"]), [0])
    training = fitting.start_of(members, GPU)
    training.fixed = tuple(tensor.cpu() for tensor in training.fixed)
    fitting.take_step(training)


def token_out_of_range():
    """Seen by the device, which says so at the next wait; a real one is unusable from there on."""
    config = DecoderConfig(n_layers=1, n_heads=1, d_model=4, d_head=4, n_ctx=2, d_vocab=3)
    model = HookedDecoder(config, n_models=2)
    use_fast_kernels(model.to(GPU))
    model.embed(torch.tensor([[[0, 3]]] * 2).to(GPU)).sum().item()


MISTAKES = {
    "mixed devices": mixed,
    "numpy": to_numpy,
    "generator of the host": wrong_generator,
    "training set on the host": training_set_left_on_the_host,
    "token out of range": token_out_of_range,  # the last
}
CASES = {
    **{f"recipe {name}": partial(training, short(name)) for name in mm.recipes()},
    **{f"trained with {name}": partial(training, short(BASE, changes)) for name, changes in CHANGES.items()},
    "resumed": resumed,
    "launches of a step": partial(launches, short(BASE)),
    "launches of a step of two layers": partial(launches, short(BASE, CHANGES["two layers with LayerNorm"])),
    "launches of a step, scaled": partial(launches, short(BASE, CHANGES["float16, scaled"])),
    **{f"launches of {name}": partial(launches, short(name), (2,)) for name in IN_STACKS},
    **{f"source {i} {kind['kind']}": partial(sampled, kind) for i, kind in enumerate(SOURCES)},
    **{
        f"counted {i} {kind['kind']}": partial(drawn, kind)
        for i, kind in enumerate(SOURCES)
        if source_from_data(kind).takes_streams
    },
    **{f"data of {n} at {T}": partial(drawing, n, T) for T in (64, 1024) for n in (2, 8, 32) if n * T < 1e4},
    "probed": probed,
    **{
        f"recorded {example}": partial(recorded, example)
        for example in ("walk", "induction", "mamba", "graph")
    },
    "edit donors": partial(edited, donors),
    "edit shuffle_context": partial(edited, lambda tokens: shuffle_context(tokens, "all but last")),
    "edit last token": partial(edited, lambda tokens: shuffle_context(tokens, "last only")),
    "edit swap_parent": partial(edited, swap_parent),
    "edit swap_parent at a position": partial(
        edited, lambda tokens: swap_parent(tokens, at=torch.tensor([1, 2, 0], device=tokens.device))
    ),
    "ablate a head": partial(intervened, lambda model: ablate(model, "L0H1", kind="mean")),
    "ablate a path": partial(intervened, lambda model: ablate_path(model, "L0H1", "L1H0.K")),
    "attend uniformly": partial(intervened, lambda model: override_attention(model, "L1H0", to="uniform")),
    "limit a window": partial(intervened, lambda model: limit_window(model, 2)),
}

COUNTED = ("launches", "data of", "source")  # of the emulated device alone

if __name__ == "__main__":
    data.draws_of = draws_on_both
    fitting.pick_device = probe_run.pick_device = lambda name: GPU if name == "cuda" else CPU
    if IS_REAL:
        CASES = {name: case for name, case in CASES.items() if not name.startswith(COUNTED)}
        # Without it a resumed training need not end in the same bits.
        torch.use_deterministic_algorithms(True)
    with emulated():
        for name, case in (CASES | MISTAKES).items():
            try:
                found = case()
            except Exception as error:  # every case is heard
                found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            print(json.dumps({"case": name} | found), flush=True)
