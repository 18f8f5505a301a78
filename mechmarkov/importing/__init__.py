"""Models of other programs become a HookedDecoder with the same logits.

A file or a folder (`mechmarkov import`, `mm.import_run`), step by step:

| step | where | what comes out |
|---|---|---|
| which files are meant, and their training steps | `training_steps` | `Checkpoints` |
| what a file holds; nothing in it runs | `safe.foreign_file`, `files.folders` | dicts, and tensors' shapes |
| which of its dicts are models, with settings around them | `files.state_dicts`, `.configs` | `StateDict` |
| whose names the weights have | `files.recognise` | a layout |
| the config, and how each weight becomes one of ours | the layout's `plan_import` | `ImportPlan` |
| masks and rotary tables are those of that config | `files.buffers` | |
| the weights are read | `checkpoint` | `Checkpoint.states()` |
| which token is which state | `vocabulary` | the run's own rows |

A live model (`Run.from_model`, `mm.Recorder`): `live.inside` takes off what training put around it, and
`live_model` asks the same layouts, or the forward pass of a model with names of its own
(`live.by_forward_pass`). `live.difference` then gives both models the same tokens. Where logits differ by
more than rounding, it says why as far as that is seen.

Layouts: `hooked_transformer`, `transformer_bridge`, `gpt2` (nanoGPT too), `relative_transformer`,
`hugging_face` (an `architecture` a type: Llama's relatives, GPT-NeoX, `bloom`, `mamba`), and `names`, a table
that the user writes. A layout's `MARKS` are names of weights that tell it. Its `plan_import` takes shapes
only. Most are stems of names in a `linear_layers.Table`. Every field of the config is told by a shape, by a
setting next to the weights or by the caller (`config_fields`); what a decoder cannot express is refused by
name.
"""
