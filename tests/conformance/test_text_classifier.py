"""scikit-learn's own checks on the count-matrix form of `TextClassifier`."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from whichtoken import TextClassifier

ORDER = (
    "documents are shuffled into mini-batches, so weights and repetitions are equal in expectation, not in every number"
)
SIGN = "feeds negative numbers to every estimator, whatever its tags say; no token occurs less than 0 times"


def expected_failures(_):
    return {
        "check_sample_weight_equivalence_on_dense_data": ORDER,
        "check_sample_weight_equivalence_on_sparse_data": ORDER,
        "check_class_weight_classifiers": SIGN,
        "check_decision_proba_consistency": SIGN,
    }


@pytest.mark.filterwarnings("ignore:Estimator's parameters:FutureWarning")
@parametrize_with_checks([TextClassifier(C=1.0, random_state=0)], expected_failed_checks=expected_failures)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)
