"""Sources of Markov data: samplers that know their law.

Kinds are looked up among entry points (`base.registry`); our families are named here only for `import`.
"""

from mechmarkov.sources.base.fixed_chain import FixedChain as FixedChain
from mechmarkov.sources.base.registry import source_from_data as source_from_data
from mechmarkov.sources.base.source import Hidden as Hidden
from mechmarkov.sources.base.source import Predictor as Predictor
from mechmarkov.sources.base.source import Source as Source
from mechmarkov.sources.base.stationary import Stationary as Stationary
from mechmarkov.sources.binary import Binary as Binary
from mechmarkov.sources.chain import Chain as Chain
from mechmarkov.sources.chain_mixture import ChainMixture as ChainMixture
from mechmarkov.sources.circle import Circle as Circle
from mechmarkov.sources.context_conditioned_chain import ContextConditionedChain as ContextConditionedChain
from mechmarkov.sources.context_tree import ContextTree as ContextTree
from mechmarkov.sources.factored_hidden_markov import FactoredHiddenMarkov as FactoredHiddenMarkov
from mechmarkov.sources.fresh.causal_graph import CausalGraph as CausalGraph
from mechmarkov.sources.fresh.context_trees import ContextTrees as ContextTrees
from mechmarkov.sources.fresh.dirichlet_chains import DirichletChains as DirichletChains
from mechmarkov.sources.fresh.doubly_stochastic import DoublyStochastic as DoublyStochastic
from mechmarkov.sources.fresh.relabelled_graph import RelabelledGraph as RelabelledGraph
from mechmarkov.sources.fruit_questions import FruitQuestions as FruitQuestions
from mechmarkov.sources.generalised_hidden_markov import GeneralisedHiddenMarkov as GeneralisedHiddenMarkov
from mechmarkov.sources.graph import Graph as Graph
from mechmarkov.sources.hidden_markov import HiddenMarkov as HiddenMarkov
from mechmarkov.sources.hidden_mixture import HiddenMixture as HiddenMixture
from mechmarkov.sources.lagged_chain import LaggedChain as LaggedChain
from mechmarkov.sources.lagged_chain import Switch as Switch
from mechmarkov.sources.observed import Observed as Observed
from mechmarkov.sources.order_k import OrderK as OrderK
from mechmarkov.sources.selective_lag import SelectiveLag as SelectiveLag
from mechmarkov.sources.tokenised import Tokenised as Tokenised
from mechmarkov.sources.trigger_bigram import TriggerBigram as TriggerBigram
