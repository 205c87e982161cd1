"""LoRA, by PEFT: small matrices beside frozen ones, trained, checkpointed by themselves, and merged in at the end."""

from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lab import LabError
from lab.finetune.settings import Lora


def with_lora(model: PreTrainedModel, settings: Lora) -> nn.Module:
    """The model with adapters in it, first weights drawn from torch's generator; all but `also` is frozen.

    Raises LabError where PEFT is missing, or nothing is found to adapt.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise LabError("lora needs PEFT: pip install peft, or leave lora out to train all weights") from None
    free = [parameter for name, parameter in model.named_parameters() if any(one in name for one in settings.also)]
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha or 2 * settings.rank,
        lora_dropout=settings.dropout,
        target_modules=targets(model, settings),
    )
    adapted = get_peft_model(model, config)
    for parameter in free:
        parameter.requires_grad_(True)
    return adapted


def targets(model: PreTrainedModel, settings: Lora) -> list[str] | str:
    """Names of the matrices to adapt, as PEFT matches them."""
    if settings.targets == "all-linear":
        return "all-linear"
    matrices = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}
    inside = {name: type(model.get_submodule(name.rpartition(".")[0])).__name__ for name in matrices}
    if settings.targets == "attention":
        return sorted({name.rpartition(".")[2] for name, owner in inside.items() if owner.endswith("Attention")})
    for target in settings.targets:
        if not any(name == target or name.endswith(f".{target}") for name in matrices):
            there = sorted({name.rpartition(".")[2] for name in matrices})
            raise LabError(
                f"lora.targets: {type(model).__name__} has no matrix {target}; it has {', '.join(there)}", code=2
            )
    return settings.targets


def checkpoint_trained_alone(accelerator: Accelerator, model: nn.Module) -> None:
    """Keep what is frozen out of the checkpoints of this model: it is where the model came from."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}

    def drop(models: list[nn.Module], weights: list[dict], folder: str) -> None:
        for state in weights:
            kept = {name.removeprefix("module."): value for name, value in state.items()}  # which DDP puts before names
            state.clear()
            state.update((name, kept[name]) for name in trained)

    def load(models: list[nn.Module], folder: str) -> None:
        while models:  # accelerate, which would miss the others, finds none left
            accelerator.unwrap_model(models.pop()).load_state_dict(load_file(f"{folder}/model.safetensors"), False)

    accelerator.register_save_state_pre_hook(drop)
    accelerator.register_load_state_pre_hook(load)
