"""The claims of `induction` about a model set by hand."""

from probing_cases import claims_of, run_of, subject_of

from mechmarkov.probes import induction
from mechmarkov.sources import Chain, DirichletChains

STICKY = Chain([[0.8, 0.15, 0.05], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])


REDRAWN = DirichletChains(n_states=3, start="uniform")


N_CTX = 16


def asked(decoder, source=STICKY, sequences: int = 64, objective=None, null: bool = False):
    subject = subject_of(run_of(decoder, source=source, objective=objective), sequences=sequences)
    data = induction.probe.measure(subject)
    fresh = induction.probe.measure(subject.null) if null else None
    return induction.scores(data, fresh), claims_of(induction.probe, data, fresh), data


def heads_of(said) -> tuple[str, ...]:
    """The induction heads that are shown, () if none is."""
    head = said.first("is_induction_head", status="shown")
    return () if head is None else head.subject


def feeders_of(said) -> tuple[str, ...]:
    feeds = said.first("feeds", status="shown")
    return () if feeds is None else feeds.subject


def degree_of(said) -> tuple[str, set[str]]:
    """Whether the path carries the law, and how much of it."""
    carries = said.first("carries")
    told = {"does harm", "not the law's", "some of it", "most of what there is"}
    return carries.status, {premise.name for premise in carries.because} & told
