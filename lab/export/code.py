"""What a checkpoint holds whose encoding no configuration says: a few lines that put it in with the lab on loading."""

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from lab.rope.config import Rotation

CODE = '''"""{cls} with an encoding of the context-extension lab put into it; config.json says which."""

from transformers import {config}, {cls}

try:  # here transformers does not look: it would tell to install a package of another project that is named so too
    from lab.adopt import adopt
except ImportError as error:
    raise ImportError(
        "this checkpoint needs the context-extension lab: install it from its repository (pip install -e .); "
        "a package `lab` of an index is something else"
    ) from error


class ExtendedConfig({config}):
    model_type = "{type}"


class ExtendedForCausalLM({cls}):
    config_class = ExtendedConfig

    @classmethod
    def from_pretrained(cls, *args, **how):
        loaded = super().from_pretrained(*args, **how)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info it is not alone
        said = model.config.context_lab
        adopt(model, said["positional"], train_length=said["train_length"])
        return loaded
'''


def code_of(config: PreTrainedConfig) -> str:
    """The source of a checkpoint's modeling_context_lab.py."""
    cls = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__
    return CODE.format(cls=cls, config=type(config).__name__, type=type_of(config))


def type_of(config: PreTrainedConfig) -> str:
    """A type of model that nothing else has: under its own it would load without the encoding, and not a word said."""
    return f"context-lab-{config.model_type}"


def fields_of_code(config: PreTrainedConfig, wanted: Rotation, target: int) -> dict[str, Any]:
    """What config.json says otherwise than the model's configuration."""
    return {
        "model_type": type_of(config),
        "architectures": ["ExtendedForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_context_lab.ExtendedConfig",
            "AutoModelForCausalLM": "modeling_context_lab.ExtendedForCausalLM",
        },
        "context_lab": {"positional": wanted.spec, "train_length": wanted.train_length},
        "max_position_embeddings": target,
    }
