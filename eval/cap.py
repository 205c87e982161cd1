"""The cap on attention scores that Gemma 2 has: kept, where transformers' sdpa would leave it out and not say so."""


def keep_cap(model):
    """The same model of transformers, on its written-out attention where sdpa, which caps nothing, was to run it.

    From transformers 5.24 on, sdpa is not offered to such a model, and nothing changes here.
    """
    text = model.config.get_text_config()
    if getattr(text, "attn_logit_softcapping", None) is not None and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation("eager")
    return model
