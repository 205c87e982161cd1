"""The doctor: what a checkpoint's RoPE configuration means, what is wrong with it, and who would read it otherwise."""

from dataclasses import dataclass, replace

from lab.doctor import (
    lint_factor,
    lint_form,
    lint_layers,
    lint_longrope,
    lint_model,
    lint_readers,
    lint_values,
    lint_yarn,
)
from lab.doctor.config import Config, of
from lab.doctor.engines import Differs, differences
from lab.doctor.entries import Entry, entries
from lab.doctor.finding import LEVELS, Finding
from lab.doctor.lanes import Lanes, lanes_of
from lab.doctor.read import Source, read

OF_CONFIG = (*lint_form.OF_CONFIG, *lint_readers.OF_CONFIG, *lint_model.OF_CONFIG, *lint_layers.OF_CONFIG)
OF_ENTRY = (
    *lint_form.OF_ENTRY,
    *lint_values.OF_ENTRY,
    *lint_model.OF_ENTRY,
    *lint_factor.OF_ENTRY,
    *lint_yarn.OF_ENTRY,
    *lint_longrope.OF_ENTRY,
)


@dataclass(frozen=True)
class Report:
    source: Source
    config: Config
    entries: list[Entry]  # one for each type of layer that has a RoPE of its own; none: the model has no RoPE
    lanes: list[Lanes | str]  # of each entry, or why there are none
    findings: list[Finding]  # errors first
    differences: list[Differs]

    @property
    def failed(self) -> bool:
        return any(one.level == "error" for one in self.findings)


def examine(name: str) -> Report:
    """All that is said of a model. Raises LabError where it cannot be read."""
    source = read(name)
    config = of(source.raw, source.names)
    found = entries(config) if config.encodes is None else []
    return Report(
        source,
        config,
        found,
        [lanes_of(entry) for entry in found],
        findings(source, config, found),
        differences(config, found),
    )


def findings(source: Source, config: Config, found: list[Entry]) -> list[Finding]:
    """Of every lint, each once, errors first and otherwise in the order of the lints."""
    every = [one for lint in OF_CONFIG for one in lint(config)]
    every += [one for entry in found if not entry.off for lint in OF_ENTRY for one in lint(entry)]
    every = [replace(one, field=config.path(one.field)) for one in every] + list(source.findings)
    return sorted(dict.fromkeys(every), key=lambda one: LEVELS.index(one.level))
