from .displays import GroupCurveDisplay as GroupCurveDisplay
from .displays import GroupPathDisplay as GroupPathDisplay
from .pages.html import write_report as write_report
