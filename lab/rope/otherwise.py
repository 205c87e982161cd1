"""Families without RoPE: what tells position in its place."""

OTHERWISE = {
    "gpt2": "a learned vector for each position",
    "gpt_neo": "a learned vector for each position",
    "gpt_bigcode": "a learned vector for each position",
    "opt": "a learned vector for each position",
    "biogpt": "a learned vector for each position",
    "bert": "a learned vector for each position",
    "roberta": "a learned vector for each position",
    "distilbert": "a learned vector for each position",
    "bart": "a learned vector for each position",
    "xglm": "sinusoids added to the embeddings",
    "bloom": "ALiBi: a penalty on the score that grows with distance",
    "mpt": "ALiBi: a penalty on the score that grows with distance",
    "t5": "a learned bias by distance, in buckets",
    "mt5": "a learned bias by distance, in buckets",
    "umt5": "a learned bias by distance, in buckets",
    "mamba": "nothing: it is recurrent",
    "mamba2": "nothing: it is recurrent",
    "rwkv": "nothing: it is recurrent",
    "context-lab": "an encoding of this lab, which the field positional describes: see `lab schemes show`",
}
LIMITED = ("a learned vector",)


def why_no_rope(family: str) -> str:
    """What an extension of RoPE is told, of a family that has none."""
    told = OTHERWISE.get(family)
    said = f"{family} has no rope_parameters: it does not turn queries and keys, so there is no RoPE to read or extend"
    if told is None:
        return said
    if told.startswith(LIMITED):
        return f"{said}. Position is told by {told}, and it has none for longer inputs: take a model with RoPE"
    return f"{said}. Position is told by {told}; how far it reads as it is, python -m eval measures"
