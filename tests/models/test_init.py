"""Where training starts."""

import inspect

import numpy as np
import pytest
import torch
from decoder_cases import config_of, decoder_of
from scipy.stats import chi2, kstest

from mechmarkov.models import HookedDecoder, initialise

WEIGHTS = config_of(
    "relative", n_layers=3, d_model=32, d_head=8, n_heads=4, d_vocab=40, attn_only=False, act_fn="relu"
)


def started(config, seed=0, **arguments):
    decoder = decoder_of(config, seed=9)  # nothing of what was there before may stay
    initialise(decoder, [seed], **arguments)
    return decoder


@pytest.mark.parametrize(
    "case", ["gelu and LN", "tied, fewer outputs, LN", "relative", "shortformer", "Mamba-2", "LSTM"]
)
@pytest.mark.parametrize("scheme", ["normal", "gpt2", "zero"])
def test_a_member_of_a_stack_starts_as_it_would_alone(case, scheme):
    seeds = [3, 0, 2**40]
    stack = HookedDecoder(config_of(case), n_models=3)
    initialise(stack, seeds, scheme=scheme, std=0.3)
    for i, seed in enumerate(seeds):
        alone = started(config_of(case), seed, scheme=scheme, std=0.3)
        for name, parameter in alone.named_parameters():
            assert torch.equal(stack.get_parameter(name)[i], parameter), name
    if scheme != "zero":
        assert not torch.equal(stack.embed.W_E[0], stack.embed.W_E[1])


def test_a_seed_is_a_start_and_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (started(config_of(), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.embed.W_E, again.embed.W_E)
    assert not torch.equal(first.embed.W_E, other.embed.W_E)


def test_a_double_starts_at_the_same_numbers():
    single, double = started(config_of()), HookedDecoder(config_of()).double()
    initialise(double, [0])
    assert torch.equal(double.embed.W_E, single.embed.W_E.double())


@pytest.mark.parametrize(("scheme", "shrink"), [("normal", 1.0), ("gpt2", 1 / np.sqrt(6))])
def test_weights_are_normal_with_the_asked_deviation(scheme, shrink):
    """The sum of squares of n draws lies in chi-square's central 1 - 1e-6, tensor by tensor.

    At 1024 numbers and more a tensor, a deviation wrong by a sixth falls outside: a residual projection
    that is not shrunk, or another that is, is wrong by a factor of 2.4.
    """
    decoder = started(WEIGHTS, seed=4, scheme=scheme, std=0.07)
    drawn = []
    for name, parameter in decoder.named_parameters():
        if ".W_" not in name:
            continue
        residual = name.endswith(("attn.W_O", "mlp.W_out"))
        scale = 0.07 * (shrink if residual else 1.0)
        draws = parameter.detach().double().numpy().ravel() / scale
        assert chi2.ppf(5e-7, draws.size) < (draws**2).sum() < chi2.ppf(1 - 5e-7, draws.size), name
        drawn.append(draws)
    drawn = np.concatenate(drawn)
    assert drawn.size > 20_000
    assert kstest(drawn, "norm").pvalue > 1e-6
    assert abs(drawn.mean()) < 5 / np.sqrt(drawn.size)
    # No two tensors share their draws.
    assert len(np.unique(drawn)) > 0.99 * drawn.size


@pytest.mark.parametrize("scheme", ["normal", "gpt2", "zero"])
def test_biases_are_zero_and_norms_one(scheme):
    for case in ("gelu and LN", "gelu_new and RMS"):
        for name, parameter in started(config_of(case), scheme=scheme).named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if leaf == "w":
                assert (parameter == 1).all(), name
            elif scheme == "zero" or leaf.startswith("b"):
                assert (parameter == 0).all(), name
            else:
                assert (parameter != 0).any(), name


def test_a_new_decoder_is_at_zero():
    decoder = HookedDecoder(config_of("gelu and LN"))
    expected = started(config_of("gelu and LN"), scheme="zero")
    for name, parameter in decoder.named_parameters():
        assert torch.equal(parameter, expected.get_parameter(name)), name


def test_bad_input():
    with pytest.raises(ValueError, match="2 seeds for 1 models"):
        initialise(HookedDecoder(config_of()), [0, 1])
    with pytest.raises(ValueError, match="1 seeds for 3 models"):
        initialise(HookedDecoder(config_of(), n_models=3), [0])
    with pytest.raises(ValueError, match="std is -1"):
        initialise(HookedDecoder(config_of()), [0], std=-1.0)
    with pytest.raises(ValueError, match="std is nan"):
        initialise(HookedDecoder(config_of()), [0], std=float("nan"))
    with pytest.raises(
        ValueError, match=r"zero names .blocks\.7\.attn\.W_O., which is not a parameter: embed"
    ):
        initialise(HookedDecoder(config_of()), [0], zero=[["blocks.7.attn.W_O"]])
    unchecked = inspect.unwrap(initialise)  # past the type check, which only the tests have
    with pytest.raises(ValueError, match="scheme is 'xavier', expected one of 'normal', 'gpt2', 'zero'"):
        unchecked(HookedDecoder(config_of()), [0], scheme="xavier")


def test_what_is_to_be_zero_is_zero_and_the_rest_as_without():
    zero = [["blocks.0.attn.W_K", "embed.W_E"], []]
    stack, plain = (HookedDecoder(config_of(), n_models=2) for _ in range(2))
    initialise(stack, [3, 4], zero=zero)
    initialise(plain, [3, 4])
    for name, parameter in stack.named_parameters():
        expected = plain.get_parameter(name).detach().clone()
        if name in zero[0]:
            expected[0] = 0
        assert torch.equal(parameter, expected), name


def test_the_guideline_sets_the_mlp_and_nothing_else():
    case, std = config_of("gelu and LN"), 0.3
    plain, guided = started(case, scheme="normal", std=std), started(case, scheme="guideline", std=std)
    constants = {"mlp.W_in": 1.0, "mlp.W_out": -1.0}
    for name, parameter in guided.named_parameters():
        expected = [value for end, value in constants.items() if name.endswith(end)]
        if expected:
            assert (parameter == expected[0]).all(), name
        elif "W_" in name:
            # The law of the rest is that of a normal start; ten deviations of the mean of its squares.
            square = parameter.detach().pow(2).mean().item()
            assert square == pytest.approx(std**2, rel=10 / parameter.numel() ** 0.5)
        else:
            assert torch.equal(parameter, plain.get_parameter(name)), name
    with pytest.raises(ValueError, match="which sets the MLP, but the model has none"):
        started(config_of("plain"), scheme="guideline")


def test_a_rank_one_start_is_of_rank_one_and_of_one_direction():
    decoder = started(config_of("gelu and LN"), scheme="rank_one", std=0.3)
    stream = decoder.embed.W_E[0].sign()
    for name, parameter in decoder.named_parameters():
        if "W_" not in name:
            continue
        assert torch.equal(parameter.abs(), torch.full_like(parameter, 0.3)), name
        matrices = parameter.reshape(-1, *parameter.shape[-2:])
        assert (torch.linalg.matrix_rank(matrices) == 1).all(), name
        leaf = name.rsplit(".", 1)[-1]
        reads = leaf in ("W_Q", "W_K", "W_V", "W_in", "W_U")
        along = matrices[0] if reads else matrices[0].mT  # [stream, other]
        assert ((along.sign() == stream[:, None]).all(0) | (along.sign() == -stream[:, None]).all(0)).all(), (
            name
        )
