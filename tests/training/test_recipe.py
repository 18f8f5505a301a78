"""Recipes: reading, changing, and what is said of a wrong one."""

import re

import pytest
import torch

import mechmarkov as mm
from mechmarkov.training.recipe import Recipe, RecipeError, load_recipe
from mechmarkov.training.train import train

MINIMAL = """
name = "mine"
steps = 7
[source]
kind = "binary"
p = 0.5
q = 0.8
[model]
kind = "decoder"
n_layers = 1
d_model = 8
d_head = 4
n_ctx = 16
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL, "utf-8")
    return path


def test_a_file_and_its_defaults(path):
    recipe = load_recipe(path)
    assert recipe.steps == 7
    assert recipe.source.q == 0.8
    config = recipe.decoder_config
    assert (config.d_vocab, config.d_vocab_out, config.n_heads, config.d_mlp) == (2, 2, 2, 32)
    assert (recipe.optimiser.lr, recipe.optimiser.betas, recipe.data.batch) == (2e-3, (0.9, 0.95), 16)
    assert load_recipe(str(path)).to_data() == recipe.to_data()


@pytest.mark.parametrize("name", mm.recipes())
def test_shipped_recipes_survive_a_round_trip(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.title
    assert Recipe.from_data(recipe.to_data()).to_data() == recipe.to_data()
    assert Recipe.from_data(recipe.to_keep()).to_data() == recipe.to_data()


def test_a_runs_recipe_changes_like_the_recipe(path):
    recipe = load_recipe(path).with_set(["steps=1"])
    kept = load_recipe(train(recipe, device="cpu").recipe)
    assert kept.to_data() == recipe.to_data()
    wider = kept.with_set(["model.d_model=16", "model.d_head=16"])
    assert wider.to_data() == recipe.with_set(["model.d_model=16", "model.d_head=16"]).to_data()
    config = wider.decoder_config
    assert (config.n_heads, config.d_mlp, config.score_scale) == (1, 64, 4.0)
    written = recipe.with_set(["model.d_mlp=32"])  # what follows from the rest, but said
    again = load_recipe(train(written, device="cpu").recipe).with_set(["model.d_model=16"])
    assert again.decoder_config.d_mlp == 32


def test_a_query_token_adds_to_the_vocabulary():
    recipe = load_recipe("walk-k6-half")
    assert (recipe.decoder_config.d_vocab, recipe.decoder_config.d_vocab_out) == (7, 6)
    read, written = [[0, 1], [0, 103], [0, 1]], [[0, 1], [0, 6], [0, 6]]
    assert recipe.trainable_slices == {"blocks.0.attn.W_K": read, "blocks.0.attn.W_O": written}


def test_none_is_written_as_a_word(path):
    names = ("act_fn", "normalization_type", "window")
    changes = ["model.attn_only=true", *(f"model.{name}=none" for name in names)]
    config = load_recipe(path).with_set(changes).decoder_config
    assert [getattr(config, name) for name in names] == [None] * 3


def test_changes_start_from_what_was_written(path):
    recipe = load_recipe(path)
    changed = recipe.with_set(
        [
            "model.d_model=16",  # n_heads and d_mlp follow, as they would have in the file
            "optimiser.lr = 0.5",
            "optimiser.kind=gd",
            'source={kind="circle", n_states=5, p=0.25}',
            "checkpoints=[1, 3]",
        ]
    )
    assert (changed.decoder_config.n_heads, changed.decoder_config.d_mlp) == (4, 64)
    assert changed.decoder_config.d_vocab == 5
    assert (changed.optimiser.kind, changed.optimiser.lr) == ("gd", 0.5)
    assert changed.checkpoint_steps == [0, 1, 3, 7]
    again = changed.with_set(["source.p=1.0"])
    assert (again.source.p, again.optimiser.lr) == (1.0, 0.5)
    assert recipe.decoder_config.n_heads == 2


# By recipe: a change, or several, and the words that refuse it.
REFUSED = {
    "mine": {
        "lr=0.1": "unknown key lr, did you mean optimiser.lr?",
        "optimiser.learning_rate=0.1": "unknown key optimiser.learning_rate, expected one of:",
        "optimiser.betas_=[0,0]": "unknown key optimiser.betas_, did you mean optimiser.betas?",
        "model.n_layer=2": "unknown key model.n_layer, did you mean model.n_layers?",
        "step=2": "unknown key step, did you mean steps?",
        "model.d_modle=2": "unknown key model.d_modle, did you mean model.d_model?",
        "model=3": "model is 3, expected a section",
        "data=3": "data is 3, expected a section",
        "steps=0": "steps is 0, expected at least 1",
        "steps=many": "steps is 'many', expected an integer",
        "steps=true": "steps is True, expected an integer",
        "steps=2.5": "steps is 2.5, expected an integer",
        'optimiser.lr="0.1"': "optimiser.lr is '0.1', expected a number",
        "optimiser.betas=[true, 0.9]": "optimiser.betas.0 is True, expected a number",
        "data.batch='8'": "data.batch is '8', expected an integer",
        "checkpoints=[true]": "checkpoints.at.0 is True, expected an integer",
        "grad_scaler=1": "grad_scaler is 1, expected true or false",
        "steps.more=1": "unknown key steps.more: steps is a value, not a table",
        "steps": "'steps' is not a change, expected key=value",
        "steps=": "'steps=': '' is not a TOML value",
        "name=a b": "'name=a b': 'a b' is not a TOML value (quote strings)",
        "steps=1\nname='x'": "is not a TOML value",
        "source.p=1.2": "p is 1.2, expected a probability in [0, 1]",
        "source.kind=tripple": "source.kind is 'tripple', expected one of ",
        "source={p=0.5}": "source.kind is missing, expected one of 'binary', 'causal_graph', 'chain', ",
        "model={n_ctx=8}": "model.kind is missing, expected one of 'context_conditioned', 'decoder', ",
        "optimiser={kind='sgd'}": "optimiser.kind is 'sgd', expected one of 'gd', 'adamw'",
        "model.d_vocab=3": "d_vocab is 3, expected 2 for a source with 2 states",
        "model.d_model='wide'": "model.d_model is 'wide', expected an integer",
        "data={n_train=4, batch=2}": "expected exactly one of them, as in data = { batch = 16 }",
        "checkpoints={}": "expected exactly one of them, as in checkpoints = { log = 20 }",
        "objective.query=true": "objective.read is 'all', expected 'last'",
        "trainable={}": "trainable is empty, expected parameters to train",
        "frozen=['b_X']": "frozen names 'b_X', which ends no parameter",
        "frozen=['']": "frozen leaves nothing to train",
        "objective.kind=huber": "objective.kind is 'huber', expected 'cross_entropy'",
    },
    "walk-k6-half": {
        "model.n_layers=2": "unknown key model.n_layers, expected one of: model.kind, model.n_ctx",
        "model.n_position=5": "unknown key model.n_position, did you mean model.n_positions or ",
        "model.form=reduced": "data.population is False, expected True where model.form is 'reduced'",
        "init.scheme=gpt2": "init.scheme is 'gpt2', expected 'zero' or 'normal' for the walk model",
        "objective.query=false": "objective.query is false, expected true: the walk model has",
        "model={kind='walk', n_ctx=97, n_positions=50, positions='sine'}": "n_positions is 50, expected at",
        "init.zero=['W']": "init.zero names parameters, but the walk model has its own: leave it out",
        "trainable={}": "trainable is given, but the walk model says itself what is trained",
        "model.d_model=50": "unknown key model.d_model, expected one of: model.kind, model.n_ctx, ",
        "data={n_train=1000000000}": "data.n_train is 1000000000, expected at most 2767375 sequences",
        "steps=1e30": "steps is 1e+30",
        "checkpoints={log=1000000000}": "checkpoints.log is 1000000000, expected",
        "optimiser.lr=nan": "optimiser.lr is nan",
    },
    "walk-k6-trap": {
        "data={batch=4}": "True where model.form is 'reduced'",
        "optimiser={kind='adamw'}": "expected 'gd' where model.form is 'reduced'",
        "model.dtype=float32": "expected 'float64' where model.form is 'reduced'",
    },
    "context-conditioned-k3": {
        "init.zero=['W_K']": "init.zero is given, but this model says itself what is trained",
        "trainable={W_K = [[0, 1]]}": "trainable is given, but this model says itself what is trained",
        "frozen=['W_K']": "frozen is given, but this model says itself what is trained",
    },
    "in-context-k3-shortformer": {
        "steps=100000000; checkpoints={every=1}": "which keeps 100,000,000 steps, expected at most 100,000",
        "steps=100000; checkpoints={every=1}; model.d_model=512": "keep 100,001 steps of 422 kB",
    },
}


@pytest.mark.parametrize(
    ("name", "change", "words"), [(name, *row) for name, rows in REFUSED.items() for row in rows.items()]
)
def test_a_wrong_change_is_one_line(path, name, change, words):
    recipe = load_recipe(path if name == "mine" else name)
    with pytest.raises(RecipeError, match=re.escape(words)) as error:
        recipe.with_set(change.split("; "))
    assert "\n" not in str(error.value).replace(change, "")
    assert "Input should" not in str(error.value)
    assert "expected Unable" not in str(error.value)


def test_replace_is_set_on_the_command_line(path):
    recipe = load_recipe(path)
    assert recipe.replace(**{"source.p": 0.7}, steps=3) == recipe.with_set(["source.p=0.7", "steps=3"])
    for key, value in {"source.p": 1.2, "optimizer.lr": 0.1, "steps": True}.items():
        with pytest.raises(RecipeError) as by_name:
            recipe.replace(**{key: value})
        with pytest.raises(RecipeError) as by_text:
            recipe.with_set([f"{key}={str(value).lower()}"])
        assert str(by_name.value) == str(by_text.value)


def test_a_change_writes_only_its_own_table(path):
    changed = load_recipe(path).replace(**{"data.batch": 8})
    path.write_text(MINIMAL + "[data]\nbatch = 8\n", "utf-8")
    assert changed == load_recipe(path)


def test_a_kind_brings_its_own_defaults(path):
    assert load_recipe(path).with_set(["optimiser.kind=gd"]).optimiser.lr == 1.0


def test_one_change_without_a_list_is_refused():
    change = "source.p=0.7"
    with pytest.raises(TypeError, match=r"changes is 'source.p=0.7', expected a list of changes: \["):
        load_recipe("walk-k6-half").with_set(change)


def test_files_without_a_recipe_are_named(tmp_path):
    missing = tmp_path / "none.toml"
    with pytest.raises(RecipeError, match=r"none\.toml: No such file"):
        load_recipe(missing)
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ", "utf-8")
    with pytest.raises(RecipeError, match=r"broken\.toml: Invalid value"):
        load_recipe(broken)
    broken.write_text("name = 'x'", "utf-8")
    sections = "source is missing, expected a section; model is missing, expected a section"
    with pytest.raises(RecipeError, match=rf"broken\.toml: {sections}; steps is missing, expected an int"):
        load_recipe(broken)
    with pytest.raises(RecipeError, match="no shipped recipe is called 'walk-k6-hlaf', did you mean walk-k6"):
        load_recipe("walk-k6-hlaf")


def test_all_faults_are_in_one_message(path):
    """Each fault of a file, in the words that it has by itself; none of the vocabulary, which follows."""
    wrong = MINIMAL.replace("p = 0.5\n", "").replace("steps = 7", "steps = 0").replace("d_head", "d_haed")
    path.write_text(wrong + '[optimiser]\nkind = "adamw"\nlr = "fast"\n', "utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert str(caught.value).removeprefix(f"{path}: ").split("; ") == [
        "source.p is missing, expected a number",
        "model.d_head is missing, expected an integer of at least 1",
        "unknown key model.d_haed, did you mean model.d_head?",
        "optimiser.lr is 'fast', expected a number",
        "steps is 0, expected at least 1",
    ]


def test_of_many_faults_six_are_named(path):
    path.write_text("".join(f"key_{i} = 1\n" for i in range(9)) + MINIMAL, "utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    faults = str(caught.value).split("; ")
    assert len(faults) == 7
    assert faults[-1] == "and 3 more"
    assert all(f"unknown key key_{i}, " in fault for i, fault in enumerate(faults[:6]))


LLAMA = """
normalization_type = "RMS"
positional_embedding_type = "rotary"
n_key_value_heads = 1
gated_mlp = true
act_fn = "silu"
use_qk_norm = true
parallel_attn_mlp = true
"""


def test_todays_architecture_trains_all_it_names(path):
    path.write_text(MINIMAL + LLAMA, "utf-8")
    recipe = load_recipe(path)
    assert Recipe.from_data(recipe.to_data()).to_data() == recipe.to_data()
    one, two = train(recipe, seeds=range(2), device="cpu")
    alone = train(recipe, seed=1, device="cpu")
    names = {name.removeprefix("blocks.0.") for name in one.states}
    assert {"attn._W_K", "attn._W_V", "attn.q_norm.w", "mlp.W_gate"} <= names
    for name, states in two.states.items():
        assert not torch.equal(states[0], states[-1]), name
        torch.testing.assert_close(states, alone.states[name], rtol=1e-4, atol=1e-5)
    without = recipe.with_set(["model.n_key_value_heads=none"])
    assert without.decoder_config.n_key_value_heads is None


def test_a_byte_order_mark_is_ignored(path):
    plain = load_recipe(path)
    path.write_text(MINIMAL, "utf-8-sig")
    assert load_recipe(path) == plain


def test_a_file_that_is_not_text_is_refused(path):
    path.write_bytes("name = 'café'".encode("latin-1"))
    with pytest.raises(RecipeError, match=r"mine.toml: is not a text in UTF-8: byte 11; expected TOML$"):
        load_recipe(path)


def test_only_the_reduced_graph_model_must_learn_frequencies():
    recipe = load_recipe("causal-graph")
    with pytest.raises(RecipeError, match=r"objective\.kind is 'cross_entropy', expected 'raw_log' where"):
        recipe.with_set(["objective.kind=cross_entropy"])
    full = recipe.with_set(["model.form=full", "objective.kind=cross_entropy"])
    assert full.objective.kind == "cross_entropy"
