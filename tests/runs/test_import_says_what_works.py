"""What is refused names the call that works, and that call works."""

import zipfile

import pytest
import torch
from golden_files import golden
from run_files import saved
from test_import_refusals import refused
from transformers import GPT2Config, GPT2LMHeadModel, OlmoConfig, OlmoForCausalLM

from mechmarkov.runs import Run
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources import Circle, HiddenMarkov

SOURCE = Circle(n_states=5, p=0.5)


@pytest.fixture
def nanogpt():
    """A checkpoint whose arguments do not say the activation."""
    return golden("nanogpt_bias.pt")


def imported(path, **given):
    return import_run([path], source=SOURCE, given=given).run


@pytest.mark.parametrize(
    ("value", "act_fn"),
    [
        ("gelu", "gelu"),
        ("GELU", "gelu"),
        ("gelu_pytorch_tanh", "gelu_new"),
        ("swish", "silu"),
        ("relu", "relu"),
    ],
)
@pytest.mark.parametrize(("where", "name"), [("model_args", "activation"), ("config", "hidden_act")])
def test_an_activation_is_read_by_its_name(tmp_path, nanogpt, where, name, value, act_fn):
    nanogpt.setdefault(where, {})[name] = value
    path = saved(tmp_path / "x.pt", nanogpt)
    result = import_run([path], source=SOURCE)
    assert result.run.config.act_fn == act_fn
    assert f"act_fn is {act_fn}, as a setting in the file says" in result.notes
    assert imported(path, act_fn="gelu_new").config.act_fn == "gelu_new"  # what is given counts


@pytest.mark.parametrize("value", ["relu2", "geglu", 3])
def test_another_activation_is_asked_about(tmp_path, capsys, nanogpt, value):
    nanogpt["model_args"]["activation"] = value
    path = saved(tmp_path / "x.pt", nanogpt)
    assert "say what it means with --set act_fn=gelu|" in refused(capsys, tmp_path, path)
    assert imported(path, act_fn="relu").config.act_fn == "relu"


def test_an_argument_that_changes_nothing_is_taken_out(tmp_path, capsys, nanogpt):
    nanogpt["model_args"]["foo"] = 3
    words = refused(capsys, tmp_path, saved(tmp_path / "x.pt", nanogpt))
    assert "checkpoint['model_args'].pop('foo') and save again" in words


def test_a_shorter_context_of_a_table_of_positions(tmp_path):
    config = GPT2Config(
        vocab_size=5, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "model")
    run = imported(tmp_path / "model", n_ctx=5)
    tokens = torch.randint(5, (4, 5), generator=torch.Generator().manual_seed(0))
    assert run.config.n_ctx == 5
    torch.testing.assert_close(run.model()(tokens), model(tokens).logits, rtol=1e-5, atol=1e-5)
    for n_ctx in (0, 9, True):
        with pytest.raises(RunFileError, match="n_ctx is 8 in the file, but"):
            imported(tmp_path / "model", n_ctx=n_ctx)


@pytest.mark.parametrize(
    "tokens",
    ["a=1", "0=0,1=1", "0=0,1=0,2=2,3=3,4=4", "0=0,0=1,2=2"],
    ids=["unknown", "missing", "twice", "repeated"],
)
def test_a_map_to_tokens_is_shown_whole(tmp_path, capsys, nanogpt, tokens):
    path = saved(tmp_path / "x.pt", nanogpt)
    words = refused(capsys, tmp_path, path, "--set", "act_fn=gelu", "--tokens", tokens)
    assert 'such as --tokens "0=0,1=1,2=2,3=3,4=4"' in words
    assert import_run([path], source=SOURCE, given={"act_fn": "gelu"}, token_map="0=0,1=1,2=2,3=3,4=4").run


def test_a_name_without_a_number_among_steps(tmp_path, capsys, nanogpt):
    nanogpt.pop("iter_num")
    for name in ("1", "2", "last"):
        saved(tmp_path / f"model_{name}.pth", nanogpt)
    words = refused(capsys, tmp_path, tmp_path, "--set", "act_fn=gelu")
    pattern = str(tmp_path / "*[0-9].pth")
    assert f"in a pattern such as '{pattern}'" in words
    assert imported(pattern, act_fn="gelu").steps.tolist() == [1, 2]


def test_a_table_that_names_no_embedding(tmp_path, capsys):
    path = saved(tmp_path / "x.pt", {"tok.weight": torch.randn(5, 4)})
    (tmp_path / "names.toml").write_text('"other.weight" = "embed.W_E"')
    words = refused(capsys, tmp_path, path, "--names", tmp_path / "names.toml")
    assert "no line of the table of names fits an embedding: the weights are called tok.weight" in words


@pytest.mark.parametrize("name", ["empty.pt", "junk.pt", "other.zip"])
def test_what_is_no_file_of_torch(tmp_path, capsys, name):
    path = tmp_path / name
    path.write_bytes(b"" if name == "empty.pt" else b"hello world")
    if name == "other.zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", "x")
    advice = "torch.save({'model': model.state_dict(), 'step': step}, 'new.pt')"
    assert advice in refused(capsys, tmp_path, path)


def test_a_model_that_is_none():
    for model in ("ckpt.pt", {"wte.weight": torch.ones(2, 2)}):
        with pytest.raises(
            ValueError, match=r"a file of one comes in by mm\.import_run\(\[path\], source=source\)"
        ):
            Run.from_model(model, source=SOURCE)


def test_a_family_that_is_not_read_may_have_a_table_of_names(tmp_path):
    """OLMo is a Llama whose norms have no weights: the table says so."""
    shape = {"vocab_size": 5, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    model = OlmoForCausalLM(
        OlmoConfig(**shape, intermediate_size=32, max_position_embeddings=8, **special)
    ).eval()
    with pytest.raises(RunFileError, match=r"is 'olmo', .* names= or --names says which weight is which"):
        Run.from_model(model, source=SOURCE)
    layer = r"model\.layers\.(\d+)\."
    names = {
        r"model\.embed_tokens\.weight": "embed.W_E",
        r"lm_head\.weight": "unembed.W_U",
        **{rf"{layer}self_attn\.{x}_proj\.weight": rf"blocks.\1.attn.W_{x.upper()}" for x in "qkvo"},
        rf"{layer}mlp\.gate_proj\.weight": r"blocks.\1.mlp.W_gate",
        rf"{layer}mlp\.up_proj\.weight": r"blocks.\1.mlp.W_in",
        rf"{layer}mlp\.down_proj\.weight": r"blocks.\1.mlp.W_out",
        "missing": "zeros",
    }
    given = {"n_heads": 2, "n_ctx": 8, "positional_embedding_type": "rotary", "rotary_adjacent_pairs": False}
    given |= {"normalization_type": "LNPre", "act_fn": "silu"}
    run = Run.from_model(model, source=SOURCE, names=names, given=given)
    tokens = torch.randint(5, (4, 8), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(run.model()(tokens), model(tokens).logits, rtol=1e-4, atol=1e-4)


def test_a_source_is_asked_for_with_an_example(tmp_path, capsys, nanogpt):
    from mechmarkov.cli import main

    with pytest.raises(SystemExit, match="2"):
        main(["import", str(saved(tmp_path / "x.pt", nanogpt))])
    assert """such as --source '{"kind": "circle", "n_states": 6, "p": 0.5}'""" in capsys.readouterr().err
    with pytest.raises(
        ValueError, match=r"machine is 3, expected one .* mm\.HiddenMarkov\.from_matrices\(T\)"
    ):
        HiddenMarkov.from_machine(3)
