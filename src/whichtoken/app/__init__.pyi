from .displays import GroupCurveDisplay as GroupCurveDisplay
from .displays import GroupPathDisplay as GroupPathDisplay
from .displays import LearningCurvePlanDisplay as LearningCurvePlanDisplay
from .pages.html import write_report as write_report
