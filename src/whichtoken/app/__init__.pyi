from .displays import GroupCurveDisplay as GroupCurveDisplay
from .displays import GroupPathDisplay as GroupPathDisplay
from .notebook import explainer_widget as explainer_widget
from .pages.html import write_report as write_report
