"""Groups of parts, ablated together: heads of a layer, all, or that attend in the same way; and all MLPs.

Of parts that do the same, each by itself is worth next to nothing: the others go on (Wang et al. 2022,
section 3.3, found such backup heads). Singles and pairs miss a group of three or more.
"""

from functools import partial
from itertools import combinations

import numpy as np
import torch
import xarray as xr
from einops import rearrange
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from mechmarkov.interventions.ablate import ablate
from mechmarkov.models.components import head_name, head_names, mlp_name
from mechmarkov.models.decoder import activations
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.effects import MEASURES, changes
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import interval

MAX_DISTANCE = 0.1  # mean total variation between the attention of two heads that attend in the same way
SEQUENCES = 16  # whose attention is compared
LOSS = MEASURES.index("loss")

Group = tuple[str, ...]


def groups_of(subject: Subject, batch: Batch) -> list[Group]:
    """Returns the groups of two or more: heads of each layer, all, those that attend in the same way; MLPs.

    Two heads attend in the same way if their attention is less than 0.1 apart in total variation, on average
    over queries; a group is a connected component of such pairs.

    Args:
        subject: The models, of which the last is asked.
        batch: Sequences to compare attention on; the first 16 are used.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("induction"), sequences=8)
        >>> groups_of(subject, subject.batch)
        [('L0H0', 'L0H1'), ('L1H0', 'L1H1'), ('L0H0', 'L0H1', 'L1H0', 'L1H1')]
    """
    config = subject.config
    every = tuple(head_names(config))
    layers = [
        tuple(head_name(layer, head) for head in range(config.n_heads)) for layer in range(config.n_layers)
    ]
    alike = _alike(subject, batch, every) if config.mixer == "attention" else []
    mlps = () if config.attn_only else tuple(mlp_name(layer) for layer in range(config.n_layers))
    return [group for group in dict.fromkeys([*layers, every, *alike, mlps]) if len(group) > 1]


def _alike(subject: Subject, batch: Batch, names: Group) -> list[Group]:
    """Heads of the last model that attend in the same way: the components of the graph of such pairs."""
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in range(subject.config.n_layers)]
    patterns = activations(subject.decoder[-1], batch.tokens[:SEQUENCES], hooks).values()
    heads = torch.cat(
        [rearrange(x, "... batch head query key -> head (... batch) query key") for x in patterns]
    )
    pairs = list(combinations(range(len(heads)), 2))
    close = [
        pair
        for pair in pairs
        if float((heads[pair[0]] - heads[pair[1]]).abs().sum(-1).mean()) / 2 < MAX_DISTANCE
    ]
    rows, columns = np.array(close, dtype=int).reshape(-1, 2).T
    graph = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(heads), len(heads)))
    _, label = connected_components(graph, directed=False)
    return [tuple(np.array(names)[label == one].tolist()) for one in np.unique(label)]


@torch.no_grad()
def of_groups(subject: Subject, batch: Batch, groups: list[Group]) -> xr.Dataset:
    """The loss with all parts of a group at their mean, less the loss without.

    Args:
        subject: The models: `Subject.of(run)`.
        batch: The sequences that losses and means are over.
        groups: Names of heads: `groups_of(subject, batch)`.

    Returns:
        `group_effect`, `group_effect_low`, `group_effect_high` [axis, group] (nats): the 95 % intervals hold
        for all groups at once;
        `in_group` [group, group_head]: which heads are in it.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("induction"), sequences=8)
        >>> of_groups(subject, subject.batch, [("L1H0", "L1H1")]).group_effect.round(2).values.tolist()
        [[0.17]]
    """
    names = list(dict.fromkeys(name for group in groups for name in group))
    member = np.array([[name in group for name in names] for group in groups]).reshape(
        len(groups), len(names)
    )
    data = xr.Dataset(
        {"in_group": (("group", "group_head"), member)},
        coords={subject.axis: subject.coordinates, "group_head": names},
    )
    if not groups:
        return data
    _, changed = changes(subject, batch, [partial(ablate, component=group, kind="mean") for group in groups])
    effect = changed[:, :, LOSS]
    low, high = interval(effect, level=1 - 0.05 / len(groups))
    ends = {"group_effect": effect.mean(-1), "group_effect_low": low, "group_effect_high": high}
    return data.assign(variables("nats", (subject.axis, "group"), **ends))
