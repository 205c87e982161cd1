"""stateless: a transformers model whose angles follow the length being run must not remember a longer one."""

from torch import nn

ORIGINAL, LONGEST = "original_inv_freq", "max_seq_len_cached"
"""What transformers calls the angles of short inputs, and the longest input so far; a prefix names a type of layer."""


def forgetful(model: nn.Module) -> nn.Module:
    """The same model; a rotary module that has grown its base for a long input goes back before the next forward.

    transformers' dynamic NTK goes back only below the length of training, so that results depend on what ran before.
    """
    for module in model.modules():
        if any(name.endswith(LONGEST) for name in vars(module)):
            module.register_forward_pre_hook(forget)
    return model


def forget(module: nn.Module, _) -> None:
    known = [name for name in [*vars(module), *dict(module.named_buffers())] if name.endswith(ORIGINAL)]
    for prefix in (name.removesuffix(ORIGINAL) for name in known):
        if getattr(module, prefix + LONGEST, module.original_max_seq_len) != module.original_max_seq_len:
            angles = getattr(module, prefix + ORIGINAL).to(getattr(module, f"{prefix}inv_freq").device)
            module.register_buffer(f"{prefix}inv_freq", angles, persistent=False)
            setattr(module, prefix + LONGEST, module.original_max_seq_len)
