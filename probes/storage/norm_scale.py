"""Do the paths that hold the bigram hold it at their own scale, or at that of the whole model?

What a path adds to the logits is divided by the final norm's scale, and that is taken from the model as it
ran (and by that of each norm on its way, where these stand behind the sums). A part that writes nothing the
unembedding reads can still set it: then the others hold the bigram at its scale only. So everything but the
home is replaced, in what the unembedding reads, and the norms before it compute anew.
"""

from contextlib import ExitStack

import numpy as np
import torch
import xarray as xr

from mechmarkov.interventions.ablate import ablate_path
from mechmarkov.models.components import norms_between
from mechmarkov.probing.chunking import substack
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.effects import at_temperature, predictions, sequences_for
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.kernel import kl

from .game import MAX_SCORES, Coalitions
from .home import largest_holders


@torch.no_grad()
def by_own_scale(subject: Subject, data: xr.Dataset) -> xr.Dataset:
    """KL from the bigram with only the home, at the whole model's scale and at its own.

    Args:
        subject: The models: `Subject.of(run)`.
        data: What the rest of `measure` returned, which says what the home is.

    Returns:
        `home_only`, `home_rescaled` [axis] (nats); NaN where no norm is before the unembedding, or there is
        no home.
    """
    axis, batch = subject.axis, sequences_for(subject)
    nats = np.full((2, len(subject.decoder)), np.nan)
    law = subject.exact["bigram"][: len(batch.tokens)]
    for i in range(len(subject.decoder)) if norms_between(subject.config, "direct") else ():
        if home := largest_holders(data.isel({axis: [i]})):
            at_home = np.isin(data["path"].values, home)
            game = Coalitions(subject, i, MAX_SCORES // (2 * len(subject.decoder) * subject.source.n_states))
            model = substack(subject.decoder, slice(i, i + 1))
            with ExitStack() as others:
                for name in data["path"].values[~at_home]:
                    sender = "embed" if name == "direct" else str(name)
                    others.enter_context(ablate_path(model, sender, "logits", kind="mean"))
                run = predictions(subject, model, batch, batch.tokens)[0].double()
                rescaled = kl(law, at_temperature(run, 1 / game.temperature).numpy()).mean()
            nats[:, i] = game.kl(at_home[None]).mean(), rescaled
    return xr.Dataset(variables("nats", axis, home_only=nats[0], home_rescaled=nats[1]))
