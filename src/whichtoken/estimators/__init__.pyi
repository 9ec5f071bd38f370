from ._explanation import Explanation as Explanation
from .bags.classifier import BagClassifier as BagClassifier
from .bags.planning import plan_study as plan_study
from .groups.classifier import GroupClassifier as GroupClassifier
from .groups.significance import group_tests as group_tests
from .model_folder import load_estimator as load_estimator
from .regression import AttentionRegressor as AttentionRegressor
from .text.classifier import TextClassifier as TextClassifier
