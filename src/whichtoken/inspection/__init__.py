"""Looking into a transformer: which token each head picks, how surely, and does it matter. Loaded when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichtoken.lazy import on_demand

if TYPE_CHECKING:
    from whichtoken.inspection.adapters import Adapter, Heads
    from whichtoken.inspection.attribution import token_shares
    from whichtoken.inspection.confidence import PickConfidence
    from whichtoken.inspection.direct import direct_contributions
    from whichtoken.inspection.effects import PickEffects, pick_effects
    from whichtoken.inspection.fine_tuning import fine_tune
    from whichtoken.inspection.head_report import HeadReport, head_reports
    from whichtoken.inspection.inspecting import Inspection, inspect
    from whichtoken.inspection.loading import load_tokenizer, load_transformer
    from whichtoken.inspection.monitor import AttentionMonitor
    from whichtoken.inspection.packaged import packaged_model
    from whichtoken.inspection.picks import Picks
    from whichtoken.inspection.probe import AttentionProbe
    from whichtoken.inspection.stability import PickStability, pick_stability

_HOME = {
    "Adapter": "adapters",
    "AttentionMonitor": "monitor",
    "AttentionProbe": "probe",
    "HeadReport": "head_report",
    "Heads": "adapters",
    "Inspection": "inspecting",
    "PickConfidence": "confidence",
    "PickEffects": "effects",
    "PickStability": "stability",
    "Picks": "picks",
    "direct_contributions": "direct",
    "fine_tune": "fine_tuning",
    "head_reports": "head_report",
    "inspect": "inspecting",
    "load_transformer": "loading",
    "load_tokenizer": "loading",
    "packaged_model": "packaged",
    "pick_effects": "effects",
    "pick_stability": "stability",
    "token_shares": "attribution",
}

__all__ = [
    "Adapter",
    "AttentionMonitor",
    "AttentionProbe",
    "HeadReport",
    "Heads",
    "Inspection",
    "PickConfidence",
    "PickEffects",
    "PickStability",
    "Picks",
    "direct_contributions",
    "fine_tune",
    "head_reports",
    "inspect",
    "load_tokenizer",
    "load_transformer",
    "packaged_model",
    "pick_effects",
    "pick_stability",
    "token_shares",
]

__getattr__, __dir__ = on_demand(__name__, _HOME)
