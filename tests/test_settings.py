"""Numbers that results depend on, and what is left out means: changed here, on purpose, or nowhere.

Two results are only comparable where these agree: whoever changes one says so here and in CHANGELOG.md.
What only decides how fast something is, or how much memory it takes, is not here.
"""

import inspect
from importlib import import_module

import numpy as np
import pytest

SETTINGS = {
    "theory.bootstrap": {"DRAWS": 1000},
    "theory.canonical": {"CANCELS": -(0.5**0.5), "SADDLE_ENERGY": -0.8465735902799727},
    "theory.hidden": {"TOLERANCE": 2e-7},  # a few roundings of float32
    "theory.kernel": {"FLOOR": 1e-12, "TIE": 1e-6, "ROUNDING": 1e-14},
    "theory.shapley": {"EXACT_PLAYERS": 10, "PERMUTATIONS": 2000},
    "theory.unigram_trap": {"ROUNDING": 1e-12, "MAX_OFF": 1e-6},
    "theory.walk.token_mean": {"NO_VARIANCE": 1e-14},
    "probing.batch": {
        "DEFAULT_PREDICTIONS": 65_536,
        "MIN_SEQUENCES": 64,
        "MAX_SEQUENCES": 512,
        "MAX_REDRAWN": 2048,
    },
    "probing.dataset": {"TIE_NATS": 1e-9, "MIN_GAP_NATS": 0.01},
    "probing.effects": {
        "MAX_MODEL_TOKENS": 8192,
        "MAX_TOKENS": 131_072,
        "MAX_ELEMENTS": 5_242_880,
        "MIN_SEQUENCES": 32,
        "MEASURES": ("loss", "kl_bigram", "kl_unigram"),
    },
    "probing.nulls": {
        "NULL_MODELS": 24,
        "NULL_TOKENS": 4096,
        "MIN_NULL_SEQUENCES": 8,
        "MAX_NULL_SEQUENCES": 64,
        "NULL_STD": 0.02,
    },
    "probing.own_tokens": {"MAX_CHANGED": 32, "MAX_PATCHED_TOKENS": 4_194_304},
    "probing.preconditions": {"MAX_SYMMETRY_STATES": 256},
    "probing.rare_states": {"MIN_SEEN": 64, "RARE_SHARE": 0.25, "CONTEXTS": 32, "SEED": 14_974},
    "probing.recording.attention": {"MIN_VARIANCE_SHARE": 1e-13, "NEAR_LAGS": 8},
    "probing.source_check": {
        "FALSE_ALARMS": 1e-4,
        "MIN_EVENTS": 30,
        "MIN_GAP_NATS": 0.05,
        "MIN_GAP_STANDARD_ERRORS": 5.0,
        "MIN_RIGHT_SHARE": 0.99,
    },
    "probing.subject": {"EVALUATION_SEED": 2_654_435_769, "MOST_SEQUENCES": 1_000_000},
    "probing.outcome": {"SCHEMA_VERSION": 1},
    "sweeps.stuck": {"MIN_GAIN_NATS": 1e-9},
    "sweeps.run": {"FLEET": 64},
    "sweeps.tasks": {"ROW_VERSION": 1},
    "training.optimisers": {  # torch's own
        "INITIAL_SCALE": 65_536.0,
        "GROWTH_FACTOR": 2.0,
        "BACKOFF_FACTOR": 0.5,
        "GROWTH_INTERVAL": 2000,
        "CLIP_EPS": 1e-6,
    },
    "training.split": {"MEMORY": 2_000_000_000, "SHARE_OF_GPU": 0.7},
    "training.execute": {"SECONDS_BETWEEN_LOSSES": 0.5},
    "training.plan": {
        "LEAST_TOKENS_IN_PROCESSES": 2048,
        "LEAST_TOKENS_IN_THREADS": 8192,
        "MOST_TOKENS": 131_072,
    },
    "bench.beliefs": {"CONTROL_TOKENS": 3, "FOLDS": 8},
    "bench.case": {"SEQUENCES": 64, "TUNING": 1_048_576},
    "bench.cases": {"STATES": 4, "N_CTX": 8, "N_CTX_IN_CONTEXT": 24, "N_CTX_BELIEF": 6},
    "bench.degeneracy": {
        "N_BETA": 3000.0,
        "SHORT": {"chains": 4, "burn_in": 200, "draws": 400},
        "POSITIVE": 1e-6,
    },
    "bench.estimators": {"SECONDS": 20.0, "SPARE": 3, "RANK_TOLERANCE": 1e-9},
    "bench.faithfulness": {
        "SHARES": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),  # MIB's
        "LEAST": 1e-6,
    },
    "bench.features": {"WIDTH": 2},
    "bench.gradients": {
        "IG_STEPS": 10,
        "FROM_CORRUPT": (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
        "TO_CLEAN": (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0),
        "MIDPOINTS": (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95),
        "MASK_PENALTY": 0.01,
    },
    "bench.interaction_gradients": {
        "TEMPERATURE": 2.0,
        "SHARES": {"hook_q": 0.25, "hook_k": 0.25, "hook_v": 0.5, "hook_pre": 0.5, "hook_pre_linear": 0.5},
    },
    "bench.leaderboard": {"SCHEMA_VERSION": 1, "MIN_SEEDS": 3},
    "bench.lenses": {"RIDGE": 1e-6, "ITERATIONS": 50},
    "bench.method": {"ORTHONORMAL": 1e-4},
    "bench.methods": {"ACDC_KL": 0.01},
    "bench.patching": {"MIN_EFFECT": 1e-3},
    "bench.run": {"HELD_OUT": 1_000_000, "MAX_SEEDS": 10_000},
    "bench.scores": {"ROUNDING": 1e-6, "RANK_TOLERANCE": 1e-5},
    "bench.subspaces": {"PAIRS": 512, "HELD_OUT": 2048, "FIT": {"epochs": 40, "batch_size": 512, "lr": 0.1}},
    "bench.trained": {
        "BLOCK": 4,
        "SHORT": {"steps": 800, "model.n_ctx": 32, "data.batch": 32},
        "SMALL": {"steps": 600, "model.n_ctx": 16, "data.batch": 64},
        "P": [[0.1, 0.2, 0.7], [0.6, 0.1, 0.3], [0.2, 0.7, 0.1]],
    },
    "bench.verify": {"TOLERANCE": 1e-4, "MAX_BYTES": 268_435_456},
}

