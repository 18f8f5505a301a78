"""Half precision, autocast wherever it stands, and defaults of torch: the trained model is left as it is."""

import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from loops import SOURCE as TRAINED_ON
from loops import hugging_face, same_weights
from public_codes import SOURCE, Config, K, NanoGPT, drawn, live_gpt2
from public_codes import tokens as sequences
from torch import nn

import mechmarkov as mm
from mechmarkov.runs import Run, RunFileError

HALVES = [torch.bfloat16, torch.float16]


def gpt() -> NanoGPT:
    return drawn(NanoGPT(Config()))


def logits_in_float32(model: nn.Module) -> torch.Tensor:
    """What the weights give where they are converted to float32, by a second model."""
    whole = NanoGPT(Config()).eval()
    whole.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    return whole(sequences(), sequences())[0].detach()


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
def test_a_model_in_another_number_type_is_read_from_a_copy_and_stays_what_it_is(dtype):
    model = gpt().to(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pointers = [value.data_ptr() for value in model.parameters()]
    run = Run.from_model(model, source=SOURCE)
    assert {value.dtype for value in model.parameters()} == {dtype}
    assert [value.data_ptr() for value in model.parameters()] == pointers
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert run.provenance["weights_were"] == str(dtype).removeprefix("torch.")
    assert run.provenance["logit_difference"] <= 1e-5
    torch.testing.assert_close(run.model()(sequences()), logits_in_float32(model), rtol=1e-5, atol=1e-5)


def test_weights_of_two_number_types_are_both_said():
    model = gpt()
    model.transformer["h"].bfloat16()
    assert Run.from_model(model, source=SOURCE).provenance["weights_were"] == "bfloat16, float32"
    assert "weights_were" not in Run.from_model(gpt(), source=SOURCE).provenance


@pytest.mark.parametrize("dtype", HALVES)
def test_a_training_in_half_precision_is_recorded_and_goes_on_with_the_same_bits(tmp_path, dtype):
    def train(recorder=None):
        torch.manual_seed(0)
        model = NanoGPT(Config(dropout=0.1)).to(dtype)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(0)
        for step in range(5):
            if recorder is not None:
                recorder(step, model)
            drawn = SOURCE.sample(4, 8, generator=generator)
            model(drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous())[1].backward()
            optimiser.step()
            optimiser.zero_grad()
        if recorder is not None:
            recorder.finish(5, model)
        return model

    recorded = train(mm.Recorder(tmp_path / "run.pt", source=SOURCE))
    assert same_weights(recorded, train())
    run = mm.load(tmp_path / "run.pt")
    assert run.steps.tolist() == [0, 1, 2, 4, 5]
    assert torch.equal(run.model().state_dict()["embed.W_E"], recorded.transformer["wte"].weight.float())


class AutocastInside(NanoGPT):
    def forward(self, tokens, targets=None):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(tokens, targets)


class AutocastAround(NanoGPT):
    forward = torch.autocast("cpu", dtype=torch.bfloat16)(NanoGPT.forward)


@pytest.mark.parametrize("kind", [AutocastInside, AutocastAround])
def test_autocast_in_a_models_own_forward_pass_is_kept_out_in_float64(kind):
    model = drawn(kind(Config()))
    run = Run.from_model(model, source=SOURCE)
    assert run.provenance["compared_in"] == "float64"
    assert run.provenance["logit_difference"] <= 1e-10
    assert 1e-4 < run.provenance["logit_difference_of_its_forward"] < 0.5
    assert run.config.act_fn == "gelu"


@pytest.mark.parametrize("kind", [NanoGPT, AutocastInside, AutocastAround])
def test_a_wrong_conversion_is_noticed_with_autocast_too(kind):
    class Louder(kind):
        def forward(self, tokens, targets=None):
            logits, loss = super().forward(tokens, targets)
            return 1.001 * logits, loss

    why = r"Louder and its conversion disagree: logits differ by up to 0\.0"
    with pytest.raises(RunFileError, match=why):
        Run.from_model(drawn(Louder(Config())), source=SOURCE)


def test_autocast_around_a_loop_reaches_neither_model(tmp_path):
    model, recorder = gpt(), mm.Recorder(tmp_path / "run.pt", source=SOURCE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Run.from_model(model, source=SOURCE)
        recorder(0, model)
        run = recorder.finish(1, model)
        assert torch.is_autocast_enabled("cpu")
    assert run.provenance["logit_difference"] <= 1e-5
    assert "compared_in" not in run.provenance


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize("make", [gpt, live_gpt2])
def test_what_accelerate_prepares_is_compared_in_float32(precision, make):
    AcceleratorState._reset_state(True)
    model = Accelerator(cpu=True, mixed_precision=precision).prepare(make())
    forward = vars(model).get("forward")
    run = Run.from_model(model, source=SOURCE)
    assert run.provenance["logit_difference"] <= 1e-5
    assert "compared_in" not in run.provenance
    assert vars(model).get("forward") is forward  # it still computes as accelerate wants it to


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_loop_with_accelerate_is_recorded_and_ends_with_the_same_bits(tmp_path, precision):
    """A loop as in accelerate's examples: prepare, accumulate, backward, clip, step."""

    def train(recorder=None):
        AcceleratorState._reset_state(True)
        accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
        transformers.set_seed(0)
        model = NanoGPT(Config(dropout=0.1))
        rows = SOURCE.sample(40, 8, generator=torch.Generator().manual_seed(0))
        model, optimiser, loader = accelerator.prepare(
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-2),
            torch.utils.data.DataLoader(rows, batch_size=4),
        )
        step = 0
        for batch in loader:
            if recorder is not None and accelerator.sync_gradients:
                recorder(step, model)
            with accelerator.accumulate(model):
                loss = model(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())[1]
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    step += 1
                optimiser.step()
                optimiser.zero_grad()
        if recorder is not None:
            recorder.finish(step, model)
        return model

    recorded = train(mm.Recorder(tmp_path / "run.pt", source=SOURCE))
    assert same_weights(recorded, train())
    assert mm.load(tmp_path / "run.pt").steps.tolist() == [0, 1, 2, 4, 5]


@pytest.mark.filterwarnings("default")  # transformers' and accelerate's own
@pytest.mark.parametrize("options", [{"bf16": True}, {"fp16": True}])
def test_a_trainer_in_mixed_precision_is_recorded_and_ends_with_the_same_bits(tmp_path, options):
    plain = hugging_face(tmp_path / "plain", **options)
    recorder = mm.Recorder(tmp_path / "run.pt", source=TRAINED_ON)
    recorded = hugging_face(tmp_path / "recorded", [recorder.for_transformers()], **options)
    assert same_weights(recorded, plain)
    run = mm.load(tmp_path / "run.pt")
    assert run.steps.tolist() == [0, 1, 2, 4, 6]
    assert run.provenance["logit_difference"] <= 1e-5


def test_a_rounded_table_of_ones_own_names_autocast():
    model = drawn(NanoGPT(Config()))
    model.register_buffer("mask", torch.ones(3))
    model.register_buffer("table", torch.full((3,), 0.1))
    model.lm_head.register_forward_hook(lambda _, __, logits: logits * (model.table[0].double() / 0.1))
    words = r"; its buffers table are rounded to torch\.bfloat16: train weights in float32 under"
    with pytest.raises(ValueError, match=words):
        Run.from_model(model.bfloat16(), source=SOURCE)


def test_logits_that_are_nan_are_not_blamed_on_chance():
    model = drawn(NanoGPT(Config()))
    model.lm_head.register_forward_hook(lambda _, __, logits: logits / 0)
    with pytest.raises(
        ValueError, match="; its own logits hold NaN or infinite values: are all of its weights"
    ):
        Run.from_model(model, source=SOURCE)


def test_a_forward_pass_that_rounds_its_logits_is_told():
    model = drawn(NanoGPT(Config()))
    model.lm_head.register_forward_hook(lambda _, __, logits: logits.bfloat16())
    words = r"; it returns torch\.bfloat16, though its weights are lent in float32: leave the cast"
    with pytest.raises(ValueError, match=words):
        Run.from_model(model, source=SOURCE)


@pytest.mark.filterwarnings("default")
def test_rounded_buffers_are_not_blamed_for_a_setting():
    config = transformers.StableLmConfig(
        vocab_size=K, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = drawn(transformers.StableLmForCausalLM(config)).bfloat16()
    at, to = r"model\.layers\.0\.", "blocks.0."
    names = {
        "model.embed_tokens.weight": "embed.W_E",
        r"model\.norm\.(.).*": r"ln_final.\1",
        "lm_head.weight": "unembed.W_U",
        **{at + rf"self_attn\.{x}_proj\.weight": f"{to}attn.W_{x.upper()}" for x in "qkvo"},
        at + r"input_layernorm\.(.).*": to + r"ln1.\1",
        at + r"post_attention_layernorm\.(.).*": to + r"ln2.\1",
        at + r"mlp\.gate_proj\.weight": to + "mlp.W_gate",
        at + r"mlp\.up_proj\.weight": to + "mlp.W_in",
        at + r"mlp\.down_proj\.weight": to + "mlp.W_out",
        "missing": "zeros",
    }
    given = {"n_heads": 1, "normalization_type": "LN", "act_fn": "relu", "n_ctx": 9, "rotary_dim": 4}
    given |= {"positional_embedding_type": "rotary", "rotary_adjacent_pairs": False}
    with pytest.raises(ValueError, match=r"; with given={'act_fn': 'silu'} they agree$"):
        Run.from_model(model, source=SOURCE, names=names, given=given)


@pytest.mark.filterwarnings("default")
def test_rotary_tables_that_were_rounded_with_the_weights_are_named():
    config = transformers.LlamaConfig(
        vocab_size=K, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator))
    words = r"its buffers model\.rotary_emb\.inv_freq.* are rounded to torch\.bfloat16: keep them in float32"
    with pytest.raises(ValueError, match=words):
        Run.from_model(model.bfloat16(), source=SOURCE)
    kept = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    kept.load_state_dict(model.state_dict())
    assert Run.from_model(kept, source=SOURCE).provenance["weights_were"] == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_default_number_type_of_a_training_changes_nothing(tmp_path, dtype):
    torch.set_default_dtype(dtype)
    try:
        model = NanoGPT(Config())
        recorder = mm.Recorder(
            tmp_path / "run.pt", source=SOURCE, probes=["attention"], log=lambda *_, **__: None
        )
        run = recorder.finish(0, model)
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert run.provenance["logit_difference"] <= 1e-5
    assert {value.dtype for value in run.states.values()} == {torch.float32}


def test_a_loop_without_gradients_or_in_inference_mode_gives_runs_that_can_be_differentiated():
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            run = Run.from_model(gpt(), source=SOURCE)
        assert not any(value.is_inference() for value in run.states.values())
        run.model()(sequences()).sum().backward()
