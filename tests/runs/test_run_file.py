"""The contract of run.pt: a file written by hand loads, and each breach of the contract is one line."""

import math
from functools import partial

import pytest
import safe_file_cases
import torch
from run_files import HEADS, WIDTH, K, handmade, parameter_shapes, saved
from torch.nn.modules.module import register_module_module_registration_hook

from mechmarkov.objectives import Objective
from mechmarkov.runs import load, schema
from mechmarkov.sources import Chain

STEPS = (0, 10, 50)


refusal = partial(safe_file_cases.refusal, read=load)


def test_a_file_written_by_hand_loads(tmp_path):
    data = handmade(STEPS)
    run = load(saved(tmp_path / "run.pt", data))
    assert run.steps.tolist() == list(STEPS)
    assert isinstance(run.source, Chain)
    assert run.source.model_dump(mode="json") == data["source"]
    assert run.source.P.tolist() == data["source"]["P"]
    assert run.objective == Objective()
    config = run.config
    assert (config.n_layers, config.n_heads, config.d_mlp, config.d_vocab_out) == (1, HEADS, None, K)
    assert (run.seed, run.recipe, run.trainable) == (3, data["recipe"], data["trainable"])
    assert run.provenance == data["provenance"]
    assert torch.equal(run.metrics["loss"]["value"], data["metrics"]["loss"]["value"])
    assert {name: tuple(value.shape[1:]) for name, value in run.states.items()} == parameter_shapes()
    assert all(torch.equal(run.states[name], value) for name, value in data["states"].items())


def test_a_loaded_run_owns_its_memory(tmp_path):
    path = saved(tmp_path / "run.pt", handmade())
    run = load(path)
    before = {name: value.clone() for name, value in run.states.items()}
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert all(torch.equal(run.states[name], value) for name, value in before.items())


def test_the_minimum_loads(tmp_path):
    data = handmade((5,))
    data |= {"trainable": None, "recipe": None, "seed": None, "metrics": {}, "provenance": {}}
    data["objective"] = {}
    run = load(saved(tmp_path / "run.pt", data))
    assert run.trainable is run.recipe is run.seed is None
    assert run.objective.kind == "cross_entropy"


def test_a_query_token_adds_one_to_the_vocabulary(tmp_path):
    data = handmade()
    data["objective"] = {"kind": "raw_log", "eps": 0.1, "read": "last", "query": True}
    words = "model.d_vocab is 3, but the source has 3 states and a query token"
    assert words in refusal(saved(tmp_path / "run.pt", data))
    data["model"] |= {"d_vocab": K + 1, "d_vocab_out": K}
    data["states"]["embed.W_E"] = torch.zeros(len(STEPS), K + 1, WIDTH)
    assert load(saved(tmp_path / "run.pt", data)).config.d_vocab_out == K
    data["model"]["d_vocab_out"] = K + 1
    assert "model.d_vocab_out is 4, but the source has 3 states" in refusal(saved(tmp_path / "run.pt", data))


def test_a_tied_file_may_hold_the_transposed_embedding(tmp_path):
    data = handmade(tied=True)
    run = load(saved(tmp_path / "run.pt", data))
    assert "unembed.W_U" not in run.states
    data["states"]["unembed.W_U"] = data["states"]["embed.W_E"].mT
    same = load(saved(tmp_path / "run.pt", data))
    assert list(same.states) == list(run.states)
    tokens = torch.tensor([[0, 1, 2, 1, 0]])
    assert torch.equal(same.model()(tokens), run.model()(tokens))
    data["states"]["unembed.W_U"] = data["states"]["unembed.W_U"].clone()
    data["states"]["unembed.W_U"][1, 0, 0] += 1
    message = refusal(saved(tmp_path / "run.pt", data))
    assert message.startswith('model.tied is true, but states["unembed.W_U"] is not the transpose')
    assert message.endswith("at step 10")


