from . import app as app
from . import attention as attention
from . import datasets as datasets
from . import estimators as estimators
from . import flows as flows
from . import inspection as inspection
from . import lab as lab
from . import margin as margin
from . import optim as optim
from . import theory as theory
from .estimators import AttentionRegressor as AttentionRegressor
from .estimators import BagClassifier as BagClassifier
from .estimators import GroupClassifier as GroupClassifier
from .estimators import TextClassifier as TextClassifier

__version__: str
