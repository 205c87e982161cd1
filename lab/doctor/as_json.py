"""A report as JSON, with every number in it."""

import json
import math
from dataclasses import asdict
from typing import Any

from lab.doctor import Report
from lab.doctor.engines import VERSIONS
from lab.doctor.entries import Entry
from lab.doctor.finding import LEVELS
from lab.doctor.lanes import Lanes


def as_json(report: Report) -> str:
    """One line that any JSON reader takes: a lane that stands still has the wavelength null."""
    config = report.config
    made = {
        "model": report.source.name,
        "file": report.source.where,
        "family": config.family,
        "position": "RoPE" if config.encodes is None else config.encodes,
        "longest": config.longest,
        "head_dim": config.head,
        "findings": [asdict(one) for one in report.findings],
        "counts": {level: sum(one.level == level for one in report.findings) for level in LEVELS},
        "ropes": [of_entry(*pair) for pair in zip(report.entries, report.lanes, strict=True)],
        "differences": [asdict(one) for one in report.differences],
        "versions": VERSIONS,
    }
    return json.dumps(finite(made), ensure_ascii=False, allow_nan=False)


def of_entry(entry: Entry, lanes: Lanes | str) -> dict[str, Any]:
    said = {
        "layers": entry.layers,
        "type": None if entry.off else entry.type,
        "written_as": entry.name,
        "base": entry.base,
        "factor": entry.factor,
        "fields": entry.given,
    }
    if isinstance(lanes, str):
        return said | {"lanes": None, "why": "these layers have no RoPE" if entry.off else lanes}
    return said | {
        "trained": lanes.trained,
        "target": lanes.target,
        "channels": lanes.channels,
        "critical_dimension": lanes.critical,
        "gain": lanes.gain,
        "scores_times": lanes.gain**2,
        "ramp": lanes.ramp,
        "kinds": lanes.kinds,
        "bf16_radians": lanes.rounding,
        "lanes": {"plain": lanes.plain, "up_to_trained": lanes.short, "at_target": lanes.long},
    }


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