GONE = object()  # the entry is taken away


def poisoned(step: int, value: float):
    def change(states: torch.Tensor) -> torch.Tensor:
        states[step].view(-1)[-1] = value
        return states

    return change


def renamed(old: str, new: str):
    return lambda states: {new if name == old else name: value for name, value in states.items()}


NO_NUMBERS = ([0.1], True, math.nan, math.inf, -math.inf, -0.1)  # nor of a size that makes sense
# Where something is wrong in the file, what is there (or a function of what was), and how it is refused.
BREACHES = [
    ("format", "other", 'format is "other", expected "mechmarkov.run"'),
    ("format", 3, "format is an int, expected"),
    ("format", GONE, "format is None, expected"),
    ("version", 0, "version is 0, expected 1"),
    ("version", 2, "version is 2, this mechmarkov reads up to 1: upgrade mechmarkov"),
    ("version", True, "version is a bool, expected the integer 1"),
    ("states", GONE, "states is missing"),
    ("provenance", GONE, "provenance is missing"),
    ("extra", 1, "extra is unknown"),
    ("a\x1b[31m\n", 1, '"a\\x1b[31m\\n" is unknown'),
    ("model", None, "model is None, expected a dict"),
    ("model/d_moddel", 3, "unknown key model.d_moddel, did you mean"),
    ("model/n_ctx", GONE, "model.n_ctx is missing"),
    ("model/n_ctx", "5", "model.n_ctx is '5', expected an integer"),
    ("model/n_layers", 0, "model.n_layers is 0, expected at least 1"),
    ("model/n_ctx", torch.tensor(5), 'model["n_ctx"] is a tensor of shape ()'),
    ("model/d_model", 1 << 40, "model.d_model is 1099511627776, expected at most"),
    ("model/n_layers", 10**9, "model.n_layers is 1000000000, expected"),
    ("model/n_layers", 250, "states hold 1 blocks, but model.n_layers is 250"),
    ("model/d_model", 1 << 16, 'states["embed.W_E"] has shape [3, 3, 4], expected [3 (or 1), 3, 65536]'),
    ("model/n_ctx", 1 << 20, 'states["pos_embed.W_pos"] has shape [3, 5, 4], expected [3 (or 1), 1048576'),
    ("model/window", -1, "model.window is -1"),
    *[("model/window", 1 << power, "expected at most") for power in (31, 62, 63, 64, 200)],
    ("model/d_vocab", 5, "model.d_vocab is 5, but the source has 3 states"),
    ("model/d_vocab_out", 2, "model.d_vocab_out is 2, but the source has 3 states"),
    ("source", [], "source is a list, expected a dict"),
    ("source/kind", "cirle", "source"),
    ("source/kind", GONE, "source"),
    ("source", {"kind": "circle", "n_states": 6, "p": 0.5}, "but the source has 6 states"),
    ("source", {"kind": "binary", "p": 1.2, "q": 0.5}, "source.p is 1.2"),
    ("source", {"kind": "circle", "n_states": 10**9, "p": 0.5}, "source"),
    ("objective/kind", "mse", "objective.kind is 'mse', expected 'cross_entropy'"),
    ("objective/lr", 0.1, "unknown key objective.lr"),
    ("steps", [0, 10, 50], "steps is a list, expected a tensor"),
    ("steps", torch.tensor([0.0, 10.0, 50.0]), "steps is a tensor of torch.float32"),
    ("steps", torch.zeros(0, dtype=torch.long), "steps has shape [0], expected [n]"),
    ("steps", torch.tensor([[0, 10, 50]]), "steps has shape [1, 3], expected [n]"),
    ("steps", torch.tensor([0, 50, 10]), "steps is not ascending"),
    ("steps", torch.tensor([0, 10, 10]), "steps is not ascending"),
    ("steps", torch.tensor([-1, 10, 50]), "steps is not ascending from 0 up"),
    ("steps", torch.tensor([0, 10]), "has shape [3, 3, 4], expected [2 (or 1), 3, 4]"),
    ("states", None, "states is None, expected a dict"),
    ("states/embed.W_E", GONE, 'states["embed.W_E"] is missing'),
    ("states/embed.W_X", torch.zeros(3), 'states["embed.W_X"] is unknown'),
    ("model/tied", True, 'states["unembed.W_U"] is not the transpose'),
    ("states", renamed("unembed.b_U", "unembed.bias"), 'states["unembed.b_U"] is missing'),
    ("states", renamed("blocks.0.attn.W_O", "blocks.1.attn.W_O"), "states hold 2 blocks, but model.n_layers"),
    ("states", renamed("blocks.0.attn.W_O", "blocks"), "is missing"),
    (
        "states",
        {"transformer.wte.weight": torch.zeros(3, 3, 4)},
        "states hold 0 blocks, but model.n_layers is 1",
    ),
    ("model/attn_only", False, 'states["blocks.0.mlp.W_in"] is missing'),
    ("model/normalization_type", "LN", 'states["blocks.0.ln1.w"] is missing'),
    (
        "states/embed.W_E",
        torch.zeros(3, K, WIDTH, dtype=torch.float64),
        'states["embed.W_E"] is a tensor of torch.float64, expected torch.float32',
    ),
    ("states/embed.W_E", [0.5], 'states["embed.W_E"] is a list, expected a tensor'),
    (
        "states/embed.W_E",
        torch.zeros(K, WIDTH),
        'states["embed.W_E"] has shape [3, 4], expected [3 (or 1), 3, 4]',
    ),
    ("states/embed.W_E", torch.tensor(1.0), 'states["embed.W_E"] has shape [], expected'),
    (
        "states/unembed.W_U",
        torch.zeros(3, K, WIDTH),
        'states["unembed.W_U"] has shape [3, 3, 4], expected [3 (or 1), 4, 3]',
    ),
    (
        "states/embed.W_E",
        poisoned(1, math.nan),
        'states["embed.W_E"] holds NaN or infinite values at step 10',
    ),
    (
        "states/unembed.b_U",
        poisoned(2, math.inf),
        'states["unembed.b_U"] holds NaN or infinite values at step 50',
    ),
    ("states/embed.W_E", poisoned(0, -math.inf), "holds NaN or infinite values at step 0"),
    (
        "states/blocks.0.attn.b_Q",
        poisoned(0, math.nan),
        'states["blocks.0.attn.b_Q"] holds NaN or infinite values',
    ),
    ("trainable", ["embed.W_E"], "trainable is a list, expected a dict"),
    ("trainable", {"embed.W": None}, 'trainable["embed.W"] is unknown'),
    ("trainable", {"embed.W_E": [[0, 1]]}, "expected [start, stop] for each of 2 axes"),
    ("trainable", {"embed.W_E": [[0, 1], [2]]}, "[1] is [2], expected two integers, [start, stop]"),
    ("trainable", {"embed.W_E": [[0, 1], [0, 1.0]]}, "expected two integers, [start, stop]"),
    ("provenance", {"wall_seconds": math.inf}, "provenance.wall_seconds is inf, expected a finite number"),
    ("recipe", {"steps": [1, math.nan]}, "recipe.steps[1] is nan, expected a finite number"),
    ("trainable", {"embed.W_E": [[0, 1], 3]}, "expected two integers, [start, stop]"),
    (
        "trainable",
        {"embed.W_E": [[0, 4], [0, 4]]},
        'trainable["embed.W_E"][0] is [0, 4], expected 0 <= start < stop <= 3',
    ),
    ("trainable", {"unembed.b_U": [[1, 1]]}, "is [1, 1], expected 0 <= start < stop"),
    ("recipe", "adamw", "recipe is a str, expected a dict"),
    ("recipe/optimiser", [1], "recipe.optimiser is [1], expected a section"),
    ("recipe/init", "gpt2", "recipe.init is 'gpt2', expected a section"),
    ("recipe/optimiser/kind", ["gd"], "recipe.optimiser.kind is ['gd'], expected a text such as 'gd'"),
    ("recipe/init", {"scheme": 5}, "recipe.init.scheme is 5, expected a text such"),
    *[("recipe/optimiser/lr", rate, "expected a number above 0") for rate in (*NO_NUMBERS, "fast", 0.0)],
    *[("recipe/init", {"std": std}, "a number from 0 to 1000") for std in (*NO_NUMBERS, "0.02", 1e300)],
    ("recipe/optimiser/lr", torch.tensor(0.1), 'recipe["optimiser"]["lr"] is a tensor'),
    ("seed", "3", "seed is a str, expected an integer or None"),
    ("seed", True, "seed is a bool, expected an integer or None"),
    ("metrics", [], "metrics is a list, expected a dict"),
    ("metrics/loss", torch.zeros(3), 'metrics["loss"] is a tensor of shape (3,), expected a dict'),
    ("metrics/loss/value", GONE, 'metrics["loss"].value is missing'),
    ("metrics/loss/unit", "nats", 'metrics["loss"].unit is unknown'),
    ("metrics/loss/value", torch.zeros(3), "expected a tensor with 4 rows"),
    ("metrics/loss/value", 0.5, 'metrics["loss"].value is a float, expected a tensor'),
    ("metrics/loss/step", torch.tensor([3, 2, 1, 0]), 'metrics["loss"].step is not ascending'),
    ("provenance", None, "provenance is None, expected a dict"),
    ("provenance/x", torch.zeros(3), 'provenance["x"] is a tensor of shape (3,)'),
]


