"""What HookedTransformer has and a decoder has not, on purpose: by name, with what to do instead."""

_NO_TOKENIZER = "there is no tokenizer; `to_str_tokens` gives the states' names"
_IMPORT = "bring the model in with `mechmarkov import`, or take `run.model()`"
_WEIGHTS = "`process_weights_` does all of it in place"
_SOURCE = "draw sequences from `run.source`"

LEFT_OUT = {
    "set_tokenizer": _NO_TOKENIZER,
    "from_pretrained": _IMPORT,
    "from_pretrained_no_processing": _IMPORT,
    "load_and_process_state_dict": _WEIGHTS,
    "fold_layer_norm": _WEIGHTS,
    "center_writing_weights": _WEIGHTS,
    "center_unembed": _WEIGHTS,
    "fold_value_biases": _WEIGHTS,
    "refactor_factored_attn_matrices": _WEIGHTS,
    "fill_missing_keys": "`load_state_dict` takes HookedTransformer's state dicts as they are",
    "init_weights": "`mm.models.initialise(decoder, [seed])` draws a start",
    "generate_stream": "`generate` returns all tokens at once",
    "hook_tokens": "tokens are the input: edit them",
    "load_sample_training_dataset": _SOURCE,
    "sample_datapoint": _SOURCE,
    "dataset": _SOURCE,
    "get_pos_offset": "`get_residual(embed, pos_offset)` takes it",
    "move_model_modules_to_device": "one device holds the model: `decoder.to(device)`",
    "mps": "`decoder.to('mps')`",
}
