"""`Run.from_model`: how far a conversion may be from its original, and what it says of a wrong source."""

from inspect import unwrap
from types import SimpleNamespace

import pytest
import torch

from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.probe_run import probe
from mechmarkov.runs import Run
from mechmarkov.sources import Circle, Observed

SOURCE = Circle(n_states=3, p=0.3)
CONFIG = DecoderConfig(
    n_layers=1, d_model=4, n_ctx=5, d_head=4, d_vocab=3, attn_only=True, normalization_type=None
)


class Noisy(torch.nn.Module):
    """HookedTransformer's surface, with logits that are off by a share of their size."""

    def __init__(self, bias: float, share: float) -> None:
        super().__init__()
        inner = HookedDecoder(CONFIG)
        torch.nn.init.constant_(inner.unembed.b_U, bias)
        for name, child in inner.named_children():
            self.add_module(name, child)
        self.cfg = SimpleNamespace(**CONFIG.model_dump(exclude={"tied", "window"}))
        self.inner, self.share, self.modes = (inner,), share, ([],)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.modes[0].append(self.training)
        return self.inner[0](tokens) * (1 + self.share)


def test_the_limit_grows_with_the_logits():
    """1e-5 of a logit's size: float32 cannot do better than about 1e-7 of a large one."""
    run = Run.from_model(Noisy(bias=1000.0, share=5e-6), source=SOURCE)
    assert run.provenance["logit_difference"] == pytest.approx(0.005, rel=0.01)
    with pytest.raises(
        ValueError, match=r"differ by up to 0\.3\d*, 0\.0003 of their size, expected at most 1e-05"
    ):
        Run.from_model(Noisy(bias=1000.0, share=3e-4), source=SOURCE)
    with pytest.raises(ValueError, match="logits differ by up to 0"):
        Run.from_model(Noisy(bias=0.5, share=3e-4), source=SOURCE)
    with pytest.raises(ValueError, match=r"up to 3e-06, 0\.0003 of their size"):
        Run.from_model(Noisy(bias=0.01, share=3e-4), source=SOURCE)


def test_a_model_in_training_is_compared_without_dropout_and_left_as_it_was():
    model = Noisy(bias=1.0, share=0.0).train()
    model.unembed.eval()
    Run.from_model(model, source=SOURCE)
    assert model.modes[0] == [False]
    assert (model.training, model.embed.training, model.unembed.training) == (True, True, False)


def test_a_source_as_data_is_named():
    from_model = unwrap(Run.from_model.__func__)  # where no run-time check of types stands before it
    with pytest.raises(ValueError, match=r"source is a dict, expected a source such as mm.Circle"):
        from_model(Run, HookedDecoder(CONFIG), source={"kind": "circle"})


def test_blocks_that_are_too_short_for_probes_are_refused_with_the_length_that_is_not():
    """A probe reads a context and the token after it: 6 states."""
    decoder = HookedDecoder(CONFIG)
    with pytest.raises(ValueError, match=r"^length is 6, expected at most 5, .*block=6\)"):
        Run.from_model(decoder, source=Observed([0, 1, 2] * 50, order=1, block=5))
    run = Run.from_model(decoder, source=Observed([0, 1, 2] * 50, order=1, block=6))
    assert "behaviour" in probe(run, ["behaviour"], sequences=4, law_draws=0)


def test_held_out_sequences_that_are_too_short_for_probes_are_refused():
    sequences = [[0, 1, 2] * 4] * 9 + [[0, 1]] * 6  # of 120 states the last 12 are short sequences
    held_out = Observed(sequences, order=1, block=12, held_out="last_tenth")
    with pytest.raises(
        ValueError, match=r"^length is 6, expected at most 2, .* held_out='every_fifth'\) holds out"
    ):
        Run.from_model(HookedDecoder(CONFIG), source=held_out)


@pytest.mark.parametrize("step", [-1, 1.5, True])
def test_a_step_that_no_file_could_hold_is_refused(step):
    from_model = unwrap(Run.from_model.__func__)
    with pytest.raises(ValueError, match=rf"^step is {step}, expected an integer of at least 0$"):
        from_model(Run, HookedDecoder(CONFIG), source=SOURCE, step=step)