@pytest.mark.parametrize(("path", "value", "words"), BREACHES)
def test_a_breach_of_the_contract_is_one_line(tmp_path, limited_refusal, path, value, words):
    data = handmade(STEPS)
    *way, last = path.split("/")
    part = data
    for key in way:
        part = part[key]
    if value is GONE:
        del part[last]
    else:
        part[last] = value(part[last]) if callable(value) else value
    assert words in limited_refusal("run", saved(tmp_path / "run.pt", data), 256 << 20)


def test_a_decoder_that_the_file_cannot_fill_is_not_built(tmp_path):
    """Layers are counted first: 250 layers cost time to build even without memory."""
    built: list[str] = []
    data = handmade(STEPS)
    seen = register_module_module_registration_hook(lambda module, name, child: built.append(name))
    try:
        load(saved(tmp_path / "run.pt", data)).model()
        assert "blocks" in built
        built.clear()
        data["model"]["n_layers"] = 250
        assert "states hold 1 blocks" in refusal(saved(tmp_path / "run.pt", data))
    finally:
        seen.remove()
    assert built == []


def test_a_flipped_bit_among_the_weights_is_refused(tmp_path):
    path = saved(tmp_path / "run.pt", handmade())
    raw = path.read_bytes()
    at = raw.index(handmade()["states"]["embed.W_E"].numpy().tobytes())
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    assert refusal(path).startswith('is damaged: wrong checksum of "run/data/')


@pytest.mark.parametrize(
    ("steps", "good"),
    [([0, 1, 2, 3, 4], True), ([0, 1, 2, 2, 3], False), ([0, 1, 5, 3, 4], False), ([0, 3, 2, 4, 5], False)],
)
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_steps_ascend_over_the_borders_of_chunks(steps, good, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "CHUNK_STEPS", chunk)
    data = handmade((5,))
    data["metrics"] = {"loss": {"step": torch.tensor(steps), "value": torch.zeros(5)}}
    path = saved(tmp_path / "run.pt", data)
    if good:
        assert load(path).metrics["loss"]["step"].tolist() == steps
    else:
        assert refusal(path) == 'metrics["loss"].step is not ascending from 0 up'