COMPUTED = ("CANCELS", "SADDLE_ENERGY", "MIDPOINTS", "FROM_CORRUPT", "TO_CLEAN")

DEFAULTS = {
    "bench.run.run": {"seeds": 3, "pairs": "minimal", "held_out": False, "jobs": 1},
    "bench.circuits.hidden_belief": {"carries": True, "reads": True},
    "bench.counterfactuals.Change": {"order": 1},
    "bench.cases.in_context_case": {"order": 1},
    "bench.method.Method": {"reference": False},
    "bench.scores.score_claims": {"sizes": False, "empty": False},
    "probing.notebook.value_in_words": {"digits": 4},
    "probing.probe.Probe": {"on_request": False, "with_bos": False},
    "probing.recording.quantity.Quantity": {"reads_attention": False},
    "probing.score.format_null": {"digits": 4},
    "probing.score.format_value": {"digits": 4},
    "safe.foreign_file.ForeignFile": {"is_safetensors": False},
    "safe.foreign_file.plain_config": {"is_loose": False},
    "sweeps.engines.Cluster": {"gpus_per_task": 0, "cpus_per_task": 1, "retries": 3},
    "sweeps.run.sweep": {"jobs": 1},
    "theory.bootstrap.interval": {"level": 0.95, "draws": 1000},
    "theory.bootstrap.resampled_means": {"draws": 1000, "seed": 0},
    "theory.context_trees.context_tree_weighting": {"branch": 0.5, "concentration": 0.5},
    "theory.lag_sets.selection_score": {"power": 2},
    "theory.predictors.in_context_bigram": {"concentration": 1.0},
    "theory.predictors.in_context_order": {"concentration": 1.0},
    "theory.predictors.in_context_unigram": {"concentration": 1.0},
    "theory.shapley.sampled": {"permutations": 2000, "seed": 0},
    "training.new_recipe.new_recipe": {"heads": 1, "width": 32, "steps": 1000},
    "training.split.budget_of": {"share": 1.0},
    "training.split.split_fleet": {"at_once": 1, "least": 1, "most": None},
    "training.train.train": {"save_every": 10.0, "device": "auto"},
    "training.train.train_members": {"save_every": 10.0, "device": "auto"},
    "training.plan.plan_training": {"save_every": 10.0, "device": "auto"},
    "training.plan.TrainingPlan": {"save_every": 10.0, "memory": 0, "at_once": 1, "copied": False},
}


@pytest.mark.parametrize("module", SETTINGS)
def test_a_setting_is_the_one_of_results(module):
    found = vars(import_module(f"mechmarkov.{module}"))
    for name, value in SETTINGS[module].items():
        if name in COMPUTED:
            np.testing.assert_allclose(found[name], value, rtol=1e-12)
        else:
            assert found[name] == value, name


@pytest.mark.parametrize("place", DEFAULTS)
def test_what_is_left_out_is_the_default(place):
    module, _, name = place.rpartition(".")
    parameters = inspect.signature(getattr(import_module(f"mechmarkov.{module}"), name)).parameters
    assert {key: parameters[key].default for key in DEFAULTS[place]} == DEFAULTS[place]