def test_logits_that_a_model_itself_rounds_are_refused():
    model = Noisy(bias=1.003, share=0.0)
    model.forward = lambda tokens: model.inner[0](tokens).bfloat16().float()
    with pytest.raises(ValueError, match=r"^Noisy and its conversion disagree: logits differ by up to 0\.00"):
        Run.from_model(model, source=SOURCE)


def test_a_model_without_weights_is_refused():
    with pytest.raises(ValueError, match=r"^model is on the device meta, expected one with weights$"):
        Run.from_model(HookedDecoder(CONFIG).to("meta"), source=SOURCE)


def freed(model):
    model.embed.W_E.untyped_storage().resize_(0)


def on_meta(model):
    model.unembed.to("meta")


def uninitialised(model):
    model.more = torch.nn.LazyLinear(3)


def sparse(model):
    model.embed.W_E = torch.nn.Parameter(model.embed.W_E.detach().to_sparse())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (freed, r"^the memory of embed\.W_E is freed, expected its numbers"),
        (on_meta, r"^unembed\.W_U has a shape and no numbers, expected weights"),
        (uninitialised, r"^more\.weight has a shape and no numbers, expected weights"),
        (sparse, r"^embed\.W_E is of layout torch\.sparse_coo, expected a dense tensor"),
    ],
)
def test_weights_without_numbers_are_named(change, message):
    model = HookedDecoder(CONFIG)
    change(model)
    with pytest.raises(ValueError, match=message):
        Run.from_model(model, source=SOURCE)


def test_a_view_into_larger_memory_is_read():
    model = HookedDecoder(CONFIG)
    whole = torch.randn(5, *model.embed.W_E.shape)
    model.embed.W_E = torch.nn.Parameter(whole[4])
    assert torch.equal(Run.from_model(model, source=SOURCE).states["embed.W_E"][0], whole[4])


def test_logits_beyond_float32_are_refused():
    model = HookedDecoder(CONFIG)
    model.embed.W_E.data.fill_(1e30)
    model.unembed.W_U.data.fill_(1e30)
    with pytest.raises(
        ValueError, match=r"^the logits of HookedDecoder are finite in float64 only, expected"
    ):
        Run.from_model(model, source=SOURCE)


def test_a_step_that_nobody_gave_is_unknown_until_runs_are_joined():
    unknown, known = (Run.from_model(HookedDecoder(CONFIG), source=SOURCE, step=step) for step in (None, 3))
    assert unknown.steps.tolist() == [0]
    assert unknown.title().endswith("step unknown")
    assert unknown.contents()["steps"] == "unknown (1)"
    assert known.title().endswith("step 3")
    for runs in ([unknown, known], [known, unknown]):
        assert Run.joined(runs).title().endswith("step 3")
    assert Run.joined([unknown]).title() == unknown.title()


def test_tokens_without_their_states_are_refused():
    from_model = unwrap(Run.from_model.__func__)
    with pytest.raises(
        ValueError, match=r"tokens is \[0, 1, 2\], expected each state's token, such as \{0: 3"
    ):
        from_model(Run, HookedDecoder(CONFIG), source=SOURCE, tokens=[0, 1, 2])


def test_runs_of_one_training_are_joined_in_the_order_of_their_steps():
    models = {step: HookedDecoder(CONFIG) for step in (20, 0, 10)}
    runs = [Run.from_model(model, source=SOURCE, step=step) for step, model in models.items()]
    joined = Run.joined(runs)
    assert joined.steps.tolist() == [0, 10, 20]
    for step, model in models.items():
        for name, value in model.state_dict().items():
            torch.testing.assert_close(joined.model(step).state_dict()[name], value, rtol=0, atol=0)
    with pytest.raises(ValueError, match="expected each once"):
        Run.joined([runs[0], runs[0]])
    other = Run.from_model(models[0], source=Circle(n_states=3, p=0.4), step=1)
    with pytest.raises(ValueError, match=r"runs\[1\] has another source than runs\[0\]"):
        Run.joined([runs[0], other])
    with pytest.raises(ValueError, match="runs are empty"):
        Run.joined([])
