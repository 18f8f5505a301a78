"""Models whose vocabulary is not the source's states: an explicit map, or named special tokens."""

from pathlib import Path

import pytest
import torch
from run_files import saved

from mechmarkov.importing.vocabulary import source_and_ids
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources import Circle, Graph

K, WORDS, LENGTH = 3, 6, 5
SOURCE = Circle(n_states=K, p=0.3)
CONFIG = DecoderConfig(
    n_layers=1, d_model=6, n_ctx=LENGTH, d_head=3, d_vocab=WORDS, attn_only=True, normalization_type=None
)
GIVEN = {"positional_embedding_type": "standard", "normalization_type": None}


def model(config: DecoderConfig = CONFIG) -> HookedDecoder:
    decoder = HookedDecoder(config).requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in decoder.parameters():
        parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return decoder


def imported(tmp_path: Path, decoder: HookedDecoder, **options: object):
    path = saved(tmp_path / "model.pt", decoder.state_dict())
    return import_run([path], source=SOURCE, given=GIVEN, **options)


def test_a_map_picks_the_states_in_their_order(tmp_path):
    decoder = model()
    result = imported(tmp_path, decoder, token_map="2=1, 0=5, 1=0")
    states = torch.tensor([[0, 2, 1, 1, 2]])
    whole = decoder(torch.tensor([5, 0, 1])[states])
    torch.testing.assert_close(result.run.model()(states), whole[..., [5, 0, 1]], rtol=1e-6, atol=1e-6)
    assert result.run.provenance["tokens"] == [5, 0, 1]
    assert result.run.provenance["logit_difference"] <= 1e-6
    lost = result.run.provenance["probability_left_out"]
    drawn = SOURCE.sample(8, LENGTH + 1, generator=torch.Generator().manual_seed(0))[:, :LENGTH]
    probability = decoder(torch.tensor([5, 0, 1])[drawn]).softmax(-1)
    assert lost == pytest.approx(float(probability[..., [1 + 1, 3, 4]].sum(-1).max()), abs=1e-6)
    assert any(f"up to {lost:.3g} of the probability" in note for note in result.notes)


def test_padding_is_left_out(tmp_path):
    decoder = model(CONFIG.model_copy(update={"d_vocab": K + 1, "d_vocab_out": K + 1}))
    run = imported(tmp_path, decoder, pad=1).run
    assert run.provenance["tokens"] == [0, 2, 3]
    assert (run.config.d_vocab, run.config.d_vocab_out, run.config.n_ctx) == (K, K, LENGTH)


def test_a_query_is_mapped_too(tmp_path):
    objective = Objective(read="last", query=True)
    run = imported(tmp_path, model(), token_map="0=1,1=2,2=3,query=0", objective=objective).run
    assert (run.config.d_vocab, run.config.d_vocab_out) == (K + 1, K)
    with pytest.raises(RunFileError, match="leaves out the state query"):
        imported(tmp_path, model(), token_map="0=1,1=2,2=3", objective=objective)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, 'has 3 states: map them with --tokens "STATE=TOKEN,…", or name --bos and --pad'),
        ({"token_map": "0=0,1=1"}, "--tokens leaves out the state 2"),
        ({"token_map": "0=0,1=1,2=1"}, "--tokens gives one token to two states"),
        ({"token_map": "0=0,1=1,0=2"}, "--tokens names the state 0 twice"),
        ({"token_map": "0=0,1=1,3=2"}, "the source has no such state: it has 0, 1, 2"),
        ({"token_map": "0=0,1=1,2=6"}, "--tokens names the token 6, but the model has 6"),
        ({"token_map": "0=0,1=1,2=-1"}, "expected STATE=TOKEN"),
        ({"token_map": "0"}, "expected STATE=TOKEN"),
        ({"token_map": "0=0,1=1,2=2", "pad": 2}, "--pad is 2, but --tokens gives that token to a state"),
        ({"pad": 6}, "--pad is 6, expected a token below d_vocab 6"),
        ({"pad": -1}, "--pad is -1, expected a token below d_vocab 6"),
        ({"pad": 0, "bos": 1}, "without --pad and --bos 4 tokens remain for 3 of the source"),
    ],
    ids=str,
)
def test_a_map_that_does_not_fit_is_named(tmp_path, options, words):
    with pytest.raises(RunFileError) as error:
        imported(tmp_path, model(), **options)
    assert words in str(error.value)


def test_a_number_is_a_state_and_no_label():
    """State 0 is called "1" here, and state 1 "0"."""
    source = Graph(weights=[[1.0, 3.0], [3.0, 5.0]], labels=["1", "0"])
    assert source_and_ids({0: 7, 1: 3}, source, Objective())[1] == [7, 3]
    assert source_and_ids({"0": 7, "1": 3}, source, Objective())[1] == [3, 7]
