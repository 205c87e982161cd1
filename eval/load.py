"""load: a model and a tokenizer of transformers, and what they are: the first token, the longest input, an identity."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from eval import EvalError
from eval.ahead import refuse_looking_ahead
from eval.cap import keep_cap
from eval.checkpoint import no_tokenizer, refuse_nothing, why_not
from eval.device import refuse_absent
from eval.stateless import forgetful
from eval.texts import first_token
from eval.weights import refuse_partial, refuse_unreadable


def load(name: str, dtype: str, device: str, *, remote_code: bool = False):
    """Model and tokenizer by folder, name on the hub, or .gguf file.

    remote_code: whether code that the checkpoint brings along may be run.
    Raises EvalError where they cannot be loaded, whole, and from files that run nothing when they are read; and for a
    model that looks ahead.
    """
    refuse_absent(device)
    refuse_nothing(name)
    where, options, how = *place(name), {"use_safetensors": True}
    if "gguf_file" in options:
        how = {}
    else:
        refuse_unreadable(Path(name))
    tokenizer = tokenizer_of(name, remote_code=remote_code)
    if dtype == "auto" and device == "cpu":
        dtype = "float32"  # half precision is slower there, and less exact
    how |= {"dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}  # they are told below
    try:
        with silence():
            model, loading = AutoModelForCausalLM.from_pretrained(
                where, trust_remote_code=remote_code, **how, **options
            )
    except Exception as error:  # what someone else's files can make a reader raise is no list
        raise why_not(name, error) from error
    refuse_partial(name, loading)
    model = keep_cap(forgetful(model.to(device).eval()))
    refuse_looking_ahead(name, model)
    return model, tokenizer


def tokenizer_of(name: str, *, remote_code: bool = False):
    """The tokenizer alone. Raises EvalError as `load` does."""
    refuse_nothing(name)
    where, options = place(name)
    try:
        with silence():
            return AutoTokenizer.from_pretrained(where, trust_remote_code=remote_code, **options)
    except Exception as error:  # as above
        known = Path(name).is_dir() and "trust_remote_code" not in str(error)
        raise (no_tokenizer if known else why_not)(name, error) from error


@contextmanager
def silence() -> Iterator[None]:
    """Without transformers' warnings and tables of what a checkpoint lacks, which is told in a line."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def place(name: str) -> tuple[str, dict[str, str]]:
    """What transformers' from_pretrained takes: a folder or a name on the hub, and which file in it where it is one."""
    path = Path(name)
    return (str(path.parent), {"gguf_file": path.name}) if path.suffix == ".gguf" else (name, {})


def begins_with(asked: str, model, tokenizer, say: Callable[[str], None]) -> int | None:
    """The token that every window begins with. Raises EvalError where one is asked for and there is none.

    asked: yes, no, or auto: as the tokenizer does.   say: told where model and tokenizer disagree.
    """
    own, named = first_token(tokenizer), tokenizer.bos_token_id
    if asked == "yes" and named is None:
        raise EvalError("this tokenizer has no token that begins a text: leave --bos yes out")
    if asked == "auto" and own is None and getattr(model.config, "bos_token_id", None) is not None:
        say(
            f"the model's configuration names a token that begins a text ({model.config.bos_token_id}), its tokenizer "
            "puts none there: measured without; --bos yes if it was trained with one"
        )
    return {"auto": own, "yes": named, "no": None}[asked]


def limit_of(model) -> int | None:
    """The longest input of a model with a table of positions; None: it takes any, well or not."""
    names = ("wpe", "embed_positions", "position_embeddings")
    parts = [(name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.Embedding)]
    parts += list(model.named_buffers())  # GPT-J keeps sines and cosines of so many positions
    if not any(name.rpartition(".")[2] in names for name, _ in parts):
        return None
    return model.config.get_text_config().max_position_embeddings


def identity_of(model) -> str:
    """What this model is, whatever it is called: its weights, its configuration, how it computes."""
    digest = hashlib.sha256(json.dumps(model.config.to_dict(), sort_keys=True, default=str).encode())
    for key, tensor in model.state_dict().items():
        digest.update(key.encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).cpu().numpy())
    digest.update(f"{model.dtype} {model.config._attn_implementation}".encode())
    return digest.hexdigest()
