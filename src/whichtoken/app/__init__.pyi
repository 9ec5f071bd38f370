from .displays import AttentionDisplay as AttentionDisplay
from .displays import ImportanceDisplay as ImportanceDisplay
from .displays import LearningCurvePlanDisplay as LearningCurvePlanDisplay
from .displays import MarginDisplay as MarginDisplay
from .displays import ProbabilityDisplay as ProbabilityDisplay
from .displays import TrajectoryDisplay as TrajectoryDisplay
from .pages.html import write_report as write_report
